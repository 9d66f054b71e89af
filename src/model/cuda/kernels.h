// The CUDA kernels of the model's operators behind plain functions: raw device pointers, sizes in elements, and a
// stream (a cudaStream_t passed as void*), so that neither side sees the other's headers. What each computes stands in
// model/ops.h. Nothing here synchronises or allocates, all are safe inside a captured graph; launch errors are thrown
// as RuntimeFailure. Letters: see model/ops.h.
#pragma once

#include <cstdint>

namespace faultline::model::ops::cuda {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };

// Row r of x starts at (r / inner) * outer_stride + (r % inner) * inner_stride; residual, sum and out are contiguous.
// With residual and sum the sum is normalised and stored too.
struct NormArguments {
  Element element;
  const void* x;
  const void* residual;
  const float* weight;
  void* sum;
  void* out;
  int64_t rows, width, outer_stride, inner, inner_stride;
  float eps;
};
void rms_norm(const NormArguments& a, void* stream);

// partial: (kNormSegments, width) fp32; inverse: (rows) fp32. All contiguous.
inline constexpr int kNormSegments = 128;
struct NormGradient {
  Element element;
  const void* grad;
  const void* x;
  const float* weight;
  void* grad_x;
  float* grad_weight;
  float* partial;
  float* inverse;
  int64_t rows, width;
  float eps;
};
void rms_norm_backward(const NormGradient& a, void* stream);

// gate_up: rows of 2F elements at a stride; out, grad: (rows, F); grad_gate_up: (rows, 2F).
void swiglu(Element element, const void* gate_up, int64_t stride, void* out, int64_t rows, int64_t width, void* stream);
void swiglu_backward(Element element, const void* grad, const void* gate_up, int64_t stride, void* grad_gate_up,
                     int64_t rows, int64_t width, void* stream);

struct RotaryArguments {
  Element element;
  const void* x;
  int64_t stride;
  const int64_t* positions;
  const float* cos;
  const float* sin;
  void* out;
  int64_t tokens, heads, head_size, rest, context;
};
void rotary(const RotaryArguments& a, void* stream);

struct StoreArguments {
  int element_size;
  void* key_cache;
  void* value_cache;
  const void* key;
  const void* value;
  int64_t key_stride, value_stride;
  const int64_t* rows;
  const int64_t* positions;
  int64_t tokens, cache_rows, kv_heads, context, head_size;
};
void store_kv(const StoreArguments& a, void* stream);

// partial: attend_scratch() floats. The query's rows and both caches start at multiples of 16 bytes.
struct AttendArguments {
  Element element;
  const void* query;
  int64_t query_stride;
  const void* key_cache;
  const void* value_cache;
  const int64_t* lengths;
  void* out;
  float* partial;
  int64_t batch, heads, kv_heads, context, head_size;
  float scale;
};
int64_t attend_scratch(const AttendArguments& a);
void attend_cached(const AttendArguments& a, void* stream);

inline constexpr int64_t kFewRows = 8;
struct LinearArguments {
  Element element;
  const void* x;
  int64_t x_stride;
  const void* weight;
  int64_t weight_stride;
  const void* bias;
  void* out;
  int64_t rows, outputs, inputs;
};
void few_rows_linear(const LinearArguments& a, void* stream);

// scratch: sample_scratch() bytes of zeros, aligned to 16.
struct SampleArguments {
  Element element;
  const void* logits;
  int64_t stride;
  const float* temperature;
  const int64_t* top_k;
  const float* top_p;
  const int64_t* key;
  const int64_t* position;
  int64_t* token;
  float* log_probability;
  void* scratch;
  int64_t batch, vocabulary;
};
int64_t sample_scratch(int64_t batch);
void sample(const SampleArguments& a, void* stream);

}  // namespace faultline::model::ops::cuda
