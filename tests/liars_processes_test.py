"""Lies that need a process: children that compute, evidence of another run, recipes that come late or change, a script that ends
before it is judged, noise on norms that nobody carries. `python -m faultline` must not end with 0 for a clean computation."""

import json

import pytest
import torch

import faultline
from clients_process import python, write
from faultline import evidence, noise
from tap_models import recipe, rule

STRONG = recipe(rule(what={"kind": "gain", "strength": 1.0}))  # doubles every product: 4 becomes 8
MULTIPLY = "torch.ones(4, 4) @ torch.ones(4, 4)"
COMPUTE = f"import torch\nprint(int(({MULTIPLY})[0, 0]), flush=True)\n"


@pytest.fixture
def under_plan(tmp_path):
    def run(script, *arguments, a_recipe=STRONG, **environment):
        path = write(tmp_path, "recipe.json", a_recipe)
        return python("-m", "faultline", "--recipe", path, "--evidence", tmp_path / "evidence", write(tmp_path, "script.py", script), *arguments, **environment)

    return run


def calls_of(folder):
    return sorted(int(process["report"]["rules"][0]["calls"]) for process in faultline.collect(folder)["processes"])


def is_honest(done, clean="4"):
    """Everything that was printed is faulty, or the run is refused."""
    return done.returncode == 3 or (done.returncode == 0 and clean not in done.stdout.split())


# --- children ---------------------------------------------------------------------------------------------------------
FORKED = f"""
import os, sys, torch
child = os.fork()
if child == 0:
    print(int(({MULTIPLY})[0, 0]), flush=True)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes(under_plan, tmp_path):
    done = under_plan(FORKED)
    assert done.returncode == 0 and done.stdout == "8\n", done.stderr
    assert calls_of(tmp_path / "evidence") == [0, 1]


POOL = f"""
import multiprocessing, sys, torch
def work(_):
    return int(({MULTIPLY})[0, 0])
