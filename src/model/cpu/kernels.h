// The CPU kernels of the model's operators, as one table of functions over raw pointers for each instruction set. Each
// works on a range of rows, heads or blocks, so that the caller decides how the work is spread over threads; no result
// depends on that choice, nor a row's result on the other rows of its batch. Between instruction sets sums may round
// differently (wider vectors, fused products); sampling does not.
#pragma once

#include <cstdint>

namespace faultline::model::ops::cpu {

enum class Storage : uint8_t { kFloat32, kBFloat16, kFloat16 };

// x: rows of `columns` elements, `x_stride` elements apart. residual and sum are null, or belong to the fused form.
struct NormArguments {
  Storage storage;
  int64_t columns;
  const void* x;
  int64_t x_stride;
  const void* residual;
  int64_t residual_stride;
  const float* weight;
  float eps;
  void* y;    // (rows, columns)
  void* sum;  // (rows, columns)
};

struct SwigluArguments {
  Storage storage;
  int64_t columns;      // F
  const void* gate_up;  // rows of 2 F, `stride` apart
  int64_t stride;
  void* y;  // (rows, F)
};

struct RotaryArguments {
  Storage storage;
  int64_t columns, heads, half;  // half = D / 2
  const void* x;
  int64_t x_stride;
  const int64_t* positions;
  const float* cos;  // (context, half)
  const float* sin;
  void* y;  // (rows, columns)
};

inline constexpr int64_t kMaxHeadSize = 256;

// A unit of work is one key/value head of one sequence: b * kv_heads + head.
struct AttentionArguments {
  Storage storage;
  int64_t kv_heads, group, context, head_size;  // group: query heads that share a key/value head
  const void* query;
  int64_t query_stride;
  const void* key_cache;  // (rows, kv_heads, context, head_size)
  const void* value_cache;
  const int64_t* lengths;
  float scale;
  void* y;  // (B, kv_heads * group * head_size)
};

inline constexpr int64_t kLinearBlock = 32;  // output columns in a unit of work

struct LinearArguments {
  Storage storage;
  int64_t rows, outputs, inputs;  // M, N, K
  const void* x;
  int64_t x_stride;
  const void* weight;  // (N, K)
  const void* bias;    // (N) of the same type, or null
  void* y;             // (M, N)
  void* prepared;      // x in the form that the inner loop wants; aligned to 64 bytes
};

struct SampleArguments {
  Storage storage;
  int64_t vocabulary;
  const void* logits;
  int64_t stride;
  const float* temperature;
  const int64_t* top_k;
  const float* top_p;
  const int64_t* key;
  const int64_t* position;
  int64_t* token;
  float* log_probability;
};

struct SampleScratch {  // each as long as the vocabulary
  uint64_t* weights;
  float* usable;
  uint32_t* candidates;
};

struct Kernels {
  const char* name;
  void (*rms_norm)(const NormArguments&, int64_t first_row, int64_t last_row);
  void (*swiglu)(const SwigluArguments&, int64_t first_row, int64_t last_row);
  void (*rotary)(const RotaryArguments&, int64_t first_row, int64_t last_row);
  void (*attend_cached)(const AttentionArguments&, int64_t first_unit, int64_t last_unit);
  int64_t (*linear_prepared_bytes)(const LinearArguments&);
  void (*linear_prepare)(const LinearArguments&);
  void (*linear)(const LinearArguments&, int64_t first_block, int64_t last_block);
  void (*sample)(const SampleArguments&, int64_t first_row, int64_t last_row, const SampleScratch&);
};

const Kernels& kernels();  // of base/machine.h's choice

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512bf16 {
extern const Kernels kKernels;
}
namespace amx {
extern const Kernels kKernels;
}
namespace armbf16 {
extern const Kernels kKernels;
}

}  // namespace faultline::model::ops::cpu
