// Faults on named tensors of a model, eager and traced, and places read off paths.
#include "tap/boundary.h"

#include "tap/testing.h"

namespace faultline::tap {
namespace boundary_test {

TEST(Boundary, MasksGradientsWhereTheFaultForcedAConstant) {
  const at::Tensor x = at::tensor({-2.0f, -0.1f, 0.0f, 0.1f, 2.0f}).requires_grad_();
  const site::PlaceId place = site::place_id("layers.3");
  {
    const Armed plan(make_plan(
        {"{name: d, where: {module: layer_output}, what: {kind: deadzone, threshold: 0.5}, gradient: masked}"}));
    site::boundary(x, place, site::Surface::kOutput).sum().backward();
  }
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({1.0f, 0.0f, 0.0f, 0.0f, 1.0f})));
  EXPECT_TRUE(at::equal(x, at::tensor({-2.0f, -0.1f, 0.0f, 0.1f, 2.0f})));  // the caller's tensor is not touched
}

// The form that torch.compile keeps in a graph gives the same values and gradients as the one that models call.
TEST(Boundary, IsTheSameInItsTracedForm) {
  const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("faultline::traced_boundary", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, int64_t, c10::string_view, bool, bool)>();
  const site::PlaceId place = site::place_id("layers.3");
  const at::Tensor plain = noise_like({64}, at::kFloat).requires_grad_();
  const at::Tensor traced = plain.detach().clone().requires_grad_();
  const std::vector<std::string> rules = {
      "{name: d, where: {module: layer_output}, what: {kind: deadzone, threshold: 0.5}, gradient: masked}",
      "{name: n, where: {module: layer_output}, what: {kind: relative_gaussian, strength: 0.1}}",
      "{name: g, where: {module: layer, surface: gradient}, what: {kind: gain, strength: 1.0}}"};
  at::Tensor first, second;
  {
    const Armed plan(make_plan(rules));
    const site::ForwardScope root(site::place_id("model"));  // says the phase: below autograd gradients are off
    first = site::boundary(plain, place, site::Surface::kOutput);
    first.square().sum().backward();
  }
  {
    const Armed plan(make_plan(rules));
    const site::ForwardScope root(site::place_id("model"));
    second = std::get<0>(op.call(traced, place, "output", true, true));
    second.square().sum().backward();
    EXPECT_THROW((void)op.call(traced, place, "output", false, true), c10::Error);  // traced for rules that do not mask
  }
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_TRUE(at::equal(plain.grad(), traced.grad()));
  EXPECT_GT(traced.grad().eq(0).sum().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(std::get<0>(op.call(traced, place, "output", true, true)), traced));  // no plan: it passes
  const at::Tensor meta = at::empty({3, 5}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(std::get<0>(op.call(meta, place, "output", false, false)).sizes(), meta.sizes());
}

TEST(Boundary, ReturnsTheTensorItselfWhereNoRuleWantsIt) {
  const at::Tensor x = at::ones({4});
  EXPECT_TRUE(site::boundary(x, site::place_id("layers.3"), site::Surface::kOutput).is_same(x));
  const Armed plan(make_plan({"zero() @ module=layer_output, layer=7"}));
  EXPECT_TRUE(site::boundary(x, site::place_id("layers.3"), site::Surface::kInput).is_same(x));
  EXPECT_TRUE(site::boundary(x, site::place_id("layers.3"), site::Surface::kOutput).is_same(x));
}

TEST(Boundary, FaultsGradientsWhereAskedAndValuesNot) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const Armed plan(
      make_plan({"{name: g, where: {module: layer, surface: gradient}, what: {kind: gain, strength: 1.0}}"}));
  const at::Tensor y = site::boundary(x, site::place_id("layers.3"), site::Surface::kOutput);
  EXPECT_TRUE(at::equal(y, x));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.0)));
}

TEST(Place, ReadsLayerAndRoleOffAPath) {
  EXPECT_EQ(site::layer_of_path("model.layers.15.mlp.gate_proj"), 15);
  EXPECT_EQ(site::layer_of_path("layers.3"), 3);
  EXPECT_EQ(site::layer_of_path("lm_head"), -1);
  EXPECT_EQ(site::role_of_path("model.layers.15"), "layer");
  EXPECT_EQ(site::role_of_path("model.layers.15.input_layernorm"), "rmsnorm");
  EXPECT_EQ(site::role_of_path("model.norm"), "rmsnorm");
  EXPECT_EQ(site::role_of_path("model.layers.1.mlp.gate"), "router");
  EXPECT_EQ(site::role_of_path("model.layers.1.mlp.gate_proj"), "gate_proj");  // no router: a dense model has one
  EXPECT_EQ(site::role_of_path("model.layers.1.mlp.experts.7"), "expert");
  EXPECT_EQ(site::role_of_path("model.layers.1.q_proj.lora_A.default"), "lora");
  EXPECT_EQ(site::role_of_path("model.layers.1.q_proj.base_layer"), "q_proj");
}

}  // namespace boundary_test
}  // namespace faultline::tap
