// The model's operators on a CPU: checks, allocation and threads around the kernels of model/cpu.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "base/machine.h"
#include "model/cpu/kernels.h"
#include "model/ops.h"
#include "model/sampling.h"

namespace faultline::model::ops::cpu {

const Kernels& kernels() {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::kAmx: return amx::kKernels;
    case InstructionSet::kAvx512Bf16: return avx512bf16::kKernels;
    case InstructionSet::kAvx512: return avx512::kKernels;
    case InstructionSet::kAvx2: return avx2::kKernels;
#elif defined(__aarch64__)
    case InstructionSet::kArmBf16: return armbf16::kKernels;
#endif
    default: return portable::kKernels;
  }
}

namespace {

constexpr int64_t kTaskElements = 1 << 15;  // less is not worth waking a thread

Storage storage_of(const at::Tensor& x, const char* name) {
  switch (x.scalar_type()) {
    case at::kFloat: return Storage::kFloat32;
    case at::kBFloat16: return Storage::kBFloat16;
    case at::kHalf: return Storage::kFloat16;
    default: TORCH_CHECK_TYPE(false, name, " must be float32, bfloat16 or float16; got ", x.scalar_type());
  }
}

void check_same_type(const at::Tensor& x, const char* x_name, const at::Tensor& y, const char* y_name) {
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), x_name, " is ", x.scalar_type(), ", ", y_name, " ", y.scalar_type(),
              "; give both one type");
}

void check_vector(const at::Tensor& x, const char* name, at::ScalarType type, int64_t size) {
  TORCH_CHECK(x.scalar_type() == type && x.is_contiguous() && x.dim() == 1 && x.size(0) == size, name,
              " must be a contiguous ", type, " tensor of shape (", size, "); got ", x.scalar_type(), " ", x.sizes());
}

// The rows of x: strided where x is a matrix with contiguous rows, else made contiguous.
struct Rows {
  at::Tensor tensor;
  int64_t count, columns, stride;
};

Rows rows_of(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.dim() >= 1, name, " must have a dimension; got a scalar");
  const int64_t columns = x.size(-1), count = columns == 0 ? 0 : x.numel() / columns;
  if (x.dim() == 2 && (columns <= 1 || x.stride(1) == 1))
    return {x, count, columns, count <= 1 ? columns : x.stride(0)};
  return {x.contiguous(), count, columns, columns};
}

template <class Function>
void over_rows(int64_t count, int64_t columns, Function&& function) {
  if (count * columns == 0) return;
  at::parallel_for(0, count, std::max<int64_t>(1, kTaskElements / columns), function);
}

void check_positions(const at::Tensor& positions, int64_t least, int64_t limit, const char* name) {
  const int64_t* data = positions.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < positions.size(0); ++i)
    TORCH_CHECK(data[i] >= least && data[i] < limit, name, "[", i, "] is ", data[i], "; it must be below ", limit,
                least == 0 ? " and not negative" : "");
}

// --- norm, activation, rotary ----------------------------------------------------------------------------------------
NormArguments norm_arguments(const Rows& x, const at::Tensor& weight, double eps, const at::Tensor& y) {
  check_vector(weight, "weight", at::kFloat, x.columns);
  NormArguments a{};
  a.storage = storage_of(x.tensor, "x");
  a.columns = x.columns;
  a.x = x.tensor.const_data_ptr();
  a.x_stride = x.stride;
  a.weight = weight.const_data_ptr<float>();
  a.eps = static_cast<float>(eps);
  a.y = y.mutable_data_ptr();
  return a;
}

