"""The model's operators on a GPU against references in fp64: every dtype, odd sizes, strided views, empty and full
caches; gradients; captured graphs. Skipped where there is no GPU."""

import math
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402, F401  (loads the operators)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ops = torch.ops.faultline
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def randn(*sizes, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return (torch.randn(*sizes, generator=generator) * scale).to("cuda", dtype)


def assert_close(got, want, dtype, ulps=1.0, absolute=1e-6):
    """want in fp64; |got - want| <= absolute + ulps * eps * |want|"""
    assert got.dtype == dtype and got.shape == want.shape
    excess = (got.double() - want).abs() - (absolute + ulps * EPS[dtype] * want.abs())
    worst = excess.max().item() if excess.numel() else -1
    assert worst <= 0, f"{worst:.3g} beyond the tolerance"  # NaN fails too


def norm_reference(x, weight, eps):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (2, 3, 128), (1, 576), (7, 1536), (2, 8960), (3, 9001), (0, 64)])
def test_rms_norm(dtype, shape):
    x, weight = randn(*shape, dtype=dtype, scale=3), randn(shape[-1], seed=1)
    assert_close(ops.rms_norm(x, weight, 1e-6), norm_reference(x, weight, 1e-6), dtype, 1 if dtype != torch.float32 else 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 1536), (3, 9001), (4, 33)])
