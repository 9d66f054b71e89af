"""Taps on a GPU: captured graphs, backward's own thread, and the same bits as a CPU."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NOISE = {"kind": "relative_gaussian", "strength": 0.05}


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up_proj = torch.nn.Linear(width, 2 * width, bias=False)
        self.down_proj = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down_proj(torch.nn.functional.silu(self.up_proj(x)))


class Model(torch.nn.Module):
    def __init__(self, width=64, layers=3):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def recipe(what=None, **rule):
    return {"seed": 3, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": what or NOISE, **rule}]}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval().to("cuda", torch.bfloat16)  # in training mode its forwards would be the actor's


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)


def capture(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@torch.no_grad()
def test_a_replayed_graph_draws_the_numbers_that_eager_calls_draw(model, x):
    with faultline.plan(recipe(), model=model) as plan:
        plan.begin_step(0)
        eager = [model(x).clone() for _ in range(3)]
        graph, out = capture(lambda: model(x))
        plan.begin_step(0)
        replayed = []
        for _ in range(3):
            graph.replay()
            replayed.append(out.clone())
        torch.ops.faultline.count_forwards("rollout", 3)
    assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))
    assert not torch.equal(replayed[0], replayed[1])


@torch.no_grad()
def test_a_captured_graph_is_disarmed_and_rescheduled_without_being_captured_again(model, x):
    clean = model(x).clone()
    schedule = {"kind": "linear", "sigma_start": 0.1, "sigma_end": 0.01}
    with faultline.plan(recipe(schedule=schedule), model=model, total_steps=10) as plan:
        graph, out = capture(lambda: model(x))
        errors = []
        for step in (0, 9):
            plan.begin_step(step)
            graph.replay()
            errors.append((out.float() - clean.float()).norm().item())
        torch.ops.faultline.plan_disarm()
        graph.replay()
        disarmed = out.clone()
        torch.ops.faultline.plan_arm()
        graph.replay()
        assert not torch.equal(out, clean)
    assert torch.equal(disarmed, clean)
    assert errors[0] > 4 * errors[1] > 0


@torch.no_grad()
def test_a_new_site_during_capture_is_refused_with_the_remedy(model, x):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="run the step once before capturing"), faultline.plan(recipe(), model=model, on_missing="warn"):
        with torch.cuda.graph(graph):
            model(x)


def test_backward_on_its_own_thread_knows_its_layers(model, x):
    with faultline.plan(recipe(), model=model) as plan:
        plan.dry_run(lambda: model(x).float().square().mean().backward())
        model(x).float().square().mean().backward()
    backward = [row for row in plan.report["rows"] if row["phase"] == "actor_backward"]
    assert {row["layer"] for row in backward} == {0, 1, 2}
    assert sum(row["ledger"]["calls"] for row in backward) == 2 * 6 - 1


def test_cpu_and_gpu_zero_the_same_elements_of_the_same_bits():
    boundary = {"seed": 5, "faults": [{"name": "dead", "where": {"module": "layer_output", "layer": 1}, "what": {"kind": "deadzone", "threshold": 0.3}, "extent": {"fraction": 0.5, "structure": "channel"}}]}

    class Pass(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    x = torch.randn(64, 128, dtype=torch.bfloat16)
    results = []
    for device in ("cpu", "cuda"):
        module = Pass()
        with torch.no_grad(), faultline.plan(boundary, model=module):
            results.append(module(x.to(device)).cpu())
    assert torch.equal(*results)
    assert 0 < (results[0] == 0).float().mean() < 0.5


def test_compiled_gemms_are_all_reached_and_find_their_layers(model, x):
    compiled = torch.compile(model)
    with torch.no_grad(), faultline.plan(recipe(), model=model) as plan:
        compiled(x)
    assert sum(row["ledger"]["calls"] for row in plan.report["rows"]) == 6
    assert {row["layer"] for row in plan.report["rows"]} == {0, 1, 2}