void run_norm(const NormArguments& a, int64_t rows) {
  over_rows(rows, a.columns, [&](int64_t first, int64_t last) { kernels().rms_norm(a, first, last); });
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const Rows rows = rows_of(x, "x");
  at::Tensor y = at::empty(x.sizes(), x.options());
  run_norm(norm_arguments(rows, weight, eps, y), rows.count);
  return y;
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  check_same_type(x, "x", residual, "residual");
  TORCH_CHECK(x.sizes() == residual.sizes(), "x is ", x.sizes(), ", residual ", residual.sizes(), "; they must agree");
  const Rows rows = rows_of(x, "x"), residuals = rows_of(residual, "residual");
  at::Tensor y = at::empty(x.sizes(), x.options()), sum = at::empty(x.sizes(), x.options());
  NormArguments a = norm_arguments(rows, weight, eps, y);
  a.residual = residuals.tensor.const_data_ptr();
  a.residual_stride = residuals.stride;
  a.sum = sum.mutable_data_ptr();
  run_norm(a, rows.count);
  return {y, sum};
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const Rows rows = rows_of(gate_up, "gate_up");
  TORCH_CHECK(rows.columns % 2 == 0, "gate_up must have an even number of columns; got ", gate_up.sizes());
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  at::Tensor y = at::empty(sizes, gate_up.options());
  const SwigluArguments a{storage_of(gate_up, "gate_up"), rows.columns / 2, rows.tensor.const_data_ptr(), rows.stride,
                          y.mutable_data_ptr()};
  over_rows(rows.count, 4 * a.columns, [&](int64_t first, int64_t last) { kernels().swiglu(a, first, last); });
  return y;
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t heads) {
  TORCH_CHECK(x.dim() == 2, "x must be (N, heads * D + rest); got ", x.sizes());
  TORCH_CHECK(cos.dim() == 2 && cos.scalar_type() == at::kFloat && cos.is_contiguous() &&
                  sin.scalar_type() == at::kFloat && sin.is_contiguous() && cos.sizes() == sin.sizes(),
              "cos and sin must be contiguous float32 tables (context, D / 2); got ", cos.sizes(), " and ",
              sin.sizes());
  const Rows rows = rows_of(x, "x");
  const int64_t half = cos.size(1);
  TORCH_CHECK(heads >= 0 && heads * 2 * half <= rows.columns, heads, " heads of ", 2 * half,
              " elements do not fit in rows of ", rows.columns);
  check_vector(positions, "positions", at::kLong, rows.count);
  check_positions(positions, 0, cos.size(0), "positions");
  at::Tensor y = at::empty(x.sizes(), x.options());
  const RotaryArguments a{storage_of(x, "x"),
                          rows.columns,
                          heads,
                          half,
                          rows.tensor.const_data_ptr(),
                          rows.stride,
                          positions.const_data_ptr<int64_t>(),
                          cos.const_data_ptr<float>(),
                          sin.const_data_ptr<float>(),
                          y.mutable_data_ptr()};
  over_rows(rows.count, rows.columns, [&](int64_t first, int64_t last) { kernels().rotary(a, first, last); });
  return y;
}

// --- the cache -------------------------------------------------------------------------------------------------------
void check_caches(const at::Tensor& key_cache, const at::Tensor& value_cache) {
  TORCH_CHECK(key_cache.dim() == 4 && key_cache.is_contiguous() && value_cache.is_contiguous() &&
                  key_cache.sizes() == value_cache.sizes(),
              "the caches must be contiguous and of one shape (rows, kv heads, context, D); got ", key_cache.sizes(),
              " and ", value_cache.sizes());
  check_same_type(key_cache, "key_cache", value_cache, "value_cache");
}

void store_kv_(at::Tensor& key_cache, at::Tensor& value_cache, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& rows, const at::Tensor& positions) {
  check_caches(key_cache, value_cache);
  const int64_t kv_heads = key_cache.size(1), context = key_cache.size(2), size = key_cache.size(3);
  TORCH_CHECK(key.dim() == 2 && key.sizes() == value.sizes() && key.size(1) == kv_heads * size,
              "key and value must be (N, ", kv_heads * size, "); got ", key.sizes(), " and ", value.sizes());
  check_same_type(key, "key", key_cache, "key_cache");
  check_same_type(value, "value", key_cache, "value_cache");
  check_vector(rows, "rows", at::kLong, key.size(0));
  check_vector(positions, "positions", at::kLong, key.size(0));
  check_positions(rows, 0, key_cache.size(0), "rows");
  check_positions(positions, INT64_MIN, context, "positions");
  const Rows keys = rows_of(key, "key"), values = rows_of(value, "value");
  const auto bytes = static_cast<int64_t>(key.element_size());
  const auto copy = [&](const Rows& from, at::Tensor& cache, int64_t token) {
    const auto* source = static_cast<const char*>(from.tensor.const_data_ptr()) + token * from.stride * bytes;
    auto* target = static_cast<char*>(cache.mutable_data_ptr());
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t row = (rows.const_data_ptr<int64_t>()[token] * kv_heads + head) * context;
      std::memcpy(target + (row + positions.const_data_ptr<int64_t>()[token]) * size * bytes,
                  source + head * size * bytes, static_cast<std::size_t>(size * bytes));
    }
  };
  for (int64_t token = 0; token < keys.count; ++token) {
    if (positions.const_data_ptr<int64_t>()[token] < 0) continue;
    copy(keys, key_cache, token);
    copy(values, value_cache, token);
  }
}

