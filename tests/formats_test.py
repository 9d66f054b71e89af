"""Number formats against references written from docs/formats.md: integers, block floating point and casts; shapes that
are no multiple of a block; non-finite input; zero and sign; fp64; what is refused."""

import numpy as np
import pytest
import torch

import faultline

pytest.importorskip("ml_dtypes")
import format_references as reference  # noqa: E402

torch.set_num_threads(1)
F32 = np.float32
ALL_FORMATS = ["mxfp4", "mxfp4_ceil", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "nvfp4_single", "fp8_e4m3", "fp8_e5m2",
               "int2", "int3", "int4", "int5", "int6", "int7", "int8", "bfp", "bf16", "fp16", "tf32"]  # fmt: skip


def finite_inputs():
    return {name: x for name, x in reference.inputs("e2m1").items()}


def agree(x, fault, expected, note=""):
    wrong = reference.mismatches(reference.ours(x, fault), expected)
    assert not wrong.any(), f"{note}: {int(wrong.sum())} of {wrong.size} differ, first at {np.argwhere(wrong)[0]}"


# --- integers, block floating point, casts ----------------------------------------------------------------------------
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "group"])
def test_integer_formats_agree_with_numpy_to_the_bit(bits, scheme, granularity):
    for name, x in finite_inputs().items():
        fault = f"quantize(format=int{bits}, scheme={scheme}, granularity={granularity})"
        agree(x, fault, reference.reference_int(x, bits, scheme, granularity), name)


@pytest.mark.parametrize("group", [8, 64, 128, 256])
def test_integer_groups_have_the_size_asked_for(group):
    x = reference.inputs("e2m1")["mixed magnitudes"]
    agree(x, f"quantize(format=int4, granularity=group, block={group})", reference.reference_int(x, 4, "symmetric", "group", group))


def test_one_sided_data_keeps_zero_exact_in_an_affine_format():
    x = np.abs(reference.inputs("e2m1")["normal"]) + F32(3)
    x[:, 0] = 0
    for data in (x, -x):
        y = reference.ours(data, "quantize(format=int4, scheme=affine)")
        assert (y[:, 0] == 0).all()
        assert not reference.mismatches(y, reference.reference_int(data, 4, "affine", "row")).any()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("block", [8, 32, 256])
def test_block_floating_point_agrees_with_numpy_to_the_bit(bits, block):
    for name, x in finite_inputs().items():
        agree(x, f"quantize(format=bfp, bits={bits}, block={block})", reference.reference_bfp(x, bits, block), name)


@pytest.mark.parametrize("name, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_casts_agree_with_torch(name, dtype):
    for kind, x in finite_inputs().items():
        agree(x, f"quantize(format={name})", torch.from_numpy(x).to(dtype).float().numpy(), kind)


def test_tf32_keeps_ten_mantissa_bits_to_nearest_even():
    assert reference.reference_tf32(F32([1 + 2**-11, 1 + 3 * 2**-11])).tolist() == [1, 1 + 2**-9]
    for kind, x in finite_inputs().items():
        with np.errstate(over="ignore"):
            agree(x, "quantize(format=tf32)", reference.reference_tf32(x), kind)


@pytest.mark.parametrize("element, ties", [
    ("mxfp4", {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 6: 6, 7: 6}),
    ("mxfp8_e4m3", {2**-10: 0, 3 * 2**-10: 2**-8, 17: 16, 19: 20, 440: 448, 470: 448}),
])  # fmt: skip
def test_ties_go_to_the_even_neighbour_and_large_values_saturate(element, ties):
    anchor = 4.0 if element == "mxfp4" else 256.0  # sets the block's scale to 1
    for value, expected in ties.items():
        for sign in (1, -1):
            y = reference.ours(F32([[anchor, sign * value]]), f"quantize(format={element})")
            assert y[0, 1] == sign * expected


# --- shapes -----------------------------------------------------------------------------------------------------------
SHAPES = [(1, 1), (1, 5), (3, 7), (5, 33), (2, 47), (4, 129), (130, 131), (1, 257), (257, 1), (2, 3, 5), (2, 2, 3, 17), (40,), ()]


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_odd_shapes_agree_with_zero_padded_rows(name):
    """A short last block counts as filled with zeros, so padding rows to 256 columns must not change a bit."""
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x = (rng.standard_normal(shape) * 3).astype(F32)
        flat = x.reshape(-1, shape[-1] if shape else 1)
        padded = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 256)))
        expected = reference.ours(padded, f"quantize(format={name})")[:, : flat.shape[1]].reshape(shape)
        agree(np.asarray(x), f"quantize(format={name})", expected, str(shape))


@pytest.mark.parametrize("name, function", [
    ("mxfp4", lambda x: reference.reference_mx(x, "e2m1")),
    ("mxfp8_e4m3", lambda x: reference.reference_mx(x, "e4m3")),
    ("nvfp4", reference.reference_nvfp4),
    ("fp8_e4m3, granularity=tile", lambda x: reference.reference_fp8(x, "e4m3", "tile")),
    ("int4, granularity=group", lambda x: reference.reference_int(x, 4, "symmetric", "group")),
    ("int4, scheme=affine, granularity=group", lambda x: reference.reference_int(x, 4, "affine", "group")),
    ("bfp", lambda x: reference.reference_bfp(x, 8, 32)),
])  # fmt: skip
def test_odd_shapes_agree_with_the_reference(name, function):
    rng = np.random.default_rng(2)
    for shape in [s for s in SHAPES if len(s) == 2] + [(300, 260), (129, 1)]:
        x = (rng.standard_normal(shape) * np.exp2(rng.uniform(-8, 8, shape))).astype(F32)
        agree(x, f"quantize(format={name})", function(x), str(shape))


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_empty_tensors_stay_empty(name):
    for shape in [(0,), (0, 32), (32, 0)]:
        assert faultline.quantize(torch.empty(shape), name).shape == shape


