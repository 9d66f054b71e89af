"""Faults on weights and inputs of Hugging Face models: the gradients of a fake-quantised reference, to the bit; master
weights that stay as they are; copies that are made anew when an optimizer or a weight sync has changed the master."""

import copy

import pytest
import torch

import faultline
from tap_models import calls_by_layer, llama, logits, qwen2, qwen3_moe, recipe, refused, rows, rule, same_bits, tokens, training_step

MXFP4 = {"kind": "quantize", "format": "mxfp4"}
W4 = rule("w4", where={"operator": "matmul", "surface": "weight", "except": ["lm_head"]}, what=MXFP4)
A4 = rule("a4", where={"operator": "matmul", "surface": "input", "except": ["lm_head"]}, what=MXFP4)


class FakeQuantised(torch.nn.Module):
    """What W4A4 means, written out: both factors through the format, gradients straight through."""

    def __init__(self, linear, weight, inputs):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.of_weight, self.of_input = weight, inputs

    def forward(self, x):
        weight = faultline.quantize(self.weight, "mxfp4") if self.of_weight else self.weight
        return torch.nn.functional.linear(faultline.quantize(x, "mxfp4") if self.of_input else x, weight, self.bias)


def reference(model, weight, inputs, quantised=FakeQuantised):
    result = copy.deepcopy(model)
    for path, module in list(result.named_modules()):
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            parent, _, name = path.rpartition(".")
            setattr(result.get_submodule(parent), name, quantised(module, weight, inputs))
    return result


@pytest.mark.parametrize("build", [llama, qwen2])
@pytest.mark.parametrize("rules, weight, inputs", [([W4], True, False), ([A4], False, True), ([W4, A4], True, True)])
def test_gradients_are_those_of_the_fake_quantised_model(build, rules, weight, inputs):
    """grad_x = g Q(W), grad_W = g^T Q(x): every gradient of the model equals the reference's, bit for bit."""
    model = build(2)
    digests = {name: faultline.digest(parameter) for name, parameter in model.named_parameters()}
    expected_logits, expected = logits(reference(model, weight, inputs), tokens()), training_step(reference(model, weight, inputs), tokens())
    clean = training_step(model, tokens())
    with faultline.plan(recipe(*rules), model=model) as plan:
        got_logits, got = logits(model, tokens()), training_step(model, tokens())
    assert same_bits(got_logits, expected_logits)
    assert [name for name in expected if not same_bits(got[name], expected[name])] == []
    assert not same_bits(clean["model.layers.0.mlp.down_proj.weight"], got["model.layers.0.mlp.down_proj.weight"])
    assert {name: faultline.digest(parameter) for name, parameter in model.named_parameters()} == digests
    assert {row["layer"] for row in plan.report["rows"]} == {0, 1}


def test_one_linear_has_the_gradients_of_the_formula():
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 32, bias=False)
    x, g = torch.randn(5, 64), torch.randn(5, 32)
    q_x, q_w = faultline.quantize(x, "mxfp4"), faultline.quantize(linear.weight.detach(), "mxfp4")
    for rules, weight_seen, input_seen in (([W4], q_w, x), ([A4], linear.weight.detach(), q_x), ([W4, A4], q_w, q_x)):
        leaf = x.clone().requires_grad_()
        linear.zero_grad()
        model = torch.nn.Sequential(linear)
        with faultline.plan(recipe(*rules), model=model):
            y = model(leaf)
            y.backward(g)
        assert same_bits(y.detach(), input_seen @ weight_seen.T)
        assert same_bits(leaf.grad, g @ weight_seen) and same_bits(linear.weight.grad, g.T @ input_seen)


def test_a_weight_is_faulted_once_and_used_in_every_forward_and_backward():
    model = llama(2)
    with faultline.plan(recipe(W4), model=model) as plan:
        for _ in range(3):
            training_step(model, tokens())
    assert calls_by_layer(plan.report) == {0: 7, 1: 7}
    assert sum(row["uses"] for row in rows(plan.report)) >= 3 * 14


