"""Diagnosis on a GPU: a clean one is healthy in every type (tensor cores take fp32 apart, which is no fault), and a planted
fault is found and named."""

import json

import pytest
import tiny_folder
import torch
from program import launch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_folder.make(tmp_path_factory.mktemp("diagnose") / "tiny", layers=6))


def verdicts(model, *arguments):
    done = launch("diagnose", "--device", "cuda", "--json", "--quiet", "--model", model, *arguments)
    assert done.returncode in (0, 1, 3), done.stderr
    return {verdict["method"]: verdict for verdict in json.loads(done.stdout)["verdicts"]}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_clean_gpu_is_healthy(model, dtype, seed):
    found = verdicts(model, "--method", "all", "--dtype", dtype, "--seed", seed)
    assert {name: found[name]["verdict"] for name in ("self", "shadow")} == {"self": "healthy", "shadow": "healthy"}, found


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "fault, place, kind",
    [
        ("gain(strength=0.05) @ operator=attention,layer=3", "model.layers.3.self_attn", "gain"),
        ("spike(probability=0.02) @ operator=attention,layer=3", "model.layers.3.self_attn", "spike"),
        ("offset(strength=0.1) @ module=layer_output,layer=2", "model.layers.2", "offset"),
    ],
)
def test_a_planted_fault_is_found_and_named(model, dtype, fault, place, kind):
    for name, verdict in verdicts(model, "--method", "all", "--dtype", dtype, "--fault", fault).items():
        if name != "classic":
            assert (verdict["candidates"][0]["place"], verdict["candidates"][0]["kind"]) == (place, kind), name
