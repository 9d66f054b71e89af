"""`python -m faultline.race`: the race in Python processes over backends of torch.distributed: Gloo, and one of the test's own that
corrupts, swaps, drops and delays (lying_backend.py). What it says is what `faultline race` says; alone, under torchrun, from a recipe."""

import json
import os
import pathlib
import sys

import pytest
import yaml
from clients_process import PATH, python
from program import ROOT, free_port, launch

SMALL = ["mode=fsdp", "fsdp_shard_size=600", "h2d_tensor_size=500", "num_layers=4", "model_dim=32", "num_heads=2", "seq_len=4", "warmup_iterations=0", "verify_iterations=5"]
BARE = ["num_layers=2", "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len", "warmup_iterations=0", "h2d_tensor_size=0", "stop_on_first_corruption=false"]
FSDP = ["mode=fsdp", "fsdp_shard_size=600", *BARE]
ALL_TO_ALL = ["mode=default", "alltoall_tensor_size=900", "allreduce_tensor_size=300", "~fsdp_shard_size", "~shared_layer_weights", *BARE]
FAULTS = int(os.environ.get("FAULTLINE_TORCH_FAULTS", "30"))
ITERATIONS = int(os.environ.get("FAULTLINE_TORCH_ITERATIONS", "60"))
PUBLISHED = ROOT / "docs/results/torch-race.json"
ALARMS = ("events", "mismatches", "deviations")
FROM_PROGRAM = {"FAULTLINE_PYTHON": sys.executable, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}


