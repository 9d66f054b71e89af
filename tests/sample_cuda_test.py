"""Sampling on a GPU: the distribution of draws, exact limits, ties, independence of neighbours, the same tokens as a CPU.
Skipped where there is no GPU."""

import math
import os
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402, F401  (loads the operators)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ops = torch.ops.faultline
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHARE = 10 if "FAULTLINE_SHORT" in os.environ else 1  # the same kernels on fewer draws: for compute-sanitizer


def randn(*sizes, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return (torch.randn(*sizes, generator=generator) * scale).to("cuda", dtype)


def sample(logits, temperature=1.0, top_k=0, top_p=1.0, key=1, position=0):
    n = logits.shape[0]

    def column(value, dtype):
        return torch.as_tensor(value, dtype=dtype, device=logits.device).expand(n).contiguous()

    return ops.sample(logits, column(temperature, torch.float32), column(top_k, torch.int64), column(top_p, torch.float32), column(key, torch.int64), column(position, torch.int64))


def kept_tokens(logits, temperature, top_k, top_p):
    """The definition, by sorting: a boolean row."""
    probabilities = (logits.double() / temperature).softmax(-1)
    order = torch.sort(-logits.double(), stable=True).indices
    mass = probabilities[order].cumsum(0)
    count = len(order) if top_p >= 1 else int((mass < top_p).sum()) + 1
    count = min(count, top_k) if top_k > 0 else count
    kept = torch.zeros(len(order), dtype=torch.bool, device=logits.device)
    kept[order[:count]] = True
    return kept


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 9, 2049, 49152, 151936])
def test_greedy_takes_the_first_of_equal_maxima(dtype, vocabulary):
    logits = randn(3, vocabulary, dtype=dtype)
    logits[1, vocabulary // 3] = logits[1, vocabulary // 2] = 9.0
    logits[2] = -3.0
    token, logp = sample(logits, temperature=0.0, top_k=5, top_p=0.5)
    assert token.tolist() == [int(logits[0].float().argmax()), vocabulary // 3, 0]
    want = torch.log_softmax(logits.double(), -1).gather(1, token[:, None])[:, 0]
    assert (logp.double() - want).abs().max() < 2e-6 * math.log(vocabulary + 2)


CUTS = [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (1.0, 20, 0.9), (1.0, 3, 0.99), (0.5, 0, 0.05), (1.0, 1, 1.0), (1.0, 0, 1e-9)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature, top_k, top_p", CUTS)
def test_draws_follow_the_cut_distribution(dtype, temperature, top_k, top_p):
    draws = 40_000 // SHARE
    row = randn(1, 50, dtype=dtype, seed=3, scale=1.5)
    row[0, 10] = row[0, 30] = row[0, 40]  # ties
    logits = row.expand(draws, 50).contiguous()
    token, logp = sample(logits, temperature, top_k, top_p, key=7, position=torch.arange(draws))
    kept = kept_tokens(row[0], temperature, top_k, top_p)
    probabilities = (row[0].double() / temperature).softmax(-1)
    assert (logp.double() - probabilities[token].log()).abs().max() < 3e-6
    expected = torch.where(kept, probabilities, 0) / probabilities[kept].sum() * draws
    counts = torch.bincount(token, minlength=50).double()
    assert counts[~kept].sum() == 0
    common = expected > 5
    chi2 = ((counts - expected).square() / expected)[common].sum().item()
    freedom = int(common.sum()) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom) + 1e-9, (chi2, freedom)  # z < 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [151936, 200_001])
def test_cuts_of_a_large_vocabulary_are_exact(dtype, vocabulary):
    logits = randn(4, vocabulary, dtype=dtype, scale=2)
    logits[3] = logits[3].round()  # thousands of ties
    for top_k, top_p in [(50, 1.0), (0, 0.9), (1000, 0.3), (0, 0.999)]:
        kept = torch.stack([kept_tokens(row, 1.0, top_k, top_p) for row in logits])
        for position in range(40 // SHARE):
            token, _ = sample(logits, 1.0, top_k, top_p, key=torch.arange(4), position=position)
            assert kept.gather(1, token[:, None]).all()
    # At a huge temperature all kept tokens are about equally likely: the last one in order turns up as often as others.
    few = logits[3:].expand(4000, vocabulary)[:, :5000].contiguous()
    kept = kept_tokens(few[0], 1.0, 40, 1.0)
    flat = torch.where(kept, few[0].double() * 0, -1.0)
    token, _ = sample(few, 1e6, 40, 1.0, position=torch.arange(4000))
    assert set(token.tolist()) == set(torch.nonzero(flat == 0)[:, 0].tolist())


def test_a_draw_depends_on_its_own_row_alone():
    logits = randn(6, 151936, dtype=torch.bfloat16)
    keys, positions = torch.arange(6) + 100, torch.arange(6) * 3
    token, logp = sample(logits, 0.9, 0, 0.95, keys, positions)
    order = torch.tensor([4, 2, 5])
    again, again_logp = sample(logits[order.cuda()], 0.9, 0, 0.95, keys[order], positions[order])
    assert torch.equal(token[order.cuda()], again) and torch.equal(logp[order.cuda()], again_logp)
    wide = torch.cat([logits, logits[:, :1]], 1)[:, :-1]  # rows that start anywhere
    assert torch.equal(sample(wide, 0.9, 0, 0.95, keys, positions)[0], token)


def test_nan_and_infinite_logits_give_a_token_and_tell():
    logits = randn(4, 1000)
    logits[0, 17] = math.nan
    logits[1, 23] = math.inf
    logits[2] = -math.inf
    logits[2, 5] = 0.0
    logits[3] = math.nan
    token, logp = sample(logits, 1.0, 0, 0.9)
    assert token[1] == 23 and token[2] == 5 and logp[2] == 0 and token[0] != 17
    assert logp[0].isnan() and logp[3].isnan() and not logp[1].isnan() and 0 <= token[3] < 1000


def test_the_cpu_draws_the_same_tokens():
    try:
        sample(torch.zeros(1, 8))
    except NotImplementedError:
        pytest.skip("no CPU kernel of faultline::sample in this build")
    for dtype in DTYPES:
        logits = randn(8, 49152, dtype=dtype, scale=2)
        for temperature, top_k, top_p in CUTS:
            for position in range(5):
                args = (temperature, top_k, top_p, torch.arange(8), position)
                token, logp = sample(logits, *args)
                host, host_logp = sample(logits.cpu(), *args)
                assert torch.equal(token.cpu(), host) and torch.equal(logp.cpu(), host_logp)
