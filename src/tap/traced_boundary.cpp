// A boundary inside code that torch.compile has compiled. Tracing needs an operator whose results are new tensors with
// known shapes, and whose backward is made of operators, too; so it is one node in the graph and no reason to break it.
// Which rules act is asked when the node runs: one graph serves every plan, and no plan. Only what changes shapes or
// the graph of backward (`masked`: a mask is saved; `gradient`: backward has a node of its own) is fixed when it is
// traced.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "site/torch_support.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"

namespace faultline::tap {
namespace {

using Traced = std::tuple<at::Tensor, at::Tensor>;  // the value; where no gradient passes (empty: it passes everywhere)

site::Surface surface_of(c10::string_view name) {
  return name == "input" ? site::Surface::kInput : site::Surface::kOutput;
}

Traced traced_boundary_shapes(const at::Tensor& x, int64_t, c10::string_view, bool masked, bool) {
  return {at::empty_like(x), masked ? at::empty_like(x, at::kBool) : at::empty({0}, x.options().dtype(at::kBool))};
}

Traced traced_boundary(const at::Tensor& x, int64_t place_number, c10::string_view surface_name, bool masked,
                       bool gradient) {
  return site::translated([&]() -> Traced {
    const auto id = static_cast<site::PlaceId>(place_number);
    const site::Surface surface = surface_of(surface_name);
    count_boundary(id, surface);
    const TapsSuspended asleep;
    at::Tensor y = at::empty_like(x);
    y.copy_(x);
    at::Tensor stopped = masked ? at::zeros_like(x, at::kBool) : at::empty({0}, x.options().dtype(at::kBool));
    const auto plan = active_plan();
    if (!plan || !plan->armed()) return {y, stopped};
    for (const auto& rule : plan->rules()) {
      if (!rule_means_boundary(*rule, site::place_of(id), surface)) continue;
      const bool on_gradient = rule->rule.where->surface == site::Surface::kGradient;
      const bool masks = rule->rule.gradient == numeric::GradientRule::kMasked && !on_gradient;
      if ((on_gradient && !gradient) || (masks && !masked))
        throw UsageError("rule '" + rule->rule.name +
                         "' acts in backward, and this code was compiled under a plan without such a rule; call "
                         "torch._dynamo.reset() and compile it under this one");
      if (on_gradient) continue;
      Row& row = plan->row(*rule, kBoundaryTarget, "boundary", {id, site::locate().phase}, surface, y);
      if (!row.unreached.empty()) {
        row.calls.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      const at::Tensor before = masks ? y.clone() : at::Tensor();
      plan->act(row, y);
      if (masks) stopped.logical_or_(forced_by(rule->rule, before, y));
    }
    return {y, stopped};
  });
}

at::Tensor traced_boundary_backward_shape(const at::Tensor& gradient, const at::Tensor&, int64_t) {
  return at::empty_like(gradient);
}

at::Tensor traced_boundary_backward(const at::Tensor& gradient, const at::Tensor& stopped, int64_t place_number) {
  return site::translated([&] {
    const auto id = static_cast<site::PlaceId>(place_number);
    const TapsSuspended asleep;
    at::Tensor result = gradient.clone();
    const auto plan = active_plan();
    if (plan && plan->armed()) {
      for (const auto& rule : plan->rules()) {
        if (rule->rule.where->surface == site::Surface::kGradient &&
            rule_means_boundary(*rule, site::place_of(id), site::Surface::kOutput))
          result = faulted_gradient(*plan, *rule, id, result);
      }
    }
    if (stopped.numel() > 0) result.masked_fill_(stopped, 0);
    return result;
  });
}

at::Tensor call_backward(const at::Tensor& gradient, const at::Tensor& stopped, int64_t place) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("faultline::traced_boundary_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>();
  return op.call(gradient, stopped, place);
}

Traced call_forward(const at::Tensor& x, int64_t place, c10::string_view surface, bool masked, bool gradient) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("faultline::traced_boundary", "")
                             .typed<Traced(const at::Tensor&, int64_t, c10::string_view, bool, bool)>();
  return op.call(x, place, surface, masked, gradient);
}

struct TracedFunction : torch::autograd::Function<TracedFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                int64_t place, const std::string& surface, bool masked, bool gradient) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, stopped] = call_forward(x, place, surface, masked, gradient);
    context->save_for_backward({stopped});
    context->mark_non_differentiable({stopped});
    context->saved_data["place"] = place;
    context->saved_data["acts"] = masked || (gradient && surface == "output");
    return {y, stopped};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    at::Tensor gradient = gradients[0];
    if (context->saved_data["acts"].toBool() && gradient.defined())
      gradient = call_backward(gradient, context->get_saved_variables()[0], context->saved_data["place"].toInt());
    return {gradient, {}, {}, {}, {}};
  }
};

Traced traced_boundary_autograd(const at::Tensor& x, int64_t place, c10::string_view surface, bool masked,
                                bool gradient) {
  const auto results = TracedFunction::apply(x, place, std::string(surface), masked, gradient);
  return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("traced_boundary(Tensor x, int place, str surface, bool masked, bool gradient) -> (Tensor, Tensor)");
  m.def("traced_boundary_backward(Tensor gradient, Tensor stopped, int place) -> Tensor");
}
TORCH_LIBRARY_IMPL(faultline, CPU, m) {
  m.impl("traced_boundary", traced_boundary);
  m.impl("traced_boundary_backward", traced_boundary_backward);
}
TORCH_LIBRARY_IMPL(faultline, CUDA, m) {
  m.impl("traced_boundary", traced_boundary);
  m.impl("traced_boundary_backward", traced_boundary_backward);
}
TORCH_LIBRARY_IMPL(faultline, Meta, m) {
  m.impl("traced_boundary", traced_boundary_shapes);
  m.impl("traced_boundary_backward", traced_boundary_backward_shape);
}
TORCH_LIBRARY_IMPL(faultline, Autograd, m) { m.impl("traced_boundary", traced_boundary_autograd); }

}  // namespace faultline::tap