def test_the_fused_norm_gives_the_bits_of_the_separate_one(dtype, shape):
    x, residual, weight = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype, seed=5), randn(shape[-1], seed=1)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, ops.rms_norm(x + residual, weight, 1e-5))
    padded = torch.empty(shape[0], shape[1] + 1, device="cuda", dtype=dtype)[:, 1:]  # misaligned rows
    padded.copy_(x + residual)
    assert torch.equal(normed, ops.rms_norm(padded, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_inside_a_fused_qkv(dtype):
    qkv = randn(5, 3 * 128 + 2 * 64, dtype=dtype)
    heads = qkv[:, 128 : 128 + 2 * 128].view(5, 2, 128)
    weight = randn(128, seed=1)
    assert torch.equal(ops.rms_norm(heads, weight, 1e-6), ops.rms_norm(heads.contiguous(), weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 2 * 7), (2, 3, 2 * 1536), (1, 2 * 8960), (0, 16)])
def test_swiglu(dtype, shape):
    x = randn(*shape, dtype=dtype, scale=4)
    gate, up = x.double().chunk(2, -1)
    assert_close(ops.swiglu(x), torch.nn.functional.silu(gate) * up, dtype, 1 if dtype != torch.float32 else 8)
    if len(shape) == 2 and shape[0]:
        wide = torch.cat([x, x[:, :3]], 1)
        assert torch.equal(ops.swiglu(wide[:, : shape[1]]), ops.swiglu(x))


def angles(context, size):
    angle = torch.arange(context)[:, None].double() / 10000 ** (torch.arange(size // 2).double() / (size // 2))
    return angle.cos().float().cuda(), angle.sin().float().cuda()


def rotary_reference(x, positions, cos, sin, heads):
    size = 2 * cos.shape[1]
    out, turned = x.double().clone(), x[:, : heads * size].double().view(len(x), heads, 2, size // 2)
    c, s = cos.double()[positions][:, None], sin.double()[positions][:, None]
    a, b = turned[:, :, 0], turned[:, :, 1]
    out[:, : heads * size] = torch.stack([a * c - b * s, b * c + a * s], 2).flatten(1)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, heads, size, rest", [(1, 14, 128, 256), (9, 3, 64, 0), (4, 2, 80, 7), (3, 1, 6, 5), (0, 2, 64, 8)])
def test_rotary(dtype, tokens, heads, size, rest):
    x = randn(tokens, heads * size + rest, dtype=dtype)
    cos, sin = angles(50, size)
    positions = torch.arange(tokens, device="cuda") * 5
    got = ops.rotary(x, positions, cos, sin, heads)
    assert_close(got, rotary_reference(x, positions, cos, sin, heads), dtype, 2, 4 * EPS[torch.float32])
    assert torch.equal(got[:, heads * size :], x[:, heads * size :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80, 6])
def test_store_kv_writes_only_its_places(dtype, size):
    heads, context = 2, 20
    qkv = randn(5, 6 * size + 1, dtype=dtype)
    key, value = qkv[:, size : 3 * size], qkv[:, 3 * size : 5 * size]
    rows = torch.tensor([2, 0, 1, 1, 0], device="cuda")
    positions = torch.tensor([0, 19, 3, -1, 20], device="cuda")  # one idle, one beyond the cache
    caches = [randn(3, heads, context, size, dtype=dtype, seed=s) for s in (1, 2)]
    wanted = [c.clone() for c in caches]
    for n in range(3):
        for cache, x in zip(wanted, (key, value), strict=True):
            cache[rows[n], :, positions[n]] = x[n].view(heads, size)
    ops.store_kv_(*caches, key, value, rows, positions)
    assert all(torch.equal(a, b) for a, b in zip(caches, wanted, strict=True))


def attend_reference(query, keys, values, lengths, scale):
    batch, kv_heads, _, size = keys.shape[0], *keys.shape[1:]
    out = torch.zeros(query.shape[0], query.shape[1], dtype=torch.float64, device="cuda")
    heads = query.shape[1] // size
    for b in range(query.shape[0]):
        n = int(lengths[b])
        if n == 0:
            continue
        q = query[b].double().view(kv_heads, heads // kv_heads, size)
        weights = (q @ keys[b, :, :n].double().transpose(1, 2) * scale).softmax(-1)
        out[b] = (weights @ values[b, :, :n].double()).reshape(-1)
    return out


ATTENTION = [(12, 2, 128), (9, 3, 64), (32, 8, 128), (16, 1, 80), (4, 4, 96), (6, 2, 72), (8, 4, 256), (20, 1, 64), (3, 3, 8), (4, 2, 192)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, kv_heads, size", ATTENTION)
def test_attention_reads_only_the_filled_part(dtype, heads, kv_heads, size):
    context, lengths = 333, torch.tensor([0, 1, 15, 16, 17, 100, 332, 333], device="cuda")
    batch = len(lengths)
    qkv = randn(batch, (heads + 2 * kv_heads) * size, dtype=dtype)
    query = qkv[:, : heads * size]
    keys, values = (randn(batch + 1, kv_heads, context, size, dtype=dtype, seed=s) for s in (1, 2))
    for b in range(batch):
        keys[b, :, lengths[b] :], values[b, :, lengths[b] :] = math.nan, math.nan
    got = ops.attend_cached(query, keys, values, lengths, size**-0.5)
    want = attend_reference(query, keys, values, lengths, size**-0.5)
    # The softmax weights are rounded to the caches' type before they meet the values: one eps of the largest value.
    assert_close(got, want, dtype, 1.5, {torch.float32: 4e-6}.get(dtype, 0.75 * EPS[dtype]))
    assert torch.equal(got, ops.attend_cached(query, keys, values, lengths, size**-0.5))


@pytest.mark.parametrize("batch, context", [(1, 4096), (1, 640), (1, 2048), (3, 2049), (2, 64), (8, 640), (20, 100), (64, 640), (300, 128)])
def test_attention_with_one_and_many_splits(batch, context):
    lengths = (torch.arange(batch, device="cuda") * 37) % context + 1
    query = randn(batch, 12 * 128, dtype=torch.bfloat16)
    keys, values = (randn(batch, 2, context, 128, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    want = attend_reference(query, keys, values, lengths, 0.1)
    assert_close(ops.attend_cached(query, keys, values, lengths, 0.1), want, torch.bfloat16, 1.5, 0.75 * EPS[torch.bfloat16])


def test_a_misaligned_query_gives_the_same():
    keys, values = (randn(2, 2, 64, 64, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    wide, lengths = randn(2, 4 * 64 + 3, dtype=torch.bfloat16), torch.tensor([64, 9], device="cuda")
    odd = wide[:, 3:]
    assert torch.equal(ops.attend_cached(odd, keys, values, lengths, 0.1), ops.attend_cached(odd.contiguous(), keys, values, lengths, 0.1))


def test_scores_that_are_nan_or_infinite_stay_in_their_sequence():
    keys, values = (randn(3, 2, 64, 64, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    query, lengths = randn(3, 4 * 64, dtype=torch.bfloat16), torch.tensor([64, 64, 64], device="cuda")
    clean = ops.attend_cached(query, keys, values, lengths, 0.1)
    keys[1, 0, 5] = math.nan
    spoiled = ops.attend_cached(query, keys, values, lengths, 0.1)
    assert spoiled[1, :128].isnan().all() and torch.equal(spoiled[1, 128:], clean[1, 128:])
    assert torch.equal(spoiled[[0, 2]], clean[[0, 2]])


LINEAR = [(1, 2048, 1536), (1, 1536, 8960), (3, 1537, 576), (8, 640, 1000), (2, 5, 33), (5, 17, 8), (8, 1, 1), (4, 9, 40), (8, 30, 8960), (2, 12, 8968), (0, 3, 8)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, outputs, inputs", LINEAR)
def test_few_rows_linear(dtype, rows, outputs, inputs):
    x, weight, bias = randn(rows, inputs, dtype=dtype), randn(outputs, inputs, dtype=dtype, seed=1), randn(outputs, dtype=dtype, seed=2)
    product = x.double() @ weight.double().T
    # fp32 accumulation in some order: a few eps of the sum of magnitudes
    loose = 4 * EPS[torch.float32] * math.sqrt(inputs) * 4 + 1e-6
    assert_close(ops.few_rows_linear(x, weight, None), product, dtype, 1, loose)
    assert_close(ops.few_rows_linear(x, weight, bias), product + bias.double(), dtype, 1, loose)
    wide = randn(rows, inputs + 3, dtype=dtype)
    wide[:, 1 : 1 + inputs] = x
    assert_close(ops.few_rows_linear(wide[:, 1 : 1 + inputs], weight, None), product, dtype, 1, loose)


@pytest.mark.parametrize("outputs, inputs", [(2048, 1536), (40, 8960)])  # 8 x 8960 is more than shared memory takes
def test_a_row_of_a_linear_does_not_depend_on_the_others(outputs, inputs):
    x, weight = randn(8, inputs, dtype=torch.bfloat16), randn(outputs, inputs, dtype=torch.bfloat16, seed=1)
    whole = ops.few_rows_linear(x, weight, None)
    for rows in (1, 2, 5):
        assert torch.equal(ops.few_rows_linear(x[:rows], weight, None), whole[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 576), (300, 64), (2000, 576), (1100, 301), (40, 2048)])
def test_gradient_of_rms_norm(dtype, shape):
    x, weight, out_grad = randn(*shape, dtype=dtype).requires_grad_(), randn(shape[-1], seed=1).requires_grad_(), randn(*shape, dtype=dtype, seed=2)
    ops.rms_norm(x, weight, 1e-5).backward(out_grad)
    x64, weight64 = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    norm_reference(x64, weight64, 1e-5).backward(out_grad.double())
    assert_close(x.grad, x64.grad, dtype, 2, 1e-5)
    assert_close(weight.grad, weight64.grad, torch.float32, 100, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 14), (2, 5, 1024)])
def test_gradient_of_swiglu(dtype, shape):
    x, out_grad = randn(*shape, dtype=dtype, scale=2).requires_grad_(), randn(*shape[:-1], shape[-1] // 2, dtype=dtype, seed=2)
    ops.swiglu(x).backward(out_grad)
    x64 = x.detach().double().requires_grad_()
    gate, up = x64.chunk(2, -1)
    (torch.nn.functional.silu(gate) * up).backward(out_grad.double())
    assert_close(x.grad, x64.grad, dtype, 2, 4e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context", [50, 6])  # a table longer than the rows, and one as long as they
def test_gradient_of_rotary(dtype, context):
    cos, sin = angles(context, 64)
    x, positions = randn(6, 3 * 64 + 32, dtype=dtype).requires_grad_(), torch.tensor([0, 3, 3, context - 1, 2, 1], device="cuda")
    out_grad = randn(6, 3 * 64 + 32, dtype=dtype, seed=2)
    ops.rotary(x, positions, cos, sin, 3).backward(out_grad)
    assert_close(x.grad, rotary_reference(out_grad, positions, cos, -sin, 3), dtype, 2, 4 * EPS[torch.float32])


def test_inference_operators_refuse_a_gradient_and_backward_is_not_differentiated_twice():
    x, weight = randn(2, 64).requires_grad_(), randn(64)
    with pytest.raises(RuntimeError, match="few_rows_linear has no gradient"):
        ops.few_rows_linear(x, randn(8, 64), None)
    with pytest.raises(RuntimeError, match="add_rms_norm has no gradient"):
        ops.add_rms_norm(x, x, weight, 1e-5)
    with torch.no_grad():
        ops.few_rows_linear(x, randn(8, 64), None)
    (gradient,) = torch.autograd.grad(ops.swiglu(x).sum(), x)
    assert not gradient.requires_grad
    with pytest.raises(RuntimeError, match="swiglu_backward has no gradient"):
        torch.autograd.grad(ops.swiglu(x).sum(), x, create_graph=True)


@torch.no_grad()
def test_a_replayed_step_follows_lengths_and_positions():
    keys, values = (torch.zeros(2, 2, 400, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x, weight = randn(2, 1536, dtype=torch.bfloat16), randn(1536, 1536, dtype=torch.bfloat16, scale=0.02)
    qkv_weight = randn(2048, 1536, dtype=torch.bfloat16, seed=3, scale=0.02)
    gamma, (cos, sin) = randn(1536, seed=9), angles(400, 128)
    rows, positions = torch.arange(2, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
    fixed = [torch.full((2,), v, device="cuda") for v in (1.0, 0.9)]
    top_k, key = torch.zeros(2, dtype=torch.int64, device="cuda"), torch.tensor([5, 6], device="cuda")

    def step():
        qkv = ops.rotary(ops.few_rows_linear(ops.rms_norm(x, gamma, 1e-6), qkv_weight, None), positions, cos, sin, 14)
        ops.store_kv_(keys, values, qkv[:, 1536:1792], qkv[:, 1792:], rows, positions)
        attended = ops.attend_cached(qkv[:, :1536], keys, values, positions + 1, 0.088)
        out = ops.few_rows_linear(attended, weight, None)
        token, logp = ops.sample(out * 20, fixed[0], top_k, fixed[1], key, positions)
        x.copy_(ops.add_rms_norm(out, x, gamma, 1e-6)[0])
        positions.add_(1)
        return out, token, logp

    start = x.clone()
    eager = [[t.clone() for t in step()] for _ in range(150)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    x.copy_(start), positions.zero_(), keys.zero_(), values.zero_()
    for wanted in eager:
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


def test_mistakes_are_named():
    x = randn(9, 64)
    with pytest.raises(RuntimeError, match="M at most 8"):
        ops.few_rows_linear(x, randn(8, 64), None)
    with pytest.raises(RuntimeError, match="weight must be contiguous Float \\(64\\)"):
        ops.rms_norm(x, randn(65), 1e-5)
    with pytest.raises(RuntimeError, match="head size must be a multiple of 8"):
        ops.attend_cached(randn(1, 12), randn(1, 1, 8, 12), randn(1, 1, 8, 12), torch.ones(1, dtype=torch.int64, device="cuda"), 1.0)
    with pytest.raises(RuntimeError, match="do not fit"):
        ops.rotary(x, torch.zeros(9, dtype=torch.int64, device="cuda"), *angles(8, 64), 2)
