#include "screen/sentinel.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"
#include "numeric/apply.h"
#include "numeric/versions.h"
#include "screen/machine.h"
#include "screen/nvml.h"
#include "screen/record.h"

namespace faultline::screen {
namespace {

constexpr int64_t kUnread = std::numeric_limits<int64_t>::min();  // no digest: those are below 2^61
constexpr std::size_t kMostOut = 4, kMostLinearFailures = 8;
constexpr uint64_t kSentinelCanaryEvery = 8;
constexpr int64_t kRows = 64;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Sentinel::Sentinel(const SentinelOptions& options) : options_(options) {
  const c10::DeviceGuard guard(options_.device);
  const at::NoGradGuard no_gradients;
  const ExactSums exact;
  list_ = work_list({.device = options_.device, .load = Load::kAll, .seed = options_.seed, .large = options_.large});
  // Copies would hold a stream up for long, and their buffers a lot of memory. TF32 is the user's to switch.
  std::erase_if(list_.checks, [](const auto& check) { return check->group == Group::kCopy || check->dtype == "tf32"; });
  if (list_.checks.empty()) throw RuntimeFailure("sentinel: this device can do none of the checks");
  result_.spent.resize(list_.checks.size());
  for (const auto& check : list_.checks) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2; ++i) (void)digest_now(check->run({}));
    cost_.push_back(seconds_since(start) / 2);
  }
  start_ = std::chrono::steady_clock::now();
}

bool Sentinel::allowed(double cost) const { return spent_ + cost <= options_.share * seconds_since(start_); }

bool Sentinel::step() {
  const c10::DeviceGuard guard(options_.device);
  const at::NoGradGuard no_gradients;
  const ExactSums exact;  // for the moment of these calls: the user's own switches stand again afterwards
  ++steps_;
  judge_home(false);
  if (out_.size() >= kMostOut || !allowed(cost_[next_])) return false;
  Out out;
  out.check = next_;
  Check& check = *list_.checks[next_];
  spent_ += cost_[next_];
  next_ = (next_ + 1) % list_.checks.size();
  const uint64_t word = mix64(options_.seed ^ 0x73656E74, ++canaries_);
  Disturb disturb;
  if (canaries_ == 1 || word % kSentinelCanaryEvery == 0)
    disturb = [&](const at::Tensor& result) {
      const at::Tensor bits = bits_of(result).view(-1);
      out.canary = bits.narrow(0, static_cast<int64_t>((word >> 8) % static_cast<uint64_t>(bits.numel())), 1);
      out.mask = one_bit(result.element_size(), static_cast<int>((word >> 40) % 15));
      out.canary.bitwise_xor_(out.mask);
    };
  out.launched.result = check.run(disturb);
  out.launched.turn = check.turn;
  out.home = at::full({1}, kUnread, at::TensorOptions(at::kLong).pinned_memory(pinned()));
  out.home.copy_(numeric::digest(out.launched.result).view({1}), /*non_blocking=*/true);
  out_.push_back(std::move(out));
  return true;
}

void Sentinel::judge_home(bool wait) {
  while (!out_.empty()) {
    Out& out = out_.front();
    volatile const int64_t* home = out.home.const_data_ptr<int64_t>();
    if (wait && *home == kUnread) (void)out.launched.result.view(-1).narrow(0, 0, 1).cpu();  // behind it on the stream
    if (*home == kUnread) break;
    Check& check = *list_.checks[out.check];
    Spent& spent = result_.spent[out.check];
    out.launched.digest = *home;
    const bool right = *home == check.digests[static_cast<std::size_t>(out.launched.turn) % check.digests.size()];
    if (out.canary.defined()) {
      ++spent.canaries;
      if (right)
        result_.missed_canaries.push_back(fmt::format("{}: a flipped bit was not seen", check.name));
      else
        ++spent.seen;
    } else {
      if (!right) {
        ++spent.wrong;
        if (result_.failures.size() < kMostLinearFailures) {
          Failure failure = examine(check, out.launched, {});  // a fault was found: now waiting is worth it
          failure.launch = spent.launches, failure.when = "beside other work";
          result_.failures.push_back(std::move(failure));
        } else {
          ++result_.failures_not_examined;
        }
      }
      ++spent.launches;
    }
    out_.pop_front();
  }
  while (!linears_out_.empty()) {
    LinearOut& out = linears_out_.front();
    volatile const int64_t* home = out.home.const_data_ptr<int64_t>();
    if (*home == kUnread) break;
    ++linear_launches_, linear_elements_ += out.elements;
    if (*home != 0) {
      ++linear_wrong_;
      if (linear_failures_.size() < kMostLinearFailures)
        linear_failures_.push_back(
            {{"module", out.name}, {"wrong_elements", static_cast<int64_t>(*home)}, {"elements", out.elements}});
    }
    linears_out_.pop_front();
  }
}

