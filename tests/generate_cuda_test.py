"""Generation on a GPU: the captured step gives the bits of the eager one, with and without a plan; counts and strengths of
replays are proven. Skipped where there is no GPU."""

import json
import os
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402, F401  (loads the operators)
from testing_ops import OPS as TESTING  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
OPS = torch.ops.faultline
NEW_TOKENS = 8 if "FAULTLINE_SHORT" in os.environ else 40  # the same kernels, fewer times: for compute-sanitizer
SHAPES = {
    "llama": dict(model_type="llama", tie_word_embeddings=True),
    "qwen2": dict(model_type="qwen2", tie_word_embeddings=False),
    "qwen3": dict(model_type="qwen3", head_dim=64, tie_word_embeddings=True),
}
COMMON = dict(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0)
PLAN = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}


@pytest.fixture(params=list(SHAPES))
def handle(request):
    number = TESTING.model_random(json.dumps({**COMMON, **SHAPES[request.param]}), 3, torch.bfloat16, torch.device("cuda"))
    yield number
    TESTING.model_close(number)


def generate(handle, graphs, count=20, slots=8, temperature=1.0, ends=()):
    prompts = [list(range(5, 6 + i % 7)) for i in range(count)]
    return TESTING.model_generate(handle, sum(prompts, []), [len(p) for p in prompts], NEW_TOKENS, temperature, 0, 1.0, 9, slots, list(ends), graphs)


def test_the_captured_step_is_the_eager_one(handle):
    for ends in ((), (7, 8, 9, 10)):
        eager, captured = generate(handle, False, ends=ends), generate(handle, True, ends=ends)
        assert torch.equal(eager[0], captured[0]) and torch.equal(eager[1], captured[1])
        again = generate(handle, True, ends=ends)
        assert torch.equal(again[0], captured[0])


def test_log_probabilities_are_those_of_a_scoring_forward(handle):
    made, chances = generate(handle, True, count=1, slots=1)
    tokens = torch.tensor([[5] + made[0].tolist()], device="cuda")
    with torch.no_grad():
        logits = TESTING.model_logits(handle, tokens).float()
    expected = torch.log_softmax(logits[0, :-1], -1).gather(1, made[0].cuda().unsqueeze(1)).squeeze(1).cpu()
    assert (chances[0] - expected).abs().max() < 0.05  # bf16 activations


def under_plan(handle, graphs):
    OPS.plan_load(json.dumps(PLAN), [], 1, 0)
    OPS.plan_arm()
    try:
        made = generate(handle, graphs, count=8)
        report = json.loads(OPS.plan_report(False))
    finally:
        OPS.plan_disarm()
    return made, report


def test_a_plan_in_the_captured_step_draws_as_in_the_eager_one(handle):
    clean = generate(handle, True, count=8)
    (eager, eager_report), (captured, report) = under_plan(handle, False), under_plan(handle, True)
    assert report["complaints"] == eager_report["complaints"] == []
    assert not torch.equal(captured[0], clean[0])
    assert torch.equal(eager[0], captured[0])
    calls = [{row["place"] + row["operator"]: row["ledger"]["calls"] for row in r["rows"]} for r in (eager_report, report)]
    assert calls[0] == calls[1]
    assert torch.equal(generate(handle, True, count=8)[0], clean[0])  # disarmed: as before
