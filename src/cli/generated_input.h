// Data out of nothing: a Gaussian tensor that depends on its seed alone, the same on every machine and device. It uses
// our own Philox and deviates, so a ledger printed here can be reproduced anywhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace faultline::cli {

struct GaussianRequest {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  double mean = 0;
  double deviation = 1;
  uint64_t seed = 0;
};
at::Tensor gaussian_tensor(const GaussianRequest& request);  // on the CPU

std::vector<int64_t> parse_shape(std::string_view text);  // "1024x1024"
const std::vector<std::string>& dtype_names();
at::ScalarType parse_dtype(std::string_view name);  // fp32, bf16, fp16, fp64

}  // namespace faultline::cli
