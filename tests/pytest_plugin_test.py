"""The fixture `faultline_plan` (python/faultline_pytest.py), in a pytest of its own as a user's project runs it: the fault acts until the
test ends, a test whose fault did not happen fails, one that fails by itself says only that, and nothing stays armed."""

import os
import re
import subprocess
import sys

import pytest
from program import PROGRAM, ROOT

OPENING = """
import torch
RECIPE = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
x = torch.ones(64, 64)
"""


def run_pytest(folder, source, *arguments):
    (folder / "test_mine.py").write_text(OPENING + source)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FAULTLINE_"))}
    outside |= {"PYTHONPATH": str(ROOT / "python"), "FAULTLINE_LIBRARY": os.environ.get("FAULTLINE_LIBRARY", str(PROGRAM.parent / "libfaultline.so"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "faultline_pytest", "--rootdir", str(folder), str(folder / "test_mine.py"), *arguments]
    return subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True, timeout=300)


def test_a_fault_acts_until_its_test_ends_and_not_in_the_next(tmp_path):
    done = run_pytest(tmp_path, """
def test_under_noise(faultline_plan):
    clean = x @ x
    plan = faultline_plan(RECIPE)
    assert not torch.equal(clean, x @ x)
    assert plan.read()["rules"][0]["calls"] == 1

def test_after_it():
    assert torch.equal(x @ x, torch.full((64, 64), 64.0))

def test_two_plans_one_after_the_other(faultline_plan):
    faultline_plan(RECIPE)
    first = x @ x
    faultline_plan(RECIPE, overrides=["seed=2"])
    assert not torch.equal(first, x @ x)
""")  # fmt: skip
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


def test_a_test_whose_fault_did_not_happen_fails(tmp_path):
    done = run_pytest(tmp_path, """
def test_nothing_is_multiplied(faultline_plan):
    faultline_plan(RECIPE)
    assert x.sum() == 64 * 64

def test_the_first_of_two_did_nothing(faultline_plan):
    faultline_plan(RECIPE)
    faultline_plan(RECIPE)
    x @ x

def test_after_them():
    assert torch.equal(x @ x, torch.full((64, 64), 64.0))
""")  # fmt: skip
    assert done.returncode == 1 and re.search(r"2 failed, 1 passed", done.stdout), done.stdout
    assert "EvidenceError" in done.stdout and "error at teardown" not in done.stdout.lower()


def test_a_test_that_fails_by_itself_says_only_that(tmp_path):
    done = run_pytest(tmp_path, """
def test_mine(faultline_plan):
    faultline_plan(RECIPE)
    assert False, "my own reason"

def test_after_it():
    assert torch.equal(x @ x, torch.full((64, 64), 64.0))
""")  # fmt: skip
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout and "my own reason" in done.stdout and "EvidenceError" not in done.stdout, done.stdout


def test_a_mistake_in_the_recipe_is_said_where_it_is_made(tmp_path):
    done = run_pytest(tmp_path, """
def test_mine(faultline_plan):
    faultline_plan({"seed": 1, "fault": []})
""")  # fmt: skip
    assert done.returncode == 1 and "ValueError" in done.stdout and "fault" in done.stdout


def test_a_project_that_does_not_ask_for_it_loads_no_torch(tmp_path):
    (tmp_path / "test_plain.py").write_text("import sys\ndef test_plain():\n    assert 'faultline_pytest' in sys.modules and 'torch' not in sys.modules\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "faultline_pytest", str(tmp_path / "test_plain.py")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_the_example_runs(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "FAULTLINE_LIBRARY": os.environ.get("FAULTLINE_LIBRARY", str(PROGRAM.parent / "libfaultline.so"))}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "faultline_pytest", str(ROOT / "examples/test_under_noise.py")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("words", ['faultline = "faultline_pytest"', "python/faultline_pytest.py"])
def test_the_package_ships_it(words):
    assert words in (ROOT / "pyproject.toml").read_text()
