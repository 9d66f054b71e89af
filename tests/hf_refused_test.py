"""What a plan refuses on a Hugging Face model, and how a process that was armed from outside ends: recipes for another
model, two plans at once, forked children, FAULTLINE_RECIPE."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import faultline
from faultline.environment import arm_from_environment
from tap_models import calls, calls_by_layer, llama, logits, recipe, refused, rule, same_bits, tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def model():
    return llama(2)


def is_untouched(model):
    return not torch.ops.faultline.plan_is_armed() and not any(module._forward_pre_hooks for module in model.modules())


# --- recipes for another model ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("where, message", [
    ({"module": "transformer.h.*.attn.c_attn"}, "no module matches 'transformer.h.*.attn.c_attn'"),
    ({"module": "rms_nrm"}, "no module matches 'rms_nrm'; did you mean 'rmsnorm'"),
    ({"module": "layer_output", "layer": 2}, "layer 2 does not exist; the model has layers 0 to 1"),
    ({"operator": "matmul", "layer": "5-9"}, "layer 5 does not exist; the model has layers 0 to 1"),
    ({"operator": "aten::admm"}, "nothing matches operator 'aten::admm'; did you mean 'aten::addmm'"),
    ({"operator": "aten::linear"}, "dissolves into others"),
])
def test_a_recipe_for_another_model_is_refused_and_leaves_no_hook(model, where, message):
    with pytest.raises(ValueError) as error:
        faultline.plan(recipe(rule("wrong", where=where)), model=model).arm()
    assert message in str(error.value) and is_untouched(model)


@pytest.mark.parametrize("given, message", [
    ({"fautls": []}, "unknown key; did you mean 'faults'"),
    ({"faults": [{"name": "a", "where": {"operator": "matmul"}, "what": {"kind": "gian"}}]}, "gian"),
    ("nowhere.yaml", "no such file"),
])
def test_a_mistake_in_a_recipe_is_told_before_anything_is_entered(given, message):
    with pytest.raises(ValueError, match=message):
        faultline.plan(given)
    with pytest.raises(ValueError, match="nonsense"):
        faultline.plan(recipe(rule()), overrides=["nonsense=1"])


def test_a_rule_whose_operator_never_runs_is_missing_evidence(model):
    with refused("never_fired", rule="conv", match="rule 'conv' never fired: nothing it names was called") as error, faultline.plan(recipe(rule(), rule("conv", where={"operator": "aten::gelu"})), model=model):
        logits(model, tokens())
    assert calls(error.value.report) == 15 and error.value.report["complaints"] == error.value.complaints and is_untouched(model)
    with pytest.warns(UserWarning, match="rule 'conv' never fired"), faultline.plan(recipe(rule("conv", where={"operator": "aten::gelu"})), model=model, on_missing="warn"):
        logits(model, tokens())
    with pytest.raises(ValueError, match="on_missing is raise or warn; got 'ignore'"):
        faultline.plan(recipe(), on_missing="ignore")


def test_a_dry_run_refuses_a_rule_that_would_match_nothing(model):
    plan = faultline.plan(recipe(rule("gelu", where={"operator": "aten::gelu"})), model=model).arm()
    try:
        with pytest.raises(ValueError, match="rule 'gelu': operator 'aten::gelu' matches nothing that ran"):
            plan.dry_run(lambda: logits(model, tokens()))
        assert torch.ops.faultline.plan_is_armed()
    finally:
        plan.disarm()
    assert is_untouched(model)


# --- plans one at a time ----------------------------------------------------------------------------------------------
def test_a_plan_is_armed_once_and_alone(model):
    plan = faultline.plan(recipe(), model=model)
    with plan:
        with pytest.raises(ValueError, match="armed"):
            plan.arm()
        with pytest.raises(ValueError, match="a plan is armed in this process"):
            faultline.plan(recipe(seed=8), model=model).arm()
        logits(model, tokens())
    assert calls_by_layer(plan.report) == {-1: 1, 0: 7, 1: 7}  # the refused ones left neither hooks nor counts
    assert plan.report["forwards"] == {"rollout": 1} and is_untouched(model)


def test_a_plan_can_be_used_again(model):
    plan = faultline.plan(recipe(), model=model)
    results = []
    for _ in range(2):
        with plan:
            results.append(logits(model, tokens()))
        assert calls(plan.report) == 15
    assert same_bits(*results)


def test_disarming_twice_is_harmless(model):
    plan = faultline.plan(recipe(), model=model).arm()
    plan.disarm()
    plan.disarm()
    assert is_untouched(model)


def test_disarming_a_plan_that_is_not_armed_leaves_the_other_one_alone(model):
    other = faultline.plan(recipe(seed=8), model=model)
    with faultline.plan(recipe(), model=model) as plan:
        other.disarm()
        logits(model, tokens())
    assert calls(plan.report) == 15


def test_a_census_inside_a_plan_keeps_the_plans_weights_and_counts(model):
    weight = rule("w4", where={"operator": "matmul", "surface": "weight"}, what={"kind": "quantize", "format": "mxfp4"})
    with faultline.plan(recipe(weight), model=model) as plan:
        before = logits(model, tokens())
        faultline.census(lambda: logits(model, tokens()), model=model)
        after = logits(model, tokens())
    assert same_bits(before, after) and not same_bits(after, logits(model, tokens()))
    assert plan.report["forwards"] == {"rollout": 3}


# --- verify -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ask", ["verify", "dry_run"])
def test_a_plan_that_is_not_armed_is_not_asked(model, ask):
    """The library would answer for the plan before it, and arm that one."""
    with faultline.plan(recipe(rule()), model=model):
        logits(model, tokens())
    with pytest.raises(ValueError, match="this one is not; use it as a context manager"):
        getattr(faultline.plan(recipe(rule()), model=model), ask)(lambda: logits(model, tokens()))
    assert not torch.ops.faultline.plan_is_armed()


def test_verify_proves_the_plan_and_finds_one_that_does_nothing(model):
    with faultline.plan(recipe(), model=model) as plan:
        plan.verify(lambda: logits(model, tokens()))
    silent = recipe(rule(what={"kind": "relative_gaussian", "strength": 0}, expect="invisible"))
    with faultline.plan(silent, model=model) as plan, refused("canary", rule=""):
        plan.verify(lambda: logits(model, tokens()))
    with faultline.plan(recipe(), model=model) as plan:
        with refused("repeats", rule=""):
            plan.verify(lambda: torch.rand(3))
        logits(model, tokens())


# --- processes --------------------------------------------------------------------------------------------------------
def run_python(code, **environment):
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=600)


FORK = """
import json, os, sys, faultline
from tap_models import calls, llama, logits, recipe, same_bits, tokens
model = llama(2)
clean = logits(model, tokens())
with faultline.plan(recipe(), model=model) as plan:
    faulty = logits(model, tokens())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        is_clean = same_bits(logits(model, tokens()), clean)
        os.write(writer, json.dumps([is_clean, faultline.torch.ops.faultline.plan_was_lost(), plan.read()["complaints"]]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = json.load(pipe)
    os.waitpid(child, 0)
    again = logits(model, tokens())
print(json.dumps([*told, same_bits(faulty, clean), same_bits(again, clean), calls(plan.report)]))
"""


def test_a_forked_child_computes_clean_and_has_no_evidence():
    # In a process with one thread from its start: a forked child has no thread pool, and a BLAS would wait for it for ever.
    done = run_python(FORK, PYTHONPATH=os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")]))
    assert done.returncode == 0, done.stderr
    is_clean, is_lost, [complaint], same_before, same_after, count = json.loads(done.stdout)
    assert is_clean and is_lost and complaint["code"] == "forked"
    assert not same_before and not same_after and count == 30


MULTIPLY = "import torch, faultline; torch.manual_seed(0); print((torch.randn(8, 8) @ torch.randn(8, 8)).sum().item())"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    def write(a_recipe):
        path = tmp_path_factory.mktemp("recipe") / "recipe.json"
        path.write_text(json.dumps(a_recipe))
        return str(path)

    return write


def test_a_recipe_in_the_environment_arms_at_import_and_reports_at_exit(recipe_file, tmp_path):
    clean = run_python(MULTIPLY)
    faulty = run_python(MULTIPLY, FAULTLINE_RECIPE=recipe_file(recipe()), FAULTLINE_LEDGER=str(tmp_path / "ledger"))
    assert clean.returncode == faulty.returncode == 0, faulty.stderr
    assert clean.stdout != faulty.stdout
    assert "[fault fault] registered 1 sites" in faulty.stderr and clean.stderr == ""
    [ledger] = tmp_path.glob("ledger.*")
    assert calls(json.loads(ledger.read_text())) == 1


LATE = """
import pathlib, subprocess, sys
recipe = pathlib.Path(sys.argv[1])
worker = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
out, error = worker.communicate()  # it has started, and looked
recipe.write_text(sys.argv[3])
print(worker.returncode, repr(out)); print(error, file=sys.stderr)
"""


def test_a_worker_that_starts_before_its_recipe_is_written_does_not_run_clean(recipe_file, tmp_path):
    """Lesson 5: the driver writes the configuration too late. The worker says so and computes nothing."""
    late = tmp_path / "late.yaml"
    text = pathlib.Path(recipe_file(recipe())).read_text()
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "FAULTLINE_RECIPE": str(late)}
    driver = subprocess.run([sys.executable, "-c", LATE, late, MULTIPLY, text], env=variables, capture_output=True, text=True, timeout=600)
    status, out = driver.stdout.split(maxsplit=1)
    assert int(status) != 0 and out.strip() == "''" and "late.yaml" in driver.stderr, (driver.stdout, driver.stderr)
    again = run_python(MULTIPLY, FAULTLINE_RECIPE=str(late))
    assert again.returncode == 0 and "registered 1 sites" in again.stderr, "in time, it is read"


def test_a_process_whose_rule_never_fired_ends_with_status_3(recipe_file):
    path = recipe_file(recipe(rule("gelu", where={"operator": "aten::gelu"})))
    done = run_python(MULTIPLY, FAULTLINE_RECIPE=path)
    assert done.returncode == 3 and "the evidence is missing: rule 'gelu' never fired" in done.stderr
    done = run_python(MULTIPLY, FAULTLINE_RECIPE=path, FAULTLINE_ON_MISSING="warn")
    assert done.returncode == 0 and "the evidence is missing: rule 'gelu' never fired" in done.stderr


def test_a_mistake_in_the_environment_stops_the_import(monkeypatch, tmp_path, recipe_file):
    monkeypatch.setenv("FAULTLINE_RECIPE", str(tmp_path / "missing.yaml"))
    with pytest.raises(ValueError, match="missing.yaml"):
        arm_from_environment()
    monkeypatch.setenv("FAULTLINE_RECIPE", recipe_file(recipe()))
    monkeypatch.setenv("FAULTLINE_ON_MISSING", "warm")
    with pytest.raises(ValueError, match="FAULTLINE_ON_MISSING is raise or warn; got 'warm'"):
        arm_from_environment()
    assert not torch.ops.faultline.plan_is_armed()


def test_missing_evidence_sets_the_status_whatever_the_programs_own_was_and_loses_no_output(recipe_file):
    done = run_python("import faultline, sys; print('the last words', end=''); sys.exit(7)", FAULTLINE_RECIPE=recipe_file(recipe()))
    assert done.returncode == 3 and done.stdout == "the last words" and "the evidence is missing" in done.stderr


def test_a_forked_child_arms_for_itself_and_does_not_judge_the_parents_plan(recipe_file):
    done = run_python("import faultline, os, sys, torch; torch.ones(2, 2) @ torch.ones(2, 2)\nchild = os.fork()\nif child == 0: sys.exit(0)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
                      FAULTLINE_RECIPE=recipe_file(recipe(rule(what={"kind": "gain", "strength": 0.1}))))
    assert done.returncode == 0 and done.stdout.strip() == "0", done.stderr
    assert done.stderr.count("registered 1 sites") == 1
    assert "the child computes without faults" not in done.stderr
