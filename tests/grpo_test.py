"""GRPO's pure functions against formulas written here from the papers' definitions, in fp64 and one number at a time:
losses to 1e-6, gradients to 1e-5 relative; against TRL's own loss where the definitions coincide; and what they refuse."""

import math
import types

import pytest
import torch

import faultline  # noqa: F401  loads the operators

OPS = torch.ops.faultline
AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LONGEST = 16


# --- the reference: plain numbers -------------------------------------------------------------------------------------
def clamp(x, low, high):
    return max(low, min(high, x))


def reference_advantages(groups, by_std):
    result = []
    for rewards in groups:
        n = len(rewards)
        mean = sum(rewards) / n if n > 1 else 0.0
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1)) if n > 1 else 1.0
        result.append([(r - mean) / (std + 1e-6) if by_std else r - mean for r in rewards])
    return result


def reference_term(now, old, advantage, low, high, dual):
    """(loss, its derivative by `now`)"""
    d = clamp(now - old, -20, 20)
    ratio = math.exp(d)
    slope = ratio if abs(now - old) <= 20 else 0.0
    inside = 1 - low <= ratio <= 1 + high
    first, second = -advantage * ratio, -advantage * clamp(ratio, 1 - low, 1 + high)
    loss, gradient = (first, -advantage * slope) if first >= second else (second, -advantage * slope * inside)
    if advantage < 0 and loss > -advantage * dual:
        return -advantage * dual, 0.0
    return loss, gradient


def reference_kl(now, ref, estimator):
    d = now - ref
    if estimator == "k1":
        return d, 1.0
    if estimator == "abs":
        return abs(d), math.copysign(1.0, d)
    if estimator == "k2":
        return d * d / 2, d
    x = clamp(-d, -20, 20)
    value = math.exp(x) - x - 1
    return clamp(value, -10, 10), (1 - math.exp(x)) * (abs(d) < 20) * (value < 10)


def reference_weights(mask, aggregation, longest):
    lengths = [sum(row) for row in mask]
    sequences, tokens = sum(length > 0 for length in lengths), sum(lengths)
    divisor = {
        "token-mean": lambda b: tokens,
        "seq-mean-token-sum": lambda b: sequences,
        "seq-mean-token-mean": lambda b: sequences * max(lengths[b], 1),
        "seq-mean-token-sum-norm": lambda b: sequences * longest,
    }[aggregation]
    return [[m / divisor(b) for m in row] for b, row in enumerate(mask)]


# --- data that visits every branch ------------------------------------------------------------------------------------
def case(seed=0, rows=7, columns=13, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, columns, generator=random, dtype=torch.float64) * 4
    now = old + torch.randn(rows, columns, generator=random, dtype=torch.float64) * 0.4
    now[0, 0], now[0, 1], now[1, 0], now[1, 1] = old[0, 0] + 2, old[0, 1] - 2, old[1, 0] + 25, old[1, 1] - 25
    advantages = torch.randn(rows, 1, generator=random, dtype=torch.float64).expand(rows, columns).clone()
    advantages[0], advantages[1] = -1.5, -0.7  # far ratios with A < 0: the dual bound
    lengths = torch.randint(1, columns + 1, (rows,), generator=random)
    lengths[-1] = 0  # a response without tokens
    mask = (torch.arange(columns) < lengths[:, None]).to(torch.float64)
    mask[:2] = 1
    return [tensor.to(dtype) for tensor in (now, old, advantages, mask)]


def close(got, expected, tolerance):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    scale = expected.abs().clamp_min(1)
    worst = ((got.double() - expected).abs() / scale).max().item()
    assert worst <= tolerance, worst


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("shape", [(5, 8), (3, 2), (4, 1)])
def test_advantages_equal_the_formula_and_a_group_of_one_keeps_its_reward(shape, by_std):
    rewards = torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rewards[0] = 1.0  # all equal: nothing to learn, and no division by zero
    got = OPS.grpo_advantages(rewards, by_std)
    close(got, reference_advantages(rewards.tolist(), by_std), 1e-12)
    if shape[1] > 1:
        assert got[0].abs().max() == 0
    close(OPS.grpo_advantages(rewards.float(), by_std), reference_advantages(rewards.tolist(), by_std), 1e-6 if shape[1] == 1 else 2e-6)