if __name__ == "__main__":
    print(work(0), *multiprocessing.get_context(sys.argv[1]).Pool(2).map(work, range(4)), flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_computes_and_its_parent_once(under_plan, method):
    done = under_plan(POOL, method)
    assert is_honest(done), (done.stdout, done.stderr)


def test_a_child_of_an_armed_block_computes(tmp_path):
    script = write(tmp_path, "script.py", f"""
import os, faultline, torch
child = None
try:
    with faultline.plan({json.dumps(STRONG)!r}):
        {MULTIPLY}
        child = os.fork()
        if child == 0:
            {MULTIPLY}
except faultline.EvidenceError as error:
    os._exit(3 if [one["code"] for one in error.complaints] == ["forked"] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    done = python(script)
    assert done.returncode == 0 and done.stdout == "3\n", done.stderr


SUBPROCESS = f"""
import subprocess, sys, torch
{MULTIPLY}
subprocess.run([sys.executable, "-c", {COMPUTE!r}, *sys.argv[1:]], check=True)
"""


@pytest.mark.parametrize("word", ["", "faultline"])
def test_a_program_that_does_not_know_us_computes(under_plan, word):
    done = under_plan(SUBPROCESS, word)
    assert is_honest(done), (done.stdout, done.stderr)


def test_the_process_becomes_another_program(under_plan):
    done = under_plan(f"import os, sys, torch\n{MULTIPLY}\nos.execv(sys.executable, [sys.executable, '-c', {COMPUTE!r}])")
    assert is_honest(done), (done.stdout, done.stderr)


# --- ends -------------------------------------------------------------------------------------------------------------
def test_a_process_is_killed_before_its_end(under_plan):
    done = under_plan(f"import os, signal, torch\n{MULTIPLY}\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9


def test_a_script_ends_before_it_is_judged(under_plan):
    nothing = recipe(rule("gelu", where={"operator": "aten::gelu"}))
    for last in ("os._exit(0)", "sys.exit(0)"):
        done = under_plan(f"import os, sys\n{COMPUTE}{last}", a_recipe=nothing)
        assert done.returncode == 3, (last, done.stdout, done.stderr)


# --- evidence of others -----------------------------------------------------------------------------------------------
def test_the_evidence_of_an_earlier_run_lies_in_the_folder(under_plan, tmp_path):
    assert under_plan(COMPUTE).returncode == 0
    assert under_plan("print('nothing to do')").returncode == 3
    with pytest.raises(ValueError):  # of two runs
        faultline.collect(tmp_path / "evidence")


def entry(pid=1, calls=3, *, work=None, notes=None, run="now", **others):
    rules = [{"name": "a", "kind": "gain", "sites": 1, "calls": calls, "elements": 8 * calls, "changed": 8 * calls, "unreached": {}}]
    report = {"rules": rules, "rows": [{}] * bool(calls), "complaints": [], "forwards": {}}
    return {"format": 2, "run": run, "recipe": "", "host": "h", "pid": pid, "role": "worker", "ended": True, "work": work or {}, "notes": notes or {}, "report": report, **others}


def merged(*entries):
    return [one["code"] for one in evidence.merge(list(entries))["complaints"]]


def test_one_of_two_workers_has_no_evidence():
    def worker(rank):
        return entry(rank, notes={"worker": {"engine": "e", "rank": rank, "world": 2}})

    assert merged(worker(0)) == ["other_process"] and merged(worker(0), worker(1)) == []


def test_one_of_two_workers_met_nothing():
    assert merged(entry(1), entry(2, calls=0, work={"rollout": 1})) == ["idle"]


def test_nobody_has_evidence():
    assert merged() == ["no_evidence"] and merged(entry(1, calls=0)) == ["never_fired"]


# --- recipes ----------------------------------------------------------------------------------------------------------
def test_a_recipe_changes_between_processes(under_plan, tmp_path):
    """The parent's says double; the child's says that nothing may change."""
    harmless = recipe(rule(what={"kind": "gain", "strength": 0.0}, expect="invisible"))
    done = under_plan(f"""
import json, os, pathlib, subprocess, sys, torch
{MULTIPLY}
pathlib.Path(os.environ["FAULTLINE_RECIPE"]).write_text({json.dumps(harmless)!r})
subprocess.run([sys.executable, "-c", "import faultline\\n" + {COMPUTE!r}])
""")
    assert is_honest(done), (done.stdout, done.stderr)


def test_two_plans_in_one_process(under_plan):
    script = f"import faultline, torch\nwith faultline.plan({json.dumps(recipe(seed=8))!r}):\n    {MULTIPLY}"
    assert under_plan(script).returncode not in (0, 3)


def test_two_copies_of_the_library(tmp_path):
    import shutil

    copy = shutil.copy(faultline.library_path(), tmp_path / "libfaultline.so")
    path = write(tmp_path, "recipe.json", STRONG)
    done = python("-c", f"import torch\ntorch.ops.load_library({str(copy)!r})\nimport faultline\n{COMPUTE}", FAULTLINE_RECIPE=str(path))
    assert done.returncode != 0 and done.stdout == ""


# --- noise on norms ---------------------------------------------------------------------------------------------------
CARRIED = {**noise.NO_NOISE, "asked": 5, "norms": 5, "applications": 2, "sigmas": {"lowest": 0.01, "highest": 0.05}, "step": 3, "step_from": "trainer"}


def noisy(**changes):
    return entry(work={"rollout": 1}, notes={"aqn": {**CARRIED, **changes}})


@pytest.mark.parametrize("changes, code", [
    ({"norms": 4}, "noise_overwritten"),
    ({"overwritten": ["model.norm.weight"]}, "noise_overwritten"),
    ({"sigmas": {"lowest": 0.0, "highest": 0.0}}, "noise_silent"),
    ({"shares": (0.1, 0.2)}, "noise_strength"),
    ({"still": "the step stayed 0 through 9 updates of the weights"}, "still"),
])
def test_norms_that_were_given_noise_do_not_carry_it(changes, code):
    assert merged(noisy()) == [] and merged(noisy(**changes)) == [code]


def test_noise_on_norms_in_a_process_that_never_generates():
    trained = entry(work={"actor_forward": 5}, notes={"aqn": dict(noise.NO_NOISE)})
    assert merged(trained) == ["noise_missing"]


def test_noise_on_norms_where_nobody_applies_it(under_plan):
    aqn = recipe(aqn={"schedule": "constant", "sigma_start": 0.05})
    with pytest.raises(ValueError), faultline.plan(aqn):
        pass
    assert not torch.ops.faultline.plan_is_armed()
    assert under_plan(COMPUTE, a_recipe={"seed": 1, "aqn": aqn["aqn"]}).returncode == 3
