"""A sceptic tries to have a plan, a clean computation and no complaint, in one process: kernels that no tap reaches, modules that are
exchanged, schedules that stand still, training loops. One test a lie; each ends refused, reported or immune. Compiled code has a
file of its own (liars_compile_test.py), so have processes (liars_processes_test.py)."""

import copy
import functools
import threading

import pytest
import torch
from torch.nn.functional import linear, silu

import faultline
from liars import PRODUCTS, W4, WIDTH, Linear, Mlp, Model, Tile, X, codes, found, is_faulted, multiply, refuses, run
from tap_models import calls, calls_by_layer, llama, logits, recipe, rule, same_bits, tokens, training_step

NORMS = recipe(rule("norms", where={"module": "rmsnorm", "surface": "output"}))


# --- kernels that no tap reaches --------------------------------------------------------------------------------------
def test_only_the_head_is_met():
    body = {f"layers__{layer}__mlp__{name}": Tile() for layer in (0, 1) for name in ("up", "down")}
    model = Model(**body)
    assert found(recipe(), lambda: run(model), model=model) == {("partial", "fault", "")}


def test_one_layer_of_several_is_fused():
    model = Model(layers__1__mlp__up=Tile())
    assert found(recipe(), lambda: run(model), model=model) == {("partial", "fault", "layers.1.mlp.up")}


def test_a_rule_for_every_operator_reaches_a_kernel_that_torch_knows_by_name():
    model = Model(layers__1__mlp__up=Tile())
    for where in ({"operator": "every"}, {"operator": "liars::*"}):
        clean = run(model)
        with faultline.plan(recipe(rule(where=where)), model=model) as plan:
            assert not same_bits(run(model), clean)
        assert calls(plan.report, place="layers.1.mlp.up", operator="liars::multiply") == 1


class ReadsItsChild(Mlp):
    def forward(self, x):
        return self.down(silu(multiply(x, self.up.weight)))


def test_a_module_reads_its_childs_weight_in_a_kernel_of_its_own():
    model = Model(layers__0__mlp=ReadsItsChild())
    assert found(recipe(), lambda: run(model), model=model) == {("partial", "fault", "layers.0.mlp.up")}


class ReadsBoth(Mlp):
    def forward(self, x):
        return linear(silu(linear(x, self.up.weight)), self.down.weight)


def test_a_module_that_reads_its_childrens_weights_with_operators_is_faulted():
    model = Model(layers__0__mlp=ReadsBoth())
    assert is_faulted(recipe(), lambda: run(model), PRODUCTS, model=model)


class Packed(torch.nn.Module):
    """As quantised layers are: the weight is a buffer of whole numbers, the product a kernel of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.randint(-8, 8, (WIDTH, WIDTH)))

    def forward(self, x):
        return multiply(x, self.qweight.float() / 8)


class Hidden(torch.nn.Module):
    """A quantised layer that torch sees no tensor of."""

    def __init__(self):
        super().__init__()
        self.in_features = self.out_features = WIDTH
        self.handle = (torch.randn(WIDTH, WIDTH) / 4,)

    def forward(self, x):
        return multiply(x, self.handle[0])


@pytest.mark.parametrize("quantised", [Packed, Hidden])
def test_a_quantised_layer_has_a_kernel_and_a_weight_of_its_own(quantised):
    model = Model(layers__0__mlp__down=quantised())
    assert found(recipe(), lambda: run(model), model=model) == {("partial", "fault", "layers.0.mlp.down")}


class OwnNames(torch.nn.Module):
    """Two products of one module; an engine's update took `weight` out of their names."""

    def __init__(self, fused):
        super().__init__()
        self.w1, self.w2 = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4), torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.fused = fused

    def forward(self, x):
        return self.fused(silu(linear(x, self.w1)), self.w2)


def test_one_of_two_products_of_a_module_is_fused():
    model = Model(layers__0__mlp=OwnNames(multiply))
    assert found(recipe(), lambda: run(model), model=model) == {("partial", "fault", "layers.0.mlp")}
    assert is_faulted(recipe(), lambda: run(honest), PRODUCTS, model=(honest := Model(layers__0__mlp=OwnNames(linear))))


