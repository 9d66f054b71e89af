#include "diagnose/known_answers.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "base/text.h"
#include "diagnose/observation.h"
#include "diagnose/range.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kOneHots = 16, kSignRows = 2, kMostLevelRows = 192, kPatternRows = 12, kSolvedAtOnce = 64;
constexpr int64_t kOutputsAtOnce = 1 << 14;
constexpr double kAccumulator = 0x1p-24;

at::Generator generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor random_signs(at::IntArrayRef sizes, at::Generator& random, const at::TensorOptions& options) {
  return (at::randint(0, 2, sizes, random, at::kLong).to(options) * 2 - 1);
}

// (R, K): 2^k at one index each; k is not negative, or small weights of fp16 would lose bits below its normal range.
at::Tensor one_hot_rows(int64_t inputs, at::Generator& random, const at::TensorOptions& options) {
  const int64_t rows = std::min(kOneHots, inputs);
  const at::Tensor index = at::randperm(inputs, random, at::kLong).narrow(0, 0, rows).to(options.device());
  const at::Tensor value = at::exp2(at::randint(0, 5, {rows, 1}, random, at::kLong).to(options));
  return at::zeros({rows, inputs}, options).scatter(1, index.unsqueeze(1), value);
}

// (R, K): each output is among the largest of one row.
at::Tensor level_rows(const at::Tensor& weight, at::Generator& random) {
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const int64_t group = std::clamp<int64_t>(inputs / 16, 1, outputs);
  const int64_t rows = std::min((outputs + group - 1) / group, kMostLevelRows);
  const at::Tensor order = at::randperm(outputs, random, at::kLong).to(weight.device());
  std::vector<at::Tensor> all;
  for (int64_t first = 0; first < rows; first += kSolvedAtOnce) {
    const int64_t count = std::min(kSolvedAtOnce, rows - first);
    // (count * G): groups one after the other, the last one moved back to where it is whole
    const at::Tensor start = ((at::arange(count, at::kLong) + first) * group).clamp_max(outputs - group);
    const at::Tensor index = (start.unsqueeze(1) + at::arange(group, at::kLong)).flatten().to(weight.device());
    const at::Tensor chosen = weight.index_select(0, order.index_select(0, index)).reshape({count, group, inputs});
    at::Tensor gram = chosen.bmm(chosen.transpose(1, 2));  // (count, G, G)
    const at::Tensor ridge = 1e-6 * gram.diagonal(0, 1, 2).mean(1) + 1e-30;
    gram = gram + at::eye(group, gram.options()) * ridge.reshape({-1, 1, 1});
    const at::Tensor wanted = random_signs({count, group, 1}, random, gram.options());
    const at::Tensor x = at::linalg_solve(gram, wanted).transpose(1, 2).bmm(chosen).squeeze(1);  // (count, K)
    all.push_back(x / x.square().mean(1, true).sqrt().clamp_min(1e-30));
  }
  return at::cat(all, 0);
}

// x times the weight, and the norms of the weight's rows, some rows at a time: a head in fp64 is large.
std::pair<at::Tensor, at::Tensor> exact_product(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<at::Tensor> products, norms;
  for (const at::Tensor& part : weight.split(kOutputsAtOnce)) {
    const at::Tensor wide = part.to(x.device()).to(at::kDouble);
    products.push_back(x.mm(wide.t())), norms.push_back(wide.norm(2, 1));
  }
  return {at::cat(products, 1), at::cat(norms)};
}

}  // namespace

at::Tensor patterns(int64_t columns, double octaves, uint64_t seed) {
  at::Generator random = generator(mix64(seed, static_cast<uint64_t>(columns)));
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor sign = at::randint(0, 2, {kPatternRows, columns}, random, options) * 2 - 1;
  const at::Tensor uniform = at::rand({kPatternRows, columns}, random, options);
  const at::Tensor is_level = at::arange(kPatternRows, options).lt(kPatternRows / 2).unsqueeze(1);
  return sign * at::where(is_level, 1 + uniform / 64, at::exp2(-octaves * uniform));
}

ProductBound product_bound(const at::Tensor& x, const at::Tensor& weight_norms, const at::Tensor& exact,
                           at::ScalarType dtype, const at::Device& device) {
  // Needed on CPUs: 0.065 (bf16), 0.46 (fp32); tensor cores truncate where fp32 units round.
  const double c = device.is_cuda() ? 4 : dtype == at::kFloat ? 2 : 1;
  const double root = std::sqrt(static_cast<double>(x.size(-1)));
  const at::Tensor size = x.norm(2, -1).unsqueeze(-1), weights = weight_norms.unsqueeze(-2), sizes = size * weights;
  // bf16 instructions take subnormal factors and sums for zero: each costs at most the other factor's share of that.
  const at::Tensor flushed = (size + weights + root) * (root * kFlushed);
  return {half_ulp(exact, dtype) + sizes * (c * root * kAccumulator) + flushed, sizes};
}

