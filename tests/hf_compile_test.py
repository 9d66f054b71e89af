"""Taps under torch.compile with its default backend: every GEMM of the compiled code is reached, its layer found by the
weight it reads; what compiled code hides from the taps is refused or missed aloud."""

import contextlib

import pytest
import torch
import torch._inductor.config

import faultline
from tap_models import calls, calls_by_layer, llama, logits, recipe, refused, rows, rule, same_bits, tokens, training_step

torch._inductor.config.cpp.vec_isa_ok = False  # scalar kernels will do: finding the instruction set costs 25 s a process
LAYERS = 2
LINEARS = 7 * LAYERS + 1


class Passing(torch.nn.Linear):
    """As layers of transformers have it: a __call__ of its own."""

    def __call__(self, *arguments, **keywords):
        return super().__call__(*arguments, **keywords)


@pytest.fixture(scope="module")
def hooks_compile_anew():
    """Whether this torch makes compiled code anew where a layer gets a hook (2.15 does), so that later hooks act."""
    compiled = torch.compile(torch.nn.Sequential(Passing(4, 4)), backend="eager")
    compiled(torch.ones(1, 4))
    made = graphs()
    compiled._orig_mod[0].register_forward_hook(lambda *_: None)
    compiled(torch.ones(1, 4))
    return graphs() > made


@pytest.fixture(scope="module")
def model():
    return llama(LAYERS)


@pytest.fixture(scope="module")
def compiled(model):
    result = torch.compile(model)
    logits(result, tokens())
    return result


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(32, 16, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_every_gemm_of_compiled_code_is_reached_and_finds_its_layer(compiled, hooks_compile_anew):
    made = graphs()
    clean = logits(compiled, tokens())
    with faultline.plan(recipe(), model=compiled) as plan:
        faulty = logits(compiled, tokens())
    assert graphs() == made + hooks_compile_anew  # the code compiled before the plan, unless torch sees the hooks
    assert calls_by_layer(plan.report) == {-1: 1, **{layer: 7 for layer in range(LAYERS)}} and calls(plan.report) == LINEARS
    assert len({row["place"] for row in plan.report["rows"]}) == LINEARS and calls(plan.report, place="lm_head") == 1
    assert plan.report["forwards"] == {"rollout": 1}
    assert not same_bits(clean, faulty) and same_bits(clean, logits(compiled, tokens()))


def test_compiled_code_meets_the_same_noise_as_eager_code(model, compiled):
    def under_a_plan(target, seed):
        with faultline.plan(recipe(seed=seed), model=target):
            return logits(target, tokens())

    eager, fused, other = under_a_plan(model, 7), under_a_plan(compiled, 7), under_a_plan(compiled, 8)
    # Fusion rounds elsewhere in another order, by some units in the last place; another draw differs by the noise.
    assert (eager - fused).abs().max() < 1e-5 < 1e-3 < (fused - other).abs().max()


def test_a_rule_on_one_layer_acts_there_alone_in_compiled_code(compiled):
    with faultline.plan(recipe(rule(where={"operator": "matmul", "layer": 1})), model=compiled) as plan:
        logits(compiled, tokens())
    assert calls_by_layer(plan.report) == {1: 7}
    assert plan.report["rules"][0]["unreached"] == {"not one of the rule's layers": LINEARS - 7}


def test_hooks_that_come_after_compilation_act_or_are_missed_aloud(model, compiled, hooks_compile_anew):
    for target in (compiled, model):
        with contextlib.nullcontext() if hooks_compile_anew else refused("never_fired", rule="norms"):
            with faultline.plan(recipe(rule("norms", where={"module": "rmsnorm"})), model=target) as plan:
                logits(compiled, tokens())
            assert calls(plan.report) == 2 * LAYERS + 1
    with refused("never_fired", rule="silu"), faultline.plan(recipe(rule("silu", where={"operator": "aten::silu"})), model=compiled):
        logits(compiled, tokens())  # fused into code of Inductor's own


def test_code_compiled_under_a_plan_has_its_module_rules_in_its_graph():
    model = llama(LAYERS)
    torch._dynamo.reset()  # torch compiles a function at most eight times, and 2.15 does it for each plan
    norms = recipe(rule("norms", where={"module": "rmsnorm"}))
    with faultline.plan(norms, model=model):
        eager = logits(model, tokens())
    made = graphs()
    fresh = torch.compile(model, backend="aot_eager")
    with faultline.plan(norms, model=fresh) as plan:
        traced = logits(fresh, tokens())
    assert graphs() == made + 1
    assert calls(plan.report) == 2 * LAYERS + 1 and plan.report["forwards"] == {"rollout": 1}
    assert (eager - traced).abs().max() < 1e-5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.RMSNorm(16), torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return (x + torch.nn.functional.silu(self.linear(self.norm(x))),)  # a tuple, as decoder layers return


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            (x,) = layer(x)
        return x


ZONE = {"kind": "deadzone", "threshold": 0.3}
BOUNDARIES = recipe(
    rule("norms", where={"module": "norm", "surface": "input"}, what={"kind": "gain", "strength": 0.5}),
    rule("outputs", where={"module": "layer_output"}, what=ZONE, gradient="masked"),
    rule("gradients", where={"module": "linear", "surface": "gradient"}, what={"kind": "gain", "strength": 1.0}))


@pytest.fixture(scope="module")
def stacks():
    """A model, itself compiled by the default backend in one graph while BOUNDARIES was armed, and what ran then."""
    torch.manual_seed(0)
    stack, x = Stack(), torch.randn(4, 16)
    compiled = torch.compile(stack, fullgraph=True)
    with faultline.plan(BOUNDARIES, model=stack):
        eager = step(stack, x)
    made = graphs()
    with faultline.plan(BOUNDARIES, model=compiled) as plan:
        traced = step(compiled, x)
    return stack, compiled, x, eager, traced, plan.report, graphs() - made


def step(model, x):
    """-> result and gradients, of the input too"""
    leaf = x.clone().requires_grad_()
    model.zero_grad(set_to_none=True)
    result = model(leaf)
    result.square().sum().backward()
    return [result.detach(), leaf.grad, *(parameter.grad for parameter in model.parameters())]


def close(first, second):
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(first, second, strict=True))


