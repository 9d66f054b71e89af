"""The liar suite on a GPU (skipped elsewhere): graphs, kernels that never pass the dispatcher, compilers that write products of their
own. Each lie is refused, reported or harmless; docs/lessons.md has the list. vllm_cuda_test.py has those of an engine."""

import pytest
import torch

import faultline
from launches_cuda_test import LAYERS, PRODUCTS, WIDTH, Model, capture, model, recipe, triton_mm_by_hand, x  # noqa: F401  fixtures

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def complaints_of(model, run, **where):  # noqa: F811
    """Codes of what the plan says about `run()`, and the plan's report."""
    with faultline.plan(recipe(**where), model=model, on_missing="warn") as plan:
        run()
        torch.cuda.synchronize()
    return [one["code"] for one in plan.report["complaints"]], plan.report


def calls(report):
    return sum(row["ledger"]["calls"] for row in report["rows"])


def test_a_graph_captured_before_the_plan_serves(model, x):  # noqa: F811
    graph = capture(lambda: model(x))

    def serve():
        model(x)  # proven, and nobody's result
        for _ in range(5):
            graph.replay()

    codes, report = complaints_of(model, serve)
    assert codes == ["unfaulted_kernels"] and f"its {PRODUCTS} product kernels" in report["complaints"][0]["sentence"]


def test_a_graph_captured_while_the_plan_was_away_serves(model, x):  # noqa: F811
    def serve():
        model(x)
        torch.ops.faultline.plan_disarm()
        graph = capture(lambda: model(x))
        torch.ops.faultline.plan_arm()
        graph.replay()

    assert "unfaulted_kernels" in complaints_of(model, serve)[0]


def test_a_graph_without_products_from_before_the_plan_is_nobodys_lie(model, x):  # noqa: F811
    graph = capture(lambda: x.mul(2))
    codes, _ = complaints_of(model, lambda: (model(x), graph.replay()))
    assert codes == []


def test_a_graph_of_another_plan_serves(model, x):  # noqa: F811
    """Its faults are those of a plan that is gone: off, and their ledger is no longer read."""
    with faultline.plan(recipe(), model=model):
        graph = capture(lambda: model(x))
        graph.replay()
        torch.ops.faultline.count_forwards("rollout", 1)
    codes, _ = complaints_of(model, lambda: (model(x), graph.replay()))
    assert codes == ["unfaulted_kernels"]


def test_one_product_is_a_kernel_of_triton(model, x):  # noqa: F811
    weight, out = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16), torch.empty(64, WIDTH, device="cuda", dtype=torch.bfloat16)

    class Fused(Model):
        def forward(self, x):  # noqa: F811
            triton_mm_by_hand[(1, WIDTH // 64)](super().forward(x), weight, out, WIDTH, 64)
            return out

    fused = Fused().eval().to("cuda", torch.bfloat16)
    codes, report = complaints_of(fused, lambda: fused(x))
    assert codes == ["unfaulted_kernels"] and "1 triton_mm_by_hand" in report["complaints"][0]["sentence"]
    assert any(f"{PRODUCTS} of {PRODUCTS + 1} product kernels were faulted; not: 1 triton_mm_by_hand" in line for line in report["log"])


def test_a_rule_of_one_layer_is_not_held_to_all(model, x):  # noqa: F811
    codes, report = complaints_of(model, lambda: model(x), layer=1)
    assert codes == [] and calls(report) == 2 and any(f"2 of {PRODUCTS} product kernels were faulted" in line for line in report["log"])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_compilers_that_write_products_of_their_own(model, x, mode):  # noqa: F811
    compiled = torch.compile(model, mode=mode)
    with faultline.plan(recipe(), model=compiled) as plan:
        outputs = [compiled(x).clone() for _ in range(6)]
    assert calls(plan.report) == 6 * PRODUCTS and len({output.float().sum().item() for output in outputs}) == 6
    assert any(f"{PRODUCTS} of {PRODUCTS} product kernels were faulted" in line for line in plan.report["log"])


def test_a_model_compiled_before_the_plan_with_templates(model, x):  # noqa: F811
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", options=None)
    compiled(x)
    codes, report = complaints_of(compiled, lambda: [compiled(x) for _ in range(5)])
    assert codes != [] or calls(report) == 5 * PRODUCTS  # where autotuning preferred torch's own products they are reached


def a_mixture():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(Qwen3MoeConfig(hidden_size=128, intermediate_size=256, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=4,
                                              num_experts_per_tok=2, vocab_size=512, use_cache=False, attn_implementation="sdpa", experts_implementation="eager"))


def with_adapters():
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    dense = Qwen2ForCausalLM(Qwen2Config(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=512, use_cache=False))
    return get_peft_model(dense, LoraConfig(r=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False))


@pytest.mark.parametrize(("make", "clean"), [(a_mixture, 2), (with_adapters, 8)])
def test_routers_and_adapters_stay_clean_without_a_complaint(make, clean):
    torch.manual_seed(0)
    network = make().eval().to("cuda", torch.bfloat16)
    codes, report = complaints_of(network, lambda: network(torch.arange(32, device="cuda")[None]))
    [proof] = report["launches"].values()
    assert codes == [] and proof["absent"] is None
    assert proof["faulted"] == proof["products"] > 0 and proof["left_out"] == clean


def test_a_profiler_keeps_cupti_and_the_report_says_so(model, x):  # noqa: F811
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        codes, report = complaints_of(model, lambda: model(x))
    [proof] = report["launches"].values()
    assert codes == [] and "profiler" in proof["absent"] and calls(report) == PRODUCTS


def test_autocast_reads_copies_of_the_weights(x):  # noqa: F811
    torch.manual_seed(0)
    wide = Model().eval().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        codes, report = complaints_of(wide, lambda: wide(x.float()))
    assert codes == [] and calls(report) == PRODUCTS


def test_two_streams_compute_at_once(model, x):  # noqa: F811
    side = torch.cuda.Stream()

    def both():
        torch.cuda.synchronize()
        model(x)
        with torch.cuda.stream(side):
            model(x)

    codes, report = complaints_of(model, both)
    assert codes == [] and calls(report) == 2 * PRODUCTS


def test_the_plan_faults_layers_and_the_ledger_counts_replays(model, x):  # noqa: F811
    with faultline.plan(recipe(), model=model, on_missing="warn") as plan:
        graph = capture(lambda: model(x))
        for _ in range(7):
            graph.replay()
        torch.ops.faultline.count_forwards("rollout", 7)
    assert calls(plan.report) == 8 * PRODUCTS and LAYERS * 2 == PRODUCTS  # the run before the capture, seven replays
