"""Every named format and the words that describe a format: against numpy references written from each format's text
(format_texts.py), against ml_dtypes, gguf and torchao where they have it, described formats against their names, the
portable arithmetic against the kernels, ledgers included, and faults in the encoding against codes taken apart by hand."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import faultline

pytest.importorskip("ml_dtypes")
import format_references as reference  # noqa: E402
import format_texts as texts  # noqa: E402

torch.set_num_threads(1)
F32 = np.float32


def agree(x, fault, expected, note=""):
    wrong = reference.mismatches(reference.ours(x, fault), expected)
    assert not wrong.any(), f"{note}: {int(wrong.sum())} of {wrong.size} differ, first at {np.argwhere(wrong)[0]}"


# --- texts ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", texts.NAMED)
def test_a_named_format_has_the_bits_of_its_text(name):
    """16 inputs of 131,072 values each."""
    compared = 0
    for kind, x in reference.inputs("e2m1").items():
        agree(x, f"quantize(format={name})", texts.NAMED[name](x), kind)
        compared += x.size
    assert compared == 2_097_152


@pytest.mark.parametrize("element, kind", [("e2m3", "float6_e2m3fn"), ("e3m2", "float6_e3m2fn"), ("e4m3fnuz", "float8_e4m3fnuz"),
                                           ("e5m2fnuz", "float8_e5m2fnuz"), ("e3m4ieee", "float8_e3m4"), ("e4m3ieee", "float8_e4m3"),
                                           ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("e2m1", "float4_e2m1fn")])  # fmt: skip
def test_elements_are_those_of_ml_dtypes(element, kind):
    import ml_dtypes

    dtype = getattr(ml_dtypes, kind)
    most = float(ml_dtypes.finfo(dtype).max)
    for note, x in reference.inputs("e2m1").items():
        x = x.ravel()[:65536].reshape(64, 1024)
        with np.errstate(over="ignore"):
            expected = np.clip(x, -most, most).astype(dtype).astype(F32)
        expected = np.where(expected == 0, np.copysign(F32(0), x), expected)  # FNUZ has no negative zero; we keep x's sign
        agree(x, f"quantize(format={{element: {element}, scale: none}})", expected, note)


def test_q8_0_is_ggufs():
    quants = pytest.importorskip("gguf.quants")
    import gguf

    for note in ("normal", "normal 0.02", "normal 1e4", "mixed magnitudes", "zero blocks", "clipped", "ties", "scale ties"):
        x = reference.inputs("e2m1")[note]
        with np.errstate(all="ignore"):
            packed = quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
            expected = quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
        y = reference.ours(x, "quantize(format=q8_0)")
        overflow = np.isinf(expected) | np.isnan(expected)  # gguf's fp16 scale overflows; ours ends at 65504
        wrong = reference.mismatches(np.abs(y), np.abs(expected)) & ~overflow
        assert not wrong.any(), f"{note}: {int(wrong.sum())} differ"
        assert note in ("normal 1e4", "mixed magnitudes", "ties", "scale ties") or not overflow.any()


def test_nf4_takes_torchaos_neighbour():
    nf4 = pytest.importorskip("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
    table = torch.tensor(texts.NF4)
    different = 0
    for x in reference.inputs("e2m1").values():
        blocks = torch.from_numpy(x.reshape(-1, 64).copy())
        amax = blocks.abs().amax(1, keepdim=True)
        scaled = torch.where(amax > 0, blocks / amax, torch.zeros_like(blocks))
        index = nf4.NF4Tensor.quantize_tensor_nearest(scaled.flatten(), table)
        expected = (table[index.long()].view_as(blocks) * amax).numpy()
        y = reference.ours(x, "quantize(format=nf4)").reshape(-1, 64)
        different += int((reference.mismatches(np.abs(y), np.abs(expected)) & (np.abs(scaled.numpy()) > 0)).sum())
    assert different <= NF4_TIES


NF4_TIES = 0


# --- descriptions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("description, name", [
    ("{element: e2m1}", "mxfp4"),
    ("{element: e2m1, scale: e8m0_up, block: [1, 32]}", "mxfp4_ceil"),
    ("{element: e3m2, block: [1, 32]}", "mxfp6_e3m2"),
    ("{element: int8}", "mxint8"),
    ("{element: e2m1, scale: e4m3, block: [1, 16], second_level: true}", "nvfp4"),
    ("{element: e2m1, scale: e4m3, block: [16, 16], second_level: true}", "nvfp4_16x16"),
    ("{element: e2m1, scale: e4m3, block: [1, 16], second_level: true, four_over_six: true}", "nvfp4_four_over_six"),
    ("{element: e2m1, scale: e5m3, block: [1, 16]}", "nvfp4_e5m3"),
    ("{element: e4m3, scale: fp32, block: tensor}", "fp8_e4m3"),
    ("{element: e4m3, scale: fp32, block: [1, 128]}", "fp8_e4m3_1x128"),
    ("{element: e4m3, scale: fp32, block: [128, 128]}", "fp8_e4m3_128x128"),
    ("{element: int4, scale: fp32, block: row}", "int4"),
    ("{element: nf4, scale: fp32, block: [1, 64]}", "nf4"),
    ("{element: hif8, scale: none}", "hif8"),
])  # fmt: skip
def test_a_description_means_what_its_name_means(description, name):
    for note in ("normal", "mixed magnitudes", "tiny"):
        x = reference.inputs("e2m1")[note]
        agree(x, f"quantize(format={description})", reference.ours(x, f"quantize(format={name})"), note)


@pytest.mark.parametrize("block", [[1, 8], [1, 24], [1, 256], [1, 512], [4, 8], [8, 16], [128, 128], [3, 40]])
def test_blocks_of_any_shape(block):
    for note in ("normal", "mixed magnitudes"):
        x = reference.inputs("e2m1")[note][:37, :200]
        expected = texts.power_scaled(x, texts.E2M1, block)
        agree(x, f"quantize(format={{element: e2m1, block: {block}}})", expected, f"{note} {block}")


@pytest.mark.parametrize("rounding", ["away", "zero"])
def test_the_other_roundings(rounding):
    for note in ("normal", "ties", "clipped"):
        x = reference.inputs("e2m1")[note]
        for name, grid in (("mxfp4", texts.E2M1), ("mxfp6_e2m3", texts.minifloat_grid(2, 3, "fn"))):
            agree(x, f"quantize(format={name}, rounding={rounding})", texts.power_scaled(x, grid, (1, 32), rounding), note)


def test_stochastic_rounding_keeps_the_mean_in_every_new_format():
    x = torch.full((16384, 16), 0.3)
    x[:, 0] = 1.0
    for name in ("mxfp6_e3m2", "mxint4", "fp8_e4m3_1x128", "nvfp4_16x16", "nvfp4_e5m3"):
        y = faultline.apply(x.clone(), f"quantize(format={name}, rounding=stochastic)")
        values = y[:, 1:].unique()
        assert values.numel() == 2, name
        gap = float(values[1] - values[0])
        assert abs(float(y[:, 1:].mean()) - 0.3) < 5 * gap / 2 / (16384 * 15) ** 0.5, name


@pytest.mark.parametrize("fault, words", [
    ("quantize(format={element: e9m9})", ["element", "eXmY"]),
    ("quantize(format={element: e2m1, scale: e4m3, four_over_six: true, block: [16, 16]})", ["four_over_six"]),
    ("quantize(format={element: e2m1, second_level: true})", ["second_level"]),
    ("quantize(format={element: e2m1, block: [1, 12]})", ["block", "multiple of 8"]),
    ("quantize(format={element: nf4})", ["scale", "fp32"]),
    ("quantize(format={element: hif8, scale: fp32})", ["hif8"]),
    ("quantize(format={element: e2m1, rounding: zero}, rounding=away)", ["rounding"]),
    ("quantize(format=nf4, rounding=stochastic)", ["rounding"]),
    ("quantize(format=mxfp4, flip={where: codes, rate: 0.1, bit: 4})", ["bit 4", "4 bits"]),
    ("quantize(format=fp8_e4m3, flip={where: scales, rate: 0.1})", ["fp32", "gain"]),
    ("quantize(format=bf16, flip={where: codes, rate: 0.1})", ["codes"]),
    ("quantize(format=mxfp4, flip={where: codes, rate: 0.1}, stuck={where: codes, bit: 1})", ["two rules"]),
])  # fmt: skip
def test_what_means_nothing_is_refused_with_its_place(fault, words):
    x = torch.ones(4, 32)
    with pytest.raises(ValueError) as caught:
        faultline.apply(x, fault)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# --- the portable arithmetic ------------------------------------------------------------------------------------------
RUN = """
import json, sys, torch, faultline
torch.set_num_threads(1)
out = []
for fault in json.loads(sys.argv[1]):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        g = torch.Generator().manual_seed(5)
        x = (torch.randn(70, 200, generator=g) * torch.exp2(torch.randint(-12, 12, (70, 200), generator=g))).to(dtype)
        x[0, 3], x[1, 40], x[2] = float("nan"), float("inf"), 0
        ledger = faultline.new_ledger("cpu")
        y = faultline.apply(x, fault, ledger=ledger)
        row = torch.ops.faultline.ledger_columns(ledger).tolist()
        out.append([faultline.digest(y), row])
