"""Bit-exact comparison of our number formats with torchao and with the independent numpy/ml_dtypes references, on more
than 10^6 fp32 values each (format_references.inputs). Where torchao and the format's text differ, the difference is one
of the named rules below: docs/formats.md lists them with our choice, and the tests count them exactly. Every difference
outside these rules is a failure."""

import platform

import numpy as np
import pytest
import torch

pytest.importorskip("torchao")
pytest.importorskip("ml_dtypes")
import format_references as reference  # noqa: E402

torch.set_num_threads(1)
F32 = np.float32


# --- the rules where torchao and the text differ: element masks -------------------------------------------------------
def per_element(blocks, values, x):
    return reference.rows_of(np.broadcast_to(values, blocks.shape), x.shape[1])


def smallest_mx_scale(x, top):
    """The block's scale is 2^-127: torchao divides by 2^-126 and multiplies by 2^-127."""
    b = reference.blocks_of(x, 32)
    amax = np.abs(b).max(2, keepdims=True)
    return per_element(b, (amax > 0) & (reference.floor_log2(amax) - top <= -127), x)


def nvfp4_rules(x, floor):
    amax = np.abs(x).max()
    g = F32(amax / F32(2688))
    if amax == 0:
        return {"nvfp4 zero tensor": np.ones(x.shape, bool)}
    b = reference.blocks_of(x, 16)
    block_amax = np.abs(b).max(2, keepdims=True)
    with np.errstate(over="ignore", divide="ignore"):
        wanted = (block_amax / F32(6)) / g
        s = reference.to_element(np.maximum(wanted, F32(2.0**-6)), "e4m3")
        overflow = ~np.isfinite((F32(1) / g) / s) | (g < F32(2.0**-126))
    rules = {"nvfp4 tiny tensor": per_element(b, overflow, x)}
    if floor == "subnormal":
        small = (wanted < F32(2.0**-6)) & (block_amax > 0) & ~overflow
        rules["nvfp4 subnormal block scale"] = per_element(b, small, x)
    return rules


def fp8_rules(x, element, granularity):
    amax = reference.unit_amax(x, granularity)
    scale = amax / F32(reference.ELEMENTS[element][1])
    return {"fp8 zero unit": amax == 0, "fp8 vanishing scale": (amax > 0) & (scale == 0)}


FORMATS = {}
for name, element in (("mxfp4", "e2m1"), ("mxfp8_e4m3", "e4m3"), ("mxfp8_e5m2", "e5m2")):
    FORMATS[name] = dict(
        fault=f"quantize(format={name})",
        element=element,
        torchao=lambda x, e=element: reference.torchao_mx(x, e),
        numpy=lambda x, e=element: reference.reference_mx(x, e),
        rules=lambda x, e=element: {"mx smallest scale": smallest_mx_scale(x, reference.ELEMENTS[e][0])},
    )
for floor in ("normal", "subnormal"):
    FORMATS[f"nvfp4 {floor}"] = dict(
        fault=f"quantize(format=nvfp4, scale_floor={floor})",
        element="e2m1",
        torchao=reference.torchao_nvfp4,
        numpy=lambda x, f=floor: reference.reference_nvfp4(x, f),
        rules=lambda x, f=floor: nvfp4_rules(x, f),
    )
for element in ("e4m3", "e5m2"):
    for granularity in ("tensor", "row", "tile"):
        FORMATS[f"fp8_{element} {granularity}"] = dict(
            fault=f"quantize(format=fp8_{element}, granularity={granularity})",
            element=element,
            torchao=lambda x, e=element, g=granularity: reference.torchao_fp8(x, e, g),
            numpy=lambda x, e=element, g=granularity: reference.reference_fp8(x, e, g),
            rules=lambda x, e=element, g=granularity: fp8_rules(x, e, g),
        )

