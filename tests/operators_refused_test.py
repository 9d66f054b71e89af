"""What the operators refuse, and in which words: tensors, ledgers and parameters that no fault can act on."""

import pytest
import torch

import faultline
from operator_cases import normal, refused, same_bits


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_tensors_that_are_not_floating_point_are_refused(dtype):
    x = torch.zeros(4, 8).to(dtype)
    refused(["fp32, bf16, fp16"], faultline.apply, x, "gain(strength=0.1)")
    refused(["fp32, bf16, fp16"], faultline.apply_, x, "gain(strength=0.1)")
    refused(["fp32, bf16, fp16"], faultline.quantize, x, "mxfp4")


def test_views_whose_elements_share_memory_are_refused():
    for x in (torch.ones(1, 8).expand(4, 8), torch.ones(10).as_strided((4, 4), (2, 1)), torch.ones(8).as_strided((3, 4), (0, 1))):
        refused(["share memory"], faultline.apply_, x, "gain(strength=0.1)")
        assert (x == 1).all()


def test_sparse_tensors_are_refused():
    refused(["dense", "Sparse"], faultline.apply, torch.eye(4).to_sparse(), "gain(strength=0.1)")
    with pytest.raises((ValueError, RuntimeError)):
        faultline.digest(torch.eye(4).to_sparse())


@pytest.mark.parametrize("form", ["apply", "apply_"])
def test_a_ledger_or_row_keys_on_another_device_are_refused(form):
    function = getattr(faultline, form)
    x = normal(4, 8)
    before = x.clone()
    refused(["ledger", "meta", "cpu"], function, x, "gain(strength=0.1)", ledger=faultline.new_ledger("meta"))
    refused(["row_keys", "meta", "cpu"], function, x, "relative_gaussian(strength=0.1, rule.keyed_by=row)", row_keys=torch.zeros(4, dtype=torch.int64, device="meta"))
    assert same_bits(x, before)
    with torch.inference_mode():
        y = normal(4, 8)
        refused(["ledger", "meta", "cpu"], function, y, "gain(strength=0.1)", ledger=faultline.new_ledger("meta"))


def test_ledgers_and_row_keys_of_the_wrong_shape_are_refused():
    x = normal(4, 8)
    refused(["ledger", "448"], faultline.apply, x, "gain(strength=0.1)", ledger=torch.zeros(8, dtype=torch.float64))
    refused(["ledger", "Float"], faultline.apply, x, "gain(strength=0.1)", ledger=torch.zeros(16))
    keyed = "relative_gaussian(strength=0.1, rule.keyed_by=row)"
    refused(["row_keys", "4"], faultline.apply, x, keyed, row_keys=torch.zeros(3, dtype=torch.int64))
    refused(["row_keys", "keyed_by"], faultline.apply, x, "relative_gaussian(strength=0.1)", row_keys=torch.zeros(4, dtype=torch.int64))
    refused(["step", "-1"], faultline.apply, x, keyed, step=-1)
    refused(["call", "4294967296"], faultline.apply, x, keyed, call=2**32)


@pytest.mark.parametrize("fault, words", [
    ("relative_gaussian(strength=nan)", ["strength", "nan", "[0, 1000000]"]),
    ("relative_gaussian(strength=.nan)", ["strength", "nan", "[0, 1000000]"]),
    ("relative_gaussian(strength=.inf)", ["strength", "inf", "[0, 1000000]"]),
    ("relative_gaussian(strength=-0.1)", ["strength", "-0.1", "[0, 1000000]"]),
    ("relative_gaussian(strength=1e7)", ["strength", "[0, 1000000]"]),
    ("relative_gaussian(strength=abc)", ["strength", "abc"]),
    ("relative_gaussian()", ["strength", "missing"]),
    ("relative_gausian(strength=0.1)", ["relative_gausian", "did you mean 'relative_gaussian'"]),
    ("relative_gaussian(strenght=0.1)", ["strenght", "did you mean 'strength'"]),
    ("deadzone(threshold=1.5)", ["threshold", "1.5", "[0, 1]"]),
    ("deadzone(threshold=-0.1)", ["threshold", "-0.1", "[0, 1]"]),
    ("deadzone(treshold=0.1)", ["treshold", "did you mean 'threshold'"]),
    ("deadzone(axis=tokens)", ["axis", "tokens", "did you mean 'token'"]),
    ("saturate(margin=2)", ["margin", "2", "[0, 1]"]),
    ("spike(probability=1.1)", ["probability", "1.1", "[0, 1]"]),
    ("bitflip(bit=32, count=1)", ["bit 32", "fp32", "0 to 31"]),
    ("bitflip(bit=3)", ["count", "rate"]),
    ("bitflip(bit=3, field=sign, count=1)", ["bit", "field"]),
    ("bitflip(count=33)", ["count 33", "32"]),
    ("stuck_at(bit=64)", ["bit", "64", "63"]),
    ("truncate(bits=23)", ["23", "fp32", "0 to 22"]),
    ("swap(length=64)", ["64", "32"]),
    ("zero(extent.fraction=0)", ["fraction", "(0, 1]", "0"]),
    ("zero(extent.fraction=1.5)", ["fraction", "(0, 1]", "1.5"]),
    ("zero(extent.fraction=.nan)", ["fraction", "nan"]),
    ("zero(extent.structure=rows)", ["structure", "did you mean 'row'"]),
    ("gain(strength=0.1, lifetime.kind=transient)", ["probability"]),
    ("gain(strength=0.1, rule.gradient=masked)", ["masked", "gain"]),
    ("gain(strength=0.1, rule.roundng=nearest)", ["roundng", "did you mean 'rounding'"]),
    ("gain(strength=0)", ["strength", "0"]),
    ("gain(strength=0.1", ["parenthesis"]),
    ("", ["fault"]),
    ("profile(file=/nonexistent/profile.json)", ["/nonexistent/profile.json"]),
])  # fmt: skip
@pytest.mark.parametrize("form", ["apply", "apply_"])
def test_bad_parameters_are_refused_with_name_value_and_range_and_nothing_changes(form, fault, words):
    x = normal(4, 8)
    before, ledger = x.clone(), faultline.new_ledger()
    refused(words, getattr(faultline, form), x, fault, ledger=ledger)
    assert same_bits(x, before)
    assert (ledger == 0).all()


def test_a_bit_is_checked_against_the_width_of_the_dtype():
    refused(["bit 16", "bf16", "0 to 15"], faultline.apply, normal(4, 8, dtype=torch.bfloat16), "bitflip(bit=16, count=1)")
    faultline.apply(normal(4, 8), "bitflip(bit=16, count=1)")
