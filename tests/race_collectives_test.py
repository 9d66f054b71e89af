"""The collective tap in scripts that know nothing of it: DDP and FSDP2 over Gloo give the same numbers as without it, a
planted corruption is seen and located, and a tap that could not be put in place ends the script."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    torch.manual_seed(100 * rank + step)
    loss = model(torch.randn(5, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
total = sum(p.double().sum().item() for p in model.parameters())
other = dist.new_group([0, 1]); t = torch.ones(2); dist.all_reduce(t, group=other)
with open(f"{__import__('sys').argv[1]}.{rank}", "w") as out: out.write(f"{total!r} {t.tolist()}")
dist.barrier(); dist.destroy_process_group()
"""

FSDP = """
import sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
mesh = init_device_mesh("cpu", (2,))
for layer in model: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    torch.manual_seed(100 * rank + step)
    loss = model(torch.randn(5, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
with open(f"{sys.argv[1]}.{rank}", "w") as out: out.write(repr(total))
dist.barrier(); dist.destroy_process_group()
"""


def torchrun(tmp_path, text, *tap, port):
    script = tmp_path / "script.py"
    script.write_text(text)
    out = tmp_path / "result"
    what = ["-m", "faultline.collectives", *tap, str(script)] if tap else [str(script)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port), *what, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    results = [pathlib.Path(f"{out}.{rank}").read_text() for rank in range(2)] if done.returncode == 0 else []
    return done, results


def compare(folder):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run([sys.executable, "-m", "faultline.collectives", "--compare", str(folder)], capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.parametrize(("text", "operations", "port"), [(DDP, {"broadcast", "all_reduce"}, 29631), (FSDP, {"all_gather", "reduce_scatter"}, 29641)], ids=["ddp", "fsdp2"])
def test_an_unedited_script_gives_the_same_numbers_with_the_tap(tmp_path, text, operations, port):
    plain_done, plain = torchrun(tmp_path, text, port=port)
    assert plain_done.returncode == 0, plain_done.stderr
    done, tapped = torchrun(tmp_path, text, "--out", str(tmp_path / "tap"), port=port + 1)
    assert done.returncode == 0, done.stderr
    assert tapped == plain
    lines = [json.loads(line) for line in (tmp_path / "tap" / "rank-0.jsonl").read_text().splitlines()]
    seen = [line for line in lines if line["event"] == "collective"]
    assert operations <= {line["operation"] for line in seen}
    assert {line["when"] for line in seen} == {"before", "after"}
    agreed = compare(tmp_path / "tap")
    assert agreed.returncode == 0, agreed.stdout

    target = "all_reduce" if "all_reduce" in operations else "all_gather"
    calls = [line["call"] for line in seen if line["operation"] == target and line["when"] == "after" and line["elements"][0] > 4]
    corrupt = f"{{operation: {target}, call: {calls[0]}, rank: 1, kind: bitflip, element: 1, bit: 20}}"
    bad_done, bad = torchrun(tmp_path, text, "--out", str(tmp_path / "bad"), "--corrupt", corrupt, port=port + 2)
    assert bad_done.returncode == 0, bad_done.stderr
    assert bad[1] != plain[1]
    found = compare(tmp_path / "bad")
    assert found.returncode == 1
    assert f"call {calls[0]} ({target}): results differ between ranks" in found.stdout


def test_a_script_without_a_process_group_is_not_called_tapped(tmp_path):
    done, _ = torchrun(tmp_path, "print('nothing distributed')", "--out", str(tmp_path / "tap"), port=29651)
    assert done.returncode != 0
    assert "nothing was tapped" in done.stderr


def test_a_tap_that_comes_too_late_says_so(tmp_path):
    text = "import torch.distributed as d; d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore()); import faultline.collectives as c; c.install('x')"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode != 0 and "must be on before init_process_group" in done.stderr