at::Tensor Sentinel::linear_question(const std::string& name, const at::Tensor& weight) {
  if (weight.dim() != 2 || !weight.is_floating_point() || weight.element_size() > 4 ||
      weight.device() != options_.device)
    throw UsageError(fmt::format("sentinel: {}: wanted a weight of two dimensions in bf16, fp16 or fp32 on {}", name,
                                 options_.device.str()));
  if (!allowed(linear_cost_)) return {};
  const c10::DeviceGuard guard(options_.device);
  const at::NoGradGuard no_gradients;
  const int64_t inputs = weight.size(1), rows = std::min(kRows, inputs);
  const uint64_t word = mix64(options_.seed ^ 0x6C696E, ++steps_);
  const auto first = static_cast<int64_t>(word % static_cast<uint64_t>(inputs));
  const double power = std::ldexp(1.0, static_cast<int>(word >> 56 & 3) - 1);
  const at::Tensor chosen =
      (at::arange(rows, weight.options().dtype(at::kLong)) * (inputs / rows) + first).remainder(inputs);
  at::Tensor x = at::zeros({rows, inputs}, weight.options());
  x.scatter_(1, chosen.unsqueeze(1), power);
  asked_ = Linear{name, weight.detach().index_select(1, chosen).t() * power};
  return x;
}

void Sentinel::linear_answer(const at::Tensor& output) {
  if (!asked_) throw UsageError("sentinel: an answer to no question");
  const c10::DeviceGuard guard(options_.device);
  const at::NoGradGuard no_gradients;
  const Linear asked = *std::exchange(asked_, std::nullopt);
  const at::Tensor given = output.detach().reshape({-1, asked.expected.size(1)});
  if (given.sizes() != asked.expected.sizes() || given.scalar_type() != asked.expected.scalar_type())
    throw UsageError(fmt::format("sentinel: {} answered with another shape or type than its weight has", asked.name));
  // Not finite, or below the normal numbers: what may be flushed to zero is no fault.
  const at::Tensor size = asked.expected.abs();
  const at::Tensor judged = at::isfinite(size).logical_and(size.ge(std::ldexp(1.0, -13)));
  const at::Tensor wrong = given.ne(asked.expected).logical_and(judged).sum().view({1});
  LinearOut out{asked.name, at::full({1}, kUnread, at::TensorOptions(at::kLong).pinned_memory(pinned())),
                given.numel()};
  out.home.copy_(wrong, /*non_blocking=*/true);
  linears_out_.push_back(std::move(out));
  spent_ += linear_cost_;
}

Json Sentinel::verdict() {
  const c10::DeviceGuard guard(options_.device);
  const at::NoGradGuard no_gradients;
  const ExactSums exact;
  if (!linears_out_.empty() || !out_.empty()) {
    judge_home(true);
    if (!linears_out_.empty()) {
      (void)at::zeros({1}, at::TensorOptions(options_.device)).cpu();
      judge_home(true);
    }
  }
  Json record = {{"kind", "screen"},      {"device", options_.device.str()}, {"load", "sentinel"},
                 {"seed", options_.seed}, {"versions", numeric::versions()}, {"memory_share", 0.0}};
  record["identity"] = options_.device.is_cuda() ? cuda_device_names(options_.device.index()) : cpu_identity();
  record["identity"]["host"] = host_name();
  record["id"] = options_.device.is_cuda() ? record["identity"]["uuid"] : Json("cpu-" + host_name());
  record["weather"] = {{"before", Json::object()}, {"after", Json::object()}};
  std::vector<Part> parts(1);
  parts[0].name = "beside other work", parts[0].list = &list_, parts[0].result = result_;
  add_parts(record, parts);
  const double elapsed = seconds_since(start_);
  record["seconds"] = elapsed, record["steps"] = steps_;
  record["share"] = {{"allowed", options_.share}, {"estimated", elapsed > 0 ? spent_ / elapsed : 0.0}};
  record["linears"] = {{"launches", linear_launches_},
                       {"wrong", linear_wrong_},
                       {"elements", linear_elements_},
                       {"at_most_one_in", at_most_one_in(linear_wrong_, linear_launches_)},
                       {"failures", linear_failures_}};
  judge(record);
  return record;
}

}  // namespace faultline::screen
