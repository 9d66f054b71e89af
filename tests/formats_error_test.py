"""What a number format costs and how it rounds: the signal-to-noise table of docs/formats.md, lessons 23, 24 and 26,
stochastic rounding."""

import math

import numpy as np
import pytest
import torch

import faultline

pytest.importorskip("ml_dtypes")
import format_references as reference  # noqa: E402

torch.set_num_threads(1)
F32 = np.float32


# --- what a format costs ----------------------------------------------------------------------------------------------
def sqnr(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    return 10 * math.log10((x**2).sum() / ((x - y) ** 2).sum())


SQNR = {  # dB, 2^20 values of N(0,1) and of N(0,0.02): the table of docs/formats.md
    "mxfp4": (18.79, 18.86),
    "mxfp8_e4m3": (30.65, 30.67),
    "mxfp8_e5m2": (25.37, 25.38),
    "nvfp4": (20.43, 20.43),
    "nvfp4_single, scale_floor=normal": (20.43, 17.69),
    "fp8_e4m3": (31.56, 31.56),
}


@pytest.fixture(scope="module")
def gaussian():
    return torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0)).numpy()


@pytest.mark.parametrize("name", SQNR)
def test_the_signal_to_noise_table_is_reproduced(name, gaussian):
    for scale, expected in zip((F32(1), F32(0.02)), SQNR[name], strict=True):
        x = gaussian * scale
        assert sqnr(x, reference.ours(x, f"quantize(format={name})")) == pytest.approx(expected, abs=0.015)


def test_lesson_23_nvfp4_has_its_tensor_scale_so_small_tensors_lose_nothing(gaussian):
    large = sqnr(gaussian, reference.ours(gaussian, "quantize(format=nvfp4)"))
    small = sqnr(gaussian * F32(0.02), reference.ours(gaussian * F32(0.02), "quantize(format=nvfp4)"))
    assert large == pytest.approx(small, abs=0.05)
    assert large == pytest.approx(20.4, abs=0.05)
    single = sqnr(gaussian * F32(0.02), reference.ours(gaussian * F32(0.02), "quantize(format=nvfp4_single, scale_floor=normal)"))
    assert single < small - 2


def test_lesson_23_nvfp4_block_scales_reach_into_the_subnormals():
    x = np.zeros((2, 16), F32)
    x[0, 0] = 448 * 6  # the tensor's scale is 1
    x[1, :2] = 6 * 2.0**-9, 2.0**-9
    y = reference.ours(x, "quantize(format=nvfp4)")
    assert y[1, :2].tolist() == [6 * 2.0**-9, 2.0**-9]
    flushed = reference.ours(x, "quantize(format=nvfp4, scale_floor=normal)")
    assert flushed[1, :2].tolist() == [2.0**-6, 0]  # with the smallest normal scale, 2^-6, 0.75 and 0.125 are seen


def test_lesson_23_a_mantissa_carry_moves_into_the_next_binade():
    x = np.zeros((2, 16), F32)
    x[0, 0] = 448 * 6
    x[1, 0] = 6 * 1.99  # asks for the scale 1.99, which rounds up to 2
    x[1, 1] = 1.9  # 1.9 / 2 = 0.95 -> 1, times 2
    y = reference.ours(x, "quantize(format=nvfp4)")
    assert y[1, :2].tolist() == [12, 2]
    carried = reference.ours(F32([[4.0, 1.9, 3.9, 0.9]]), "quantize(format=mxfp4)")
    assert carried.tolist() == [[4, 2, 4, 1]]


def test_lesson_24_fp8_lets_small_values_go_to_zero_instead_of_clamping_them_up():
    for name, smallest in (("fp8_e4m3", 2.0**-9), ("fp8_e5m2", 2.0**-16)):
        top = 448.0 if name == "fp8_e4m3" else 57344.0
        x = F32([[top, smallest, smallest / 2, smallest * 0.51, smallest / 100, -smallest / 100]])
        y = reference.ours(x, f"quantize(format={name})")
        assert y.tolist() == [[top, smallest, 0, smallest, 0, 0]]


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e4m3", "nvfp4", "int4, granularity=group", "bfp"])
def test_lesson_26_blocks_never_cross_rows(name):
    """A huge value at the end of one row must not touch the next row, whatever the row's length."""
    x = np.full((4, 40), F32(0.3))
    y = reference.ours(x, f"quantize(format={name})")
    x[1, 39] = 1.5 if name == "nvfp4" else 1000.0  # nvfp4: its tensor scale is shared by design
    z = reference.ours(x, f"quantize(format={name})")
    if name == "nvfp4":
        assert not reference.mismatches(z, reference.reference_nvfp4(x)).any()
        assert not reference.mismatches(z[[0, 2, 3]], np.broadcast_to(z[0], (3, 40))).any()
    else:
        assert not reference.mismatches(z[[0, 2, 3]], y[[0, 2, 3]]).any()
    assert reference.mismatches(z[1], y[1]).any()


# --- stochastic rounding ----------------------------------------------------------------------------------------------
STOCHASTIC = ["mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "fp8_e4m3", "int4", "int4, scheme=affine", "bfp, bits=4", "bf16", "fp16", "tf32"]


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_rounding_gives_one_of_the_two_neighbours_and_the_right_mean(name):
    """In the format's own unit (the gap between the neighbours) the mean over n draws lies within 5 standard errors."""
    draws = 400
    x = torch.from_numpy(np.random.default_rng(4).uniform(-1, 1, (4, 256)).astype(F32))
    seen = torch.stack([faultline.apply(x, f"quantize(format={name}, rounding=stochastic)", seed=seed) for seed in range(draws)]).numpy().astype(np.float64)
    low, high = seen.min(0), seen.max(0)
    assert all(len(np.unique(seen[:, i, j])) <= 2 for i in range(4) for j in range(256))
    value = x.numpy().astype(np.float64)
    gap = high - low
    tolerance = 1e-6 * np.abs(value) + np.where(gap == 0, np.abs(value), 0)
    inside = (low <= value + tolerance) & (value - tolerance <= high)
    nearest = faultline.quantize(x, name).numpy()
    assert inside[(nearest != value)].mean() > 0.99  # an element at the format's end is clipped, never rounded
    moving = gap > 0
    assert moving.mean() > 0.7  # the rest is clipped or on the grid
    share = (value - low)[moving] / gap[moving]
    error = (seen.mean(0) - value)[moving] / gap[moving]
    deviation = np.sqrt(np.clip(share * (1 - share), 1e-3, None) / draws)
    assert np.abs(error / deviation).max() < 5.5
    assert abs(error.mean()) < 5 * 0.5 / math.sqrt(draws * moving.sum())


def test_stochastic_rounding_leaves_values_on_the_grid_alone():
    x = faultline.quantize(torch.randn(8, 256, generator=torch.Generator().manual_seed(1)), "mxfp4")
    for seed in range(20):
        assert torch.equal(faultline.apply(x, "quantize(format=mxfp4, rounding=stochastic)", seed=seed), x)


def test_stochastic_rounding_keeps_finite_values_finite():
    for value, name in ((3.4e38, "bf16"), (3.4028e38, "tf32"), (65504.0, "fp16")):
        x = torch.full((4096,), value)
        assert torch.isfinite(faultline.apply(x, f"quantize(format={name}, rounding=stochastic)")).all(), name