KnownAnswers known_answers(const model::Linear& linear, uint64_t seed, const at::Device& reference, bool levels) {
  const at::ScalarType dtype = linear.weight.scalar_type();
  const at::Device device = linear.weight.device();
  at::Generator random = generator(seed);
  const auto options = at::TensorOptions(at::kDouble).device(reference);
  const int64_t inputs = linear.weight.size(1);
  const at::Tensor hot = one_hot_rows(inputs, random, options);
  const at::Tensor sign = random_signs({kSignRows, inputs}, random, options);
  std::vector<at::Tensor> rows = {hot};
  if (levels) rows.push_back(level_rows(linear.weight.to(reference).to(at::kDouble), random));
  rows.push_back(sign);
  const at::Tensor x = at::cat(rows, 0).to(dtype), exact_x = x.to(at::kDouble);
  auto [exact, norms] = exact_product(exact_x, linear.weight);
  if (linear.bias.defined()) exact = exact + linear.bias.to(reference).to(at::kDouble);
  at::Tensor tolerance = product_bound(exact_x, norms, exact, dtype, device).tolerance;
  if (!linear.bias.defined()) tolerance.narrow(0, 0, hot.size(0)).zero_();
  const at::ScalarType wide = dtype == at::kFloat ? at::kDouble : at::kFloat;
  return {x.to(device), exact.to(wide).to(device),
          (tolerance * (wide == at::kFloat ? 1.000001 : 1)).to(wide).to(device)};
}

// Levels in the output: where its weight is small the input is large. A norm's weight is wider than what it works on.
KnownAnswers known_answers(const model::Norm& norm, uint64_t seed, const at::Device& reference, at::ScalarType dtype) {
  const at::Tensor weight = norm.weight.to(reference).to(at::kDouble);
  const at::Tensor level = 1 / weight.abs().clamp_min(1e-2 * weight.abs().mean() + 1e-30);
  at::Tensor x = patterns(weight.numel(), 8, seed).to(reference);
  x.narrow(0, 0, kPatternRows / 2).mul_(level / level.mean());
  x = x.to(dtype);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor exact = wide * weight / (wide.square().mean(-1, true) + norm.epsilon).sqrt();
  const at::Tensor tolerance = half_ulp(exact, dtype) + exact.abs() * kFunctionError;
  const at::Device device = norm.weight.device();
  return {x.to(device), exact.to(device), tolerance.to(device)};
}

std::vector<const model::Norm*> norms_of(const model::Layer& layer) {
  std::vector<const model::Norm*> all;
  for (const model::Norm* norm :
       {&layer.input_norm, &layer.post_attention_norm, &layer.attention.query_norm, &layer.attention.key_norm})
    if (norm->weight.defined()) all.push_back(norm);
  return all;
}

std::vector<const model::Linear*> linears_of(const model::Layer& layer) {
  std::vector<const model::Linear*> all = {&layer.attention.qkv, &layer.attention.output};
  const auto add = [&](const model::Mlp& mlp) {
    for (const model::Linear* linear : {&mlp.gate_up, &mlp.down})
      if (linear->weight.defined()) all.push_back(linear);
  };
  if (const auto* mlp = std::get_if<model::Mlp>(&layer.mlp)) {
    add(*mlp);
    return all;
  }
  const model::Moe& moe = std::get<model::Moe>(layer.mlp);
  all.push_back(&moe.router);
  for (const model::Mlp& expert : moe.experts) add(expert);
  add(moe.shared);
  if (moe.shared_gate.weight.defined()) all.push_back(&moe.shared_gate);
  return all;
}

std::map<site::PlaceId, KnownAnswers> known_answers(const model::CausalLm& model, uint64_t seed,
                                                    const at::Device& reference,
                                                    const std::function<void(double)>& progress) {
  const at::NoGradGuard no_gradients;
  std::map<site::PlaceId, KnownAnswers> answers;
  const at::ScalarType dtype = model.options().dtype().toScalarType();
  const auto add = [&](const auto& one, auto... further) {
    if (one.weight.isfinite().all().template item<bool>())
      answers[one.place] =
          known_answers(one, mix64(seed, hash64(site::place_of(one.place).path)), reference, further...);
  };
  double done = 0;
  add(model.final_norm(), dtype);
  add(model.head_linear(), /*levels=*/false);
  for (const model::Layer& layer : model.layers()) {
    for (const model::Linear* linear : linears_of(layer)) add(*linear);
    for (const model::Norm* norm : norms_of(layer)) add(*norm, dtype);
    if (progress) progress(++done / static_cast<double>(model.layers().size()));
  }
  return answers;
}

}  // namespace faultline::diagnose