def note(**figures):
    """Where FAULTLINE_TORCH_RECORD names a file, figures are added to it: the record behind docs/results/race.md."""
    if path := os.environ.get("FAULTLINE_TORCH_RECORD"):
        record = pathlib.Path(path)
        record.write_text(json.dumps({**(json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}), **figures}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def race(*arguments, backend="gloo", ranks=2, lies=()):
    words = ["--backend", backend, "--ranks", ranks, *(["--import", "lying_backend"] if backend == "lying" else [])]
    return python("-m", "faultline.race", *words, *arguments, LYING_BACKEND=json.dumps(lies))


def result_of(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def found(result, *kinds):
    return [item for rank in result["evidence"] for kind in kinds for item in rank[kind]["items"]]


def test_it_says_what_the_program_says(tmp_path):
    """The same bytes, digests, events and lines as `faultline race` over its own Gloo, with the same seed."""
    words = [*SMALL, "--ranks", 2, "--seed", 7, "inject={target: all_gather, kind: bitflip, layer: 2, rank: 1, iteration: 3, element: 11, bit: 6}"]
    ours, theirs = tmp_path / "python.json", tmp_path / "program.json"
    done = python("-m", "faultline.race", "--backend", "gloo", *words, "--out", ours)
    assert done.returncode == 1, done.stderr
    assert "20 of" not in done.stdout and "VERDICT: fail (stopped_at_first_corruption): 1 corruption on rank 1" in done.stdout
    assert "2 ranks, mode fsdp, 4 layers" in done.stderr and "race:" in done.stderr, "what runs, and how far it is"
    wanted = launch("race", "--transport", "gloo", *words, "--out", theirs)
    assert done.stdout == wanted.stdout
    record, other = (json.loads(path.read_text(encoding="utf-8")) for path in (ours, theirs))
    for rank, same in zip(record["evidence"], other["evidence"]):
        assert [rank[kind] for kind in ALARMS] == [same[kind] for kind in ALARMS]
        assert (rank["collectives"], rank["collective_bytes"], rank["canary"]) == (same["collectives"], same["collective_bytes"], same["canary"])
    made = record["made_by"]
    assert (made["transport"], made["backend"], made["device"], made["imports"]) == ("torch", "gloo", "cpu", [])
    assert made["config"] == other["made_by"]["config"] and made["seed"] == "7"


def lies_of(mode, count, ranks, layers=2):
    """One an iteration: every lie in every operation on every rank. The run's first iteration is the canary's."""
    operations = {"fsdp": ["all_gather", "backward", "reduce_scatter"], "default": ["all_to_all", "all_reduce"]}[mode]
    lies, wanted = [], set()
    for i in range(count):
        lie = ("corrupt", "swap", "drop")[i % 3]
        operation = operations[i // 3 % len(operations)]
        rank = i // (3 * len(operations)) % ranks
        layer = i // (3 * len(operations) * ranks) % layers
        down = layers - 1 - layer
        call = {"all_gather": 2 * layers * (i + 1) + layer, "backward": 2 * layers * (i + 1) + layers + down, "reduce_scatter": layers * (i + 1) + down}.get(operation, layers * (i + 1) + layer)
        operation = operation.replace("backward", "all_gather")
        pieces = ranks if operation in ("all_gather", "all_to_all") else 1
        lies.append({"rank": rank, "operation": operation, "call": call, "lie": lie, "element": 7 * i % 300, "bit": i % 16, "pieces": pieces})
        wanted.add((i, rank, layer, operation, "collective"))
    return lies, wanted


def test_what_a_backend_corrupts_swaps_and_drops_is_laid_on_its_rank_and_place():
    planted = attributed = events = 0
    for mode, settings, count in (("fsdp", FSDP, FAULTS * 3 // 5), ("default", ALL_TO_ALL, FAULTS - FAULTS * 3 // 5)):
        lies, wanted = lies_of(mode, count, ranks=3)
        done = race("--json", *settings, f"verify_iterations={count + 1}", backend="lying", ranks=3, lies=lies)
        assert done.returncode == 1, done.stderr
        told = found(result_of(done), "events")
        seen = {(e["iteration"], e["rank"], e["layer"], e["operation"], e["cause"]) for e in told}
        planted, attributed, events = planted + count, attributed + len(seen & wanted), events + len(told)
        assert seen == wanted
    note(planted=planted, attributed=attributed, events=events)
    assert planted == attributed == events == FAULTS


def test_the_damage_is_told():
    lies, _ = lies_of("fsdp", 9, ranks=3)
    mismatches = found(result_of(race("--json", *FSDP, "verify_iterations=9", backend="lying", ranks=3, lies=lies)), "mismatches")
    damage = {i: {m["damage"] for m in mismatches if m["iteration"] == i} for i in range(9)}
    assert damage == {0: {"bitflip"}, 1: {"other_rank"}, 2: {"untouched"}, 3: {"bitflip"}, 4: {"other_rank"}, 5: {"untouched"}, 6: {"bitflip"}, 7: {"swapped"}, 8: {"untouched"}}


def test_clean_iterations_raise_no_alarm():
    done = race("--json", *FSDP, f"verify_iterations={ITERATIONS}", backend="lying", ranks=3)
    result = result_of(done)
    alarms = found(result, *ALARMS)
    note(clean_iterations=result["iterations"], clean_ranks=result["ranks"], alarms=len(alarms))
    assert done.returncode == 0 and result["verdict"] == "pass" and result["iterations"] == ITERATIONS and not alarms


def test_the_published_figures_are_the_record():
    record = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    page = (ROOT / "docs/results/race.md").read_text(encoding="utf-8")
    assert f"{record['attributed']} of {record['planted']} corruptions by the backend" in page and record["events"] == record["planted"]
    assert f"{record['alarms']} alarms in {record['clean_iterations']:,} clean iterations x {record['clean_ranks']} ranks" in page


def test_a_backend_that_is_late_is_noted_and_nothing_is_called_corrupt():
    lies = [{"rank": 1, "operation": "all_gather", "call": 13, "lie": "delay", "seconds": 4}]
    done = race("--json", *FSDP, "verify_iterations=5", backend="lying", ranks=3, lies=lies)
    slow = [(note["rank"], note["iteration"], note["layer"]) for note in found(result_of(done), "slow")]
    assert done.returncode == 0 and (1, 2, 1) in slow, slow


@pytest.mark.parametrize(
    ("lie", "outcome", "says"),
    [({"lie": "delay", "seconds": 1000}, "hang", "rank 1: its transport does not return from the call; it is in iteration 1, layer 1, all_gather"), ({"lie": "fail"}, "crashed_after_iterations", "rank 1: the adapter lost its link")],
)
def test_a_rank_whose_backend_stalls_or_fails_is_blamed(lie, outcome, says):
    done = race("--json", *FSDP, "verify_iterations=5", "timeout_seconds=8", backend="lying", ranks=3, lies=[{"rank": 1, "operation": "all_gather", "call": 9, **lie}])
    result = result_of(done)
    assert done.returncode == 2 and (result["verdict"], result["outcome"], result["blamed"]) == ("error", outcome, [1]), result["sentence"]
    assert result["sentence"].startswith(says)


def test_under_torchrun_the_first_rank_speaks_for_all():
    lies = [{"rank": 1, "operation": "all_gather", "call": 5, "lie": "corrupt", "element": 3, "bit": 2}]
    done = python("-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), "-m", "faultline.race", "--backend", "lying", "--import", "lying_backend", "--json", *FSDP, "verify_iterations=3", LYING_BACKEND=json.dumps(lies))
    result = json.loads(done.stdout)  # torchrun itself says nothing there
    assert result["ranks"] == 2 and [(e["rank"], e["iteration"], e["layer"]) for e in found(result, "events")] == [(1, 0, 1)]


RECIPE = {
    "transport": "torch", "backend": "lying", "ranks": 2, "trials": 1, "warmup_trial": False, "steps": 4, "timeout_per_trial": 120,
    "workload_config": {"mode": "fsdp", "fsdp_shard_size": 600, "h2d_tensor_size": 0, "compute_type": "transformer", "num_layers": 2, "simulate_compute": False, "warmup_iterations": 0, "log_interval": 10,
                        "inject": {"target": "comm_output", "kind": "bitflip", "layer": 1, "rank": 1, "iteration": 2}},
    "cells": [{"name": "baseline"}, {"name": "no-drill", "mitigations": ["no-drill"]}],
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return path


def test_a_recipe_runs_over_a_backend_of_torch(recipe, tmp_path):
    done = launch("triage", "run", "--recipe", recipe, "--import", "lying_backend", "--out", tmp_path / "out", "--json", "--quiet", env=FROM_PROGRAM)
    assert done.returncode == 0, done.stderr
    cells = {cell["name"]: cell for cell in json.loads(done.stdout)["cells"]}
    assert (cells["baseline"]["failed"], cells["baseline"]["valid"]) == (1, 1) and (cells["no-drill"]["failed"], cells["no-drill"]["valid"]) == (0, 1), done.stdout
    log = next((tmp_path / "out" / "trials" / "baseline").glob("*.log.txt"), None) or next((tmp_path / "out" / "trials" / "baseline").glob("*log*"))
    assert "cause=collective rank=1 iter=2 layer=1" in log.read_text(encoding="utf-8")


def test_the_recipe_of_the_ainic_case_takes_any_backend():
    done = launch("triage", "run", "--recipe", ROOT / "recipes/ainic-gdr-flush-sdc.yaml", "--dry-run", "transport=torch", "backend=hccl", "device=npu")
    assert done.returncode == 0, done.stderr
    assert "8 ranks over torch (hccl on npu)" in done.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"backend": None}, "torch needs a backend of torch.distributed"),
        ({"transport": "gloo"}, "is read with transport: torch only"),
        ({"device": "npu; rm"}, "--device"),
        ({"import": ["os"]}, "unknown key"),
    ],
)
def test_a_recipe_is_refused(recipe, change, says):
    recipe.write_text(yaml.safe_dump({key: value for key, value in {**RECIPE, **change}.items() if value is not None}), encoding="utf-8")
    done = launch("triage", "run", "--recipe", recipe, "--dry-run")
    assert done.returncode == 64 and says in done.stderr and "recipe.yaml:" in done.stderr


def test_a_record_chooses_no_module(tmp_path):
    assert race("--out", tmp_path / "race.json", "--quiet", *FSDP, "verify_iterations=1", backend="lying").returncode == 0
    done = launch("reproduce", tmp_path / "race.json")
    assert done.returncode == 64 and "a record chooses no code" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backend", "nothing"], "this torch has gloo"),
        (["--backend", "gloo", "--import", "no_such_module"], "--import no_such_module: No module named"),
        (["--backend", "gloo", "--device", "npu"], "no device 'npu'; a backend is loaded by --import"),
        (["--backend", "gloo", "--ranks", "0"], "wanted 1 to 256"),
        (["--backend", "gloo", "verfy_iterations=3"], "did you mean 'verify_iterations'"),
        (["--backend", "gloo", "--launcher", "ssh"], "launcher ssh needs hosts"),
        ([], "--backend"),
    ],
)
def test_bad_input_is_a_sentence(words, says):
    done = python("-m", "faultline.race", *words)
    assert done.returncode == 64 and done.stdout == "" and done.stderr.startswith("error: ") and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        (["--transport", "torch"], {}, "needs a backend of torch.distributed"),
        (["--backend", "gloo"], {}, "give --transport torch"),
        (["--transport", "torch", "--backend", "gloo"], {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "torchrun … -m faultline.race"),
    ],
)
def test_the_program_says_what_it_needs(words, environment, says):
    done = launch("race", *words, env=environment)
    assert done.returncode == 64 and says in done.stderr


def test_help_names_every_option_and_key():
    text = python("-m", "faultline.race", "--help").stdout
    for part in ("--backend", "--import", "exit codes: 0 no corruption", "torchrun", "timeout_seconds (60", "inject ([])"):
        assert part in text, part