at::Tensor attend_cached(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                         const at::Tensor& lengths, double scale) {
  check_caches(key_cache, value_cache);
  check_same_type(query, "query", key_cache, "key_cache");
  const int64_t kv_heads = key_cache.size(1), context = key_cache.size(2), size = key_cache.size(3);
  TORCH_CHECK(query.dim() == 2 && query.size(0) <= key_cache.size(0) && query.size(1) % (kv_heads * size) == 0,
              "query must be (at most ", key_cache.size(0), ", a multiple of ", kv_heads * size, "); got ",
              query.sizes());
  TORCH_CHECK(size <= kMaxHeadSize, "heads may have up to ", kMaxHeadSize, " elements; these have ", size);
  const Rows rows = rows_of(query, "query");
  check_vector(lengths, "lengths", at::kLong, query.size(0));
  check_positions(lengths, 0, context + 1, "lengths");
  at::Tensor y = at::empty(query.sizes(), query.options());
  const AttentionArguments a{storage_of(query, "query"),
                             kv_heads,
                             rows.columns / (kv_heads * size),
                             context,
                             size,
                             rows.tensor.const_data_ptr(),
                             rows.stride,
                             key_cache.const_data_ptr(),
                             value_cache.const_data_ptr(),
                             lengths.const_data_ptr<int64_t>(),
                             static_cast<float>(scale),
                             y.mutable_data_ptr()};
  at::parallel_for(0, rows.count * kv_heads, 1,
                   [&](int64_t first, int64_t last) { kernels().attend_cached(a, first, last); });
  return y;
}

// --- matrix product --------------------------------------------------------------------------------------------------
at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && weight.is_contiguous(),
              "x must be (M, K) and weight a contiguous (N, K); got ", x.sizes(), " and ", weight.sizes());
  check_same_type(x, "x", weight, "weight");
  const int64_t outputs = weight.size(0);
  if (bias.has_value()) check_vector(*bias, "bias", x.scalar_type(), outputs);
  const Rows rows = rows_of(x, "x");
  at::Tensor y = at::empty({x.size(0), outputs}, x.options());
  if (rows.columns == 0) return bias.has_value() ? y.copy_(bias->expand_as(y)) : y.zero_();
  LinearArguments a{storage_of(x, "x"),
                    rows.count,
                    outputs,
                    rows.columns,
                    rows.tensor.const_data_ptr(),
                    rows.stride,
                    weight.const_data_ptr(),
                    bias.has_value() ? bias->const_data_ptr() : nullptr,
                    y.mutable_data_ptr(),
                    nullptr};
  const at::Tensor prepared = at::empty({kernels().linear_prepared_bytes(a)}, x.options().dtype(at::kByte));
  a.prepared = prepared.mutable_data_ptr();
  kernels().linear_prepare(a);
  const int64_t blocks = (outputs + kLinearBlock - 1) / kLinearBlock;
  at::parallel_for(0, blocks, std::max<int64_t>(1, 4 * kTaskElements / (kLinearBlock * a.inputs)),
                   [&](int64_t first, int64_t last) { kernels().linear(a, first, last); });
  return y;
}

// --- sampling --------------------------------------------------------------------------------------------------------
std::tuple<at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& temperature,
                                          const at::Tensor& top_k, const at::Tensor& top_p, const at::Tensor& key,
                                          const at::Tensor& position) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) >= 1 && logits.size(1) <= sampling::kMaxVocabulary,
              "logits must be (B, 1 to ", sampling::kMaxVocabulary, "); got ", logits.sizes());
  const Rows rows = rows_of(logits, "logits");
  check_vector(temperature, "temperature", at::kFloat, rows.count);
  check_vector(top_k, "top_k", at::kLong, rows.count);
  check_vector(top_p, "top_p", at::kFloat, rows.count);
  check_vector(key, "key", at::kLong, rows.count);
  check_vector(position, "position", at::kLong, rows.count);
  at::Tensor token = at::empty({rows.count}, logits.options().dtype(at::kLong));
  at::Tensor log_probability = at::empty({rows.count}, logits.options().dtype(at::kFloat));
  const SampleArguments a{storage_of(logits, "logits"),
                          rows.columns,
                          rows.tensor.const_data_ptr(),
                          rows.stride,
                          temperature.const_data_ptr<float>(),
                          top_k.const_data_ptr<int64_t>(),
                          top_p.const_data_ptr<float>(),
                          key.const_data_ptr<int64_t>(),
                          position.const_data_ptr<int64_t>(),
                          token.mutable_data_ptr<int64_t>(),
                          log_probability.mutable_data_ptr<float>()};
  over_rows(rows.count, rows.columns, [&](int64_t first, int64_t last) {
    const auto size = static_cast<std::size_t>(a.vocabulary);
    std::vector<uint64_t> weights(size);
    std::vector<float> usable(size);
    std::vector<uint32_t> candidates(size);
    kernels().sample(a, first, last, {weights.data(), usable.data(), candidates.data()});
  });
  return {token, log_probability};
}

TORCH_LIBRARY_IMPL(faultline, CPU, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("swiglu", swiglu);
  m.impl("rotary", rotary);
  m.impl("store_kv_", store_kv_);
  m.impl("attend_cached", attend_cached);
  m.impl("few_rows_linear", few_rows_linear);
  m.impl("sample", sample);
}

}  // namespace
}  // namespace faultline::model::ops::cpu