print(json.dumps(out))
"""


def outcome(faults, arithmetic):
    import json

    environment = dict(os.environ, FAULTLINE_ARITHMETIC=arithmetic)
    result = subprocess.run([sys.executable, "-c", RUN, json.dumps(faults)], env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def test_portable_arithmetic_gives_the_kernels_bits_and_ledger():
    faults = [f"quantize(format={name})" for name in texts.NAMED] + texts.FAULTS + texts.OTHERS
    native, portable = outcome(faults, "native"), outcome(faults, "portable")
    different = [f"{faults[i // 3]} {('fp32', 'bf16', 'fp16')[i % 3]}" for i in range(len(native)) if native[i] != portable[i]]
    assert not different, different


# --- faults in the encoding -------------------------------------------------------------------------------------------
def struck(x, fault):
    ledger = faultline.new_ledger("cpu")
    y = faultline.apply(torch.from_numpy(x.copy()), fault, ledger=ledger).numpy()
    return y, faultline.read_ledger(ledger)


def test_a_flipped_code_is_the_code_with_one_bit_flipped_and_is_counted():
    """MXFP4: values over the block's scale are codes of 4 bits; each element that differs does so by one bit, as often as counted."""
    x = reference.inputs("e2m1")["normal"]
    clean = reference.ours(x, "quantize(format=mxfp4)")
    y, row = struck(x, "quantize(format=mxfp4, flip={where: codes, rate: 0.01})")
    scale = np.ldexp(1.0, texts.exponent_of(np.abs(reference.blocks_of(x, 32)).max(2, keepdims=True)) - 2)
    code = {}
    for values in (clean, y):
        magnitude = np.searchsorted(texts.E2M1, reference.rows_of(np.abs(reference.blocks_of(values, 32)) / scale, x.shape[1]))
        code[len(code)] = magnitude | (np.signbit(values) * 8)
    changed = code[0] ^ code[1]
    assert set(np.unique(changed)) == {0, 1, 2, 4, 8}
    assert row["struck"] == np.count_nonzero(changed)
    assert abs(row["struck"] - 0.01 * x.size) < 6 * (0.01 * x.size) ** 0.5
    mean = row["struck"] / 4
    for bit in (1, 2, 4, 8):
        assert abs(np.count_nonzero(changed == bit) - mean) < 5 * mean**0.5