# Elements in which torchao differs from us, by rule, over all inputs of a format. docs/formats.md repeats this table. Where
# torchao's scale overflows it turns NaN into an integer, which processors do differently: on 64-bit Arm 367 of them agree.
OVERFLOWS_THAT_AGREE = 367 if platform.machine() == "aarch64" else 0
EXPECTED = {
    "mxfp4": {"mx smallest scale": 98048},
    "mxfp8_e4m3": {"mx smallest scale": 252422},
    "mxfp8_e5m2": {"mx smallest scale": 418634},
    "nvfp4 normal": {"nvfp4 tiny tensor": 265242 - OVERFLOWS_THAT_AGREE, "nvfp4 zero tensor": 131072},
    "nvfp4 subnormal": {"nvfp4 tiny tensor": 265247 - OVERFLOWS_THAT_AGREE, "nvfp4 subnormal block scale": 12285, "nvfp4 zero tensor": 131072},
    **{f"fp8_{e} {g}": {"fp8 zero unit": 131072, "fp8 vanishing scale": 367} for e in ("e4m3", "e5m2") for g in ("tensor", "row", "tile")},
    "fp8 bf16 scale": 29571,
    "mx infinity": 9472,
    "nvfp4 non-finite": 126288,
}


def compare_with_torchao(case, dtype=torch.float32):
    """-> (values compared, mismatches outside every rule, mismatches by rule)"""
    values, outside, inside = 0, 0, {}
    for x in reference.inputs(case["element"]).values():
        if dtype != torch.float32:
            rounded = torch.from_numpy(x).to(dtype).float().numpy()
            x = np.where(np.isfinite(rounded), rounded, F32(torch.finfo(dtype).max)).astype(F32)
        y = reference.ours(x, case["fault"], dtype)
        oracle = torch.from_numpy(case["torchao"](x)).to(dtype).float().numpy()
        wrong = reference.mismatches(y, oracle)
        known = np.zeros(x.shape, bool)
        for rule, mask in case["rules"](x).items():
            inside[rule] = inside.get(rule, 0) + int((wrong & mask).sum())
            known |= mask
        values += x.size
        outside += int((wrong & ~known).sum())
    return values, outside, {rule: count for rule, count in inside.items() if count}


@pytest.mark.parametrize("name", FORMATS)
def test_torchao_agrees_to_the_bit_outside_the_named_rules(name):
    values, outside, inside = compare_with_torchao(FORMATS[name])
    assert values >= 10**6
    assert outside == 0
    assert inside == EXPECTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_ml_dtypes_agrees_to_the_bit_without_exception(name):
    case, values, wrong = FORMATS[name], 0, {}
    for kind, x in reference.inputs(case["element"]).items():
        count = int(reference.mismatches(reference.ours(x, case["fault"]), case["numpy"](x)).sum())
        values += x.size
        if count:
            wrong[kind] = count
    assert values >= 10**6
    assert wrong == {}


@pytest.mark.parametrize("fault, arguments", [
    ("quantize(format=mxfp4_ceil)", dict(kind="mx", element="e2m1", rule="ceil")),
    ("quantize(format=nvfp4_single)", dict(kind="nvfp4", floor="subnormal", two_level=False)),
    ("quantize(format=nvfp4_single, scale_floor=normal)", dict(kind="nvfp4", floor="normal", two_level=False)),
])  # fmt: skip
def test_the_formats_torchao_lacks_agree_with_ml_dtypes(fault, arguments):
    arguments = dict(arguments)
    function = {"mx": reference.reference_mx, "nvfp4": reference.reference_nvfp4}[arguments.pop("kind")]
    for kind, x in reference.inputs("e2m1").items():
        with np.errstate(over="ignore"):
            assert not reference.mismatches(reference.ours(x, fault), function(x, **arguments)).any(), kind


def test_torchao_agrees_with_the_single_level_form_too():
    for kind, x in reference.inputs("e2m1").items():
        y = reference.ours(x, "quantize(format=nvfp4_single, scale_floor=normal)")
        assert not reference.mismatches(y, reference.torchao_nvfp4(x, two_level=False)).any(), kind