def test_products_of_something_else_do_not_stand_in_for_those_that_were_missed():
    model = Model(layers__0__mlp__up=Tile())

    def work():
        run(model)
        for _ in range(50):
            X @ X.T

    assert found(recipe(), work, model=model) == {("partial", "fault", "layers.0.mlp.up")}


def attention(fast):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True, dropout=0.0)
    return torch.nn.Sequential(layer, Linear()).train(not fast)


@pytest.mark.parametrize("fast", [True, False])
def test_attention_that_calls_none_of_its_children(fast):
    """nn.TransformerEncoderLayer in evaluation mode is one operator of torch's, whose products are operators again."""
    model, x = attention(fast), X.reshape(2, 4, WIDTH)
    clean = run(model, x)
    with faultline.plan(recipe(), model=model) as plan:
        assert not same_bits(run(model, x), clean)
    assert calls(plan.report) >= 5  # in_proj, out_proj, two of the feed-forward, the one behind


# --- modules that are not what was attached ---------------------------------------------------------------------------
@pytest.mark.parametrize("surface, hooks", [("output", "_forward_hooks"), ("input", "_forward_pre_hooks")])
def test_somebody_clears_the_hooks_of_one_layer(surface, hooks):
    model = Model()

    def work():
        getattr(model.layers[1].norm, hooks).clear()
        run(model)

    norms = recipe(rule("norms", where={"module": "rmsnorm", "surface": surface}))
    assert found(norms, work, model=model) == {("partial", "norms", "layers.1.norm")}


def test_a_copy_made_under_the_plan_computes():
    model = Model()

    def work():
        return run(copy.deepcopy(model))

    assert is_faulted(recipe(), work, PRODUCTS, model=model)
    assert is_faulted(NORMS, work, 2, model=model)
    assert codes(recipe(W4), lambda: (run(model), work()), model=model) == {"partial"}  # its weights are others


@pytest.mark.filterwarnings("ignore:faultline. no forward of the model was seen")
def test_a_copy_made_before_the_plan_computes():
    model = Model()
    other = copy.deepcopy(model)
    assert is_faulted(recipe(), lambda: run(other), PRODUCTS, model=model)
    assert codes(recipe(W4), lambda: run(other), model=model) == {"never_fired"}
    assert codes(NORMS, lambda: run(other), model=model) == {"never_fired"}


def test_a_module_is_exchanged_after_attaching():
    def work(model, path):
        model.set_submodule(path, Linear())
        return run(model)

    for path in ("lm_head", "layers.0.mlp.up"):
        model = Model()
        with faultline.plan(recipe(), model=model) as plan:
            work(model, path)
        assert calls(plan.report) == PRODUCTS
        model = Model()
        assert codes(recipe(W4), lambda: work(model, path), model=model) == {"partial"}


def test_parameters_are_replaced_after_attaching():
    kept = []  # or the new weight may come to lie where the old one was

    def clone(weight):
        kept.append(weight.data)
        return weight.data.clone()

    for replace in (lambda model: setattr(model.lm_head.weight, "data", clone(model.lm_head.weight)),
                    lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(clone(model.lm_head.weight)))):
        model = Model()
        with faultline.plan(recipe(), model=model) as plan:
            replace(model)
            run(model)
        assert calls(plan.report) == PRODUCTS
        model = Model()
        assert found(recipe(W4), lambda: (run(model), replace(model), run(model)), model=model) == {("partial", "w4", "lm_head")}


def test_other_parameters_are_called_for_each_forward():
    model = Model()
    others = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def work():
        with torch.no_grad():
            return torch.func.functional_call(model, others, (X,))

    assert is_faulted(recipe(), work, PRODUCTS, model=model)
    assert codes(recipe(W4), lambda: (run(model), work()), model=model) == {"partial"}


# --- recipes that do nothing ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", [{"module": "qkv_proj"}, {"module": "gate_up_proj"}, {"module": "layer_output", "layer": 9}, {"operator": "matmul", "layer": "7-9"},
                                   {"operator": "aten::linear"}, {"operator": "aten::matmul"}, {"operator": "matmul", "except": ["matmul"]}])
def test_a_recipe_for_names_that_this_model_does_not_have(where):
    assert refuses(recipe(rule(where=where)), model=llama(2))


