#include "race/compute.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "race/patterns.h"

namespace faultline::race {
namespace {

constexpr double kNormEpsilon = 1e-5;

at::Tensor known(const Config& config, uint64_t seed, at::Device device, Stream stream, int64_t number,
                 at::IntArrayRef shape) {
  at::Tensor made = at::empty(shape, at::TensorOptions().dtype(config.dtype).device(device));
  fill(made, element_pattern(numeric::PatternForm::kFinite, config.dtype, {seed, 0, number, 0, stream}));
  return made;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + kNormEpsilon)).to(x.scalar_type()) * scale;
}

}  // namespace

Compute::Compute(const Config& config, uint64_t seed, at::Device device)
    : config_(config), seed_(seed), device_(device) {
  const int64_t sets = config.shared_layer_weights ? 1 : config.layers();
  const int64_t d = config.compute_type == ComputeType::kGemm ? config.gemm_size : config.model_dim,
                f = config.ffn_size;
  for (int64_t set = 0; set < sets; ++set) {
    const auto matrix = [&](int64_t part, at::IntArrayRef shape) {
      return known(config_, seed_, device_, Stream::kWeights, set * 8 + part, shape)
          .mul_(1 / std::sqrt(static_cast<double>(shape[0])));
    };
    LayerWeights& w = weights_.emplace_back();
    w.out = matrix(0, {d, d});
    if (config.compute_type != ComputeType::kTransformer) continue;
    w.norm1 = at::ones({d}, w.out.options());
    w.norm2 = at::ones({d}, w.out.options());
    w.qkv = matrix(1, {d, 3 * d});
    w.up = matrix(2, {d, f});
    w.down = matrix(3, {f, d});
  }
}

const LayerWeights& Compute::weights(int64_t layer) const {
  return weights_[config_.shared_layer_weights ? 0 : static_cast<size_t>(layer)];
}

at::Tensor Compute::make_input(int64_t layer) const {
  const std::vector<int64_t> shape = config_.compute_type == ComputeType::kGemm
                                         ? std::vector<int64_t>{config_.gemm_size, config_.gemm_size}
                                         : std::vector<int64_t>{config_.batch_size, config_.seq_len, config_.model_dim};
  return known(config_, seed_, device_, Stream::kReference, config_.shared_layer_weights ? 0 : layer, shape);
}

void Compute::refill_input(const at::Tensor& input, int64_t layer) const {
  fill(input, element_pattern(numeric::PatternForm::kFinite, config_.dtype,
                              {seed_, 0, config_.shared_layer_weights ? 0 : layer, 0, Stream::kReference}));
}

at::Tensor Compute::projection(const LayerWeights& w, const at::Tensor& gathered) const {
  if (!config_.consume_gathered) return w.out;
  const int64_t d = w.out.size(0);
  return gathered.narrow(0, 0, d * d).view({d, d}) * (1 / std::sqrt(static_cast<double>(d)));
}

at::Tensor Compute::block(const at::Tensor& input, const LayerWeights& w, const at::Tensor& projection) const {
  const int64_t b = input.size(0), t = input.size(1), d = input.size(2), heads = config_.num_heads, h = d / heads;
  const at::Tensor qkv = at::matmul(rms_norm(input, w.norm1), w.qkv).view({b, t, 3, heads, h}).permute({2, 0, 3, 1, 4});
  const at::Tensor q = qkv.select(0, 0), k = qkv.select(0, 1), v = qkv.select(0, 2);  // (B, H, T, h)
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).to(at::kFloat) * (1 / std::sqrt(static_cast<double>(h)));
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1).to(input.scalar_type()), v);
  const at::Tensor x = input + at::matmul(mixed.transpose(1, 2).reshape({b, t, d}), projection);
  return x + at::matmul(at::gelu(at::matmul(rms_norm(x, w.norm2), w.up)), w.down);
}

at::Tensor Compute::forward(const at::Tensor& input, int64_t layer, const at::Tensor& gathered) const {
  const LayerWeights& w = weights(layer);
  const at::Tensor matrix = projection(w, gathered);
  switch (config_.compute_type) {
    case ComputeType::kGemm: return at::matmul(input, matrix);
    case ComputeType::kTransformerGemm: return at::gelu(at::matmul(input, matrix));
    default: return block(input, w, matrix);
  }
}

at::Tensor Compute::backward(const at::Tensor& input, int64_t layer, const at::Tensor& gathered) const {
  const c10::AutoGradMode enabled(true);
  const at::Tensor leaf = input.detach().requires_grad_(true);
  const at::Tensor output = forward(leaf, layer, gathered);
  return torch::autograd::grad({output}, {leaf}, {at::ones_like(output)})[0];
}

}  // namespace faultline::race
