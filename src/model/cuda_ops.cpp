// The CUDA side of the model's operators: checks tensors, allocates results and scratch, and hands raw pointers to the
// kernels on the current stream.
#ifdef FAULTLINE_WITH_CUDA
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/library.h>

#include "base/error.h"
#include "model/cuda/kernels.h"
#include "model/cuda_checks.h"
#include "model/ops.h"
#include "model/sampling.h"
#include "site/torch_support.h"

namespace faultline::model::ops {
namespace {

void* stream_of(const at::Tensor& x) { return site::current_stream(x.device()); }

void check_norm(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  require(x.dim() >= 1, op, "x", "of at least one dimension", x);
  require_vector(op, "weight", weight, at::kFloat, x.size(-1), x);
}

// Up to three dimensions with dense rows need no copy: heads of a fused qkv are normalised where they lie.
cuda::NormArguments norm_arguments(const char* op, const at::Tensor& x, const at::Tensor& weight, double eps) {
  cuda::NormArguments a{};
  a.element = element_of(op, "x", x);
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr<float>();
  a.width = x.size(-1);
  a.rows = a.width == 0 ? 0 : x.numel() / a.width;
  a.eps = static_cast<float>(eps);
  const bool contiguous = x.is_contiguous() || x.dim() == 1;
  a.inner = contiguous || x.dim() == 2 ? 1 : x.size(1);
  a.inner_stride = a.inner == 1 ? 0 : x.stride(1);
  a.outer_stride = contiguous ? a.width : x.stride(0);
  if (a.inner == 0) a.inner = 1;
  return a;
}

at::Tensor rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm("rms_norm", x, weight);
  const c10::DeviceGuard guard(x.device());
  const bool direct = x.is_contiguous() || ((x.dim() == 2 || x.dim() == 3) && has_dense_rows(x));
  const at::Tensor input = direct ? x : x.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  cuda::NormArguments a = norm_arguments("rms_norm", input, weight, eps);
  a.out = out.mutable_data_ptr();
  cuda::rms_norm(a, stream_of(x));
  return out;
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_cuda(const at::Tensor& x, const at::Tensor& residual,
                                                     const at::Tensor& weight, double eps) {
  check_norm("add_rms_norm", x, weight);
  require_like("add_rms_norm", "residual", residual, x);
  const c10::DeviceGuard guard(x.device());
  const at::Tensor input = x.contiguous(), other = residual.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options()), sum = at::empty(x.sizes(), x.options());
  cuda::NormArguments a = norm_arguments("add_rms_norm", input, weight, eps);
  a.residual = other.const_data_ptr();
  a.sum = sum.mutable_data_ptr();
  a.out = out.mutable_data_ptr();
  cuda::rms_norm(a, stream_of(x));
  return {out, sum};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& weight, double eps) {
  check_norm("rms_norm_backward", x, weight);
  require_like("rms_norm_backward", "grad", grad, x);
  const c10::DeviceGuard guard(x.device());
  const at::Tensor g = grad.contiguous(), input = x.contiguous();
  at::Tensor grad_x = at::empty(x.sizes(), x.options()), grad_weight = at::empty_like(weight);
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor partial = at::empty({cuda::kNormSegments, width}, weight.options()),
             inverse = at::empty({rows}, weight.options());
  cuda::rms_norm_backward(
      {element_of("rms_norm_backward", "x", x), g.const_data_ptr(), input.const_data_ptr(),
       weight.const_data_ptr<float>(), grad_x.mutable_data_ptr(), grad_weight.mutable_data_ptr<float>(),
       partial.mutable_data_ptr<float>(), inverse.mutable_data_ptr<float>(), rows, width, static_cast<float>(eps)},
      stream_of(x));
  return {grad_x, grad_weight};
}

std::vector<int64_t> half_width(const char* op, const at::Tensor& gate_up) {
  require(gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0, op, "gate_up", "(…, 2F)", gate_up);
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  return sizes;
}

at::Tensor swiglu_cuda(const at::Tensor& gate_up) {
  const std::vector<int64_t> sizes = half_width("swiglu", gate_up);
  const c10::DeviceGuard guard(gate_up.device());
  const at::Tensor rows = as_rows(gate_up);
  at::Tensor out = at::empty(sizes, gate_up.options());
  cuda::swiglu(element_of("swiglu", "gate_up", gate_up), rows.const_data_ptr(), row_stride(rows),
               out.mutable_data_ptr(), rows.size(0), sizes.back(), stream_of(gate_up));
  return out;
}

at::Tensor swiglu_backward_cuda(const at::Tensor& grad, const at::Tensor& gate_up) {
  const std::vector<int64_t> sizes = half_width("swiglu_backward", gate_up);
  require_beside("swiglu_backward", "grad", grad, gate_up);
  require(grad.scalar_type() == gate_up.scalar_type() && grad.sizes() == at::IntArrayRef(sizes), "swiglu_backward",
          "grad", "of gate_up's type, (…, F)", grad);
  const c10::DeviceGuard guard(gate_up.device());
  const at::Tensor rows = as_rows(gate_up), g = grad.contiguous();
  at::Tensor out = at::empty(gate_up.sizes(), gate_up.options());
  cuda::swiglu_backward(element_of("swiglu_backward", "gate_up", gate_up), g.const_data_ptr(), rows.const_data_ptr(),
                        row_stride(rows), out.mutable_data_ptr(), rows.size(0), sizes.back(), stream_of(gate_up));
  return out;
}

void check_rotary(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t heads) {
  require(x.dim() == 2, "rotary", "x", "(N, heads * D + rest)", x);
  require_vector("rotary", "positions", positions, at::kLong, x.size(0), x);
  require_beside("rotary", "cos", cos, x);
  require(cos.scalar_type() == at::kFloat && cos.dim() == 2 && cos.is_contiguous() && cos.size(0) > 0, "rotary", "cos",
          "contiguous fp32 (context, D / 2)", cos);
  require(sin.device() == cos.device() && sin.scalar_type() == at::kFloat && sin.sizes() == cos.sizes() &&
              sin.is_contiguous(),
          "rotary", "sin", "like cos", sin);
  if (heads < 0 || heads * 2 * cos.size(1) > x.size(1))
    throw UsageError(fmt::format("faultline::rotary: {} heads of {} elements do not fit the {} columns of x", heads,
                                 2 * cos.size(1), x.size(1)));
}

at::Tensor rotary_cuda(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                       int64_t heads) {
  check_rotary(x, positions, cos, sin, heads);
  const c10::DeviceGuard guard(x.device());
  const at::Tensor rows = as_rows(x);
  at::Tensor out = at::empty(x.sizes(), x.options());
  const int64_t head_size = 2 * cos.size(1);
  cuda::rotary({element_of("rotary", "x", x), rows.const_data_ptr(), row_stride(rows),
                positions.const_data_ptr<int64_t>(), cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
                out.mutable_data_ptr(), x.size(0), heads, head_size, x.size(1) - heads * head_size, cos.size(0)},
               stream_of(x));
  return out;
}

void check_caches(const char* op, const at::Tensor& key_cache, const at::Tensor& value_cache) {
  require(key_cache.dim() == 4 && key_cache.is_contiguous(), op, "key_cache", "contiguous (rows, K, context, D)",
          key_cache);
  require(value_cache.device() == key_cache.device() && value_cache.scalar_type() == key_cache.scalar_type() &&
              value_cache.sizes() == key_cache.sizes() && value_cache.is_contiguous(),
          op, "value_cache", "like key_cache", value_cache);
}

void store_kv_cuda(at::Tensor& key_cache, at::Tensor& value_cache, const at::Tensor& key, const at::Tensor& value,
                   const at::Tensor& rows, const at::Tensor& positions) {
  check_caches("store_kv_", key_cache, value_cache);
  element_of("store_kv_", "key_cache", key_cache);
  for (const auto& [name, tensor] : {std::pair{"key", &key}, std::pair{"value", &value}}) {
    require_beside("store_kv_", name, *tensor, key_cache);
    require(tensor->dim() == 2 && tensor->scalar_type() == key_cache.scalar_type() &&
                tensor->size(1) == key_cache.size(1) * key_cache.size(3) && tensor->size(0) == key.size(0),
            "store_kv_", name, "(N, K * D) of the caches' type", *tensor);
  }
  require_vector("store_kv_", "rows", rows, at::kLong, key.size(0), key_cache);
  require_vector("store_kv_", "positions", positions, at::kLong, key.size(0), key_cache);
  const c10::DeviceGuard guard(key_cache.device());
  const at::Tensor k = as_rows(key), v = as_rows(value);
  cuda::store_kv({static_cast<int>(key_cache.element_size()), key_cache.mutable_data_ptr(),
                  value_cache.mutable_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), row_stride(k), row_stride(v),
                  rows.const_data_ptr<int64_t>(), positions.const_data_ptr<int64_t>(), key.size(0), key_cache.size(0),
                  key_cache.size(1), key_cache.size(2), key_cache.size(3)},
                 stream_of(key_cache));
}

