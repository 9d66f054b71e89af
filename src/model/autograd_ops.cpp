// Gradients of the model's operators. Those that training needs are autograd functions whose backward is an operator
// again, so that taps find it; inference skips them and goes straight to the backend. The others refuse a tensor that
// wants a gradient instead of silently cutting it off.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "base/error.h"
#include "model/ops.h"

namespace faultline::model::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class... Tensors>
bool wants_gradient(const Tensors&... tensors) {
  return c10::GradMode::is_enabled() && (tensors.requires_grad() || ...);
}

template <class... Tensors>
void refuse_gradient(const char* op, const Tensors&... tensors) {
  if (wants_gradient(tensors...))
    throw UsageError(
        fmt::format("faultline::{} has no gradient, but one of its inputs requires one; call it under "
                    "no_grad, or train with the model's training path",
                    op));
}

// The backward operators by their dispatcher names, as ops.cpp has the forward ones.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("faultline::rms_norm_backward", "")
                             .typed<decltype(rms_norm_backward)>();
  return op.call(grad, x, weight, eps);
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("faultline::swiglu_backward", "")
                             .typed<decltype(swiglu_backward)>();
  return op.call(grad, gate_up);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return rms_norm(x, weight, eps);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [grad_x, grad_weight] =
        rms_norm_backward(grads[0], saved[0], saved[1], context->saved_data["eps"].toDouble());
    return {grad_x, grad_weight, {}};
  }
};

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({gate_up});
    return swiglu(gate_up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {swiglu_backward(grads[0], context->get_saved_variables()[0])};
  }
};

// The way back turns by the opposite angle.
struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, int64_t heads) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({positions, cos, sin});
    context->saved_data["heads"] = heads;
    return rotary(x, positions, cos, sin, heads);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor positions = saved[0], cos = saved[1], sin = saved[2];
    if (positions.size(0) < cos.size(0)) {  // of a long table only the rows in use are negated
      const at::Tensor used = positions.clamp(0, cos.size(0) - 1);
      cos = cos.index_select(0, used), sin = sin.index_select(0, used);
      positions = at::arange(positions.size(0), positions.options());
    }
    return {rotary(grads[0], positions, cos, sin.neg(), context->saved_data["heads"].toInt()), {}, {}, {}, {}};
  }
};

at::Tensor rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (wants_gradient(x, weight)) return RmsNorm::apply(x, weight, eps);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rms_norm(x, weight, eps);
}

at::Tensor swiglu_autograd(const at::Tensor& gate_up) {
  if (wants_gradient(gate_up)) return Swiglu::apply(gate_up);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return swiglu(gate_up);
}

at::Tensor rotary_autograd(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos,
                           const at::Tensor& sin, int64_t heads) {
  if (wants_gradient(cos, sin)) throw UsageError("faultline::rotary has no gradient with respect to cos and sin");
  if (wants_gradient(x)) return Rotary::apply(x, positions, cos, sin, heads);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rotary(x, positions, cos, sin, heads);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_autograd(const at::Tensor& x, const at::Tensor& residual,
                                                         const at::Tensor& weight, double eps) {
  refuse_gradient("add_rms_norm", x, residual, weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return add_rms_norm(x, residual, weight, eps);
}

void store_kv_autograd(at::Tensor& key_cache, at::Tensor& value_cache, const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& rows, const at::Tensor& positions) {
  refuse_gradient("store_kv_", key_cache, value_cache, key, value);
  const at::AutoDispatchBelowADInplaceOrView guard;
  store_kv_(key_cache, value_cache, key, value, rows, positions);
}

at::Tensor attend_cached_autograd(const at::Tensor& query, const at::Tensor& key_cache, const at::Tensor& value_cache,
                                  const at::Tensor& lengths, double scale) {
  refuse_gradient("attend_cached", query, key_cache, value_cache);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return attend_cached(query, key_cache, value_cache, lengths, scale);
}

at::Tensor few_rows_linear_autograd(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias) {
  refuse_gradient("few_rows_linear", x, weight, bias ? *bias : x);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return few_rows_linear(x, weight, bias.value_or(at::Tensor()));
}

std::tuple<at::Tensor, at::Tensor> sample_autograd(const at::Tensor& logits, const at::Tensor& temperature,
                                                   const at::Tensor& top_k, const at::Tensor& top_p,
                                                   const at::Tensor& key, const at::Tensor& position) {
  refuse_gradient("sample", logits, temperature, top_p);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return sample(logits, temperature, top_k, top_p, key, position);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_autograd(const at::Tensor& grad, const at::Tensor& x,
                                                              const at::Tensor& weight, double eps) {
  refuse_gradient("rms_norm_backward", grad, x, weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rms_norm_backward(grad, x, weight, eps);
}

at::Tensor swiglu_backward_autograd(const at::Tensor& grad, const at::Tensor& gate_up) {
  refuse_gradient("swiglu_backward", grad, gate_up);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return swiglu_backward(grad, gate_up);
}

// The gradients in torch's own operators, for backends without a kernel of ours.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_composed(const at::Tensor& grad, const at::Tensor& x,
                                                              const at::Tensor& weight, double eps) {
  const at::Tensor value = x.to(at::kFloat), g = grad.to(at::kFloat);
  const at::Tensor inverse = (value.square().mean(-1, true) + eps).rsqrt(), normal = value * inverse;
  const at::Tensor weighted = g * weight;
  const at::Tensor grad_x = inverse * (weighted - normal * (weighted * normal).mean(-1, true));
  return {grad_x.to(x.scalar_type()), (g * normal).reshape({-1, x.size(-1)}).sum(0)};
}

at::Tensor swiglu_backward_composed(const at::Tensor& grad, const at::Tensor& gate_up) {
  const at::Tensor both = gate_up.to(at::kFloat), g = grad.to(at::kFloat);
  const int64_t width = gate_up.size(-1) / 2;
  const at::Tensor gate = both.narrow(-1, 0, width), up = both.narrow(-1, width, width), sigmoid = gate.sigmoid();
  const at::Tensor slope = sigmoid * (1 + gate * (1 - sigmoid));
  return at::cat({g * up * slope, g * gate * sigmoid}, -1).to(gate_up.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(faultline, Autograd, m) {
  m.impl("rms_norm", rms_norm_autograd);
  m.impl("rms_norm_backward", rms_norm_backward_autograd);
  m.impl("add_rms_norm", add_rms_norm_autograd);
  m.impl("swiglu", swiglu_autograd);
  m.impl("swiglu_backward", swiglu_backward_autograd);
  m.impl("rotary", rotary_autograd);
  m.impl("store_kv_", store_kv_autograd);
  m.impl("attend_cached", attend_cached_autograd);
  m.impl("few_rows_linear", few_rows_linear_autograd);
  m.impl("sample", sample_autograd);
}

TORCH_LIBRARY_IMPL(faultline, CompositeExplicitAutograd, m) {
  m.impl("rms_norm_backward", rms_norm_backward_composed);
  m.impl("swiglu_backward", swiglu_backward_composed);
}

}  // namespace faultline::model::ops
