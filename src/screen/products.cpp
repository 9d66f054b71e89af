// Products of integers. Both factors repeat with a prime number of rows and columns, so that a host knows every element
// of a product of any size from a few million multiplications of integers; primes, because what repeats with the size
// of a tile would hide tiles that were exchanged. Note [Exact products]: all factors are integers that their type holds
// exactly, times a power of two a row and a column, and the sum of |a||b| over a row stays below 2^24 (fp8: 2^13, what
// tensor cores that add in 14 bits keep). So every partial sum in every order is an integer that fp32 holds, nothing is
// rounded but the result, once, to nearest, and the right bits do not depend on kernel, tiling or order.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/text.h"
#include "numeric/apply.h"
#include "screen/check.h"

namespace faultline::screen {
namespace {

constexpr int64_t kRowPeriod = 61, kColumnPeriod = 67;
constexpr int64_t kShift = 384;  // whole tiles of every size in use

struct Range {
  int64_t largest;  // integers up to it are exact in the type
  int64_t full;     // all bits of the significand in use
  int64_t sum;      // bound of the sum of |a||b|
};

Range range_of(const ProductSpec& spec) {
  switch (spec.dtype) {
    case at::kFloat8_e4m3fn: return {8, 15, 1 << 13};
    case at::kFloat8_e5m2: return {4, 7, 1 << 13};
    case at::kBFloat16: return {128, 255, 1 << 24};
    default: return {1024, 2047, 1 << 24};  // fp16, TF32, and fp32, which TF32 may stand in for
  }
}

// Integers of one factor: `lines` of K. Of the second factor only `dense` of each line's K are not zero.
std::vector<int16_t> integers(int64_t lines, int64_t k, int64_t dense, const std::string& pattern, const Range& range,
                              int64_t most, uint64_t seed) {
  std::vector<int16_t> values(static_cast<std::size_t>(lines * k));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t i = 0; i < k; ++i) {
      const uint64_t word = mix64(seed, static_cast<uint64_t>(line * k + i));
      // One in K / dense is kept, each line its own; neighbours are taken as one run so that tiles differ.
      const bool kept = dense >= k || (i + line * 7919) % ((k + dense - 1) / dense) == 0;
      int64_t value = 0;
      if (pattern == "random") {
        value = static_cast<int64_t>(word % static_cast<uint64_t>(2 * most + 1)) - most;
      } else if (pattern == "wide") {
        const int64_t half = (range.full + 1) / 2;  // the leading bit is set, all others are random
        value = half + static_cast<int64_t>(word % static_cast<uint64_t>(half));
        if (word >> 63) value = -value;
      } else {  // alternating: 0101… and 1010…, signs that change from one element to the next
        value = (word >> 40 & 1) != 0 ? range.full / 3 : range.full - range.full / 3;
        if (((i + line) & 1) != 0) value = -value;
      }
      values[static_cast<std::size_t>(line * k + i)] = static_cast<int16_t>(kept ? value : 0);
    }
  }
  return values;
}

// The power of two of a line. fp16 has little room: results stay between 2^-14 and its largest number.
int exponent_of(at::ScalarType type, uint64_t seed, int64_t line) {
  if (c10::elementSize(type) == 1) return 0;
  const uint64_t word = mix64(seed, static_cast<uint64_t>(line));
  return type == at::kHalf ? -5 - static_cast<int>(word % 3) : static_cast<int>(word % 7) - 3;
}

// The repeating parts of both factors, and of what they multiply to.
struct Parts {
  at::Tensor a, b, c;  // (P, K), (Q, K), (P, Q): fp64
};