@pytest.mark.parametrize("name", FORMATS)
def test_bf16_tensors_agree_with_torchao_after_one_rounding(name):
    _, outside, _ = compare_with_torchao(FORMATS[name], torch.bfloat16)
    assert outside == 0


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_16_bit_tensors_are_computed_in_fp32_and_rounded_once(name, dtype):
    case = FORMATS[name]
    for kind, x in reference.inputs(case["element"]).items():
        x = torch.from_numpy(x).to(dtype).float().numpy()
        x = np.where(np.isfinite(x), x, F32(1)).astype(F32)
        expected = torch.from_numpy(case["numpy"](x)).to(dtype).float().numpy()
        assert not reference.mismatches(reference.ours(x, case["fault"], dtype), expected).any(), kind


def test_torchao_takes_the_fp8_scale_of_a_bf16_tensor_in_bf16():
    """Rule `fp8 bf16 scale`: amax/448 is rounded to bf16 there; we divide in fp32."""
    x = torch.from_numpy(reference.inputs("e4m3")["normal"]).bfloat16()
    y = reference.ours(x.float().numpy(), "quantize(format=fp8_e4m3)", torch.bfloat16)
    exact = torch.from_numpy(reference.torchao_fp8(x.float(), "e4m3", "tensor")).bfloat16().float().numpy()
    assert not reference.mismatches(y, exact).any()
    rounded = torch.from_numpy(reference.torchao_fp8(x, "e4m3", "tensor")).bfloat16().float().numpy()
    assert int(reference.mismatches(y, rounded).sum()) == EXPECTED["fp8 bf16 scale"]


# --- non-finite input under `nonfinite: spec` -------------------------------------------------------------------------
def with_specials(value):
    x = reference.inputs("e2m1")["normal"].copy()
    places = np.random.default_rng(5).choice(x.size, 300, replace=False)
    x.reshape(-1)[places] = value
    return x


@pytest.mark.parametrize("name, element", [("mxfp4", "e2m1"), ("mxfp8_e4m3", "e4m3"), ("mxfp8_e5m2", "e5m2")])
def test_a_nan_makes_its_mx_block_nan_as_torchao_has_it(name, element):
    x = with_specials(np.nan)
    y = reference.ours(x, f"quantize(format={name}, nonfinite=spec)")
    assert np.isnan(y).sum() > np.isnan(x).sum()
    assert not reference.mismatches(y, reference.torchao_mx(x, element)).any()


def test_an_infinity_makes_its_mx_block_nan_where_torchao_flushes_it():
    """Rule `mx infinity`: torchao takes 2^126 as scale, so the infinity stays and its neighbours vanish."""
    x = with_specials(np.inf)
    y = reference.ours(x, "quantize(format=mxfp4, nonfinite=spec)")
    b = reference.blocks_of(x, 32)
    poisoned = per_element(b, np.isinf(b).any(2, keepdims=True), x)
    assert np.array_equal(np.isnan(y), poisoned)
    wrong = reference.mismatches(y, reference.torchao_mx(x, "e2m1"))
    assert not (wrong & ~poisoned).any()
    assert int(wrong.sum()) == EXPECTED["mx infinity"]


def test_a_nan_makes_its_nvfp4_block_nan_where_torchao_loses_the_tensor():
    """Rule `nvfp4 non-finite`: torchao's tensor scale becomes NaN, and with it all elements."""
    x = with_specials(np.nan)
    y = reference.ours(x, "quantize(format=nvfp4, scale_floor=normal, nonfinite=spec)")
    b = reference.blocks_of(x, 16)
    poisoned = per_element(b, np.isnan(b).any(2, keepdims=True), x)
    assert np.array_equal(np.isnan(y), poisoned)
    clean = np.where(poisoned, F32(0), x)
    clean[np.isnan(x)] = 0
    g_is_the_same = np.abs(clean).max() == np.nanmax(np.abs(x))
    assert g_is_the_same
    assert not (reference.mismatches(y, reference.reference_nvfp4(clean, "normal")) & ~poisoned).any()
    assert int(reference.mismatches(y, reference.torchao_nvfp4(x)).sum()) == EXPECTED["nvfp4 non-finite"]