@pytest.mark.parametrize("dtype,loss_tolerance,gradient_tolerance", [(torch.float64, 1e-12, 1e-11), (torch.float32, 1e-6, 1e-5)])
@pytest.mark.parametrize("low,high,dual", [(0.2, 0.2, 3.0), (0.2, 0.28, 3.0), (0.1, 0.3, 1.5)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_policy_loss_and_its_gradient_equal_the_formula(aggregation, low, high, dual, dtype, loss_tolerance, gradient_tolerance):
    now, old, advantages, mask = case(dtype=dtype)
    now.requires_grad_()
    loss, clipped, bounded = OPS.grpo_policy_terms(now, old, advantages, low, high, dual)
    weights = OPS.grpo_token_weights(mask, aggregation, LONGEST)
    total = (loss * weights).sum()
    total.backward()
    w = reference_weights(mask.tolist(), aggregation, LONGEST)
    terms = [[reference_term(now[b, t].item(), old[b, t].item(), advantages[b, t].item(), low, high, dual) for t in range(now.shape[1])] for b in range(now.shape[0])]
    expected = sum(terms[b][t][0] * w[b][t] for b in range(len(w)) for t in range(len(w[0])))
    close(total.detach(), expected, loss_tolerance)
    gradient = torch.tensor([[terms[b][t][1] * w[b][t] for t in range(len(w[0]))] for b in range(len(w))], dtype=torch.float64)
    close(now.grad / gradient.abs().max(), gradient / gradient.abs().max(), gradient_tolerance)
    assert clipped.sum() > 3 and bounded.sum() >= 2, "the case must visit both clips"


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_kl_estimators_and_their_gradients_equal_the_formula(estimator):
    now, reference, _, _ = case(seed=3)
    now.requires_grad_()
    got = OPS.grpo_kl_terms(now, reference, estimator)
    got.sum().backward()
    pairs = [[reference_kl(n, r, estimator) for n, r in zip(*rows)] for rows in zip(now.tolist(), reference.tolist())]
    close(got.detach(), [[value for value, _ in row] for row in pairs], 1e-12)
    close(now.grad, [[slope for _, slope in row] for row in pairs], 1e-10)
    fp32 = OPS.grpo_kl_terms(now.detach().float(), reference.float(), estimator)
    assert (fp32.double() - got.detach()).abs().max() <= 1e-6 * got.detach().abs().clamp_min(1).max()


def test_micro_batches_add_up_to_the_whole_batch():
    """Each mode's weights come from the whole batch; slices of rows or of columns then add up."""
    now, old, advantages, mask = case(seed=5)
    loss, _, _ = OPS.grpo_policy_terms(now, old, advantages)
    for aggregation in AGGREGATIONS:
        weights = OPS.grpo_token_weights(mask, aggregation, LONGEST)
        whole = (loss * weights).sum()
        parts = sum((loss[b : b + 2] * weights[b : b + 2]).sum() for b in range(0, 7, 2))
        assert abs(whole - parts) < 1e-12


def test_importance_weights_are_truncated_and_carry_no_gradient():
    now, rollout, _, _ = case(seed=7)
    now.requires_grad_()
    got = OPS.grpo_importance_weights(now, rollout, 2.0)
    assert not got.requires_grad
    expected = [[min(math.exp(clamp(n - r, -20, 20)), 2.0) for n, r in zip(*rows)] for rows in zip(now.tolist(), rollout.tolist())]
    close(got, expected, 1e-12)
    assert got.max() == 2.0


def test_the_mismatch_equals_the_formula_and_is_zero_for_equal_policies():
    actor, rollout, _, mask = case(seed=9)
    got = OPS.grpo_mismatch(actor, rollout, mask).tolist()
    pairs = [(a, r) for a_row, r_row, m_row in zip(actor.tolist(), rollout.tolist(), mask.tolist()) for a, r, m in zip(a_row, r_row, m_row) if m]
    differences = [a - r for a, r in pairs]
    ratios = [math.exp(clamp(d, -20, 20)) for d in differences]
    n = len(pairs)
    expected = [
        sum(map(abs, differences)) / n,
        max(map(abs, differences)),
        sum(abs(math.exp(a) - math.exp(r)) for a, r in pairs) / n,
        -sum(differences) / n,
        sum(w - d - 1 for w, d in zip(ratios, differences)) / n,
        *[sorted(ratios)[int(q * (n - 1) + 0.5)] for q in (0.01, 0.5, 0.99)],
        sum(ratios) ** 2 / (n * sum(w * w for w in ratios)),
    ]
    for value, reference in zip(got, expected):
        assert value == pytest.approx(reference, rel=1e-9)
    same = OPS.grpo_mismatch(actor, actor, mask).tolist()
    assert same == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_the_full_kl_equals_torch():
    random = torch.Generator().manual_seed(0)
    p, q = torch.randn(5, 40, generator=random), torch.randn(5, 40, generator=random)
    expected = torch.nn.functional.kl_div(torch.log_softmax(q.double(), -1), torch.log_softmax(p.double(), -1), log_target=True, reduction="none").sum(-1)
    close(OPS.grpo_full_kl(p, q), expected, 1e-6)


def test_groups_whose_rewards_are_all_equal_teach_nothing():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert OPS.grpo_groups_that_differ(rewards).tolist() == [False, True, False]


# --- TRL --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loss_type,aggregation", [("grpo", "seq-mean-token-mean"), ("bnpo", "token-mean"), ("dr_grpo", "seq-mean-token-sum-norm")])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_loss_and_its_gradient_equal_those_of_trl(loss_type, aggregation, beta):
    from unittest.mock import MagicMock

    trainer_module = pytest.importorskip("trl.trainer.grpo_trainer")
    now, old, advantages, mask = case(seed=11)
    now, old, advantages, mask = now[:6].float(), old[:6].float(), advantages[:6].float(), mask[:6].float()
    now[1, :2] = old[1, :2]  # TRL does not clamp the log-ratio
    reference = (old + 0.1 * torch.randn(old.shape, generator=torch.Generator().manual_seed(2))).contiguous()
    theirs, ours = now.clone().requires_grad_(), now.clone().requires_grad_()

    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (theirs, torch.zeros_like(theirs), None)
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = trainer.use_vllm = False
    trainer.top_entropy_quantile, trainer.off_policy_mask_threshold = 1.0, None
    trainer.importance_sampling_level, trainer.loss_type, trainer.beta = "token", loss_type, beta
    trainer.epsilon_low, trainer.epsilon_high, trainer.max_completion_length = 0.2, 0.28, LONGEST
    trainer.args = types.SimpleNamespace(delta=3.0, use_bias_correction_kl=False)
    trainer.current_gradient_accumulation_steps = 1
    trainer.accelerator.gather = lambda value: value
    ids = torch.ones_like(mask).long()
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask,
              "advantages": advantages[:, 0], "old_per_token_logps": old, "ref_per_token_logps": reference}  # fmt: skip
    their_loss = trainer_module.GRPOTrainer._compute_loss(trainer, None, inputs)
    their_loss.backward()

    loss, _, _ = OPS.grpo_policy_terms(ours, old, advantages, 0.2, 0.28, 3.0)
    loss = loss + beta * OPS.grpo_kl_terms(ours, reference, "k3")
    our_loss = (loss * OPS.grpo_token_weights(mask, aggregation, LONGEST)).sum()
    our_loss.backward()
    assert our_loss.item() == pytest.approx(their_loss.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-8)


# --- what is refused --------------------------------------------------------------------------------------------------
def test_lesson_25_log_probabilities_in_bf16_are_refused():
    now, old, advantages, mask = case(dtype=torch.bfloat16)
    for call in (
        lambda: OPS.grpo_policy_terms(now, old, advantages),
        lambda: OPS.grpo_kl_terms(now, old, "k3"),
        lambda: OPS.grpo_mismatch(now, old, mask),
        lambda: OPS.grpo_importance_weights(now, old),
        lambda: OPS.grpo_advantages(now, True),
    ):
        with pytest.raises(RuntimeError, match="fp32 or fp64"):
            call()


@pytest.mark.parametrize(
    "call,sentence",
    [
        (lambda: OPS.grpo_advantages(torch.zeros(0, 4), True), "neither of them 0"),
        (lambda: OPS.grpo_advantages(torch.zeros(4, 0), True), "neither of them 0"),
        (lambda: OPS.grpo_advantages(torch.zeros(4), True), "(groups, samples)"),
        (lambda: OPS.grpo_token_weights(torch.zeros(2, 3), "token-mean"), "no loss"),
        (lambda: OPS.grpo_token_weights(torch.ones(2, 3), "seq-mean-token-sum-norm"), "longest"),
        (lambda: OPS.grpo_token_weights(torch.ones(2, 3), "token-men"), "did you mean 'token-mean'"),
        (lambda: OPS.grpo_kl_terms(torch.zeros(2), torch.zeros(2), "k4"), "did you mean 'k1'"),
        (lambda: OPS.grpo_kl_terms(torch.zeros(2), torch.zeros(3), "k3"), "has shape"),
        (lambda: OPS.grpo_policy_terms(torch.zeros(2), torch.zeros(2), torch.zeros(2), 1.2, 0.2, 3.0), "clip"),
        (lambda: OPS.grpo_importance_weights(torch.zeros(2), torch.zeros(2), 0.0), "positive"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(RuntimeError) as refusal:
        call()
    assert sentence in str(refusal.value)
