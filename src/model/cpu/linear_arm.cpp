// The matrix product by BFMMLA, which multiplies 2 x 4 by 4 x 2 bf16 numbers into 2 x 2 sums in fp32. Weights are
// loaded as they lie, eight inputs of two outputs at a time, and their halves exchanged; only x, which is small, is
// rearranged: no packed copy of the model exists that a training step could leave behind. Every row goes through the
// same sums whatever M is. The instruction takes subnormal numbers as zero.
#include "model/cpu/linear_tiles.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#include <arm_neon.h>

namespace faultline::model::ops::cpu::FAULTLINE_ISA {
namespace {

constexpr int64_t kStep = 8;  // inputs
constexpr int kOutputs = 8;   // of a block of sums, in pairs
constexpr int kRowPairs = 4;  // of a block of sums, at most

int64_t padded_inputs(const LinearArguments& a) { return ceiling(a.inputs, kStep) * kStep; }
int64_t row_pairs(const LinearArguments& a) { return ceiling(a.rows, 2); }

FL_INLINE uint64x2_t load_eight(const uint16_t* from) { return vreinterpretq_u64_u16(vld1q_u16(from)); }

// The last weights of eight outputs, with zeros behind them.
__attribute__((noinline)) void copy_edge(const uint16_t* const (&weight)[kOutputs], int64_t k, int64_t inputs,
                                         uint16_t (&edge)[kOutputs][kStep]) {
  for (int i = 0; i < kOutputs; ++i)
    for (int64_t j = 0; j < kStep; ++j) edge[i][j] = k + j < inputs ? weight[i][k + j] : uint16_t{0};
}

// The sums of rows (2 kPairs of them) and outputs from n on, turned into y.
template <int kPairs>
FL_INLINE void store_sums(const LinearArguments& a, const float32x4_t (&sum)[kPairs][kOutputs / 2], int64_t n,
                          int64_t pair) {
#pragma GCC unroll 4  // sums that are indexed by a variable would live in memory
  for (int j = 0; j < kPairs; ++j) {
#pragma GCC unroll 2
    for (int second = 0; second < 2; ++second) {
      const int64_t row = 2 * (pair + j) + second;
      if (row >= a.rows) return;
#pragma GCC unroll 2
      for (int half = 0; half < kOutputs; half += 4) {
        const int64_t count = smaller(4, a.outputs - n - half);
        if (count <= 0) break;
        const float64x2_t left = vreinterpretq_f64_f32(sum[j][half / 2]);
        const float64x2_t right = vreinterpretq_f64_f32(sum[j][half / 2 + 1]);
        Vector y = (Vector)(second == 0 ? vzip1q_f64(left, right) : vzip2q_f64(left, right));
        if (a.bias != nullptr) y += load<BFloat16>(row_of<BFloat16>(a.bias, 1, n + half), count);
        store<BFloat16>(row_of<BFloat16>(a.y, a.outputs, row) + n + half, y, count);
      }
    }
  }
}

// Outputs [n, n + 8) of 2 kPairs rows.
template <int kPairs>
void multiply(const LinearArguments& a, int64_t n, int64_t pair) {
  const int64_t padded = padded_inputs(a), inputs = a.inputs;
  const uint16_t* weight[kOutputs];
  for (int i = 0; i < kOutputs; ++i)  // outputs that do not exist repeat the last one and are not stored
    weight[i] = row_of<BFloat16>(a.weight, a.inputs, smaller(n + i, a.outputs - 1));
  const uint16_t* x = static_cast<const uint16_t*>(a.prepared) + pair * 2 * padded;
  float32x4_t sum[kPairs][kOutputs / 2] = {};
  uint16_t edge[kOutputs][kStep];
  for (int64_t k = 0; k < inputs; k += kStep) {
    const uint16_t* from[kOutputs];
    for (int i = 0; i < kOutputs; ++i) from[i] = weight[i] + k;
    if (k + kStep > inputs) {
      copy_edge(weight, k, inputs, edge);
      for (int i = 0; i < kOutputs; ++i) from[i] = edge[i];
    }
    bfloat16x8_t left[kOutputs / 2], right[kOutputs / 2];  // four inputs each, of two outputs
#pragma GCC unroll 4
    for (int i = 0; i < kOutputs / 2; ++i) {
      const uint64x2_t first = load_eight(from[2 * i]), second = load_eight(from[2 * i + 1]);
      left[i] = vreinterpretq_bf16_u64(vzip1q_u64(first, second));
      right[i] = vreinterpretq_bf16_u64(vzip2q_u64(first, second));
    }
#pragma GCC unroll 4
    for (int j = 0; j < kPairs; ++j) {
      const uint16_t* pair_x = x + j * 2 * padded + 2 * k;
      const bfloat16x8_t x_left = vreinterpretq_bf16_u64(load_eight(pair_x));
      const bfloat16x8_t x_right = vreinterpretq_bf16_u64(load_eight(pair_x + kStep));
#pragma GCC unroll 4
      for (int i = 0; i < kOutputs / 2; ++i)
        sum[j][i] = vbfmmlaq_f32(vbfmmlaq_f32(sum[j][i], x_left, left[i]), x_right, right[i]);
    }
  }
  store_sums<kPairs>(a, sum, n, pair);
}

void multiply_pairs(const LinearArguments& a, int64_t n, int64_t first, int64_t last) {
  int64_t pair = first;
  for (; pair + kRowPairs <= last; pair += kRowPairs) multiply<kRowPairs>(a, n, pair);
  switch (last - pair) {
    case 3: return multiply<3>(a, n, pair);
    case 2: return multiply<2>(a, n, pair);
    case 1: return multiply<1>(a, n, pair);
    default: return;
  }
}

}  // namespace

int64_t tiles_prepared_bytes(const LinearArguments& a) { return row_pairs(a) * 2 * padded_inputs(a) * 2; }

// x (M, K) as [pair of rows][four inputs][row of the pair][4]; what does not exist is zero.
void tiles_prepare(const LinearArguments& a) {
  const int64_t padded = padded_inputs(a);
  auto* to = static_cast<uint16_t*>(a.prepared);
  for (int64_t row = 0; row < 2 * row_pairs(a); ++row) {
    const uint16_t* x = row_of<BFloat16>(a.x, a.x_stride, row < a.rows ? row : 0);
    uint16_t* target = to + row / 2 * 2 * padded + row % 2 * 4;
    for (int64_t k = 0; k < padded; k += 4) {
      uint16_t four[4] = {};
      const int64_t there = row < a.rows ? smaller(4, a.inputs - k) : 0;
      if (there == 4)
        __builtin_memcpy(four, x + k, sizeof four);
      else
        for (int64_t i = 0; i < there; ++i) four[i] = x[k + i];
      __builtin_memcpy(target + 2 * k, four, sizeof four);
    }
  }
}

void tiles_linear(const LinearArguments& a, int64_t first, int64_t last) {
  const int64_t end = smaller(last * kLinearBlock, a.outputs), pairs = row_pairs(a);
  const int64_t at_once = rows_at_once(pairs, 4 * padded_inputs(a), kRowPairs);
  for (int64_t pair = 0; pair < pairs; pair += at_once) {
    for (int64_t n = first * kLinearBlock; n < end; n += kOutputs)
      multiply_pairs(a, n, pair, smaller(pair + at_once, pairs));
  }
}

}  // namespace faultline::model::ops::cpu::FAULTLINE_ISA

#endif
