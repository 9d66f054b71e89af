"""Faults that share nothing with the tool: an interposed `send` flips bits of payloads between Gloo ranks. Every flip that
went over the wire must be found, and laid on the collective."""

import json
import os
import shutil
import subprocess

import pytest
from program import ROOT, launch

ROUNDS = int(os.environ.get("FAULTLINE_RACE_ROUNDS", "110"))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("send") / "libsend_fault.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, ROOT / "tests" / "race_send_fault.cpp", "-ldl"], check=True)
    return path


def race_with(library, tmp_path, every, mode, iterations=40, least=1000):
    log = tmp_path / "flips.txt"
    environment = {"LD_PRELOAD": str(library), "FAULTLINE_SEND_BYTES": str(least), "FAULTLINE_SEND_EVERY": str(every), "FAULTLINE_SEND_LOG": str(log)}
    done = launch("race", "--transport", "gloo", "--ranks", 2, "--json", *mode, "warmup_iterations=0", f"verify_iterations={iterations}", "stop_on_first_corruption=false",
                  "canary=off", "h2d_tensor_size=0", env=environment)
    flips = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return json.loads(done.stdout), flips


FSDP = ["mode=fsdp", "fsdp_shard_size=2000", "num_layers=2", "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len"]


# Only the pieces of the all-to-all are large enough to be struck.
ALL_TO_ALL = ["mode=default", "alltoall_tensor_size=4000", "allreduce_tensor_size=100", "~fsdp_shard_size", "~shared_layer_weights", *FSDP[2:]]


def test_nothing_is_flipped_and_nothing_is_found(library, tmp_path):
    result, flips = race_with(library, tmp_path, 0, FSDP)
    assert result["verdict"] == "pass" and not flips


def test_every_flip_on_the_wire_is_found_in_the_collective(library, tmp_path):
    result, flips = race_with(library, tmp_path, 2, ALL_TO_ALL, iterations=ROUNDS)
    assert len(flips) >= 200
    mismatches = [m for rank in result["evidence"] for m in rank["mismatches"]["items"]]
    assert sum(m["count"] for m in mismatches) == len(flips)
    assert {(m["operation"], m["damage"], m["count"]) for m in mismatches} == {("all_to_all", "bitflip", 1)}
    events = [e for rank in result["evidence"] for e in rank["events"]["items"]]
    assert {e["cause"] for e in events} == {"collective"}
    assert {(e["rank"], *e["sources"]) for e in events} == {(0, 1), (1, 0)}  # whose data, and where it arrived


def test_flips_within_reductions_are_laid_on_the_collective_too(library, tmp_path):
    # Gloo's reductions also carry pieces that end up in no rank's result, so not every flip can be seen.
    result, flips = race_with(library, tmp_path, 5, FSDP)
    mismatches = [m for rank in result["evidence"] for m in rank["mismatches"]["items"]]
    assert flips and {m["operation"] for m in mismatches} == {"all_gather", "reduce_scatter"}
    assert {e["cause"] for rank in result["evidence"] for e in rank["events"]["items"]} == {"collective"}
