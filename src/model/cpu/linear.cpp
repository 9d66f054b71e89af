// x (M, K) times weight (N, K) transposed, with the weights as they lie: row-major, read once, never packed. Each
// output element is one chain of vector sums over K in a fixed order, whatever M is: a row of x gives the same bits
// alone and in a batch. Instructions that multiply matrices, where the processor has them, take over bf16
// (linear_tiles.h).
#include "model/cpu/linear_tiles.h"

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

// How weights and prepared x meet: kStep elements at a time.
template <class Type>
struct Widened {
  using Prepared = float;
  using Operand = Vector;
  static constexpr int kStep = kLanes;
  FL_INLINE static Operand weight(const typename Type::Storage* from) { return Type::load(from); }
  FL_INLINE static Vector add_product(Vector sum, Operand w, const Prepared* x) {
    return multiply_add(w, Float32::load(x), sum);
  }
  static void prepare(const typename Type::Storage* x, int64_t inputs, int64_t padded, Prepared* to) {
    for (int64_t k = 0; k < padded; k += kLanes) Float32::store(to + k, load<Type>(x + k, inputs - k));
  }
};

#if defined(__AVX512BF16__)
// Products of bf16 pairs added in fp32 by one instruction; it takes subnormal numbers as zero.
struct Pairs {
  using Prepared = uint16_t;
  using Operand = __m512bh;
  static constexpr int kStep = 32;
  FL_INLINE static Operand weight(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
  FL_INLINE static Vector add_product(Vector sum, Operand w, const Prepared* x) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, w, (__m512bh)_mm512_loadu_si512(x));
  }
  static void prepare(const uint16_t* x, int64_t inputs, int64_t padded, Prepared* to) {
    for (int64_t k = 0; k < padded; ++k) to[k] = k < inputs ? x[k] : 0;
  }
};
#endif

template <class Type>
struct Scheme : Widened<Type> {};
#if defined(__AVX512BF16__)
template <>
struct Scheme<BFloat16> : Pairs {};
#endif

template <class Type>
int64_t padded_inputs(const LinearArguments& a) {
  return ceiling(a.inputs, Scheme<Type>::kStep) * Scheme<Type>::kStep;
}

template <class Type, int kOutputs, int kStep>
__attribute__((noinline)) void copy_edge(const typename Type::Storage* from, int64_t stride, int64_t count,
                                         typename Type::Storage (&edge)[kOutputs][kStep]) {
  for (int i = 0; i < kOutputs; ++i)
    for (int64_t j = 0; j < kStep; ++j) edge[i][j] = j < count ? from[i * stride + j] : typename Type::Storage{};
}

template <class Type, int kOutputs, int kRows>
FL_INLINE void finish(const LinearArguments& a, const Vector (&sum)[kRows][kOutputs], int64_t n, int64_t m) {
#pragma GCC unroll 6
  for (int j = 0; j < kRows; ++j) {
    auto* y = row_of<Type>(a.y, a.outputs, m + j) + n;
    const Vector bias = a.bias != nullptr ? load<Type>(row_of<Type>(a.bias, 1, n), kOutputs) : Vector{};
    if constexpr (kOutputs == 4) {
      Four sums = add_lanes(sum[j]);
      if (a.bias != nullptr) sums += first_four(bias);
      store_four<Type>(y, sums);
    } else {
      store<Type>(y, bias + add_lanes(sum[j][0]), kOutputs);
    }
  }
}

// Outputs [n, n + kOutputs) of rows [m, m + kRows). The inner step stands once and its loops are unrolled early, so
// that g++ keeps the sums in registers.
template <class Type, int kOutputs, int kRows>
void multiply(const LinearArguments& a, int64_t n, int64_t m) {
  using S = Scheme<Type>;
  const int64_t padded = padded_inputs<Type>(a), inputs = a.inputs;
  const auto* weight = row_of<Type>(a.weight, inputs, n);
  const auto* x = static_cast<const typename S::Prepared*>(a.prepared) + m * padded;
  Vector sum[kRows][kOutputs] = {};
  typename Type::Storage edge[kOutputs][S::kStep];
  for (int64_t k = 0; k < inputs; k += S::kStep) {
    const auto* from = weight + k;
    int64_t stride = inputs;
    if (k + S::kStep > inputs) {  // the last weights of each output, with zeros behind them
      copy_edge<Type>(from, inputs, inputs - k, edge);
      from = edge[0], stride = S::kStep;
    } else if constexpr (kLanes > 4) {
      for (int i = 0; i < kOutputs; ++i) __builtin_prefetch(from + (kOutputs + i) * inputs);
    }
    typename S::Operand w[kOutputs];
#pragma GCC unroll 4
    for (int i = 0; i < kOutputs; ++i) w[i] = S::weight(from + i * stride);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 4
      for (int i = 0; i < kOutputs; ++i) sum[j][i] = S::add_product(sum[j][i], w[i], x + j * padded + k);
    }
  }
  finish<Type>(a, sum, n, m);
}