Parts parts_of(const ProductSpec& spec, uint64_t seed) {
  const Range range = range_of(spec);
  int64_t most = range.full, dense = spec.k;
  if (spec.pattern == "random") {
    most =
        std::clamp<int64_t>(static_cast<int64_t>(std::sqrt(static_cast<double>(range.sum / spec.k))), 1, range.largest);
    if (most * most * spec.k > range.sum) dense = range.sum;
  } else {
    dense = std::min(spec.k, range.sum / (range.full * range.full));
  }
  FL_ASSERT(dense > 0);
  const uint64_t of_a = mix64(seed, 1), of_b = mix64(seed, 2);
  const std::vector<int16_t> a = integers(kRowPeriod, spec.k, spec.k, spec.pattern, range, most, of_a);
  const std::vector<int16_t> b = integers(kColumnPeriod, spec.k, dense, spec.pattern, range, most, of_b);
  Parts parts{at::empty({kRowPeriod, spec.k}, at::kDouble), at::empty({kColumnPeriod, spec.k}, at::kDouble),
              at::empty({kRowPeriod, kColumnPeriod}, at::kDouble)};
  const auto lay = [&](const std::vector<int16_t>& from, uint64_t of, const at::Tensor& to, int64_t lines) {
    auto* out = to.mutable_data_ptr<double>();
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t i = 0; i < spec.k; ++i)
        out[line * spec.k + i] =
            std::ldexp(from[static_cast<std::size_t>(line * spec.k + i)], exponent_of(spec.dtype, of, line));
  };
  lay(a, of_a, parts.a, kRowPeriod);
  lay(b, of_b, parts.b, kColumnPeriod);
  auto* c = parts.c.mutable_data_ptr<double>();
  for (int64_t i = 0; i < kRowPeriod; ++i) {
    for (int64_t j = 0; j < kColumnPeriod; ++j) {
      const int16_t* left = a.data() + i * spec.k;
      const int16_t* right = b.data() + j * spec.k;
      int32_t sum = 0;
      int64_t size = 0;
      for (int64_t k = 0; k < spec.k; ++k) {
        const int32_t product = int32_t{left[k]} * right[k];
        sum += product;
        size += std::abs(product);
      }
      FL_ASSERT(size <= range.sum);
      c[i * kColumnPeriod + j] = std::ldexp(sum, exponent_of(spec.dtype, of_a, i) + exponent_of(spec.dtype, of_b, j));
    }
  }
  return parts;
}

at::Tensor periodic(int64_t count, int64_t period, int64_t first = 0) {
  return (at::arange(count, at::kLong) + first).remainder(period);
}

at::ScalarType result_type(at::ScalarType type) { return c10::elementSize(type) == 1 ? at::kBFloat16 : type; }

// (batch, M, N) or (M, N). Each matrix of a batch begins one row and column later.
at::Tensor spread_result(const ProductSpec& spec, const at::Tensor& c) {
  const at::Tensor typed = c.to(at::kFloat).to(result_type(spec.dtype));
  std::vector<at::Tensor> all;
  for (int64_t one = 0; one < spec.batch; ++one)
    all.push_back(
        typed.index_select(0, periodic(spec.m, kRowPeriod, one)).index_select(1, periodic(spec.n, kColumnPeriod, one)));
  return spec.batch == 1 ? all[0] : at::stack(all);
}

// (batch, lines, K), or of layout T with the last two dimensions exchanged in memory.
at::Tensor spread_factor(const ProductSpec& spec, const at::Tensor& part, int64_t lines, int64_t period, bool along) {
  const at::Tensor typed = part.to(at::kFloat).to(spec.dtype);
  // index_select does not know every 8-bit type; their bytes are as good.
  const bool bytes = c10::elementSize(spec.dtype) == 1;
  const at::Tensor source = bytes ? typed.view(at::kByte) : typed;
  std::vector<at::Tensor> all;
  for (int64_t one = 0; one < spec.batch; ++one) {
    at::Tensor lines_of = source.index_select(0, periodic(lines, period, one));
    all.push_back(along ? lines_of : lines_of.t().contiguous());
  }
  at::Tensor whole = spec.batch == 1 ? all[0] : at::stack(all);
  return bytes ? whole.view(spec.dtype) : whole;
}

std::string shape_text(const ProductSpec& spec) {
  const std::string one = fmt::format("{}x{}x{}", spec.m, spec.n, spec.k);
  return spec.batch == 1 ? one : fmt::format("{} of {}", spec.batch, one);
}

// fp32 products of this moment may be TF32. One thread at a time; another's fp32 product may meet it, and is as exact.
class Tf32 {
 public:
  Tf32() { at::globalContext().setAllowTF32CuBLAS(true); }
  ~Tf32() { at::globalContext().setAllowTF32CuBLAS(false); }
  Tf32(const Tf32&) = delete;
  Tf32& operator=(const Tf32&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  const std::lock_guard<std::mutex> alone_{mutex()};
};

at::Tensor multiply(const ProductSpec& spec, const at::Tensor& a, const at::Tensor& b, const at::Tensor& one) {
  if (c10::elementSize(spec.dtype) == 1)
    return at::_scaled_mm(a, b, one, one, {}, {}, at::kBFloat16, /*use_fast_accum=*/false);
  std::optional<Tf32> tf32;
  if (spec.tf32 && a.is_cuda()) tf32.emplace();
  return spec.batch > 1 ? at::bmm(a, b) : at::mm(a, b);
}

// torch's switches, as they were before the first ExactSums.
struct Switches {
  std::mutex mutex;
  int holders = 0;
  at::CuBLASReductionOption half{}, bfloat{};
  bool half_sums = false, half_sums_cpu = false;
  at::Float32Precision cpu{};
};
Switches& switches() {
  static Switches all;
  return all;
}

}  // namespace