def test_a_stuck_bit_is_stuck_in_every_code():
    x = reference.inputs("e2m1")["normal"]
    clean = reference.ours(x, "quantize(format=int8)")
    y, row = struck(x, "quantize(format=int8, stuck={where: codes, bit: 0, value: 0})")
    scale = np.abs(x).max(1, keepdims=True) / F32(127)
    before, after = np.rint(clean / scale).astype(int), np.rint(y / scale).astype(int)
    assert np.array_equal(after, before & ~1)
    assert row["struck"] == np.count_nonzero(before & 1)


def test_a_flipped_scale_moves_its_block_by_a_power_of_two_and_no_other():
    x = reference.inputs("e2m1")["normal"]
    clean = reference.ours(x, "quantize(format=mxfp4)")
    y, row = struck(x, "quantize(format=mxfp4, flip={where: scales, rate: 0.02, bit: 1})")
    a, b = reference.blocks_of(clean, 32), reference.blocks_of(y, 32)
    moved = (a != b).any(2)
    assert row["struck"] == np.count_nonzero(moved) > 0
    ratio = (b[moved] / np.where(a[moved] == 0, 1, a[moved]))[a[moved] != 0]
    assert set(np.unique(ratio)) <= {0.25, 4.0}
    assert abs(row["struck"] - 0.02 * moved.size) < 6 * (0.02 * moved.size) ** 0.5


def test_codes_that_are_no_number_become_one_nowhere_else():
    """E4M3: 448 with its lowest bit set is NaN; E5M2 above its largest is infinite; E8M0's 255 is NaN."""
    x = np.full((1, 32), 448, F32)
    y, row = struck(x, "quantize(format=mxfp8_e4m3, stuck={where: codes, bit: 0, value: 1})")
    assert np.isnan(y).all() and row["struck"] == 32 and row["nonfinite"] == 32
    x = np.full((1, 32), 57344, F32)
    y, _ = struck(x, "quantize(format=fp8_e5m2, flip={where: codes, bit: 0, rate: 1})")
    assert (y == 49152).all()
    y, _ = struck(np.full((1, 8), 1.0, F32), "quantize(format={element: e5m2, scale: none}, stuck={where: codes, bit: 6, value: 1})")
    assert np.isinf(y).all()
    y, row = struck(np.full((1, 32), 3.0e38, F32), "quantize(format=mxint8, stuck={where: scales, bit: 0, value: 1})")
    assert np.isnan(y).all() and row["struck"] == 1


def test_the_same_seed_strikes_the_same_codes_and_another_call_others():
    x = torch.from_numpy(reference.inputs("e2m1")["normal"])
    fault = "quantize(format=nvfp4, flip={where: codes, rate: 0.01})"
    first, again, later = (faultline.apply(x, fault, call=call) for call in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)


def test_a_flip_that_never_happened_is_missing_evidence():
    """The whole tensor is zero: no block has a scale to strike, so nothing is counted."""
    _, row = struck(np.zeros((64, 64), F32), "quantize(format=nvfp4, flip={where: scales, rate: 1})")
    assert row["struck"] == 0 and row["changed"] == 0
