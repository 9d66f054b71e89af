"""The wheel of `./dev wheel`, in an environment that has nothing but it and torch: it is imported from there, knows its torch and
runs a plan. Skipped where no wheel was made."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
WHEELS = sorted((ROOT / "build" / "wheels").glob("faultline_lab-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason="no wheel was made: ./dev wheel")

SCRIPT = """
import json, torch, faultline
recipe = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
x = torch.ones(64, 64)
clean = x @ x
with faultline.plan(recipe) as plan:
    faulty = x @ x
print(json.dumps({"package": faultline.__file__, "library": str(faultline.library_path()), "changed": not torch.equal(clean, faulty), "restored": torch.equal(clean, x @ x),
                  "calls": plan.report["rules"][0]["calls"]}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A new environment; torch is borrowed from the one that runs this."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    [packages] = folder.glob("lib/python3.*/site-packages")
    (packages / "borrowed.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
    done = subprocess.run([folder / "bin/python", "-m", "pip", "install", "--no-deps", "--no-index", WHEELS[-1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, packages


def python(folder, *arguments):
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("FAULTLINE_", "PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run([folder / "bin/python", *arguments], cwd=folder, env=outside, capture_output=True, text=True, timeout=600)


def test_a_plan_runs_with_nothing_but_the_wheel_and_torch(installed):
    folder, packages = installed
    done = python(folder, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert pathlib.Path(found["library"]).parent == packages / "faultline" and found["package"] == str(packages / "faultline" / "__init__.py")
    assert found["changed"] and found["restored"] and found["calls"] == 1


def test_the_wheel_is_for_any_python_holds_the_plugins_and_says_its_torch():
    assert "-py3-none-linux_" in WHEELS[-1].name
    with zipfile.ZipFile(WHEELS[-1]) as wheel:
        names = set(wheel.namelist())
        assert {"faultline/libfaultline.so", "faultline/program/faultline", "faultline/py.typed", "faultline_vllm.py", "faultline_verl.py", "faultline_pytest.py", "faultline_program.py"} <= names
        assert wheel.read("faultline/libfaultline.torch").decode().split(".")[:2] == torch.__version__.split(".")[:2]
        [entry_points] = (wheel.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "faultline=faultline_vllm:register" in entry_points.replace(" ", "") and "[verl.plugins]" in entry_points and "faultline=faultline_pytest" in entry_points.replace(" ", "")


def test_another_torch_is_refused_before_the_library_is_loaded(installed):
    folder, packages = installed
    note = packages / "faultline" / "libfaultline.torch"
    right = note.read_text()
    note.write_text("2.99.0\n")
    try:
        done = python(folder, "-c", "import faultline")
    finally:
        note.write_text(right)
    assert done.returncode != 0 and "is built for torch 2.99.0, this Python has torch" in done.stderr


def test_the_program_is_on_the_path_and_runs(installed):
    folder, _ = installed
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("FAULTLINE_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([folder / "bin/faultline", "demo", "--quick", "--json", "--output", folder / "demo"], env=outside, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
