"""The model's operators on a CPU against PyTorch in fp64: every storage type, odd sizes, strided views, idle rows, every
instruction set, thread counts, and what is promised to the bit (a row does not depend on its batch)."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import faultline  # noqa: F401  loads the operators

OPS = torch.ops.faultline
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def normal(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def check(got, reference, dtype, terms=1.0):
    """One rounding to the type, four of the fp32 arithmetic before it; terms: a sum's error is that of what was added."""
    assert got.dtype == dtype and got.shape == reference.shape
    allowed = (EPS[dtype] + 4 * 2.0**-23) * reference.abs() + 2.0**-23 * terms + (2.0**-24 if dtype == torch.float16 else 0)
    worst = ((got.double() - reference).abs() / allowed).max().item() if got.numel() else 0
    assert worst <= 1, worst


# --- norm, activation, rotary -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 64), (32, 576), (4, 1000), (0, 16)], ids=str)
def test_rms_norm(shape, dtype):
    x, weight = normal(*shape, dtype=dtype), normal(shape[-1], seed=1)
    wide = x.double()
    reference = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    check(OPS.rms_norm(x, weight, 1e-5), reference, dtype, terms=20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 5), (32, 576), (2, 3, 100)], ids=str)
def test_the_fused_norm_gives_the_bits_of_the_separate_form(shape, dtype):
    x, residual, weight = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=2), normal(shape[-1], seed=1)
    y, total = OPS.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, OPS.rms_norm(x + residual, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 14), (2, 2, 66), (32, 3072)], ids=str)
def test_swiglu(shape, dtype):
    x = normal(*shape, dtype=dtype, scale=4)
    gate, up = x.double().chunk(2, -1)
    check(OPS.swiglu(x), torch.nn.functional.silu(gate) * up, dtype, terms=8)


