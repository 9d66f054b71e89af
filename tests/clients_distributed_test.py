"""An FSDP2 script that knows nothing of us, two ranks over Gloo: operators and collectives are tapped together. Each rank has
its own evidence; weights differ from a clean run's and all ranks still agree."""

import json

import pytest

import faultline
from clients_process import python, with_collectives, write
from faultline import collectives
from tap_models import recipe

SCRIPT = """
import pathlib, sys, torch
import torch.distributed as dist
from tap_models import llama, tokens
dist.init_process_group("gloo")
model = llama(2)
if sys.argv[1] == "ddp":
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    for layer in model.model.layers:
        fully_shard(layer)
    wrapped = fully_shard(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for step in range(2):
    ids = tokens(seed=step + 10 * dist.get_rank())
    wrapped(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
weight = model.model.layers[1].mlp.down_proj.weight
weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
pathlib.Path(f"{sys.argv[2]}-{dist.get_rank()}").write_text(repr(weight.double().sum().item()))
dist.destroy_process_group()
"""
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(folder, *words):
    return with_collectives(folder, lambda: python(*LAUNCH, *[str(word).replace("FOLDER", str(folder)) for word in words]))


def sums(done, results):
    assert done.returncode == 0, done.stderr
    return [results.with_name(f"{results.name}-{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize("kind", ["fsdp2"])
def test_operators_and_collectives_of_both_ranks_are_tapped(tmp_path, kind):
    script = write(tmp_path, "train.py", SCRIPT)
    plan = write(tmp_path, "recipe.json", recipe())
    place = tmp_path / "faulty"
    clean = sums(run(tmp_path / "clean", script, kind, "FOLDER/sum"), tmp_path / "clean" / "sum")
    done = run(place, "-m", "faultline", "--recipe", plan, "--evidence", "FOLDER/evidence", "--collectives", "FOLDER/digests", script, kind, "FOLDER/sum")
    faulty = sums(done, place / "sum")
    assert faulty[0] == faulty[1] != clean[0] == clean[1]
    collection = faultline.collect(place / "evidence")
    assert len(collection["processes"]) == 2 and all(process["ended"] for process in collection["processes"])
    for process in collection["processes"]:
        report = process["report"]
        calls = {phase: sum(row["ledger"]["calls"] for row in report["rows"] if row["phase"] == phase) for phase in ("actor_forward", "actor_backward")}
        assert calls == {"actor_forward": 2 * 15, "actor_backward": 2 * 30} and process["work"] == {"actor_forward": 2}
        assert {row["layer"] for row in report["rows"]} == {-1, 0, 1}
    assert collectives.compare(place / "digests") == []
    operations = {json.loads(line).get("operation") for line in (place / "digests" / "rank-0.jsonl").read_text().splitlines()}
    assert ("all_reduce" if kind == "ddp" else "reduce_scatter") in {str(name).removeprefix("_").removesuffix("_base") for name in operations}
    assert "Traceback" not in done.stderr
