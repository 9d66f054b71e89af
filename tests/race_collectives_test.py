"""The collective tap in scripts that know nothing of it: DDP and FSDP2 over Gloo give the same numbers as without it, a
planted corruption is seen and located, and a tap that could not be put in place ends the script."""

import json

import pytest

from clients_process import python, with_collectives, write
from program import free_port

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


def torchrun(out, text, tap=None):
    """tap: arguments of the tap, nothing for a run without; it writes into out / "tap"."""
    what = [] if tap is None else ["-m", "faultline.collectives", "--out", out / "tap", *tap]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = with_collectives(out, lambda: python(*launch, "--master-port", free_port(), *what, write(out, "script.py", text), out / "result"))
    results = [(out / f"result.{rank}").read_text() for rank in range(2)] if done.returncode == 0 else []
    return done, results


def compare(out):
    return python("-m", "faultline.collectives", "--compare", out / "tap")


@pytest.mark.parametrize(("text", "operations"), [(DDP, {"broadcast", "all_reduce"}), (FSDP, {"all_gather", "reduce_scatter"})], ids=["ddp", "fsdp2"])
def test_an_unedited_script_gives_the_same_numbers_with_the_tap(tmp_path, text, operations):
    plain_done, plain = torchrun(tmp_path / "plain", text)
    assert plain_done.returncode == 0, plain_done.stderr
    done, tapped = torchrun(tmp_path / "tapped", text, [])
    assert done.returncode == 0, done.stderr
    assert tapped == plain
    lines = [json.loads(line) for line in (tmp_path / "tapped" / "tap" / "rank-0.jsonl").read_text().splitlines()]
    seen = [line for line in lines if line["event"] == "collective"]
    assert operations <= {line["operation"] for line in seen}
    assert {line["when"] for line in seen} == {"before", "after"}
    agreed = compare(tmp_path / "tapped")
    assert agreed.returncode == 0, agreed.stdout

    target = "all_reduce" if "all_reduce" in operations else "all_gather"
    calls = [line["call"] for line in seen if line["operation"] == target and line["when"] == "after" and line["elements"][0] > 4]
    corrupt = f"{{operation: {target}, call: {calls[0]}, rank: 1, kind: bitflip, element: 1, bit: 20}}"
    bad_done, bad = torchrun(tmp_path / "bad", text, ["--corrupt", corrupt])
    assert bad_done.returncode == 0, bad_done.stderr
    assert bad[1] != plain[1]
    found = compare(tmp_path / "bad")
    assert found.returncode == 1
    assert f"call {calls[0]} ({target}): results differ between ranks" in found.stdout


def test_a_script_without_a_process_group_is_not_called_tapped(tmp_path):
    done, _ = torchrun(tmp_path / "out", "print('nothing distributed')", [])
    assert done.returncode != 0
    assert "nothing was tapped" in done.stderr


def test_a_tap_that_comes_too_late_says_so(tmp_path):
    text = "import torch.distributed as d; d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore()); import faultline.collectives as c; c.install('x')"
    done = python("-c", text, cwd=tmp_path)
    assert done.returncode != 0 and "must be on before init_process_group" in done.stderr