def test_swiglu_far_out_and_with_values_that_are_not_numbers():
    gate = torch.tensor([-1e30, -200.0, -104.0, -90.0, 0.0, 90.0, 1e30, math.inf, -math.inf, math.nan])
    got = OPS.swiglu(torch.cat([gate, torch.ones(10)]))
    reference = torch.nn.functional.silu(gate)
    torch.testing.assert_close(got, reference, rtol=1e-6, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads,size,rest", [(1, 2, 0), (3, 64, 64), (2, 6, 5), (12, 128, 256)])
def test_rotary(heads, size, rest, dtype):
    x = normal(5, heads * size + rest, dtype=dtype)
    positions = torch.tensor([0, 3, 9, 9, 1])
    angles = torch.outer(torch.arange(10.0), 100.0 ** -torch.linspace(0, 1, size // 2))
    got = OPS.rotary(x, positions, angles.cos(), angles.sin(), heads)
    a, b = x[:, : heads * size].double().view(5, heads, 2, size // 2).unbind(2)
    cos, sin = angles.cos().double()[positions, None], angles.sin().double()[positions, None]
    reference = torch.stack([a * cos - b * sin, b * cos + a * sin], 2).reshape(5, -1)
    check(got[:, : heads * size], reference, dtype, terms=4)
    assert torch.equal(got[:, heads * size :], x[:, heads * size :])


def test_strided_rows_give_the_bits_of_contiguous_ones():
    fused = normal(6, 320, dtype=torch.bfloat16)
    part = fused[:, 64:192]
    weight, positions = normal(128, seed=1), torch.arange(6)
    table = normal(6, 32, seed=3)
    for run in [
        lambda x: OPS.rms_norm(x, weight, 1e-5),
        lambda x: OPS.add_rms_norm(x, x, weight, 1e-5)[0],
        OPS.swiglu,
        lambda x: OPS.rotary(x, positions, table, table, 2),
        lambda x: OPS.few_rows_linear(x, normal(40, 128, dtype=torch.bfloat16, seed=4), None),
        lambda x: OPS.sample(x, *sampling_arguments(6, temperature=0.9))[0],
    ]:
        assert torch.equal(run(part), run(part.contiguous()))
        assert torch.equal(run(fused.t().contiguous().t()[:, 64:192]), run(part.contiguous()))


# --- the cache --------------------------------------------------------------------------------------------------------
def filled_cache(rows, heads, context, size, dtype, seed=5):
    return normal(rows, heads, context, size, dtype=dtype, seed=seed), normal(rows, heads, context, size, dtype=dtype, seed=seed + 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_store_kv_writes_the_named_places_and_nothing_else(dtype):
    keys, values = filled_cache(3, 2, 8, 5, dtype)
    before = keys.clone(), values.clone()
    qkv = normal(4, 50, dtype=dtype)
    key, value = qkv[:, 30:40], qkv[:, 40:50]
    rows, positions = torch.tensor([2, 0, 1, 0]), torch.tensor([7, 0, -1, 1])
    OPS.store_kv_(keys, values, key, value, rows, positions)
    for cache, was, new in [(keys, before[0], key), (values, before[1], value)]:
        for token, (row, position) in enumerate(zip(rows, positions)):
            if position >= 0:
                was[row, :, position] = new[token].view(2, 5)
        assert torch.equal(cache, was)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads,kv_heads,size", [(9, 3, 64), (12, 2, 128), (1, 1, 1), (5, 1, 20), (4, 4, 256), (7, 1, 33)])
def test_attend_cached(heads, kv_heads, size, dtype):
    lengths = torch.tensor([1, 0, 300, 16, 128, 129, 77])
    batch, context = len(lengths), 300
    keys, values = filled_cache(batch + 1, kv_heads, context, size, dtype)
    for row, length in enumerate(lengths):  # what is not filled must not be read
        keys[row, :, length:] = math.nan
        values[row, :, length:] = math.nan
    fused = normal(batch, heads * size + 40, dtype=dtype, seed=9)
    query = fused[:, 8 : 8 + heads * size]
    got = OPS.attend_cached(query, keys, values, lengths, size**-0.5)
    reference = torch.zeros(batch, heads, size, dtype=torch.float64)
    for row, length in enumerate(lengths):
        if length > 0:
            group = heads // kv_heads
            k = keys[row, :, :length].double().repeat_interleave(group, 0)
            v = values[row, :, :length].double().repeat_interleave(group, 0)
            weights = torch.softmax((k @ query[row].double().view(heads, size, 1)).squeeze(-1) * size**-0.5, -1)
            reference[row] = (weights[:, None] @ v).squeeze(1)
    check(got, reference.view(batch, -1), dtype, terms=32)
    assert torch.equal(got[1], torch.zeros_like(got[1]))


def test_a_score_that_is_not_a_number_stays_visible():
    keys, values = filled_cache(2, 1, 40, 16, torch.bfloat16)
    keys[0, 0, 20, 3] = math.nan
    got = OPS.attend_cached(normal(2, 16, dtype=torch.bfloat16), keys, values, torch.tensor([30, 30]), 0.25)
    assert got[0].isnan().all() and got[1].isfinite().all()


# --- the matrix product -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 17, 33, 70])
@pytest.mark.parametrize("outputs,inputs", [(1, 1), (3, 5), (40, 31), (64, 96), (100, 130), (960, 576)])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_few_rows_linear(rows, outputs, inputs, with_bias, dtype):
    x, weight = normal(rows, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype, seed=1)
    bias = normal(outputs, dtype=dtype, seed=2) if with_bias else None
    reference = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    # Roundings of a sum of K products add up like a random walk: sqrt(K) u sum |x w| (Higham and Mary, 2019).
    walk = inputs**0.5 / 2 * (x.double().abs() @ weight.double().abs().t())
    check(OPS.few_rows_linear(x, weight, bias), reference, dtype, terms=walk + 1)


def test_a_linear_with_nothing_to_add_is_its_bias():
    bias = normal(3)
    assert torch.equal(OPS.few_rows_linear(torch.empty(2, 0), torch.empty(3, 0), bias), bias.expand(2, 3))
    assert OPS.few_rows_linear(torch.empty(0, 4), torch.empty(3, 4), None).shape == (0, 3)


# --- what is promised to the bit --------------------------------------------------------------------------------------
def sampling_arguments(rows, temperature=1.0, top_k=0, top_p=1.0, key=7, position=0):
    """logits' companions; numbers are repeated for each row."""
    fill = lambda value, dtype: torch.as_tensor(value, dtype=dtype).expand(rows).contiguous()  # noqa: E731
    return fill(temperature, torch.float32), fill(top_k, torch.int64), fill(top_p, torch.float32), fill(key, torch.int64), fill(position, torch.int64)


def everything(batch, dtype):
    """Each operator on the first `batch` of 48 rows."""
    x, weight = normal(48, 576, dtype=dtype)[:batch], normal(576, seed=1)
    keys, values = filled_cache(48, 3, 200, 64, dtype)
    lengths = torch.arange(1, 49)[:batch] * 4
    linear = OPS.few_rows_linear(x, normal(960, 576, dtype=dtype, seed=3), None)
    table = normal(200, 32, seed=4)
    return {
        "norm": OPS.rms_norm(x, weight, 1e-5),
        "swiglu": OPS.swiglu(x),
        "linear": linear,
        "rotary": OPS.rotary(linear, lengths, table, table, 12),
        "attention": OPS.attend_cached(x, keys, values, lengths, 0.125),
        "token": OPS.sample(linear, *sampling_arguments(batch, 0.8, 50, 0.9, key=torch.arange(batch)))[0],
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_batch(dtype):
    whole = everything(48, dtype)
    for batch in (1, 5, 16, 31):
        for name, rows in everything(batch, dtype).items():
            assert torch.equal(rows, whole[name][:batch]), (name, batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(dtype):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = everything(48, dtype)
        torch.set_num_threads(3)
        three = everything(48, dtype)
    finally:
        torch.set_num_threads(threads)
    for name, rows in one.items():
        assert torch.equal(rows, three[name]), name


ISAS = ["portable", "avx2", "avx512", "avx512bf16", "amx", "neon", "armbf16"]


@pytest.mark.parametrize("isa", ISAS)
def test_this_file_passes_on_every_instruction_set(isa):
    if os.environ.get("FAULTLINE_CPU_ISA"):
        pytest.skip("already on a chosen instruction set")
    environment = {**os.environ, "FAULTLINE_CPU_ISA": isa}
    tried = subprocess.run([sys.executable, "-c", "import torch, faultline; torch.ops.faultline.swiglu(torch.ones(2))"], env=environment, capture_output=True, text=True)
    if "this processor offers" in tried.stderr:
        pytest.skip(f"no {isa} here")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not test_few_rows_linear or 33", __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_arguments_that_do_not_fit_are_refused_with_a_sentence():
    x = normal(2, 8)
    cache = normal(2, 1, 4, 8)
    where = torch.tensor([0, 1])
    refused = [
        (lambda: OPS.rms_norm(x, normal(7), 1e-5), "weight must be"),
        (lambda: OPS.rms_norm(x.double(), normal(8), 1e-5), "float32, bfloat16 or float16"),
        (lambda: OPS.add_rms_norm(x, x[:1], normal(8), 1e-5), "must agree"),
        (lambda: OPS.swiglu(normal(2, 3)), "even number"),
        (lambda: OPS.rotary(x, torch.tensor([0, 9]), normal(9, 4), normal(9, 4), 1), r"positions\[1\] is 9"),
        (lambda: OPS.rotary(x, where, normal(9, 4), normal(9, 4), 2), "do not fit"),
        (lambda: OPS.store_kv_(cache, cache, x, x, where, torch.tensor([0, 4])), r"positions\[1\] is 4"),
        (lambda: OPS.store_kv_(cache, cache, x, x, torch.tensor([0, 2]), where), r"rows\[1\] is 2"),
        (lambda: OPS.attend_cached(x, cache, cache, torch.tensor([1, 5]), 1.0), r"lengths\[1\] is 5"),
        (lambda: OPS.attend_cached(normal(3, 8), cache, cache, torch.tensor([1, 1, 1]), 1.0), "at most 2"),
        (lambda: OPS.few_rows_linear(x, normal(3, 7), None), "x must be"),
        (lambda: OPS.few_rows_linear(x, normal(3, 8).bfloat16(), None), "one type"),
        (lambda: OPS.few_rows_linear(x, normal(3, 8), normal(4)), "bias must be"),
        (lambda: OPS.sample(normal(2, 0), *sampling_arguments(2)), "logits must be"),
        (lambda: OPS.sample(normal(2, 5), *sampling_arguments(3)), "temperature must be"),
    ]
    for call, sentence in refused:
        with pytest.raises((RuntimeError, TypeError), match=sentence):
            call()


# --- the lab sees them ------------------------------------------------------------------------------------------------
def test_the_operators_belong_to_families():
    named = {entry["family"]: entry["operators"] for entry in json.loads(OPS.operator_families())}
    for family, operator in [("matmul", "few_rows_linear"), ("norm", "rms_norm"), ("norm", "add_rms_norm"), ("activation", "swiglu"), ("attention", "attend_cached"), ("rotary", "rotary")]:
        assert f"faultline::{operator}" in named[family]


def test_a_plan_reaches_them_and_their_weights():
    x, weight = normal(2, 64, dtype=torch.bfloat16), normal(40, 64, dtype=torch.bfloat16, seed=1)
    clean = OPS.few_rows_linear(x, weight, None)
    fault = {"kind": "relative_gaussian", "strength": 0.5}
    for family, run in [("matmul", lambda: OPS.few_rows_linear(x, weight, None)), ("norm", lambda: OPS.rms_norm(x, normal(64), 1e-5)), ("activation", lambda: OPS.swiglu(x))]:
        before = run()
        with faultline.plan({"seed": 1, "faults": [{"name": "noise", "where": {"operator": family}, "what": fault}]}) as plan:
            assert not torch.equal(run(), before), family
            assert plan.read()["rules"][0]["elements"] == before.numel()
        assert torch.equal(run(), before), family
    entries = faultline.census(lambda: OPS.few_rows_linear(x, weight, None))
    assert [(entry["operator"], entry["flops"]) for entry in entries if entry["family"] == "matmul"] == [("faultline::few_rows_linear", 2 * 2 * 64 * 40)]
    assert torch.equal(OPS.few_rows_linear(x, weight, None), clean)
