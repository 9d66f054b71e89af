"""`python -m faultline.race` on a device with streams: its collectives are called on a second stream, beside compute. The test backend
watches every operator and collective (tests/backend/streams.h): none uses memory that another stream may still be using, and mistakes
that a backend makes are seen, so that the watch is known to work."""

import json
import re

import pytest
import torch
from clients_process import python
from race_torch_test import ALL_TO_ALL, FSDP

import toy_device

OPS = toy_device.OPS
COMPUTE = ["model_dim=32", "num_heads=2", "seq_len=4", "simulate_compute=true"]
MODES = {
    "fsdp": [*FSDP, "real_backward=true", *COMPUTE],
    "fsdp, buffers made anew": [*FSDP, "reuse_buffers=false"],
    "ddp": ["mode=ddp", "allreduce_tensor_size=300", "~fsdp_shard_size", "~shared_layer_weights", *FSDP[2:], "num_layers=4"],
    "all to all": ALL_TO_ALL,
    "copies ahead": [*FSDP, "h2d_tensor_size=500", "h2d_prefetch=true"],
}


def race(tmp_path, *words, mistake=""):
    done = python("-m", "faultline.race", "--backend", "streamed", "--import", "streamed_backend", "--device", "toy:0", "--ranks", 2, "--json",
                  "verify_iterations=2", *words, STREAMED_REPORT=str(tmp_path / "seen"), STREAMED_MISTAKE=mistake)  # fmt: skip
    assert done.stdout, done.stderr
    return json.loads(done.stdout), [json.loads((tmp_path / f"seen.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("words", MODES.values(), ids=MODES)
def test_no_collective_and_no_operator_relies_on_what_may_still_run(tmp_path, words):
    result, seen = race(tmp_path, *words)
    assert result["verdict"] == "pass", result["sentence"]
    for rank in seen:
        assert rank["races"] == [] and rank["collectives"] >= 6
        assert len(rank["callers"]) == 1 and rank["callers"][0] not in (0, rank["own"]), "collectives are called on a stream beside compute's"


@pytest.mark.parametrize("mistake", ["starts_early", "ends_early"])
def test_a_backend_that_orders_nothing_is_seen_by_the_watch(tmp_path, mistake):
    _, seen = race(tmp_path, *FSDP, mistake=mistake)
    assert all(rank["races"] for rank in seen)


def test_on_one_stream_there_is_no_second(tmp_path):
    result, seen = race(tmp_path, *FSDP, "same_stream_mode=true")
    assert result["verdict"] == "pass" and all(rank["races"] == [] and rank["callers"] == [0] for rank in seen)


def test_the_watch_knows_order_by_events_and_by_the_host():
    def on_second(order):
        second = torch.Stream(device=toy_device.NAME)
        OPS.watch_streams(True)
        x = torch.zeros(8, device=toy_device.NAME).add_(1)
        order(second)
        with second:
            x.mul_(2)
        said = OPS.races()
        OPS.watch_streams(False)
        return said

    assert on_second(lambda second: second.wait_event(torch.accelerator.current_stream().record_event())) == []
    assert on_second(lambda second: torch.accelerator.current_stream().synchronize()) == []
    said = on_second(lambda second: None)
    assert said and re.fullmatch(r"aten::mul on stream [1-4] \w+ memory that aten::add on stream 0 writes, and does not wait for it", said[0])
