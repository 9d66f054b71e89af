// The computation of a layer: a fixed sequence of kernels on fixed input, so that its bits are known to be equal on all
// ranks, in all iterations and, where weights are shared, in all layers. `transformer` is a pre-norm block with
// attention written out (softmax in fp32), `gemm` one square product, `transformer_gemm` a product and a GELU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "race/config.h"

namespace faultline::race {

struct LayerWeights {
  at::Tensor norm1, qkv, out, norm2, up, down;  // (D) (D, 3D) (D, D) (D) (D, F) (F, D); gemm: only `out`
};

class Compute {
 public:
  Compute(const Config& config, uint64_t seed, at::Device device);

  at::Tensor make_input(int64_t layer) const;  // (B, T, D) or (N, N); the same on every rank
  void refill_input(const at::Tensor& input, int64_t layer) const;
  // `gathered` replaces the output projection where the configuration consumes it; else it may be undefined.
  at::Tensor forward(const at::Tensor& input, int64_t layer, const at::Tensor& gathered) const;
  // The gradient of the input, by autograd.
  at::Tensor backward(const at::Tensor& input, int64_t layer, const at::Tensor& gathered) const;

 private:
  const LayerWeights& weights(int64_t layer) const;
  at::Tensor block(const at::Tensor& input, const LayerWeights& w, const at::Tensor& projection) const;
  at::Tensor projection(const LayerWeights& w, const at::Tensor& gathered) const;

  Config config_;
  uint64_t seed_;
  at::Device device_;
  std::vector<LayerWeights> weights_;
};

}  // namespace faultline::race
