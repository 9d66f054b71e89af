#include "cli/generated_input.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "base/text.h"
#include "cli/command.h"
#include "numeric/gaussian.h"
#include "numeric/tensor_file.h"

namespace faultline::cli {
namespace {

constexpr uint64_t kInputStream = 0x696E707574ull;  // apart from the keys of any rule
constexpr int64_t kCopies = 4;                      // input, result, and what comparing them needs

}  // namespace

at::Tensor gaussian_tensor(const GaussianRequest& request) {
  const auto element_size = static_cast<int64_t>(c10::elementSize(request.dtype));
  const int64_t elements =
      numeric::checked_elements(request.sizes, std::max<int64_t>(element_size, 4), kCopies, "--shape");
  const bool wide = request.dtype == at::kDouble;
  at::Tensor tensor = at::empty(request.sizes, wide ? at::kDouble : at::kFloat);
  void* data = tensor.mutable_data_ptr();
  const uint64_t key = mix64(request.seed, kInputStream);
  at::parallel_for(0, (elements + 3) / 4, 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const auto counter = static_cast<uint64_t>(block);
      const PhiloxWords words = philox(static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0, key);
      for (int64_t i = 4 * block; i < std::min(elements, 4 * block + 4); ++i) {
        const double value =
            request.mean + request.deviation * numeric::gaussian32(words.word[i & 3], numeric::kGaussian32);
        if (wide) {
          static_cast<double*>(data)[i] = value;
        } else {
          static_cast<float*>(data)[i] = static_cast<float>(value);
        }
      }
    }
  });
  return tensor.to(request.dtype);
}

std::vector<int64_t> parse_shape(std::string_view text) {
  std::vector<int64_t> sizes;
  std::string_view rest = text;
  while (true) {
    const std::size_t cross = rest.find('x');
    sizes.push_back(static_cast<int64_t>(parse_count("--shape ROWSxCOLUMNS", rest.substr(0, cross), 0,
                                                     static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))));
    if (cross == std::string_view::npos) break;
    rest = rest.substr(cross + 1);
  }
  if (sizes.size() > 16) throw UsageError(fmt::format("--shape: at most 16 dimensions, got {}", sizes.size()));
  return sizes;
}

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> names = {"fp32", "bf16", "fp16", "fp64"};
  return names;
}

at::ScalarType parse_dtype(std::string_view name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name == "fp64") return at::kDouble;
  throw UsageError(
      fmt::format("--dtype: wanted fp32, bf16, fp16 or fp64, got '{}'{}", name, did_you_mean(name, dtype_names())));
}

}  // namespace faultline::cli
