"""The Hugging Face suites, which were written for the CPU, on the test backend (on_toy.py): every test passes there too, all work was the
device's, and every ledger names it. One suite runs always, the others in the hard tests (FAULTLINE_HARD=1)."""

import json
import os
import subprocess
import sys

import pytest

from program import ROOT

FAST = ["hf_weights_test"]
HARD = ["hf_forward_test", "hf_counts_test", "hf_training_test", "hf_refused_test", "hf_diagnose_test", "hf_trl_test"]


def suite(name, *options):
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "on_toy", *options, str(ROOT / "tests" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    said = [line for line in done.stdout.splitlines() if line.startswith("ON_TOY ")]
    assert len(said) == 1, done.stdout[-3000:] + done.stderr[-2000:]
    return json.loads(said[0].removeprefix("ON_TOY ")), done


@pytest.mark.parametrize("name", FAST + HARD)
def test_the_suite_passes_on_the_test_backend(name):
    if name in HARD and not os.environ.get("FAULTLINE_HARD"):
        pytest.skip("part of ./dev test-hard")
    answer, done = suite(name)
    assert answer["tests"] == [] and done.returncode == 0, done.stdout[-4000:]
    assert answer["passed"] >= 7 and answer["calls"] > 1000
    assert set(answer["ledgers"]) <= {"toy:0"}, answer["ledgers"]
