"""Race on a GPU: four ranks as threads on one device, NCCL with one rank (it refuses two on a GPU), planted faults found on
both, and a host that waits for the device once an iteration, not once a layer."""

import json
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
import torch

from program import PROGRAM, ROOT, launch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = ["race", "--device", "cuda", "--json", "--quiet"]
FAULT = "inject={target: all_gather, kind: bitflip, layer: 1, rank: %d, iteration: 2}"
FSDP = ["mode=fsdp", "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len", "canary=off"]


@pytest.fixture(scope="module")
def nccl():
    if not (PROGRAM.parent / "libfaultline_nccl.so").exists():
        pytest.skip("built without NCCL")
    return ["--transport", "nccl"]


def result_of(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def events(result):
    return [event for rank in result["evidence"] for event in rank["events"]["items"]]


def found(result, rank):
    (event,) = events(result)
    return (event["cause"], event["operation"], event["rank"], event["layer"], event["iteration"]) == ("collective", "all_gather", rank, 1, 2)


def one_rank():
    """What torchrun sets for a world of one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_the_selftest_finds_and_attributes_everything_on_one_gpu():
    done = launch("race", "--selftest", "--device", "cuda", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr


def test_four_ranks_share_a_gpu_and_a_planted_fault_is_named():
    clean = result_of(launch(*CUDA, "--ranks", 4))
    assert clean["verdict"] == "pass" and all(rank["canary"]["attributed"] for rank in clean["evidence"])
    assert found(result_of(launch(*CUDA, "--ranks", 4, FAULT % 2)), 2)


def test_nccl_carries_one_rank_under_torchrun(nccl):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "1", str(PROGRAM)]
    done = subprocess.run([*torchrun, *CUDA, *nccl], capture_output=True, text=True, cwd=ROOT)
    clean = result_of(done)
    assert done.returncode == 0 and clean["verdict"] == "pass", done.stderr
    assert clean["evidence"][0]["canary"]["attributed"] and clean["evidence"][0]["collectives"] > 0


@pytest.mark.parametrize("mode", [[], ["mode=ddp", "~fsdp_shard_size"], ["mode=default", "~fsdp_shard_size", "~shared_layer_weights"]])
def test_nccl_carries_every_mode(nccl, mode):
    assert result_of(launch(*CUDA, *nccl, "--ranks", 1, *mode))["verdict"] == "pass"


def test_nccl_with_our_own_launcher_finds_a_planted_fault_and_refuses_to_share_a_gpu(nccl):
    assert result_of(launch(*CUDA, *nccl, "--ranks", 1))["verdict"] == "pass"
    assert found(result_of(launch(*CUDA, *nccl, "--ranks", 1, FAULT % 0)), 0)
    many = launch(*CUDA, *nccl, "--ranks", torch.cuda.device_count() + 1)
    assert many.returncode == 64 and "NCCL wants a GPU a rank" in many.stderr


def test_a_stalled_nccl_rank_ends_with_a_verdict(nccl):
    stalled = "inject={target: comm_output, kind: delay, layer: 1, rank: 0, iteration: 1, delay_ms: 600000}"
    result = result_of(launch(*CUDA, *nccl, "--ranks", 1, "timeout_seconds=3", stalled))
    assert (result["verdict"], result["outcome"], result["blamed"]) == ("error", "hang", [0])


def test_the_cost_of_digests_is_measured_with_its_drift():
    cost = result_of(launch(*CUDA, "--ranks", 4, "--measure-overhead", "verify_iterations=16"))["overhead"]
    assert cost["pairs"] == 8 and cost["low"] <= cost["relative"] <= cost["high"] and cost["drift"]["low"] <= cost["drift"]["high"]


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("count") / "libcount.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, pathlib.Path(__file__).parent / "race_sync_count.cpp", "-ldl"], check=True)
    return library


@pytest.mark.parametrize("transport", ["threads", "nccl"])
def test_the_host_waits_no_more_often_for_24_layers_than_for_4(counter, transport, request):
    arguments, env = ["--ranks", "4"], {}
    if transport == "nccl":
        arguments, env = request.getfixturevalue("nccl"), one_rank()
    waits = {}
    for layers in (4, 24):
        done = launch(*CUDA, *arguments, *FSDP, f"num_layers={layers}", "warmup_iterations=2", "verify_iterations=10", env={"LD_PRELOAD": str(counter), **env})
        assert done.returncode == 0, done.stderr
        waits[layers] = int(done.stderr.split("RACE_SYNC_COUNT ")[1].split()[0])
    assert 0 < waits[24] <= waits[4], waits