def test_everything_is_excepted():
    model = llama(2)
    assert refuses(recipe(rule(where={"operator": "matmul", "except": ["*"]})), model=model)
    assert codes(recipe(rule(where={"operator": "matmul", "except": ["0-9", "lm_head"]})), lambda: logits(model, tokens()), model=model) == {"never_fired"}


def test_a_phase_that_is_off():
    model = Model()
    assert codes(recipe(phases={"rollout": False}), lambda: run(model), model=model) == {"never_fired"}
    assert refuses(recipe(rule(phases=dict.fromkeys(("rollout", "actor_forward", "actor_backward", "diagnose"), False) | {"eval": "clean"})), model=model)


def test_a_phase_that_somebody_named_for_us():
    model = Model()

    def work():
        with faultline.phase("ref"):
            run(model)

    assert codes(recipe(), work, model=model) == {"never_fired"}


def test_a_schedule_whose_strength_is_0_in_the_steps_that_ran():
    model = Model()
    schedules = ({"kind": "linear", "sigma_start": 0.0, "sigma_end": 0.05}, {"kind": "global_decay", "sigma_start": 0.05})
    for schedule in schedules:
        assert codes(recipe(rule(schedule=schedule)), lambda: run(model), model=model, total_steps=20) == {"unchanged"}


def test_a_schedule_that_never_moves():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = recipe(rule(schedule={"kind": "linear", "sigma_start": 0.05, "sigma_end": 0.01}))

    def work(plan=None):
        for step in range(3):
            if plan is not None:
                plan.begin_step(step)
            model(X).sum().backward()
            optimizer.step()

    assert codes(schedule, work, model=model, total_steps=3) == {"still"}
    with faultline.plan(schedule, model=model, total_steps=3) as plan:
        work(plan)
    with pytest.raises(faultline.EvidenceError) as error, faultline.plan(schedule, model=model) as plan:  # laid over one step
        work(plan)
    assert {one["code"] for one in error.value.complaints} == {"still"}


@pytest.mark.parametrize("change, code", [
    (dict(lifetime={"kind": "window", "from": 1000, "to": 2000}), "asleep"),
    (dict(lifetime={"kind": "transient", "probability": 1e-12}), "asleep"),
    (dict(extent={"fraction": 1e-9, "structure": "element"}), "unselected"),
    (dict(what={"kind": "deadzone", "threshold": 1e-30}), "unchanged"),
])
def test_a_fault_that_never_acts(change, code):
    model = Model()
    assert codes(recipe(rule(**change)), lambda: run(model), model=model) == {code}


def test_a_strength_that_the_dtype_cannot_show():
    for dtype, strength in ((torch.bfloat16, 1e-5), (torch.float32, 0.0)):
        model = Model().to(dtype)
        with pytest.raises(ValueError), faultline.plan(recipe(rule(what={"kind": "relative_gaussian", "strength": strength})), model=model):
            run(model, X.to(dtype))


def test_a_fault_that_is_declared_invisible_changes_nothing_and_the_canary_says_so():
    model = Model()
    silent = recipe(rule(what={"kind": "relative_gaussian", "strength": 0.0}, expect="invisible"))
    with faultline.plan(silent, model=model) as plan, pytest.raises(faultline.EvidenceError) as error:
        plan.verify(lambda: run(model))
    assert [one["code"] for one in error.value.complaints] == ["canary"]


def test_what_may_stay_clean_is_said_first():
    model = Model(layers__1__mlp__up=Tile())
    with faultline.plan(recipe(allow_partial=["*.up"]), model=model) as plan:
        run(model)
    assert next(iter(plan.report)) == "allowed_partial" and [each["place"] for each in plan.report["allowed_partial"]] == ["layers.1.mlp.up"]
    assert found(recipe(allow_partial=["*.down"]), lambda: run(model), model=model) == {("partial", "fault", "layers.1.mlp.up")}


# --- runs that go another way -----------------------------------------------------------------------------------------
def decode_past_the_taps(model):
    """One token at a time goes through another copy and other kernels, as engines do that compile decoding alone."""
    whole, other = model.forward, copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = functools.partial(lambda weight, x: multiply(x, weight), module.weight)

    def forward(input_ids=None, **keywords):
        return (other if input_ids.shape[1] == 1 else whole)(input_ids=input_ids, **keywords)

    model.forward = forward
    return model


