"""DDP: an ordinary script. Operators and collectives of every rank are tapped by the launcher alone:

    PYTHONPATH=python torchrun --standalone --nproc-per-node 2 -m faultline --recipe examples/noise.yaml \\
        --evidence runs/ddp/evidence --collectives runs/ddp/digests examples/ddp.py"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {dist.get_rank()}: loss {loss.item():.6f}")
dist.destroy_process_group()
