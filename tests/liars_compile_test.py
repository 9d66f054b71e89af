"""Lies of compiled code: products that Inductor writes itself, sub-modules that are compiled alone, code from before the plan, an
autotuner's trials. On a CPU its C++ templates stand for Triton's: both compute a product without an operator of torch's."""

import contextlib

import pytest
import torch
import torch._inductor.config
from torch._inductor.config import patch

import faultline
from liars import PRODUCTS, Linear, Model, X, codes, found, is_faulted, refuses, run
from tap_models import calls, recipe, rule, same_bits

torch._inductor.config.cpp.vec_isa_ok = False  # scalar kernels will do: finding the instruction set costs 25 s a process
TEMPLATES = {"max_autotune": True, "max_autotune_gemm_backends": "CPP", "freezing": True}
NORMS = recipe(rule("norms", where={"module": "rmsnorm", "surface": "output"}))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@contextlib.contextmanager
def templates():
    """What is compiled inside multiplies in kernels of Inductor's own."""
    with patch(TEMPLATES), torch.no_grad():
        yield


def compiled_alone(how):
    model = Model()
    mlp = model.layers[1].mlp
    if how == "wrapped":
        model.layers[1].mlp = torch.compile(mlp)
    elif how == "in place":
        mlp.compile()
    else:
        mlp.forward = torch.compile(mlp.forward)
    return model


@pytest.mark.parametrize("how", ["wrapped", "in place", "its forward"])
def test_a_sub_module_was_compiled_alone(how):
    model = compiled_alone(how)
    with templates():
        run(model)
    places = found(recipe(), lambda: run(model), model=model)
    assert {(code, rule) for code, rule, _ in places} == {("partial", "fault")}


@pytest.mark.parametrize("how", ["wrapped", "in place", "its forward"])
def test_a_sub_module_that_was_compiled_alone_without_templates_is_faulted(how):
    model = compiled_alone(how)
    run(model)
    assert is_faulted(recipe(), lambda: run(model), PRODUCTS, model=model)


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_the_hooks_came_after_one_layer_was_compiled(how):
    model = Model()
    if how == "wrapped":
        model.layers[1] = torch.compile(model.layers[1], backend="eager")
    else:
        model.layers[1].compile(backend="eager")
    run(model)
    assert found(NORMS, lambda: run(model), model=model) == {("partial", "norms", "layers.1.norm")}


def test_the_whole_model_was_compiled_with_templates():
    model = torch.compile(Model())
    with templates():
        run(model)
    assert codes(recipe(), lambda: run(model), model=model) == {"never_fired"}


def compiled_but_for_its_head():
    model = Model()
    model.lm_head.forward = torch.compiler.disable(model.lm_head.forward)
    compiled = torch.compile(model)
    with templates():
        run(compiled)
    return model, compiled


@pytest.mark.parametrize("given", ["the compiled model", "the model inside"])
def test_templates_before_the_plan_and_a_head_that_is_met(given):
    model, compiled = compiled_but_for_its_head()
    attached = compiled if given == "the compiled model" else model
    assert found(recipe(), lambda: run(compiled), model=attached) == {("partial", "fault", "")}


@pytest.mark.parametrize("settings", ["global", "options"])
def test_templates_that_are_asked_for_under_the_plan_are_not_used(settings):
    options = {} if settings == "global" else {"options": TEMPLATES}
    with patch(TEMPLATES if settings == "global" else {}), torch.no_grad():
        expected = Model()(X)
        model = torch.compile(Model(), **options)
        with faultline.plan(recipe(), model=model) as plan:
            faulty = model(X)
    assert calls(plan.report) == PRODUCTS and (faulty - expected).abs().max() > 1e-3
    assert torch._inductor.config.max_autotune_gemm_backends != "CPP"


def test_trial_runs_of_an_autotuner_are_not_the_models():
    """Counted, they would prove a fault in a model whose own products are clean."""
    from torch._inductor.runtime.benchmarking import benchmarker

    model = Model()
    with faultline.plan(recipe(), model=model) as plan:
        benchmarker.benchmark_cpu(lambda: X @ X.T, warmup=1, rep=1)
        faulty = run(model)
    assert plan.report["apart"]["autotuning"] > 0 and calls(plan.report) == PRODUCTS and not same_bits(faulty, run(model))
    assert codes(recipe(), lambda: benchmarker.benchmark_cpu(lambda: X @ X.T, warmup=1, rep=1)) == {"never_fired"}


def test_a_silence_that_was_left_open_is_no_proof():
    model = Model()

    def work():
        torch.ops.faultline.silence("warm-up")
        run(model)

    assert codes(recipe(), work, model=model) == {"never_fired"}


def test_settings_are_changed_after_the_plan_was_armed():
    model = torch.compile(Model())

    def work():
        with templates():
            return run(model)

    with faultline.plan(recipe(), model=model) as plan:
        work()
    assert calls(plan.report) == PRODUCTS


def test_products_elsewhere_do_not_stand_in_for_compiled_ones():
    _, compiled = compiled_but_for_its_head()

    def work():
        run(compiled)
        for _ in range(50):
            X @ X.T

    assert found(recipe(), work, model=compiled) == {("partial", "fault", "")}


@pytest.mark.parametrize("when", ["before the plan", "as an option"])
def test_compiled_code_that_calls_kernels_past_the_dispatcher(when):
    if when == "before the plan":
        with patch(cpp_wrapper=True):
            assert refuses(recipe(), model=Model())
        return
    model = torch.compile(Model(), options={"cpp_wrapper": True})
    with pytest.raises(faultline.EvidenceError), faultline.plan(recipe(), model=model), pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        run(model)


class AOTICompiledModel:
    """By its name what torch._inductor.aoti_load_package returns; no module."""

    def __call__(self, x):
        return x


class Engine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.lm_head = AOTICompiledModel(), Linear()

    def forward(self, x):
        return self.lm_head(self.body(x))


def test_a_body_that_was_compiled_ahead_of_time():
    assert refuses(recipe(), model=Engine())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:faultline. no forward of the model was seen")
@pytest.mark.parametrize("how", ["traced", "scripted", "exported"])
def test_a_program_made_of_the_model_runs_without_its_modules(how):
    model = Model()
    program = torch.jit.trace(model, X) if how == "traced" else torch.jit.script(model) if how == "scripted" else torch.export.export(model, (X,)).module()
    assert is_faulted(recipe(), lambda: run(program), PRODUCTS, model=model)
