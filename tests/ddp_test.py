"""Taps under DistributedDataParallel: two processes over Gloo run a script that knows nothing of faults. Each rank's
ledger counts what its rank ran, and what is replicated meets the same noise on both."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from clients_process import with_collectives
from tap_models import calls, recipe, rule

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEPS = 3

SCRIPT = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.SiLU(), torch.nn.Linear(32, 8))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
own_data = torch.Generator().manual_seed(1 + rank * (os.environ["DATA"] == "sharded"))
for _ in range(%d):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 24, generator=own_data)).square().mean()
    loss.backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
print("loss", loss.item().hex(), "weights", weights.double().sum().item().hex())
dist.destroy_process_group()
""" % STEPS

# The same process with a plan that knows the model: layers have names, and weights are faulted.
ATTACHED = """
import os, torch, faultline, json
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.SiLU(), torch.nn.Linear(32, 8)))
x = torch.randn(16, 24)
with faultline.plan(os.environ["RECIPE"], model=model) as plan:
    plan.dry_run(lambda: model(x).square().mean().backward())
    for _ in range(%d):
        y = model(x)
        y.square().mean().backward()
with open(os.environ["REPORT"] + str(rank), "w") as file:
    json.dump(plan.report, file)
print(y.double().sum().item().hex())
dist.destroy_process_group()
""" % STEPS


def run_ranks(code, folder, **environment):
    """-> stdout of both ranks"""
    done = with_collectives(folder, lambda: both_ranks(code, folder, **environment))
    assert done.returncode == [0, 0], (done.stdout, done.stderr)
    return done.stdout


def both_ranks(code, folder, **environment):
    common = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RENDEZVOUS": f"file://{folder}/rendezvous", **environment}
    ranks = [subprocess.Popen([sys.executable, *code], env={**common, "RANK": str(rank), "FAULTLINE_LEDGER": f"{folder}/ledger{rank}"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=900) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return subprocess.CompletedProcess(code, [process.returncode for process in ranks], [output for output, _ in outputs], "".join(errors for _, errors in outputs))


def ledgers(folder):
    reports = []
    for rank in range(2):
        [path] = folder.glob(f"ledger{rank}.*")
        reports.append(json.loads(path.read_text()))
    return reports


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return ["-c", f"import faultline, runpy; runpy.run_path({str(path)!r}, run_name='__main__')"]


def write(folder, a_recipe):
    path = folder / "recipe.json"
    path.write_text(json.dumps(a_recipe))
    return str(path)


def test_an_unedited_script_has_an_exact_ledger_on_every_rank(script, tmp_path):
    noise = write(tmp_path, recipe())
    sharded = run_ranks(script, tmp_path / "sharded", DATA="sharded", FAULTLINE_RECIPE=noise)
    # A step: two products forward; backward one for each weight, and one for the second layer's input.
    for report in ledgers(tmp_path / "sharded"):
        assert calls(report, phase="actor_forward") == 2 * STEPS and calls(report, phase="actor_backward") == 3 * STEPS
        assert report["complaints"] == []
    losses, weights = zip(*((line.split()[1], line.split()[3]) for line in sharded), strict=True)
    assert losses[0] != losses[1] and weights[0] == weights[1]  # own data, and one model after gradients were exchanged


def test_replicas_with_the_same_data_meet_the_same_noise(script, tmp_path):
    noise = write(tmp_path, recipe())
    first, second = run_ranks(script, tmp_path / "noisy", DATA="same", FAULTLINE_RECIPE=noise)
    clean, _ = run_ranks(script, tmp_path / "clean", DATA="same")
    assert first == second != clean


def test_a_plan_on_a_wrapped_model_names_its_layers_and_faults_its_weights_alike(tmp_path):
    weights = rule("weights", where={"operator": "matmul", "surface": "weight"}, what={"kind": "relative_gaussian", "strength": 0.1})
    path = write(tmp_path, recipe(rule(), weights))
    first, second = run_ranks(["-c", ATTACHED], tmp_path / "run", RECIPE=path, REPORT=str(tmp_path / "report"))
    assert first == second
    for rank in range(2):
        report = json.loads((tmp_path / f"report{rank}").read_text())
        assert {row["place"] for row in report["rows"]} == {"0", "2"}  # without the wrapper's name
        assert report["forwards"] == {"actor_forward": STEPS}
        assert calls(report, rule="fault", phase="actor_forward") == 2 * STEPS and calls(report, rule="weights") == 2
