"""`python -m faultline.devices`: a forward recorded on one device and made again on another, also on one that only a backend of torch
knows (the test device), and the recipe that re-creates the difference on the first. The program's `compare` is in diagnose_test.py."""

import json
import os
import subprocess
import sys

import pytest
import torch

import replay_error
import toy_device
from faultline import devices
from program import ROOT
from tap_models import llama, tokens


def python(*arguments):
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")])
    return subprocess.run([sys.executable, "-m", "faultline.devices", *map(str, arguments)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


def eager(layers=2, dtype=torch.bfloat16):
    return llama(layers, attn_implementation="eager").to(dtype)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path, model = tmp_path_factory.mktemp("trace") / "first", eager()
    assert devices.record(lambda: model(tokens(), use_cache=False), path, model=model) > 30
    return path


def test_a_device_that_computes_the_same_is_equal_and_makes_no_recipe(trace, tmp_path):
    before = toy_device.OPS.calls_on_host()
    answer = devices.compare(trace, toy_device.NAME)
    assert toy_device.OPS.calls_on_host() - before > 30
    assert {row["operator"]: row["calls"] for row in answer["operators"]}["aten::mm"] == 15
    assert all(row["share_equal"] == 1 and row["noise_to_signal"] == 0 for row in answer["operators"]) and answer["not_compared"] == []
    with pytest.raises(ValueError, match="gave the same numbers, but for single elements: there is nothing to re-create"):
        devices.compare(trace, toy_device.NAME, out=tmp_path)


def test_layers_are_those_of_the_modules(trace):
    answer = devices.compare(trace, "cpu", dtype=torch.float32)
    assert {row["layer"] for row in answer["layers"] if row["operator"] == "aten::mm"} == {-1, 0, 1}


def test_a_call_whose_input_was_overwritten_later_is_compared_as_it_was(tmp_path):
    weight = torch.randn(16, 16)

    def run():
        x = torch.randn(4, 16)
        (x @ weight).sum()
        x.zero_()
        (torch.randn(4, 16) @ weight).sum()

    devices.record(run, tmp_path / "t")
    answer = {row["operator"]: row for row in devices.compare(tmp_path / "t", "cpu")["operators"]}
    assert answer["aten::mm"]["calls"] == 2 and all(row["share_equal"] == 1 for row in answer.values())


def test_an_exception_ends_the_recording(tmp_path):
    with pytest.raises(ZeroDivisionError):
        devices.record(lambda: 1 / 0, tmp_path / "t")
    with pytest.raises(ValueError):  # it was cut off
        devices.compare(tmp_path / "t", "cpu")
    ones = torch.ones(2, 2)
    assert devices.record(lambda: ones @ ones, tmp_path / "u") == 1


def test_the_recipe_makes_the_first_machine_err_as_much_as_the_second(tmp_path):
    """bf16 beside fp32. Measured in every operator and counted by the ledger: equal within what 16 bits round the drawn error to."""
    answer = replay_error.replay(tmp_path, "cpu", "cpu:fp32")
    assert "aten::mm" in {row["operator"] for row in answer["operators"]}
    for row in answer["operators"]:
        assert 0.6 < row["replayed"] / row["noise_to_signal"] < 1.7, row
    assert min(answer["logits"]["replayed"]) > 0


def test_the_command_records_and_compares(tmp_path):
    folder = tmp_path / "model"
    eager().save_pretrained(folder)
    pytest.importorskip("tokenizers")
    from hf_trl_test import tokenizer

    tokenizer().save_pretrained(folder)
    recorded = python("--model", folder, "--a", "cpu:bf16", "--prompt", "w1 w2 w3", "--record", tmp_path / "t")
    assert recorded.returncode == 0 and "calls recorded; on the other machine" in recorded.stdout, recorded.stderr
    compared = python("--a", tmp_path / "t", "--b", "toy:0", "--import", "toy_device", "--json")
    assert compared.returncode == 0 and all(row["share_equal"] == 1 for row in json.loads(compared.stdout)["operators"]), compared.stderr


@pytest.mark.parametrize("arguments, says", [
    (["--a", "./nowhere", "--b", "cpu"], "./nowhere"),
    (["--a", "cpu", "--b", "cpu"], "records first"),
    (["--record", "t"], "wants --model"),
    (["--a", "T", "--b", "npu:0"], "this torch has no device 'npu:0'; a backend is loaded by --import MODULE"),
    (["--a", "T", "--b", "cpu", "--import", "no_such_module"], "--import no_such_module: No module named"),
    (["--a", "T", "--b", "T", "--out", "p"], "is a trace: two traces"),
])  # fmt: skip
def test_mistakes_are_sentences(trace, arguments, says):
    done = python(*(trace if word == "T" else word for word in arguments))
    assert done.returncode in (2, 64) and done.stderr.startswith("faultline: ") and len(done.stderr.splitlines()) == 1 and says in done.stderr, done.stderr