@pytest.mark.parametrize("name", [n for n in ALL_FORMATS if n != "mxfp4_ceil"])
def test_quantising_twice_is_quantising_once(name):
    """Values on the grid stay. (Not for int with its amax scale in fp32 rounding, nor nvfp4's second level: within one ulp.)"""
    x = torch.from_numpy(reference.inputs("e2m1")["normal"])
    once = faultline.quantize(x, name)
    twice = faultline.quantize(once, name)
    assert torch.allclose(once, twice, rtol=3e-7, atol=0) if name.startswith(("int", "fp8", "nvfp4")) else torch.equal(once, twice)


# --- non-finite input -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_nonfinite_values_stay_where_they_are_and_do_not_touch_their_neighbours(name):
    x = reference.inputs("e2m1")["normal"][:8].copy()
    x[0, 3], x[1, 40], x[2, 500] = np.nan, np.inf, -np.inf
    y = reference.ours(x, f"quantize(format={name})")
    bad = ~np.isfinite(x)
    assert not reference.mismatches(y[bad], x[bad]).any()
    without = np.where(bad, F32(0), x)
    assert not reference.mismatches(y[~bad], reference.ours(without, f"quantize(format={name})")[~bad]).any()


@pytest.mark.parametrize("name, unit", [("mxfp4", 32), ("mxfp8_e5m2", 32), ("nvfp4", 16), ("bfp", 32), ("int4", 1024), ("int4, granularity=group", 32), ("fp8_e4m3, granularity=row", 1024)])
def test_under_spec_exactly_the_unit_with_the_nan_becomes_nan(name, unit):
    for special in (np.nan, np.inf):
        x = reference.inputs("e2m1")["normal"][:8].copy()
        x[0, 3], x[5, 1023] = special, special
        y = reference.ours(x, f"quantize(format={name}, nonfinite=spec)")
        expected = np.zeros(x.shape, bool)
        expected[0, :unit] = True
        expected[5, 1024 - unit :] = True
        assert np.array_equal(np.isnan(y), expected)


def test_a_nan_keeps_its_own_bits():
    x = torch.tensor([0x7FC01234, 0x3F800000, -0x3FFFFF], dtype=torch.int32).view(torch.float32)  # two NaNs with payloads
    y = faultline.quantize(x, "mxfp4")
    assert torch.equal(y.view(torch.int32)[[0, 2]], x.view(torch.int32)[[0, 2]])


# --- zero and sign ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_zeros_stay_zero_with_their_sign(name):
    x = np.zeros((4, 64), F32)
    x[:, ::2] = -0.0
    agree(x, f"quantize(format={name})", x, "all zero")
    x[0, 0] = 1.0
    agree(x[1:], f"quantize(format={name})", x[1:], "zero rows")
    y = reference.ours(x, f"quantize(format={name})")
    assert (y[1:] == 0).all() and (y[0, 1:] == 0).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-42, 1e-40, 1e-38, 1e-36, 1e-34, 1e-30])
def test_nvfp4_of_a_tiny_tensor_turns_no_zero_into_a_number_and_errs_by_half_a_step_at_most(scale):
    x = (np.random.default_rng(3).standard_normal((16, 256)) * scale).astype(F32)
    x[:, ::7] = 0
    y = reference.ours(x, "quantize(format=nvfp4)")
    assert (y[:, ::7] == 0).all()
    assert (np.abs(y.astype(np.float64)) <= 1.2 * np.abs(x).max()).all()
    b, e = reference.blocks_of(x, 16).astype(np.float64), reference.blocks_of(y - x, 16).astype(np.float64)
    # Within a block: at most one unit of the largest gap (a third of the maximum), or half the smallest scale there is.
    assert (np.abs(e) <= np.maximum(np.abs(b).max(2, keepdims=True) / 3, 6 * 2.0**-136)).all()


# --- fp64 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_e4m3", "int8", "bfp", "bf16", "fp16", "tf32"])
def test_fp64_tensors_are_taken_through_fp32(name):
    if reference.DEVICE != "cpu":
        pytest.skip("fp64 is supported on a CPU")
    x = torch.randn(16, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * (1 + 2.0**-40)
    assert torch.equal(faultline.quantize(x, name), faultline.quantize(x.float(), name).double())
    on_grid = faultline.quantize(x, name)
    nudged = on_grid * (1 + 2.0**-45)  # rounds to the grid value in fp32, yet is not on the grid
    assert torch.equal(faultline.quantize(nudged, name), faultline.quantize(nudged.float(), name).double())


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault, words", [
    ("quantize(format=mxfp5)", ["format", "mxfp5", "did you mean 'mxfp4'"]),
    ("quantize(format=mxfp4, granularity=row)", ["granularity", "row"]),
    ("quantize(format=mxfp4, block=16)", ["block"]),
    ("quantize(format=int4, granularity=group, block=48)", ["block", "8, 16, 32, 64, 128 or 256"]),
    ("quantize(format=bfp, bits=17)", ["bits", "17", "1 to 16"]),
    ("quantize(format=int4, bits=3)", ["bits"]),
    ("quantize(format=fp8_e4m3, scheme=affine)", ["affine"]),
    ("quantize(format=mxfp4, scale_floor=normal)", ["scale_floor"]),
    ("quantize(format=mxfp4, rounding=up)", ["rounding", "up", "nearest", "stochastic"]),
])  # fmt: skip
def test_parameters_that_do_not_apply_are_refused_by_name(fault, words):
    x = torch.ones(4, 32)
    with pytest.raises(ValueError) as caught:
        faultline.apply(x, fault)
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(x, torch.ones(4, 32))
