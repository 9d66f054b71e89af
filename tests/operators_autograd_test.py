"""The operators inside PyTorch: schemas, Meta kernels, tracing and compilation, gradients straight through and masked."""

import pytest
import torch

import faultline
from operator_cases import DTYPES, OPS, normal, refused, same_bits


# --- Meta, tracing, compilation ---------------------------------------------------------------------------------------
def test_schemas_say_what_is_written():
    schema = str(OPS.apply.default._schema)
    assert "Tensor x, str fault" in schema and "Tensor(a!)? ledger=None" in schema and schema.endswith("-> Tensor")
    assert "Tensor(a!) x" in str(OPS.apply_.default._schema)
    assert "Tensor(b!) control" in str(OPS.inject_.default._schema)


def test_meta_tensors_get_a_shape_without_data():
    x = torch.empty(4, 8, device="meta", dtype=torch.bfloat16)
    for y in (faultline.apply(x, "gain(strength=0.1)"), faultline.quantize(x, "mxfp4")):
        assert y.device.type == "meta" and y.shape == x.shape and y.dtype == x.dtype
    assert OPS.digest(x).shape == () and OPS.digest(x).dtype == torch.int64


def test_meta_tensors_are_refused_for_the_same_mistakes():
    x = torch.empty(4, 8, device="meta")
    for function in (faultline.apply, faultline.apply_):
        refused(["strength"], function, x, "gain(strength=-0.1)")
        refused(["fp32, bf16, fp16"], function, torch.empty(4, device="meta", dtype=torch.int32), "gain(strength=0.1)")
    refused(["mxfp5"], faultline.quantize, x, "mxfp5")


@pytest.mark.parametrize("name, arguments, options", [
    ("apply", lambda: (normal(4, 8), "relative_gaussian(strength=0.1)"), {}),
    ("apply", lambda: (normal(4, 8).requires_grad_(), "relative_gaussian(strength=0.1)"), {}),
    ("apply", lambda: (normal(4, 8).requires_grad_(), "deadzone(threshold=0.3, rule.gradient=masked)"), {}),
    ("quantize", lambda: (normal(4, 8).requires_grad_(), "mxfp4"), {}),
    ("inject_", lambda: (normal(4, 8), OPS.control("gain(strength=0.1)", device="cpu"), faultline.new_ledger(), "gain(strength=0.1)"), {}),
    ("digest", lambda: (normal(4, 8),), {}),
    ("checksum", lambda: (normal(4, 8),), {}),
])  # fmt: skip
def test_pytorchs_own_operator_check_passes(name, arguments, options):
    torch.library.opcheck(getattr(OPS, name).default, arguments(), options)


def test_pytorchs_own_operator_check_passes_for_the_in_place_form():
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(OPS.apply_.default, (normal(4, 8), "relative_gaussian(strength=0.1)"), test_utils=tests)


def test_a_fault_survives_compilation_to_the_bit():
    def model(x, w):
        return faultline.quantize(torch.nn.functional.relu(faultline.apply(x @ w, "relative_gaussian(strength=0.05)", seed=4)), "mxfp4")

    x, w = normal(16, 32), normal(32, 64, seed=9)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert same_bits(compiled(x, w), model(x, w))
    w.requires_grad_()
    compiled(x, w).sum().backward()
    gradient, w.grad = w.grad, None
    model(x, w).sum().backward()
    assert torch.equal(gradient, w.grad)


# --- gradients --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["relative_gaussian(strength=0.1)", "deadzone(threshold=0.3)", "saturate(margin=0.5)", "quantize(format=mxfp4)", "zero()"])
def test_gradients_pass_straight_through(fault):
    x = normal(16, 24).requires_grad_()
    weight = normal(16, 24, seed=2)
    y = faultline.apply(x, fault)
    assert not same_bits(y.detach(), x.detach())
    (y * weight).sum().backward()
    assert torch.equal(x.grad, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_gradients_are_zero_exactly_where_the_value_was_forced(dtype):
    base = normal(16, 25, dtype=dtype)
    base[:, 3], base[:, 4], base[0, 5] = 0.0, -0.0, 0.0
    weight = normal(16, 25, seed=2, dtype=dtype)
    top = base.abs().max(1, keepdim=True).values.double()
    inside = {
        "deadzone(threshold=0.3, rule.gradient=masked)": base.abs().double() < 0.3 * top,  # zeros are inside the zone
        "deadzone(threshold=0.25, relative_to=none, rule.gradient=masked)": base.abs().double() < 0.25,
        "saturate(margin=0.5, rule.gradient=masked)": base.abs().double() > 0.5 * top,
        "saturate(limit=0.5, rule.gradient=masked)": base.abs().double() > 0.5,
        "zero(rule.gradient=masked)": torch.ones_like(base, dtype=torch.bool),
    }
    for fault, forced in inside.items():
        x = base.clone().requires_grad_()
        (faultline.apply(x, fault) * weight).sum().backward()
        assert torch.equal(x.grad, weight.masked_fill(forced, 0)), fault
        assert 0 < forced.sum()


def test_a_masked_zero_of_some_channels_stops_their_gradients_only():
    x = normal(16, 40)
    x[:, 7] = 0
    fault = "zero(extent.fraction=0.3, extent.structure=channel, rule.gradient=masked)"
    dead = faultline.apply(torch.ones(16, 40), fault) == 0
    assert 0 < dead.sum() < dead.numel()
    x.requires_grad_()
    faultline.apply(x, fault).sum().backward()
    assert torch.equal(x.grad, (~dead).float())


def test_masked_gradients_of_non_contiguous_tensors_stay_in_place():
    x = normal(24, 16).t().detach().requires_grad_()
    faultline.apply(x, "deadzone(threshold=0.3, rule.gradient=masked)").sum().backward()
    expected = (x.detach().abs() >= 0.3 * x.detach().abs().max(1, keepdim=True).values).float()
    assert torch.equal(x.grad, expected)


def test_a_nan_that_passes_a_dead_zone_keeps_its_gradient():
    x = torch.tensor([[float("nan"), float("inf"), 1.0, 0.001, 0.0]]).requires_grad_()
    faultline.apply(x, "deadzone(threshold=0.01, relative_to=none, rule.gradient=masked)").sum().backward()
    assert x.grad.tolist() == [[1, 1, 1, 0, 0]]


def test_the_in_place_form_refuses_a_masked_gradient_it_could_not_honour():
    x = normal(4, 8).requires_grad_()
    y = x * 1
    refused(["masked"], faultline.apply_, y, "deadzone(threshold=0.3, rule.gradient=masked)")