bool is_wide(const at::Tensor& rows) {  // rows start at multiples of 16 bytes
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 &&
         row_stride(rows) * static_cast<int64_t>(rows.element_size()) % 16 == 0;
}

void check_attend(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                  const at::Tensor& lengths) {
  check_caches("attend_cached", key_cache, value_cache);
  require_beside("attend_cached", "query", query, key_cache);
  const int64_t head_size = key_cache.size(3), kv_heads = key_cache.size(1);
  if (head_size % 8 != 0 || head_size < 8 || head_size > 256)
    throw UsageError(
        fmt::format("faultline::attend_cached: the head size must be a multiple of 8 from 8 to 256; the caches have {}",
                    head_size));
  require(query.dim() == 2 && query.scalar_type() == key_cache.scalar_type() && kv_heads > 0 &&
              query.size(1) % (kv_heads * head_size) == 0 && query.size(0) <= key_cache.size(0),
          "attend_cached", "query", "(B, H * D) of the caches' type, H a multiple of their heads, B at most their rows",
          query);
  require(key_cache.size(0) <= 65535, "attend_cached", "key_cache", "of at most 65535 rows", key_cache);
  require_vector("attend_cached", "lengths", lengths, at::kLong, query.size(0), query);
}

at::Tensor attend_cached_cuda(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                              const at::Tensor& lengths, double scale) {
  check_attend(query, key_cache, value_cache, lengths);
  const c10::DeviceGuard guard(query.device());
  at::Tensor q = as_rows(query);
  if (!is_wide(q)) q = q.clone(at::MemoryFormat::Contiguous);
  at::Tensor out = at::empty(query.sizes(), query.options());
  cuda::AttendArguments a{element_of("attend_cached", "query", query),
                          q.const_data_ptr(),
                          row_stride(q),
                          key_cache.const_data_ptr(),
                          value_cache.const_data_ptr(),
                          lengths.const_data_ptr<int64_t>(),
                          out.mutable_data_ptr(),
                          nullptr,
                          query.size(0),
                          query.size(1) / key_cache.size(3),
                          key_cache.size(1),
                          key_cache.size(2),
                          key_cache.size(3),
                          static_cast<float>(scale)};
  at::Tensor partial = at::empty({cuda::attend_scratch(a)}, query.options().dtype(at::kFloat));
  a.partial = partial.mutable_data_ptr<float>();
  cuda::attend_cached(a, stream_of(query));
  return out;
}

