// What is run on a device: the shapes that training and inference use, sized for a GPU or for one core of a CPU. A
// check that the device or this torch cannot do is tried once, taken out and named.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/text.h"
#include "screen/check.h"
#include "site/torch_support.h"

namespace faultline::screen {
namespace {

constexpr std::array kGroupNames = {"product", "attention", "norm", "reduction", "gather", "copy", "memory"};
constexpr std::array kLoadNames = {"training", "inference", "memory", "all"};

class Builder {
 public:
  explicit Builder(const WorkSpec& spec) : spec_(spec) {}

  void add(double weight, const std::string& name, const std::function<std::unique_ptr<Check>(uint64_t seed)>& make) {
    const uint64_t seed = mix64(spec_.seed, ++made_);
    try {
      std::unique_ptr<Check> check = make(seed);
      if (!check->memory) {
        check->run({});
        check->turn = 0;
      }
      check->weight = weight;
      list_.checks.push_back(std::move(check));
    } catch (const c10::OutOfMemoryError&) {
      skip(name, "out of memory beside what others use");
    } catch (const c10::Error& error) {
      skip(name, first_line(error.what_without_backtrace()));
    } catch (const RuntimeFailure& failure) {
      skip(name, failure.what());
    }
  }
  void product(double weight, const ProductSpec& product) {
    const std::string name =
        fmt::format("product {} {}x{}x{}", short_dtype(product.dtype), product.m, product.n, product.k);
    add(weight, name, [&](uint64_t seed) { return product_check(product, spec_.device, seed); });
  }
  void attention(double weight, const AttentionSpec& attention) {
    add(weight, fmt::format("attention {}", short_dtype(attention.dtype)),
        [&](uint64_t seed) { return attention_check(attention, spec_.device, seed); });
  }
  void rows(double weight, const char* kind, int64_t rows, int64_t columns, at::ScalarType dtype) {
    add(weight, kind, [&](uint64_t seed) { return rows_check(kind, rows, columns, dtype, spec_.device, seed); });
  }
  void copy(double weight, const std::string& way, int64_t bytes) {
    add(weight, "copy " + way, [&](uint64_t seed) { return copy_check(way, bytes, spec_.device, seed); });
  }
  WorkList take() { return std::move(list_); }

 private:
  void skip(const std::string& name, const std::string& why) { list_.not_tested.push_back(name + ": " + why); }

