"""vLLM on a GPU, compiled with CUDA graphs (skipped elsewhere): the documented command works with every way to start processes, every
product of every forward is faulted inside the graphs that serve, and the ledger says so exactly; graphs captured without the faults,
schedules that nobody moves and workers that nobody follows are not accepted."""

import importlib.util
import os

import pytest
import torch

from clients_vllm_test import LAYERS, LINEARS, NOISE, calls_by_place, installed, make_model, result_of, rule, run  # noqa: F401  fixtures

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None or not torch.cuda.is_available(), reason="needs vLLM and a GPU")
# A fixed cache: engines of tests that run beside each other do not profile each other's memory.
GRAPHS = {"enforce_eager": False, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def clean(tmp_path_factory, model):
    return result_of(run(tmp_path_factory.mktemp("clean"), model, "", None, **GRAPHS))


def codes(collection):
    return [one["code"] for one in collection["complaints"]]


def proof_of(result):
    """-> the worker's report, after what must hold of every proven run"""
    [process] = [entry for entry in result["collection"]["processes"] if entry["report"]["rows"]]
    report = process["report"]
    forwards = report["forwards_by_kind"]["rollout"]
    places = calls_by_place(report)
    assert len(places) == LINEARS and "" not in places, places
    for place, calls in places.items():
        assert calls == forwards["head" if place == "lm_head" else "body"], (place, calls, forwards)
    return process, report


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_product_is_faulted_inside_the_graphs(tmp_path, model, installed, clean, method):  # noqa: F811
    result = result_of(run(tmp_path, model, installed, NOISE, environment={"VLLM_WORKER_MULTIPROC_METHOD": method}, **GRAPHS))
    process, report = proof_of(result)
    assert codes(result["collection"]) == [] and result["logprobs"] != clean["logprobs"]
    assert process["notes"]["canary"]["ways"] > 2 and process["notes"]["canary"]["absent"] is None
    captured = [row for row in report["rows"] if row.get("captured")]
    assert len(captured) == LINEARS - 1  # the head is computed outside of the graphs
    assert report["apart"]["warm-up"] > 0 and report["apart"]["profiling"] > 0


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "NONE"])
def test_every_mode_of_graphs(tmp_path, model, installed, clean, mode):  # noqa: F811
    result = result_of(run(tmp_path, model, installed, NOISE, compilation_config={"cudagraph_mode": mode}, **GRAPHS))
    proof_of(result)
    assert codes(result["collection"]) == [] and result["logprobs"] != clean["logprobs"]


def test_the_launcher_needs_nothing_but_the_recipe(tmp_path, model, installed):  # noqa: F811
    done = run(tmp_path, model, installed, NOISE, launcher=("-m", "faultline"), **GRAPHS)
    result_of(done)
    assert done.returncode == 0


def test_graphs_captured_while_the_plan_was_away_are_found(tmp_path, model, installed):  # noqa: F811
    result = result_of(run(tmp_path, model, installed, NOISE, "recapture", environment={"FAULTLINE_ON_MISSING": "warn"}, **GRAPHS))
    assert "partial" in codes(result["collection"])


def test_weights_that_arrive_after_the_capture_are_faulted_in_the_graphs(tmp_path, model, installed):  # noqa: F811
    weights = rule({"operator": "matmul", "surface": "weight"}, {"kind": "quantize", "format": "mxfp4"})
    result = result_of(run(tmp_path, model, installed, weights, "rescale", **GRAPHS))
    assert codes(result["collection"]) == []
    # All weights of the layers times 0: only a graph that still reads the old copies would go on as before.
    assert result["rescaled"]["logprobs"] != result["logprobs"]


def test_noise_whose_schedule_nobody_moves_is_not_accepted(tmp_path, model, installed):  # noqa: F811
    decay = {"seed": 7, "aqn": {"schedule": "global_decay", "sigma_start": 0.1, "sigma_end": 0.02, "num_stages": 10}}
    done = run(tmp_path, model, installed, decay, launcher=("-m", "faultline"), environment={"FAULTLINE_TOTAL_STEPS": "116"}, **GRAPHS)
    assert done.returncode == 3, done.stderr[-3000:]


def test_a_dead_zone_at_a_layers_output_is_in_the_graphs(tmp_path, model, installed, clean):  # noqa: F811
    zone = rule({"module": "layer_output", "layer": 1}, {"kind": "deadzone", "threshold": 0.2})
    result = result_of(run(tmp_path, model, installed, zone, **GRAPHS))
    [process] = [entry for entry in result["collection"]["processes"] if entry["report"]["rows"]]
    [row] = process["report"]["rows"]
    assert codes(result["collection"]) == [] and row["captured"] > 0 and row["ledger"]["calls"] == process["report"]["forwards_by_kind"]["rollout"]["body"]
    assert result["logprobs"] != clean["logprobs"]


@pytest.mark.skipif(os.environ.get("FAULTLINE_SHORT") == "1", reason="asked to be short")
def test_the_same_seed_gives_the_same_text(tmp_path, model, installed):  # noqa: F811
    first, second = (result_of(run(tmp_path, model, installed, NOISE, **GRAPHS)) for _ in range(2))
    assert first["logprobs"] == second["logprobs"] and first["text"] == second["text"]
