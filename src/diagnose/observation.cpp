#include "diagnose/observation.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tap/plan.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kSamples = 6;
constexpr double kBins[] = {1e-6, 1e-4, 0.001, 0.01, 0.03, 0.1, 0.3, 0.7, 0.9, 1};  // upper ends

at::Tensor violations_of(const Observation& observation) {
  const at::Tensor& observed = observation.observed;
  const at::Tensor both_nan = observed.isnan().logical_and(observation.expected.isnan());  // it came in broken
  if (!observation.tolerance.defined())
    return observed.ne(observation.expected.to(observed.scalar_type())).logical_and(both_nan.logical_not());
  const at::Tensor wide = observed.to(observation.expected.scalar_type());
  const at::Tensor near = (wide - observation.expected).abs().le(observation.tolerance);
  return near.logical_or(wide.eq(observation.expected)).logical_or(both_nan).logical_not();
}

void add_samples(const Observation& observation, const at::Tensor& where, Evidence& evidence) {
  const at::Tensor index = where.nonzero().to(at::kCPU);  // (violations, 2)
  const int64_t step = std::max<int64_t>(1, index.size(0) / kSamples);
  for (int64_t i = 0; i < index.size(0) && std::ssize(evidence.samples) < kSamples; i += step) {
    const int64_t row = index[i][0].item<int64_t>(), column = index[i][1].item<int64_t>();
    evidence.samples.push_back({row, column, observation.expected[row][column].to(at::kDouble).item<double>(),
                                observation.observed[row][column].to(at::kDouble).item<double>()});
  }
}

double median_or_nan(const at::Tensor& values) {
  return values.numel() == 0 ? std::nan("") : values.median().item<double>();
}

void add_picture(const Observation& observation, const at::Tensor& where, const Judged& judged, Evidence& evidence) {
  const auto cut = [&](const at::Tensor& x) { return x.narrow(1, judged.first, judged.size).to(at::kCPU); };
  const at::Tensor wrong = cut(where);
  const at::Tensor columns = wrong.any(0).nonzero().reshape(-1);
  const at::Tensor expected = cut(observation.expected).to(at::kDouble);
  const at::Tensor size = expected.abs() / expected.abs().amax(1, true).clamp_min(1e-300);
  const auto taken = [&](const at::Tensor& x) { return x.index_select(1, columns); };
  const at::Tensor e = taken(expected), o = taken(cut(observation.observed).to(at::kDouble)), w = taken(wrong);
  const at::Tensor s = taken(size);
  double from = 0;
  for (const double to : kBins) {
    const at::Tensor here = s.ge(from).logical_and(to < 1 ? s.lt(to) : s.le(1));
    const at::Tensor bad = here.logical_and(w).logical_and(o.isfinite());
    const at::Tensor expected_there = e.masked_select(bad), observed_there = o.masked_select(bad);
    Evidence::Bin bin{from, to, here.sum().item<int64_t>(), here.logical_and(w).sum().item<int64_t>(), 0, 0};
    bin.ratio = median_or_nan((observed_there / expected_there).nan_to_num(0, 0, 0));
    bin.residual = median_or_nan(observed_there - expected_there);
    if (bin.elements > 0) evidence.picture.push_back(bin);
    from = to;
  }
}

double worst_ratio(const Observation& observation, const at::Tensor& where) {
  if (!observation.tolerance.defined()) return std::numeric_limits<double>::infinity();
  const at::Tensor error =
      (observation.observed.to(at::kDouble) - observation.expected.to(at::kDouble)).abs().masked_select(where);
  const at::Tensor ratio = error / observation.tolerance.to(at::kDouble).masked_select(where);
  return ratio.isfinite().all().item<bool>() ? ratio.max().item<double>() : std::numeric_limits<double>::infinity();
}

}  // namespace

int mantissa_bits(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 7 : dtype == at::kHalf ? 10 : dtype == at::kFloat ? 23 : 52;
}

at::Tensor flat(const at::Tensor& x) { return x.dim() == 0 ? x.reshape({1, 1}) : x.reshape({-1, x.size(-1)}); }

at::Tensor half_ulp(const at::Tensor& y, at::ScalarType dtype) {
  const int least = dtype == at::kHalf ? -14 : dtype == at::kDouble ? -1022 : -126;
  constexpr int64_t exponent_bits = 0x7ff0000000000000;  // alone they are the power of two below |y|
  const at::Tensor power = y.to(at::kDouble).view(at::kLong).bitwise_and(exponent_bits).view(at::kDouble);
  return power.clamp_min(std::ldexp(1.0, least)) * std::ldexp(1.0, -mantissa_bits(dtype) - 1);
}

std::vector<Glance> glance(std::span<const Observation> observations) {
  struct Question {
    std::size_t observation;
    bool is_count;  // of untested elements; else whether all is as it should be
  };
  std::vector<at::Tensor> answers;
  std::vector<Question> questions;
  const auto ask = [&](std::size_t i, const at::Tensor& answer, bool is_count) {
    answers.push_back(is_count ? answer : answer.all().to(at::kLong)), questions.push_back({i, is_count});
  };
  for (std::size_t i = 0; i < observations.size(); ++i) {
    const Observation& one = observations[i];
    if (one.tolerance.defined())
      ask(i, (one.observed - one.expected).abs().le(one.tolerance), false);
    else
      ask(i, one.observed.eq(one.expected.to(one.observed.scalar_type())), false);
    for (const at::Tensor& again : one.repetitions) ask(i, again.eq(one.observed), false);
    if (one.untested.defined()) ask(i, one.untested, true);
  }
  std::vector<Glance> seen(observations.size());
  if (answers.empty()) return seen;
  const at::Tensor numbers = at::stack(answers).to(at::kCPU);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const int64_t number = numbers.const_data_ptr<int64_t>()[i];
    Glance& one = seen[questions[i].observation];
    if (questions[i].is_count)
      one.untested = number;
    else
      one.suspect |= number == 0;
  }
  return seen;
}

std::optional<Judged> judge(const Observation& observation) {
  const at::Tensor where = violations_of(observation);
  const int64_t count = where.sum().item<int64_t>();
  if (count == 0) return std::nullopt;
  Judged judged;
  judged.place = observation.place;
  judged.size = observation.observed.size(1);
  int64_t first = 0;
  for (const model::Linear::Part& part : observation.parts) {
    if (where.narrow(1, first, part.size).sum().item<int64_t>() == count)
      judged.place = part.place, judged.first = first, judged.size = part.size;
    first += part.size;
  }
  Evidence& evidence = judged.evidence;
  evidence.relation = observation.relation;
  evidence.place = site::place_of(judged.place).path;
  evidence.elements = where.numel() - (observation.untested.defined() ? observation.untested.item<int64_t>() : 0);
  evidence.violations = count;
  evidence.ratio = worst_ratio(observation, where);
  add_samples(observation, where, evidence);
  add_picture(observation, where, judged, evidence);
  return judged;
}

PlanPause::PlanPause() {
  const auto plan = tap::active_plan();
  if (!plan || !plan->armed()) return;
  plan->set_armed(false);
  was_armed_ = true;
}

PlanPause::~PlanPause() {
  if (!was_armed_) return;
  if (const auto plan = tap::active_plan()) plan->set_armed(true);
}

}  // namespace faultline::diagnose
