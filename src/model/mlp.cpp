#include "model/mlp.h"

#include <ATen/ops/nonzero.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "model/ops.h"
#include "site/boundary.h"

namespace faultline::model {

at::Tensor Mlp::operator()(const at::Tensor& x) const {
  const site::Scope scope(place);
  const at::Tensor both = gate_up(site::boundary(x, place, site::Surface::kInput));
  at::Tensor inner;
  {
    const site::Scope inner_scope(activation);
    inner = site::boundary(ops::swiglu(both), activation, site::Surface::kOutput);
  }
  return site::boundary(down(inner), place, site::Surface::kOutput);
}

// Which tokens an expert gets is known only on the device, so this waits for it once a layer.
at::Tensor Moe::operator()(const at::Tensor& x) const {
  const site::Scope scope(place);
  const at::Tensor input = site::boundary(x, place, site::Surface::kInput);
  const at::Tensor chances = at::softmax(router(input), -1, at::kFloat);  // (N, experts)
  auto [weights, chosen] = at::topk(chances, experts_per_token, -1);      // (N, experts per token)
  if (normalise_weights) weights = weights / weights.sum(-1, /*keepdim=*/true);
  weights = weights.to(input.scalar_type());
  const at::Tensor chosen_on_host = chosen.to(at::kCPU);
  site::note_routing(site::place_id(site::place_of(place).path + ".experts"), chosen_on_host,
                     static_cast<int64_t>(experts.size()));
  at::Tensor sum = at::zeros_like(input);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const at::Tensor routed = at::nonzero(chosen_on_host.eq(static_cast<int64_t>(e)));  // (routed, 2): token, rank
    if (routed.size(0) == 0) continue;
    const site::Scope expert_scope(experts[e].place);  // so that all that depends on the routing has an expert's name
    const at::Tensor on_device = routed.to(input.device());
    const at::Tensor token = on_device.select(1, 0), rank = on_device.select(1, 1);
    const at::Tensor part = experts[e](input.index_select(0, token));
    const at::Tensor weight = weights.index({token, rank}).unsqueeze(1);
    sum = sum.index_add(0, token, part * weight);
  }
  if (shared.down.weight.defined()) sum = sum + at::sigmoid(shared_gate(input)) * shared(input);
  return site::boundary(sum, place, site::Surface::kOutput);
}

}  // namespace faultline::model