ExactSums::ExactSums() {
  Switches& all = switches();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.holders++ > 0) return;
  at::Context& torch = at::globalContext();
  all.half = torch.allowFP16ReductionCuBLAS(), all.bfloat = torch.allowBF16ReductionCuBLAS();
  all.half_sums = torch.allowFP16AccumulationCuBLAS(), all.half_sums_cpu = torch.allowFP16ReductionCPU();
  all.cpu = torch.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  torch.setAllowFP16ReductionCuBLAS(false), torch.setAllowBF16ReductionCuBLAS(false);
  torch.setAllowFP16AccumulationCuBLAS(false);
  if (all.half_sums_cpu) torch.setAllowFP16ReductionCPU(false);
  torch.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, at::Float32Precision::IEEE);
}

ExactSums::~ExactSums() {
  Switches& all = switches();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (--all.holders > 0) return;
  at::Context& torch = at::globalContext();
  const auto put = [&](void (at::Context::*set)(bool, bool), at::CuBLASReductionOption option) {
    (torch.*set)(option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
                 option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
  };
  put(&at::Context::setAllowFP16ReductionCuBLAS, all.half);
  put(&at::Context::setAllowBF16ReductionCuBLAS, all.bfloat);
  torch.setAllowFP16AccumulationCuBLAS(all.half_sums);
  if (all.half_sums_cpu) torch.setAllowFP16ReductionCPU(true);
  torch.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, all.cpu);
}

std::unique_ptr<Check> product_check(const ProductSpec& spec, const at::Device& device, uint64_t seed) {
  auto check = std::make_unique<Check>();
  check->group = Group::kProduct;
  check->operation = c10::elementSize(spec.dtype) == 1 ? "aten::_scaled_mm" : spec.batch > 1 ? "aten::bmm" : "aten::mm";
  check->dtype = spec.tf32 ? "tf32" : short_dtype(spec.dtype);
  check->shape = shape_text(spec), check->pattern = spec.pattern;
  check->name = fmt::format("product {} {} {} {}", check->dtype, check->shape, spec.layout, spec.pattern);
  const Parts parts = parts_of(spec, seed);
  // Memory of the factors: a as (M, K) for N and (K, M) for T; b as (K, N) for N and (N, K) for T.
  const at::Tensor a = spread_factor(spec, parts.a, spec.m, kRowPeriod, spec.layout[0] == 'N');
  const at::Tensor b = spread_factor(spec, parts.b, spec.n, kColumnPeriod, spec.layout[1] == 'T');
  check->inputs = {{"first factor", a.to(device), host_digest(a)}, {"second factor", b.to(device), host_digest(b)}};
  at::Tensor left = check->inputs[0].tensor, right = check->inputs[1].tensor;
  if (spec.layout[0] == 'T') left = left.transpose(-1, -2);
  if (spec.layout[1] == 'T') right = right.transpose(-1, -2);
  check->digests = {host_digest(spread_result(spec, parts.c))};
  check->answer = [spec, seed](int64_t) { return spread_result(spec, parts_of(spec, seed).c); };
  const at::Tensor one = at::ones({}, at::TensorOptions(device).dtype(at::kFloat));
  check->run = [spec, left, right, one](const Disturb& disturb) {
    at::Tensor result = multiply(spec, left, right, one);
    if (disturb) disturb(result);
    return result;
  };
  if (device.is_cuda() && spec.m > kShift && c10::elementSize(spec.dtype) > 1) {
    check->elsewhere = [spec, left, right, one] {  // rows that were a tile's are another tile's
      return at::roll(multiply(spec, at::roll(left, kShift, -2), right, one), -kShift, -2).contiguous();
    };
  }
  const auto size = static_cast<int64_t>(c10::elementSize(spec.dtype));
  check->products = spec.batch, check->elements = spec.batch * spec.m * spec.n;
  check->bytes = spec.batch * size * (spec.m * spec.k + spec.k * spec.n) +
                 check->elements * static_cast<int64_t>(c10::elementSize(result_type(spec.dtype)));
  check->operations = 2.0 * static_cast<double>(spec.batch * spec.m * spec.n) * static_cast<double>(spec.k);
  return check;
}

}  // namespace faultline::screen