def test_an_optimizer_step_makes_the_copies_anew():
    model, other = llama(2), llama(2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, other)]
    with faultline.plan(recipe(W4), model=model) as plan:
        training_step(model, tokens())
        optimizers[0].step()
        after = logits(model, tokens())
    training_step(other, tokens())
    plain = reference(other, True, False)
    other.load_state_dict(model.state_dict())
    assert same_bits(after, logits(reference(other, True, False), tokens()))
    assert not same_bits(after, logits(plain, tokens()))
    assert calls_by_layer(plan.report) == {0: 14, 1: 14}


def test_a_fused_optimizer_that_moves_no_version_is_seen_too():
    model = llama(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with faultline.plan(recipe(W4), model=model):
        training_step(model, tokens())
        optimizer.step()
        after = logits(model, tokens())
    assert same_bits(after, logits(reference(model, True, False), tokens()))


def test_a_weight_changed_behind_the_plans_back_is_found_at_the_end():
    model = llama(2)
    weight = model.model.layers[1].mlp.up_proj.weight

    def change():
        logits(model, tokens())
        weight.data.copy_(weight.data * 2)

    with refused("weight_changed", rule="", place="model.layers.1.mlp.up_proj", match=r"the weight of model.layers.1.mlp.up_proj changed .* call weights_changed\(\)"), faultline.plan(recipe(W4), model=model):
        change()
        logits(model, tokens())
    with faultline.plan(recipe(W4), model=model):
        change()
        faultline.weights_changed()
        after = logits(model, tokens())
    assert same_bits(after, logits(reference(model, True, False), tokens()))


@pytest.mark.parametrize("build", [llama, qwen2])
def test_the_head_is_left_alone_where_excepted_and_faulted_where_not(build):
    """qwen2's head is the embedding's own tensor."""
    model = build(1)
    with faultline.plan(recipe(W4), model=model) as plan:
        logits(model, tokens())
    assert {row["layer"] for row in rows(plan.report)} == {0}
    everywhere = rule("w4", where={"operator": "matmul", "surface": "weight"}, what=MXFP4)
    with faultline.plan(recipe(everywhere), model=model) as plan:
        logits(model, tokens())
    assert {row["place"] for row in rows(plan.report, layer=-1)} == {"lm_head"}


def test_experts_are_quantised_and_their_router_is_not():
    model = qwen3_moe(2)
    expected = copy.deepcopy(model)
    for name, parameter in expected.named_parameters():
        if parameter.dim() >= 2 and not any(part in name for part in ("embed", "lm_head", "mlp.gate.")):
            parameter.data = faultline.quantize(parameter.data, "mxfp4")
    with faultline.plan(recipe(W4), model=model) as plan:
        got = logits(model, tokens())
    assert same_bits(got, logits(expected, tokens()))
    assert calls_by_layer(plan.report) == {0: 4 + 2, 1: 4 + 2}  # attention, and two tensors of all experts


# --- autocast ---------------------------------------------------------------------------------------------------------
class CastAndQuantised(FakeQuantised):
    """The same under autocast: what is quantised is what the product reads."""

    def forward(self, x):
        weight, x = self.weight.to(torch.bfloat16), x.to(torch.bfloat16)
        weight = faultline.quantize(weight, "mxfp4") if self.of_weight else weight
        return torch.nn.functional.linear(faultline.quantize(x, "mxfp4") if self.of_input else x, weight, self.bias)


def autocast():
    return torch.autocast(tokens().device.type, torch.bfloat16)


@pytest.mark.parametrize("checkpoint", [None, {"use_reentrant": False}, {"use_reentrant": True}])
@pytest.mark.parametrize("rules, weight, inputs", [([W4], True, False), ([A4], False, True), ([W4, A4], True, True)])
def test_a_weight_that_autocast_casts_is_that_weight(rules, weight, inputs, checkpoint):
    """Forward and backward read the faulted cast copy, gradients reach the master in its own dtype, the master stays."""
    model = llama(2).train()
    expected_model = reference(model, weight, inputs, CastAndQuantised)
    if checkpoint:
        for each in (model, expected_model):
            each.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint)
    digests = {name: faultline.digest(parameter) for name, parameter in model.named_parameters()}
    with autocast():
        clean, expected = training_step(model, tokens()), training_step(expected_model, tokens())
        torch.clear_autocast_cache()
    with faultline.plan(recipe(*rules), model=model) as plan, autocast():
        got = training_step(model, tokens())
    assert [name for name in expected if not same_bits(got[name], expected[name])] == []
    assert {gradient.dtype for gradient in got.values()} == {torch.float32}
    assert not same_bits(clean["model.layers.0.mlp.down_proj.weight"], got["model.layers.0.mlp.down_proj.weight"])
    assert {name: faultline.digest(parameter) for name, parameter in model.named_parameters()} == digests
    assert {row["dtype"] for row in plan.report["rows"]} == {"bf16"}
    if weight:  # faulted once, though autocast casts it again for every recomputation
        assert calls_by_layer(plan.report, rule="w4") == {0: 7, 1: 7}
    if inputs:  # one of a product's two factors: the other is a weight
        assert calls_by_layer(plan.report, rule="a4", phase="actor_forward") == {0: 7, 1: 7}