def test_only_the_prefill_is_faulted():
    model = decode_past_the_taps(llama(2))

    def generate():
        model.generate(tokens(), max_new_tokens=4, min_new_tokens=4, do_sample=False)

    assert found(recipe(), generate, model=model) == {("partial", "fault", "")}


@pytest.mark.parametrize("disarm", [lambda plan: plan.disarm(), lambda _: torch.ops.faultline.plan_disarm()])
def test_the_plan_is_disarmed_in_the_middle(disarm):
    model = Model()
    plan = faultline.plan(recipe(), model=model)
    with pytest.raises(faultline.EvidenceError) as error, plan:
        run(model)
        disarm(plan)
        run(model)
    assert [one["code"] for one in error.value.complaints] == ["unproven"]


def test_an_exception_in_the_middle_of_a_forward_is_caught_and_the_run_goes_on():
    model = Model()
    fails = [True]

    def now_and_then(_module, _arguments):
        if fails[0]:
            fails[0] = False
            raise RuntimeError("out of memory")

    model.layers[1].mlp.down.register_forward_pre_hook(now_and_then)

    def work():
        try:
            return run(model)
        except RuntimeError:
            return run(model)

    clean = run(Model())
    with faultline.plan(recipe(), model=model) as plan:
        faulty = work()
    assert not same_bits(faulty, clean) and calls(plan.report) == 3 + PRODUCTS and calls_by_layer(plan.report) == {0: 4, 1: 3, -1: 1}


def test_threads_compute_side_by_side():
    model = Model()
    clean, results = run(model), [None] * 4

    def work(index):
        results[index] = run(model)

    with faultline.plan(recipe(), model=model) as plan:
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert calls(plan.report) == 4 * PRODUCTS and not any(same_bits(result, clean) for result in results)


def test_inference_mode_and_its_inputs():
    model = Model()

    def work():
        with torch.inference_mode():
            return model(X).clone()

    for surface in ("output", "input", "weight"):
        assert is_faulted(recipe(rule(where={"operator": "matmul", "surface": surface})), work, PRODUCTS, model=model)


def test_autocast_reads_other_weights_than_those_that_were_registered():
    model = Model()

    def work():
        with torch.autocast("cpu", torch.bfloat16):
            return run(model)

    assert is_faulted(recipe(W4), work, PRODUCTS, model=model)


def test_weights_are_reloaded_behind_the_plan():
    model = Model()
    other = {name: parameter + 1 for name, parameter in model.named_parameters()}

    def reload():
        for name, parameter in model.named_parameters():
            parameter.data.copy_(other[name])

    assert codes(recipe(W4), lambda: (run(model), reload(), run(model)), model=model) == {"weight_changed"}


def test_checkpointed_layers_are_computed_again():
    model = llama(2)
    model.gradient_checkpointing_enable()
    model.train()
    with faultline.plan(recipe(), model=model) as plan:
        training_step(model, tokens())
    # Recomputation stops where backward has what it needs: the last product of a layer is not made again.
    assert calls(plan.report, phase="actor_forward") == 15 and calls(plan.report, phase="recompute") == 12 and calls(plan.report, phase="actor_backward") == 30


def test_gradients_are_accumulated():
    model = llama(2)
    with faultline.plan(recipe(), model=model) as plan:
        plan.dry_run(lambda: training_step(model, tokens()))
        for _ in range(3):
            model(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
    assert calls(plan.report) == 3 * 45 and plan.report["complaints"] == []


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return linear(x, weight)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return multiply(gradient, weight.T), multiply(gradient.T, x.T)


class Half(Tile):
    """Forward with torch's operators, backward in a kernel of its own, as fused linear layers do."""

    def forward(self, x):
        return OwnBackward.apply(x, self.weight)


def test_the_backward_of_one_layer_is_fused():
    model = Model(layers__1__mlp__up=Half())
    assert found(recipe(), lambda: model(X).sum().backward(), model=model) == {("partial", "fault", "layers.1.mlp.up")}
