"""The portable arithmetic as its users meet it: chosen by an environment variable, asked from Python and from the program, refused with
sentences. Its bits are compared in src/numeric/portable/portable_test.cpp."""

import json
import os
import subprocess
import sys

import pytest
import torch

import faultline
from program import ROOT, launch

PORTABLE = {"FAULTLINE_ARITHMETIC": "portable"}
DRAW = """
import json, torch, faultline
x = torch.arange(3 * 1003, dtype=torch.float32).sub(1500).view(3, 1003).to(torch.{dtype}).t()
y, ledger = x.clone(), faultline.new_ledger("cpu")
faultline.apply_(y, "{fault}", seed=3, ledger=ledger)
print(json.dumps([faultline.digest(y), faultline.checksum(y), ledger.tolist()]))
"""


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), **environment})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("fault", ["relative_gaussian(strength=0.05)", "bitflip(count=7)", "quantize(format=nvfp4, rounding=stochastic)"])
def test_a_process_with_the_portable_arithmetic_gives_the_same_bits_ledger_and_digest(dtype, fault):
    runs = [python(DRAW.format(dtype=dtype, fault=fault), **environment) for environment in ({}, PORTABLE)]
    assert all(run.returncode == 0 for run in runs), runs
    native, portable = [json.loads(run.stdout) for run in runs]
    assert native == portable and native[0] != 0


def test_python_says_kind_by_kind_what_a_device_computes():
    answer = faultline.selftest("cpu")
    assert answer["device"] == "cpu" and answer["arithmetic"] == "native"
    assert [finding for finding in answer["operations"] + answer["kinds"] if not finding["ok"]] == []
    names = [finding["name"] for finding in answer["kinds"]]
    assert {"relative_gaussian", "bitflip", "stale", "mxfp4", "int8", "tf32", "digest and plain sum"} <= set(names) and len(names) == len(set(names)) == 21 + 45 + 1  # kinds but quantize, formats, digest


def test_a_device_without_arithmetic_is_told_what_it_lacks():
    answer = faultline.selftest("meta")
    assert not any(finding["ok"] for finding in answer["operations"])
    assert all("\n" not in finding["complaint"] for finding in answer["operations"] + answer["kinds"])


def test_the_module_prints_a_line_each_and_ends_with_the_count():
    done = subprocess.run([sys.executable, "-m", "faultline.selftest"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "ok    fp32 subnormal numbers" in done.stdout and done.stdout.splitlines()[-1].endswith("0 do not, on cpu")


@pytest.mark.parametrize("words, says", [
    (["--device", "abacus:0"], "this torch has no device 'abacus:0'; a backend is loaded by --import MODULE"),
    (["--import", "no_such_module"], "--import no_such_module: No module named 'no_such_module'"),
    (["--import", "broken_module"], "--import broken_module: the driver is too old"),
])  # fmt: skip
def test_a_device_or_a_module_that_is_not_there_is_a_sentence(tmp_path, words, says):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('the driver is too old\\nsecond line')")
    path = os.pathsep.join([os.path.join(ROOT, "python"), str(tmp_path)])
    done = subprocess.run([sys.executable, "-m", "faultline.selftest", *words], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 64 and done.stderr == f"faultline: {says}\n", done.stderr


def test_the_program_tries_it_where_the_environment_asks_for_it(monkeypatch):
    monkeypatch.setenv("FAULTLINE_ARITHMETIC", "portable")
    done = launch("selftest", "--quick", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    names = [check["name"] for check in json.loads(done.stdout)["checks"]]
    assert "portable = CPU: integer shifts" in names and "portable = CPU: nvfp4" in names


def test_mistakes_are_sentences(monkeypatch):
    done = launch("selftest", "--device", "npu:0")
    assert done.returncode == 64 and "python -m faultline.selftest --device npu:0" in done.stderr
    done = python("import torch, faultline; faultline.apply(torch.ones(4), 'zero')", FAULTLINE_ARITHMETIC="fast")
    assert done.returncode != 0 and "FAULTLINE_ARITHMETIC=fast: wanted native or portable" in done.stderr
    done = python("import torch, faultline; faultline.apply(torch.ones(4, dtype=torch.float64), 'zero')", **PORTABLE)
    assert done.returncode != 0 and "the portable arithmetic has no fp64" in done.stderr
    assert torch.equal(faultline.apply(torch.ones(4, dtype=torch.float64), "zero"), torch.zeros(4, dtype=torch.float64))
