"""Kernel launches on a GPU: what CUPTI saw, held against the faults that ran with it. Graphs count by their replays, a kernel that
never passed the dispatcher is named, and a profiler that is already there keeps CUPTI. `-s` shows what a window costs."""

import json
import pathlib
import sys
import time

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402
from clients_process import python, write  # noqa: E402
from faultline.launches import begin_launches, end_launches, launches_table, unfaulted  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

WIDTH, LAYERS = 256, 3
PRODUCTS = 2 * LAYERS  # a forward
NOISE = {"kind": "relative_gaussian", "strength": 0.05}


def recipe(**where):
    return {"seed": 3, "faults": [{"name": "noise", "where": {"operator": "matmul", **where}, "what": NOISE}]}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False), torch.nn.SiLU(), torch.nn.Linear(2 * WIDTH, WIDTH)) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@triton.jit
def triton_mm_by_hand(a, b, c, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns, inner = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    product = tl.dot(tl.load(a + rows[:, None] * WIDTH + inner[None, :]), tl.load(b + inner[:, None] * WIDTH + columns[None, :]))
    tl.store(c + rows[:, None] * WIDTH + columns[None, :], product.to(tl.bfloat16))


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval().to("cuda", torch.bfloat16)


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(64, WIDTH, device="cuda", dtype=torch.bfloat16)


def capture(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def times(count, run):
    return lambda: [run() for _ in range(count)]


def recorded(run, **options):
    answer = faultline.launches(run, listed=True, **options)
    assert answer["available"], answer["why"]
    for launch in answer["list"]:  # shown where an assertion fails
        print(launch["stream"], launch["node"], launch["scope"], launch["family"], launch["faulted"], launch["name"])
    return answer


def products(answer):
    family = answer["families"]["product"]
    return family["launches"], family["faulted"]


def test_a_clean_forward_has_its_products_and_no_fault(model, x):
    model(x)
    answer = recorded(times(3, lambda: model(x)))
    assert products(answer) == (3 * PRODUCTS, 0)
    assert "fault" not in answer["families"] and answer["in_graphs"] == 0
    assert answer["families"]["activation"]["launches"] == 3 * LAYERS


@pytest.mark.parametrize("scopes", [True, False])
def test_every_product_of_eager_code_under_a_plan_is_faulted(model, x, scopes):
    with faultline.plan(recipe(), model=model):
        model(x)
        answer = recorded(times(3, lambda: model(x)), scopes=scopes)
    assert products(answer) == (3 * PRODUCTS, 3 * PRODUCTS) and unfaulted(answer, "product") == {}
    assert answer["families"]["fault"]["launches"] == 3 * PRODUCTS
    assert answer["families"]["activation"]["faulted"] == 0
    assert answer["cost"]["scopes"] == (3 * PRODUCTS if scopes else 0)


def test_a_launch_carries_the_call_of_its_operator(model, x):
    with faultline.plan(recipe(), model=model):
        model(x)
        answer = recorded(lambda: model(x))
    scopes = [launch["scope"] for launch in answer["list"] if launch["family"] == "product"]
    assert len(set(scopes)) == PRODUCTS and 0 not in scopes
    assert {launch["scope"] for launch in answer["list"] if launch["family"] == "fault"} == set(scopes)
    assert {launch["scope"] for launch in answer["list"] if launch["family"] == "activation"} == {0}


def test_a_fault_on_weights_runs_before_its_product_and_is_found_in_the_same_call(model, x):
    with faultline.plan(recipe(surface="weight"), model=model):
        model(x)
        answer = recorded(lambda: model(x))
    if "fault" in answer["families"]:  # a copy that is kept from call to call needs no kernel
        assert products(answer) == (PRODUCTS, PRODUCTS)


def test_a_captured_graph_counts_with_every_replay(model, x):
    with faultline.plan(recipe(), model=model):
        graph = capture(lambda: model(x))
        answer = recorded(times(5, graph.replay))
        torch.ops.faultline.count_forwards("rollout", 5)
    assert products(answer) == (5 * PRODUCTS, 5 * PRODUCTS)
    assert answer["families"]["fault"]["launches"] == 5 * PRODUCTS
    assert answer["in_graphs"] == answer["launches"] > 0
    assert len({launch["node"] for launch in answer["list"]}) == answer["launches"] // 5


def test_a_graph_that_was_captured_before_the_plan_runs_clean_and_is_seen(model, x):
    graph = capture(lambda: model(x))
    with faultline.plan(recipe(), model=model, on_missing="warn") as plan:
        model(x)
        answer = recorded(times(5, graph.replay))
    assert products(answer) == (5 * PRODUCTS, 0)
    assert [one["code"] for one in plan.report["complaints"]] == ["hidden"]  # our window was in the way of the plan's own


def test_a_window_over_capture_and_replay_counts_what_ran(model, x):
    with faultline.plan(recipe(), model=model):
        model(x)
        answer = recorded(lambda: times(2, capture(lambda: model(x)).replay)())
        torch.ops.faultline.count_forwards("rollout", 2)
    assert products(answer) == (3 * PRODUCTS, 3 * PRODUCTS)  # the run before the capture, two replays


@pytest.mark.parametrize("graph", [False, True])
def test_a_product_of_triton_beside_the_tapped_ones_is_named(model, x, graph):
    weight, out = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16), torch.empty(64, WIDTH, device="cuda", dtype=torch.bfloat16)

    def forward():
        triton_mm_by_hand[(1, WIDTH // 64)](model(x), weight, out, WIDTH, 64)
        model(out)

    with faultline.plan(recipe(), model=model, on_missing="warn"):
        forward()
        run = capture(forward).replay if graph else forward
        answer = recorded(run)
    assert products(answer) == (2 * PRODUCTS + 1, 2 * PRODUCTS)
    assert unfaulted(answer, "product") == {"triton_mm_by_hand": 1}
    assert f"product: {2 * PRODUCTS + 1}, {2 * PRODUCTS} of them faulted; not: 1 triton_mm_by_hand" in "\n".join(launches_table(answer))


def test_faults_on_another_stream_are_not_taken_for_the_products(model, x):
    """A clean graph on one stream, faulted calls on another, at the same time."""
    clean, side = capture(lambda: model(x)), torch.cuda.Stream()
    with faultline.plan(recipe(), model=model, on_missing="warn"):
        model(x)
        torch.cuda.synchronize()

        def both():
            for _ in range(4):
                clean.replay()
                with torch.cuda.stream(side):
                    model(x)

        answer = recorded(both)
    assert products(answer) == (8 * PRODUCTS, 4 * PRODUCTS)
    assert sum(launch["faulted"] for launch in answer["list"] if launch["node"]) == 0


def test_compiled_code_is_seen_as_it_runs(model, x):
    with faultline.plan(recipe(), model=model):
        compiled = torch.compile(model)
        compiled(x)
        answer = recorded(lambda: compiled(x))
    assert products(answer) == (PRODUCTS, PRODUCTS)


def test_windows_follow_each_other_and_only_one_is_open(model, x):
    model(x)
    for _ in range(3):
        assert begin_launches() is None
        assert begin_launches()["reason"] == "taken"
        model(x)
        answer = end_launches()
        assert answer["available"] and products(answer) == (PRODUCTS, 0), answer["why"]
    assert end_launches()["reason"] == "not_begun"


def test_what_a_window_costs(model, x):
    def seconds(run, count=200):
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    graph = capture(lambda: model(x))
    for name, run in (("eager", lambda: model(x)), ("graph", graph.replay)):
        before = seconds(run)
        for scopes in (True, False):
            inside = []
            answer = faultline.launches(lambda: inside.append(seconds(run)), scopes=scopes)  # noqa: B023
            assert answer["available"], answer["why"]
            after, launches = seconds(run), answer["launches"] / 220
            print(f"\n[launches] {name}, scopes {scopes}: {launches:.0f} launches a forward, {before * 1e6:.1f} us without, {inside[0] * 1e6:.1f} us inside ({(inside[0] - before) / launches * 1e9:.0f} ns a launch), {after * 1e6:.1f} us after; {json.dumps(answer['cost'])}")


# --- other tools; each in a process of its own, because torch's profiler keeps CUPTI -----------------------------------------------
BESIDE = """
import json, torch, faultline
from torch.profiler import ProfilerActivity, profile
a = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
run = lambda: (a.mm(a), torch.cuda.synchronize())
run()
profiler = lambda: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
seen = lambda done: sum(event.device_type == torch.autograd.DeviceType.CUDA for event in done.events())
"""


def answers(tmp_path, code):
    done = python(write(tmp_path, "script.py", BESIDE + code))
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_profiler_that_is_active_keeps_cupti_and_sees_what_it_sees_alone(tmp_path):
    answer, kernels, alone = answers(tmp_path, """
with profiler() as done:
    run()
alone = seen(done)
with profiler() as done:
    answer = faultline.launches(run)
print(json.dumps([answer, seen(done), alone]))
""")
    assert not answer["available"] and answer["reason"] == "taken" and "profiler" in answer["why"]
    assert answer["launches"] == 0 and answer["families"] == {}
    assert kernels == alone > 0


def test_a_profiler_after_a_window_sees_what_it_sees_alone(tmp_path):
    answer, kernels, later = answers(tmp_path, """
answer = faultline.launches(run)
with profiler() as done:
    run()
print(json.dumps([answer, seen(done), faultline.launches(run)]))
""")
    assert answer["available"] and answer["families"]["product"]["launches"] == 1
    assert kernels > 0
    assert later["available"] or later["reason"] == "taken"  # whether it gives CUPTI back is torch's choice


def test_a_profiler_that_starts_inside_a_window_leaves_no_half_proof(tmp_path):
    answer, again = answers(tmp_path, """
from faultline.launches import begin_launches, end_launches
assert begin_launches() is None
run()
done = profiler()
done.start()
run()
answer = end_launches()
done.stop()
print(json.dumps([answer, faultline.launches(run)]))
""")
    assert not answer["available"] and answer["reason"] == "taken" and answer["launches"] == 0
    assert again["available"] or again["reason"] == "taken"


def test_a_script_without_a_recipe_prints_its_kernels(tmp_path):
    script = write(tmp_path, "script.py", "import torch\na = torch.randn(256, 256, device='cuda', dtype=torch.bfloat16)\nfor _ in range(3):\n    a.mm(a)\n")
    done = python("-m", "faultline", f"--launches={tmp_path}/answer.json", script)
    assert done.returncode == 0, done.stderr
    assert "[launches] product: 3: 3 " in done.stderr
    assert json.loads((tmp_path / "answer.json").read_text())["families"]["product"]["launches"] == 3
