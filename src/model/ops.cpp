#include "model/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace faultline::model::ops {
namespace {

template <typename Signature>
auto operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op =
      operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("faultline::rms_norm");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  static const auto op = operator_named<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("faultline::add_rms_norm");
  return op.call(x, residual, weight, eps);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  static const auto op = operator_named<at::Tensor(const at::Tensor&)>("faultline::swiglu");
  return op.call(gate_up);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t heads) {
  static const auto op =
      operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t)>(
          "faultline::rotary");
  return op.call(x, positions, cos, sin, heads);
}

void store_kv_(at::Tensor key_cache, at::Tensor value_cache, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& rows, const at::Tensor& positions) {
  static const auto op = operator_named<void(at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&,
                                             const at::Tensor&, const at::Tensor&)>("faultline::store_kv_");
  op.call(key_cache, value_cache, key, value, rows, positions);
}

at::Tensor attend_cached(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                         const at::Tensor& lengths, double scale) {
  static const auto op =
      operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>(
          "faultline::attend_cached");
  return op.call(query, key_cache, value_cache, lengths, scale);
}

at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  static const auto op =
      operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&)>(
          "faultline::few_rows_linear");
  return op.call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> sample(const at::Tensor& logits, const at::Tensor& temperature,
                                          const at::Tensor& top_k, const at::Tensor& top_p, const at::Tensor& key,
                                          const at::Tensor& position) {
  static const auto op =
      operator_named<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                        const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "faultline::sample");
  return op.call(logits, temperature, top_k, top_p, key, position);
}

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("swiglu_backward(Tensor grad, Tensor gate_up) -> Tensor");
  m.def("rotary(Tensor x, Tensor positions, Tensor cos, Tensor sin, int heads) -> Tensor");
  m.def(
      "store_kv_(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor key, Tensor value, Tensor rows, Tensor "
      "positions) "
      "-> ()");
  m.def("attend_cached(Tensor query, Tensor key_cache, Tensor value_cache, Tensor lengths, float scale) -> Tensor");
  m.def("few_rows_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def(
      "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor key, Tensor position) -> (Tensor, "
      "Tensor)");
}

}  // namespace faultline::model::ops
