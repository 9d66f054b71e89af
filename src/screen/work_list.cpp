// What is run on a device: the shapes that training and inference use, sized for a GPU or for one core of a CPU. A
// check that the device or this torch cannot do is tried once, taken out and named.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <array>
#include <span>

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
    } catch (const std::exception& error) {  // ours, or oneDNN's where an instruction set lacks a type
      skip(name, first_line(error.what()));
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

// One line of the list: what is asked, and its weight and sizes on a GPU and on a core. Weight 0: not there.
template <class Sizes>
struct Sized {
  double weight = 0;
  Sizes sizes = {};
};
struct Matrices {
  int64_t m, n, k, batch = 1;
};
struct ProductLine {
  at::ScalarType dtype;
  const char *layout, *pattern;
  Sized<Matrices> gpu, core;
  bool tf32 = false;
};
struct Heads {
  int64_t batch, heads, queries, keys, size;
};
struct AttentionLine {
  at::ScalarType dtype;
  bool causal;
  Sized<Heads> gpu, core;
};
struct Table {
  int64_t rows, columns;
};
struct RowsLine {
  const char* kind;
  at::ScalarType gpu_dtype, core_dtype;
  Sized<Table> gpu, core;
};

constexpr ProductLine kTrainingProducts[] = {
    {kBf16, "NN", "random", {12, {8192, 8192, 8192}}, {6, {256, 256, 256}}},
    {kBf16, "NT", "random", {8, {4096, 14336, 4096}}, {}},
    {kBf16, "TN", "wide", {8, {4096, 4096, 8192}}, {}},
    {kBf16, "NT", "wide", {}, {4, {192, 256, 320}}},
    {kBf16, "NN", "alternating", {6, {4096, 4096, 4096}}, {}},
    {kBf16, "NN", "random", {4, {512, 512, 512, 64}}, {}},
    {kBf16, "NT", "random", {12, {512, 1024, 1024}}, {}},
    {kFp16, "NT", "random", {6, {4096, 4096, 4096}}, {}},
    {kFp16, "TN", "wide", {4, {4096, 4096, 4096}}, {}},
    {kFp16, "NT", "wide", {}, {3, {192, 192, 192}}},
    {kFp32, "NN", "random", {4, {4096, 4096, 4096}}, {}, /*tf32=*/true},
    {kFp32, "NN", "random", {}, {6, {384, 384, 384}}},
    {kFp32, "NT", "random", {3, {2048, 2048, 2048}}, {}},
    {kFp32, "NT", "wide", {}, {4, {256, 320, 512}}},
    {kFp32, "TN", "alternating", {}, {4, {256, 256, 256}}},
    {kFp32, "NN", "random", {}, {2, {64, 64, 64, 16}}},
    {kFp8, "NT", "random", {6, {4096, 4096, 4096}}, {1, {64, 64, 64}}},
};
constexpr ProductLine kInferenceProducts[] = {
    {kBf16, "NT", "random", {6, {1, 4096, 4096}}, {3, {1, 512, 1024}}},
    {kBf16, "NT", "wide", {6, {16, 14336, 4096}}, {}},
    {kBf16, "NT", "random", {6, {64, 4096, 14336}}, {}},
    {kFp8, "NT", "wide", {4, {32, 4096, 4096}}, {}},
    {kFp16, "NT", "alternating", {3, {256, 4096, 4096}}, {}},
    {kFp32, "NT", "alternating", {}, {2, {4, 512, 1024}}},
};
constexpr AttentionLine kTrainingAttention[] = {
    {kBf16, true, {5, {2, 16, 2048, 2048, 128}}, {3, {1, 2, 128, 128, 64}}},
    {kFp16, false, {3, {2, 16, 1024, 1024, 64}}, {}},
};
constexpr AttentionLine kInferenceAttention[] = {
    {kBf16, false, {4, {16, 16, 1, 2048, 128}}, {2, {2, 4, 1, 256, 64}}},
};
constexpr RowsLine kTables[] = {{"gather", kBf16, kBf16, {2, {8192, 4096}}, {1, {256, 1024}}}};
constexpr RowsLine kRowOperators[] = {
    {"rms_norm", kBf16, kBf16, {2, {8192, 4096}}, {1, {128, 1024}}},
    {"layer_norm", kFp16, kBf16, {1, {4096, 4096}}, {1, {128, 1024}}},
    {"softmax", kBf16, kBf16, {1, {4096, 4096}}, {1, {128, 1024}}},
    {"sum", kFp32, kFp32, {1, {4096, 4096}}, {1, {128, 2048}}},
    {"amax", kBf16, kBf16, {1, {4096, 4096}}, {1, {128, 2048}}},
    {"addcmul", kFp32, kFp32, {1, {4096, 4096}}, {1, {128, 2048}}},
    {"swiglu", kBf16, kBf16, {1, {4096, 8192}}, {1, {128, 2048}}},
};

void add_lines(Builder& list, std::span<const ProductLine> lines, bool large) {
  for (const ProductLine& line : lines) {
    const auto& [weight, s] = large ? line.gpu : line.core;
    if (weight > 0) list.product(weight, {s.m, s.n, s.k, s.batch, line.dtype, line.layout, line.pattern, line.tf32});
  }
}
void add_lines(Builder& list, std::span<const AttentionLine> lines, bool large) {
  for (const AttentionLine& line : lines) {
    const auto& [weight, s] = large ? line.gpu : line.core;
    if (weight > 0) list.attention(weight, {s.batch, s.heads, s.queries, s.keys, s.size, line.dtype, line.causal});
  }
}
void add_lines(Builder& list, std::span<const RowsLine> lines, bool large) {
  for (const RowsLine& line : lines) {
    const auto& [weight, s] = large ? line.gpu : line.core;
    list.rows(weight, line.kind, s.rows, s.columns, large ? line.gpu_dtype : line.core_dtype);
  }
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
  if (training) add_lines(list, kTrainingProducts, spec.large), add_lines(list, kTrainingAttention, spec.large);
  if (inference) {
    add_lines(list, kInferenceProducts, spec.large), add_lines(list, kInferenceAttention, spec.large);
    add_lines(list, kTables, spec.large);
  }
  if (training || inference) add_lines(list, kRowOperators, spec.large);
  const int64_t size = spec.copy_bytes > 0 ? spec.copy_bytes : spec.large ? int64_t{256} << 20 : int64_t{16} << 20;
  const double share = spec.load == Load::kMemory ? 20 : 4;
  list.copy(share, "device", size);
  if (spec.device.is_cuda()) list.copy(share, "host", size);
  for (const int peer : spec.peers) list.copy(share, fmt::format("peer {}", peer), size);
  if (spec.memory_bytes > 0)
    list.add(2 * share, "memory", [&](uint64_t seed) { return memory_check(spec.memory_bytes, spec.device, seed); });
  return list.take();
}

}  // namespace faultline::screen