  const WorkSpec& spec_;
  WorkList list_;
  uint64_t made_ = 0;
};

constexpr at::ScalarType kBf16 = at::kBFloat16, kFp16 = at::kHalf, kFp32 = at::kFloat, kFp8 = at::kFloat8_e4m3fn;

void training_on_gpu(Builder& list) {
  list.product(12, {.m = 8192, .n = 8192, .k = 8192});
  list.product(8, {.m = 4096, .n = 14336, .k = 4096, .layout = "NT"});
  list.product(8, {.m = 4096, .n = 4096, .k = 8192, .layout = "TN", .pattern = "wide"});
  list.product(6, {.m = 4096, .n = 4096, .k = 4096, .pattern = "alternating"});
  list.product(6, {.m = 4096, .n = 4096, .k = 4096, .dtype = kFp16, .layout = "NT"});
  list.product(4, {.m = 4096, .n = 4096, .k = 4096, .dtype = kFp16, .layout = "TN", .pattern = "wide"});
  list.product(4, {.m = 4096, .n = 4096, .k = 4096, .dtype = kFp32, .pattern = "random", .tf32 = true});
  list.product(3, {.m = 2048, .n = 2048, .k = 2048, .dtype = kFp32, .layout = "NT"});
  list.product(6, {.m = 4096, .n = 4096, .k = 4096, .dtype = kFp8, .layout = "NT"});
  list.product(4, {.m = 512, .n = 512, .k = 512, .batch = 64});
  list.product(12, {.m = 512, .n = 1024, .k = 1024, .layout = "NT"});
  list.attention(5, {.batch = 2, .heads = 16, .queries = 2048, .keys = 2048, .size = 128, .causal = true});
  list.attention(3, {.batch = 2, .heads = 16, .queries = 1024, .keys = 1024, .size = 64, .dtype = kFp16});
}

void inference_on_gpu(Builder& list) {
  list.product(6, {.m = 1, .n = 4096, .k = 4096, .layout = "NT"});
  list.product(6, {.m = 16, .n = 14336, .k = 4096, .layout = "NT", .pattern = "wide"});
  list.product(6, {.m = 64, .n = 4096, .k = 14336, .layout = "NT"});
  list.product(4, {.m = 32, .n = 4096, .k = 4096, .dtype = kFp8, .layout = "NT", .pattern = "wide"});
  list.product(3, {.m = 256, .n = 4096, .k = 4096, .dtype = kFp16, .layout = "NT", .pattern = "alternating"});
  list.attention(4, {.batch = 16, .heads = 16, .queries = 1, .keys = 2048, .size = 128});
  list.rows(2, "gather", 8192, 4096, kBf16);
}

void rows_on_gpu(Builder& list) {
  list.rows(2, "rms_norm", 8192, 4096, kBf16);
  list.rows(1, "layer_norm", 4096, 4096, kFp16);
  list.rows(1, "softmax", 4096, 4096, kBf16);
  list.rows(1, "sum", 4096, 4096, kFp32);
  list.rows(1, "amax", 4096, 4096, kBf16);
  list.rows(1, "addcmul", 4096, 4096, kFp32);
  list.rows(1, "swiglu", 4096, 8192, kBf16);
}

void training_on_core(Builder& list) {
  list.product(6, {.m = 384, .n = 384, .k = 384, .dtype = kFp32});
  list.product(4, {.m = 256, .n = 320, .k = 512, .dtype = kFp32, .layout = "NT", .pattern = "wide"});
  list.product(4, {.m = 256, .n = 256, .k = 256, .dtype = kFp32, .layout = "TN", .pattern = "alternating"});
  list.product(6, {.m = 256, .n = 256, .k = 256});
  list.product(4, {.m = 192, .n = 256, .k = 320, .layout = "NT", .pattern = "wide"});
  list.product(3, {.m = 192, .n = 192, .k = 192, .dtype = kFp16, .layout = "NT", .pattern = "wide"});
  list.product(2, {.m = 64, .n = 64, .k = 64, .batch = 16, .dtype = kFp32});
  list.product(1, {.m = 64, .n = 64, .k = 64, .dtype = kFp8, .layout = "NT"});
  list.attention(3, {.batch = 1, .heads = 2, .queries = 128, .keys = 128, .size = 64, .causal = true});
}

void inference_on_core(Builder& list) {
  list.product(3, {.m = 1, .n = 512, .k = 1024, .layout = "NT"});
  list.product(2, {.m = 4, .n = 512, .k = 1024, .dtype = kFp32, .layout = "NT", .pattern = "alternating"});
  list.attention(2, {.batch = 2, .heads = 4, .queries = 1, .keys = 256, .size = 64});
  list.rows(1, "gather", 256, 1024, kBf16);
}

void rows_on_core(Builder& list) {
  list.rows(1, "rms_norm", 128, 1024, kBf16);
  list.rows(1, "layer_norm", 128, 1024, kBf16);
  list.rows(1, "softmax", 128, 1024, kBf16);
  list.rows(1, "sum", 128, 2048, kFp32);
  list.rows(1, "amax", 128, 2048, kBf16);
  list.rows(1, "addcmul", 128, 2048, kFp32);
  list.rows(1, "swiglu", 128, 2048, kBf16);
}

}  // namespace

const char* group_name(Group group) { return kGroupNames[static_cast<std::size_t>(group)]; }
const char* load_name(Load load) { return kLoadNames[static_cast<std::size_t>(load)]; }

const char* short_dtype(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "fp16";
    case at::kFloat: return "fp32";
    case at::kFloat8_e4m3fn: return "fp8_e4m3";
    case at::kFloat8_e5m2: return "fp8_e5m2";
    default: return c10::toString(type);
  }
}

WorkList work_list(const WorkSpec& spec) {
  const c10::DeviceGuard guard(spec.device);
  const site::SilentWarnings silent;
  Builder list(spec);
  const bool training = spec.load == Load::kTraining || spec.load == Load::kAll;
  const bool inference = spec.load == Load::kInference || spec.load == Load::kAll;
  if (training) spec.large ? training_on_gpu(list) : training_on_core(list);
  if (inference) spec.large ? inference_on_gpu(list) : inference_on_core(list);
  if (training || inference) spec.large ? rows_on_gpu(list) : rows_on_core(list);
  const int64_t size = spec.large ? int64_t{256} << 20 : int64_t{16} << 20;
  const double share = spec.load == Load::kMemory ? 20 : 4;
  list.copy(share, "device", size);
  if (spec.device.is_cuda()) list.copy(share, "host", size);
  for (const int peer : spec.peers) list.copy(share, fmt::format("peer {}", peer), size);
  if (spec.memory_bytes > 0)
    list.add(2 * share, "memory", [&](uint64_t seed) { return memory_check(spec.memory_bytes, spec.device, seed); });
  return list.take();
}

}  // namespace faultline::screen