at::Tensor few_rows_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const cuda::Element element = element_of("few_rows_linear", "x", x);
  require(x.dim() == 2 && x.size(0) <= cuda::kFewRows, "few_rows_linear", "x", "(M, K) with M at most 8", x);
  require_beside("few_rows_linear", "weight", weight, x);
  require(weight.dim() == 2 && weight.scalar_type() == x.scalar_type() && weight.size(1) == x.size(1),
          "few_rows_linear", "weight", "(N, K) of x's type", weight);
  if (bias) require_vector("few_rows_linear", "bias", *bias, x.scalar_type(), weight.size(0), x);
  const c10::DeviceGuard guard(x.device());
  const at::Tensor rows = as_rows(x), w = as_rows(weight);
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  cuda::few_rows_linear(
      {element, rows.const_data_ptr(), row_stride(rows), w.const_data_ptr(), row_stride(w),
       bias ? bias->const_data_ptr() : nullptr, out.mutable_data_ptr(), x.size(0), weight.size(0), x.size(1)},
      stream_of(x));
  return out;
}

std::tuple<at::Tensor, at::Tensor> sample_cuda(const at::Tensor& logits, const at::Tensor& temperature,
                                               const at::Tensor& top_k, const at::Tensor& top_p, const at::Tensor& key,
                                               const at::Tensor& position) {
  require(
      logits.dim() == 2 && logits.size(1) >= 1 && logits.size(1) <= sampling::kMaxVocabulary && logits.size(0) <= 65535,
      "sample", "logits", "(B, V) with V from 1 to 2^20", logits);
  const int64_t batch = logits.size(0);
  require_vector("sample", "temperature", temperature, at::kFloat, batch, logits);
  require_vector("sample", "top_k", top_k, at::kLong, batch, logits);
  require_vector("sample", "top_p", top_p, at::kFloat, batch, logits);
  require_vector("sample", "key", key, at::kLong, batch, logits);
  require_vector("sample", "position", position, at::kLong, batch, logits);
  const c10::DeviceGuard guard(logits.device());
  const at::Tensor rows = as_rows(logits);
  at::Tensor token = at::empty({batch}, logits.options().dtype(at::kLong));
  at::Tensor log_probability = at::empty({batch}, logits.options().dtype(at::kFloat));
  at::Tensor scratch = at::zeros({cuda::sample_scratch(batch)}, logits.options().dtype(at::kByte));
  cuda::sample({element_of("sample", "logits", logits), rows.const_data_ptr(), row_stride(rows),
                temperature.const_data_ptr<float>(), top_k.const_data_ptr<int64_t>(), top_p.const_data_ptr<float>(),
                key.const_data_ptr<int64_t>(), position.const_data_ptr<int64_t>(), token.mutable_data_ptr<int64_t>(),
                log_probability.mutable_data_ptr<float>(), scratch.mutable_data_ptr(), batch, logits.size(1)},
               stream_of(logits));
  return {token, log_probability};
}

}  // namespace

TORCH_LIBRARY_IMPL(faultline, CUDA, m) {
  m.impl("rms_norm", rms_norm_cuda);
  m.impl("rms_norm_backward", rms_norm_backward_cuda);
  m.impl("add_rms_norm", add_rms_norm_cuda);
  m.impl("swiglu", swiglu_cuda);
  m.impl("swiglu_backward", swiglu_backward_cuda);
  m.impl("rotary", rotary_cuda);
  m.impl("store_kv_", store_kv_cuda);
  m.impl("attend_cached", attend_cached_cuda);
  m.impl("few_rows_linear", few_rows_linear_cuda);
  m.impl("sample", sample_cuda);
}

}  // namespace faultline::model::ops
#endif