def test_boundaries_in_a_compiled_graph_act_forward_and_backward(stacks):
    stack, _, x, eager, traced, report, made = stacks
    assert made == 1
    assert close(eager, traced) and not close(eager, step(stack, x))
    assert calls(report, rule="norms", phase="actor_forward") == calls(report, rule="outputs", phase="actor_forward") == LAYERS
    assert calls(report, rule="gradients", phase="actor_backward") == LAYERS and calls(report) == 3 * LAYERS
    assert calls_by_layer(report, rule="outputs") == {layer: 1 for layer in range(LAYERS)}
    assert report["forwards"] == {"actor_forward": 1} and (traced[0] == 0).any()


def test_compiled_code_is_clean_after_the_plan_and_compiled_anew_under_another(stacks):
    stack, compiled, x, _, traced, *_ = stacks
    assert close(step(compiled, x), step(stack, x))
    with pytest.raises(faultline.EvidenceError) as error, faultline.plan(BOUNDARIES, model=compiled):
        step(compiled, x)  # that code has no boundaries
    assert {(each["code"], each["rule"]) for each in error.value.complaints} == {("never_fired", each["name"]) for each in BOUNDARIES["faults"]}
    torch._dynamo.reset()
    with faultline.plan(BOUNDARIES, model=compiled):
        assert all(same_bits(a, b) for a, b in zip(step(compiled, x), traced, strict=True))


def test_a_plan_that_sees_no_forward_says_to_give_the_compiled_model(model, compiled):
    with pytest.warns(UserWarning, match="no forward of the model was seen"), faultline.plan(recipe(), model=model) as plan:
        logits(compiled, tokens())
    assert calls(plan.report) == LINEARS


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_training_step_is_told_from_a_rollout(in_place):
    """Compiled code runs its forward with gradients off; only the call as a whole tells."""
    torch.manual_seed(0)
    perceptron = Perceptron().eval()  # in training mode both would be the actor's
    if in_place:
        perceptron.compile()
        target = perceptron
    else:
        target = torch.compile(perceptron)
    impl = target._compiled_call_impl
    with faultline.plan(recipe(), model=target) as plan:
        target(torch.randn(4, 16, requires_grad=True)).sum().backward()
        with torch.no_grad():
            target(torch.randn(4, 16))
    assert calls(plan.report, phase="actor_forward") == 2 and calls(plan.report, phase="rollout") == 2
    assert calls(plan.report, phase="actor_backward") == 4
    assert plan.report["forwards"] == {"rollout": 1, "actor_forward": 1}
    # Products for gradients of inputs read a weight and are found by it; those for gradients of weights do not.
    assert {row["place"] for row in rows(plan.report, phase="actor_backward")} == {"", "up", "down"}
    assert target._compiled_call_impl is impl


def test_compiled_code_that_bypasses_the_dispatcher_is_refused(model):
    with torch._inductor.config.patch(cpp_wrapper=True), pytest.raises(ValueError, match="cpp_wrapper is on: .*no fault could be applied"):
        faultline.plan(recipe(), model=model).arm()
    assert not torch.ops.faultline.plan_is_armed()
    with faultline.plan(recipe(), model=model) as plan:
        training_step(model, tokens())
    assert calls(plan.report, phase="actor_forward") == LINEARS


def test_a_wrapper_that_is_switched_on_under_a_plan_is_found_at_its_end(model):
    with torch._inductor.config.patch(cpp_wrapper=False), refused("hidden", rule=""), faultline.plan(recipe(), model=model):
        logits(model, tokens())
        torch._inductor.config.cpp_wrapper = True
