"""compute-sanitizer, as `./dev test-hard gpu` starts it, finds the mistakes that are planted in kernels of ours."""

import shutil
import subprocess

import pytest
import torch
from hard import OUR_KERNELS, SANITIZER
from program import ROOT

missing = [tool for tool in ("compute-sanitizer", "nvcc") if not shutil.which(tool)] if torch.cuda.is_available() else ["CUDA device"]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    program = tmp_path_factory.mktemp("control") / "control"
    subprocess.run(["nvcc", "-arch=native", "-o", program, ROOT / "tests" / "sanitizer_control.cu"], check=True)
    return program


@pytest.mark.parametrize(
    "tool, mistake, ours, found",
    [
        ("racecheck", "race", True, True),
        ("racecheck", "other", False, True),
        ("racecheck", "other", True, False),
        ("memcheck", "beyond", False, True),
        ("memcheck", "none", False, False),
    ],
)
def test_the_tool_finds_what_is_planted_and_only_where_it_looks(control, tool, mistake, ours, found):
    done = subprocess.run([*SANITIZER, tool, *(OUR_KERNELS if ours else []), control, mistake], capture_output=True, text=True, timeout=120)
    assert done.returncode == (99 if found else 0), done.stdout + done.stderr