def test_copies_that_autocast_made_before_the_plan_are_not_used_under_it():
    model = llama(1)
    with faultline.plan(recipe(W4), model=model), autocast():
        expected = training_step(model, tokens())
    with autocast():
        training_step(model, tokens())  # fills autocast's cache
        with faultline.plan(recipe(W4), model=model) as plan:
            got = training_step(model, tokens())
    assert [name for name in expected if not same_bits(got[name], expected[name])] == []
    assert calls_by_layer(plan.report) == {0: 7}


def test_an_optimizer_step_under_autocast_makes_the_copies_anew():
    model = llama(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with faultline.plan(recipe(W4), model=model) as plan:
        with autocast():
            training_step(model, tokens())
        optimizer.step()
        with autocast():
            after = logits(model, tokens())
    with autocast():
        assert same_bits(after, logits(reference(model, True, False, CastAndQuantised), tokens()))
    assert calls_by_layer(plan.report) == {0: 14}


class Adapted(torch.nn.Module):
    """A layer with a low-rank adapter, named as peft names its parts."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, 4, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(4, base.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("surface", ["weight", "output"])
def test_adapters_are_left_alone_and_the_wrapped_layer_is_faulted_once(surface):
    model = llama(2)
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    with faultline.plan(recipe(rule("w4", where={"operator": "matmul", "surface": surface, "except": ["lm_head"]}, what=MXFP4)), model=model) as plan:
        logits(model, tokens())
    assert calls_by_layer(plan.report) == {0: 7, 1: 7}
    assert [row["place"] for row in rows(plan.report) if "lora" in row["place"]] == []
    assert plan.report["rules"][0]["unreached"]["an adapter is faulted only by a rule that names it (module: lora)"] == 4


def test_a_weight_rule_covers_what_generation_and_checkpoints_read():
    model = llama(2)
    clean_ids = model.generate(tokens(), attention_mask=torch.ones_like(tokens()), max_new_tokens=6, do_sample=False)
    expected = reference(model, True, False).generate(tokens(), attention_mask=torch.ones_like(tokens()), max_new_tokens=6, do_sample=False)
    with faultline.plan(recipe(W4), model=model):
        ids = model.generate(tokens(), attention_mask=torch.ones_like(tokens()), max_new_tokens=6, do_sample=False)
    assert torch.equal(ids, expected) and ids.shape == clean_ids.shape
    model.train()
    wanted = training_step(reference(model, True, False), tokens())
    for reentrant in (False, True):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        with faultline.plan(recipe(W4), model=model):
            got = training_step(model, tokens())
        assert [name for name in wanted if not same_bits(got[name], wanted[name])] == []
