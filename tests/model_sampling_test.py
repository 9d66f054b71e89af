"""Sampling on a CPU: the exact sets of top-k and top-p against a NumPy reference of Note [Sampling], greedy ties, the
distribution of draws, log-probabilities, independence of neighbours, values that are not numbers."""

import math

import numpy
import pytest
import torch

from model_ops_test import OPS, no_gradients, normal, sampling_arguments  # noqa: F401


def sample(logits, **arguments):
    return OPS.sample(logits, *sampling_arguments(logits.shape[0], **arguments))


def kept(logits, temperature, top_k, top_p):
    """The set that may be drawn, in exact order and fp64 mass (test rows keep clear of the edge of top_p)."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    scaled = numpy.asarray(logits, dtype=numpy.float64) / temperature
    mass = numpy.exp(scaled - scaled.max())
    mass /= mass.sum()
    chosen, total = [], 0.0
    for token in order:
        chosen.append(token)
        total += mass[token]
        if (0 < top_k <= len(chosen)) or (top_p < 1 and total >= top_p):
            break
    return set(chosen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_greedy_takes_the_lowest_index_of_equal_maxima(dtype):
    logits = normal(5, 1000, dtype=dtype)
    for row, places in enumerate([(0,), (999,), (3, 4), (17, 500, 999), (0, 999)]):
        logits[row, list(places)] = 9.0
    token, log_probability = sample(logits, temperature=0.0, top_k=3, top_p=0.5)
    assert token.tolist() == [0, 999, 3, 17, 0]
    expected = torch.log_softmax(logits.double(), -1).gather(1, token[:, None]).squeeze(1)
    torch.testing.assert_close(log_probability.double(), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 100, 49152])
def test_log_probabilities_are_of_the_tempered_untruncated_distribution(vocabulary):
    logits = normal(8, vocabulary, scale=3)
    for temperature in (0.3, 1.0, 2.5):
        token, log_probability = sample(logits, temperature=temperature, top_k=40, top_p=0.9, key=torch.arange(8))
        expected = torch.log_softmax(logits.double() / temperature, -1).gather(1, token[:, None]).squeeze(1)
        torch.testing.assert_close(log_probability.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("temperature,top_k,top_p", [(1, 0, 1), (1, 1, 1), (1, 5, 1), (1, 0, 0.5), (1, 0, 0.0), (0.5, 0, 0.8), (2, 7, 0.6), (1, 100, 0.97), (1, 0, 0.999)])
def test_exactly_the_kept_tokens_are_drawn(temperature, top_k, top_p):
    rows = 6000
    for seed in range(4):
        logits = normal(1, 24, seed=seed, scale=1.5)
        logits[0, 5] = logits[0, 11] = logits[0, 3]  # ties at the edge are cut by index
        tokens, _ = sample(logits.expand(rows, -1).contiguous(), temperature=temperature, top_k=top_k, top_p=top_p, key=torch.arange(rows))
        allowed = kept(logits[0].tolist(), temperature, top_k, top_p)
        drawn = set(tokens.tolist())
        assert drawn <= allowed, (drawn - allowed, allowed)
        scaled = logits[0].double() / temperature
        likely = {token for token in allowed if math.exp(scaled[token] - torch.logsumexp(scaled, 0)) > 0.005}
        assert likely <= drawn, likely - drawn


def test_ties_at_the_end_of_the_kept_are_cut_by_index():
    logits = torch.zeros(4000, 64)
    keys = torch.arange(4000)
    assert set(sample(logits, top_k=5, key=keys)[0].tolist()) == {0, 1, 2, 3, 4}
    assert set(sample(logits, top_p=0.25, key=keys)[0].tolist()) == set(range(16))
    assert set(sample(logits, top_k=3, top_p=0.25, key=keys)[0].tolist()) == {0, 1, 2}
    logits[:, 40] = 1.0
    assert set(sample(logits, top_k=3, key=keys)[0].tolist()) == {40, 0, 1}


@pytest.mark.parametrize("temperature,top_k", [(1.0, 0), (0.7, 0), (1.3, 6)])
def test_draws_follow_the_distribution(temperature, top_k):
    """Chi-square with 19 (or 5) degrees of freedom; beyond 60 the chance is below 1e-5, and the draws are fixed."""
    rows = 40000
    logits = normal(1, 20, seed=3)
    tokens, _ = sample(logits.expand(rows, -1).contiguous(), temperature=temperature, top_k=top_k, key=torch.arange(rows), position=torch.arange(rows) % 7)
    probability = torch.softmax(logits[0].double() / temperature, -1)
    if top_k:
        probability[probability < probability.sort().values[-top_k]] = 0
        probability /= probability.sum()
    counts = torch.bincount(tokens, minlength=20).double()
    expected = probability * rows
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert ((counts - expected).square() / expected)[possible].sum() < 60


def test_draws_depend_on_key_and_position_and_not_on_neighbours():
    logits = normal(1, 5000).expand(64, -1).contiguous()
    keys = torch.arange(64)
    together, _ = sample(logits, key=keys, position=3)
    assert len(set(together.tolist())) > 40
    for row in (0, 17, 63):
        alone, _ = sample(logits[:1], key=int(keys[row]), position=3)
        assert alone[0] == together[row]
    assert (sample(logits, key=keys, position=4)[0] != together).sum() > 40
    assert torch.equal(sample(logits, key=keys, position=3)[0], together)


def test_each_row_has_its_own_settings():
    logits = normal(4, 300)
    token, _ = sample(logits, temperature=torch.tensor([0.0, 1.0, 1.0, 2.0]), top_k=torch.tensor([0, 1, 0, 0]), top_p=torch.tensor([1.0, 1.0, 1e-6, 1.0]))
    assert torch.equal(token[:3], logits[:3].argmax(-1))


def test_values_that_are_not_numbers():
    logits = normal(3, 100)
    logits[0, 7] = math.nan
    logits[1, 9] = math.inf
    logits[2] = -math.inf
    token, log_probability = sample(logits, temperature=0.0)
    assert token[0] != 7 and log_probability[0].isnan()
    assert token[1] == 9 and log_probability[1] == 0
    assert token[2] == 0 and abs(log_probability[2] + math.log(100)) < 1e-5
    assert (sample(logits, temperature=1.0)[0] < 100).all()