// Many rows: the weights of four outputs are widened once and stay in the first-level cache, so that a step is loads
// and multiply-adds alone. The sums are added in the order of multiply(): the same bits.
constexpr int64_t kWidenedInputs = 4096;
constexpr int kTileRows = kLanes == 8 ? 3 : 6;  // what sixteen registers hold, or thirty-two

template <class Type>
void widen(const typename Type::Storage* weight, int64_t inputs, int64_t padded, float* to) {
  for (int i = 0; i < 4; ++i)
    for (int64_t k = 0; k < padded; k += kLanes)
      Float32::store(to + i * padded + k, load<Type>(weight + i * inputs + k, smaller(inputs - k, kLanes)));
}

template <class Type, int kRows>
void multiply_widened(const LinearArguments& a, const float* weight, int64_t padded, int64_t n, int64_t m) {
  const auto* x = static_cast<const float*>(a.prepared) + m * padded;
  Vector sum[kRows][4] = {};
  for (int64_t k = 0; k < padded; k += kLanes) {
    Vector rows[kRows];
#pragma GCC unroll 6
    for (int j = 0; j < kRows; ++j) rows[j] = Float32::load(x + j * padded + k);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vector w = Float32::load(weight + i * padded + k);
#pragma GCC unroll 6
      for (int j = 0; j < kRows; ++j) sum[j][i] = multiply_add(w, rows[j], sum[j][i]);
    }
  }
  finish<Type>(a, sum, n, m);
}

// Whether rows [m, last) of four outputs were done so.
template <class Type>
bool multiply_many(const LinearArguments& a, int64_t n, int64_t m, int64_t last) {
  const int64_t padded = padded_inputs<Type>(a);
  if (Scheme<Type>::kStep != kLanes || last - m < 2 * kTileRows || padded > kWidenedInputs) return false;
  alignas(64) float widened[4 * kWidenedInputs];
  widen<Type>(row_of<Type>(a.weight, a.inputs, n), a.inputs, padded, widened);
  for (; m + kTileRows <= last; m += kTileRows) multiply_widened<Type, kTileRows>(a, widened, padded, n, m);
  for (; m + 2 <= last; m += 2) multiply_widened<Type, 2>(a, widened, padded, n, m);
  if (m < last) multiply_widened<Type, 1>(a, widened, padded, n, m);
  return true;
}

template <class Type, int kOutputs>
void multiply_rows(const LinearArguments& a, int64_t n, int64_t m, int64_t last) {
  for (; m + 4 <= last; m += 4) multiply<Type, kOutputs, 4>(a, n, m);
  for (; m < last; ++m) multiply<Type, kOutputs, 1>(a, n, m);
}

}  // namespace

int64_t linear_prepared_bytes(const LinearArguments& a) {
  if (takes_tiles(a)) return tiles_prepared_bytes(a);
  int64_t bytes = 0;
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    bytes = a.rows * padded_inputs<Type>(a) * static_cast<int64_t>(sizeof(typename Scheme<Type>::Prepared));
  });
  return bytes;
}

void linear_prepare(const LinearArguments& a) {
  if (takes_tiles(a)) return tiles_prepare(a);
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    using S = Scheme<Type>;
    const int64_t padded = padded_inputs<Type>(a);
    for (int64_t row = 0; row < a.rows; ++row)
      S::prepare(row_of<Type>(a.x, a.x_stride, row), a.inputs, padded,
                 static_cast<typename S::Prepared*>(a.prepared) + row * padded);
  });
}

void linear(const LinearArguments& a, int64_t first, int64_t last) {
  if (takes_tiles(a)) return tiles_linear(a, first, last);
  dispatch(a.storage, [&](auto type) {
    using Type = decltype(type);
    constexpr auto kBytes = static_cast<int64_t>(sizeof(typename Scheme<Type>::Prepared));
    const int64_t end = smaller(last * kLinearBlock, a.outputs);
    const int64_t at_once = rows_at_once(a.rows, padded_inputs<Type>(a) * kBytes, 4);
    for (int64_t m = 0; m < a.rows; m += at_once) {
      const int64_t last_row = smaller(m + at_once, a.rows);
      int64_t n = first * kLinearBlock;
      for (; n + 4 <= end; n += 4)
        if (!multiply_many<Type>(a, n, m, last_row)) multiply_rows<Type, 4>(a, n, m, last_row);
      for (; n < end; ++n) multiply_rows<Type, 1>(a, n, m, last_row);
    }
  });
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA
