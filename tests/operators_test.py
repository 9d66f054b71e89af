"""The operators from Python: schemas, Meta kernels and tracing, gradients, every kind of tensor they meet or refuse, the
random identity (seed, site, step, call, row key), the resolution rule, and equal bits on every instruction set."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import faultline

torch.set_num_threads(1)
OPS = torch.ops.faultline
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# One rule of every kind that acts on a tensor; visible in every dtype.
FAULTS = [
    "relative_gaussian(strength=0.05)",
    "relative_gaussian(strength=0.003, rule.rounding=stochastic)",
    "absolute_gaussian(strength=0.1)",
    "scaled_gaussian(strength=0.1, scale=mean_abs)",
    "scaled_gaussian(strength=0.1, axis=channel)",
    "scaled_gaussian(strength=0.1, axis=tensor)",
    "nondeterministic(factor=5)",
    "nondeterministic(factor=5, mode=inconsistent)",
    "nondeterministic(factor=5, mode=correlated)",
    "systematic_bias(strength=0.01)",
    "gain(strength=0.02)",
    "offset(strength=0.1)",
    "offset(strength=0.1, scale=absolute)",
    "truncate(bits=3)",
    "truncate(bits=3, mode=nearest)",
    "truncate(bits=3, mode=stochastic)",
    "deadzone(threshold=0.05)",
    "deadzone(threshold=0.05, axis=tensor)",
    "deadzone(threshold=0.3, relative_to=none)",
    "saturate(margin=0.5)",
    "saturate(limit=0.7)",
    "spike(probability=0.05)",
    "bitflip(bit=3, rate=0.05)",
    "bitflip(field=exponent, count=7)",
    "bitflip(rate=0.01)",
    "stuck_at(bit=9, value=1)",
    "zero(extent.fraction=0.1, extent.structure=channel)",
    "zero(extent.fraction=0.3, extent.structure=tile, extent.tile=4x8)",
    "nan(extent.fraction=0.2, extent.structure=row)",
    "inf(extent.fraction=0.1, extent.structure=lane)",
    "swap(length=16, count=3)",
    "relative_gaussian(strength=0.05, rule.keyed_by=row)",
    "relative_gaussian(strength=0.05, extent.fraction=0.3, extent.structure=element)",
    "absolute_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=0.7)",
] + [f"quantize(format={name})" for name in (
    "mxfp4", "mxfp4_ceil", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "nvfp4_single", "fp8_e4m3", "fp8_e5m2", "int2", "int3", "int4", "int5", "int6", "int7",
    "int8", "bfp", "fp8_e4m3, granularity=tile", "fp8_e5m2, granularity=row", "int4, scheme=affine", "int4, granularity=group, scheme=affine",
    "mxfp4, rounding=stochastic", "nvfp4, rounding=stochastic", "int4, rounding=stochastic", "bfp, bits=3, block=8", "mxfp4, nonfinite=spec")]  # fmt: skip


def normal(*shape, dtype=torch.float32, seed=7, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def same_bits(a, b):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def refused(words, function, *arguments, **options):
    with pytest.raises(ValueError) as caught:
        function(*arguments, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


# --- every kind, every dtype ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_changes_something_repeats_itself_and_leaves_its_input_alone(fault, dtype):
    x = normal(33, 72, dtype=dtype)
    before = x.clone()
    ledger = faultline.new_ledger()
    y = faultline.apply(x, fault, seed=3, site="layers.0.mlp", ledger=ledger)
    assert same_bits(x, before)
    assert not same_bits(y, x)
    assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
    assert same_bits(y, faultline.apply(x, fault, seed=3, site="layers.0.mlp"))
    numbers = faultline.read_ledger(ledger)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert numbers["changed"] == int((x.view(kind) != y.view(kind)).sum())
    assert numbers["elements"] == x.numel() and numbers["calls"] == numbers["active_calls"] == 1
    assert numbers["nonfinite"] == int((~torch.isfinite(y)).sum())
    assert numbers["zeroed"] == int(((x != 0) & (y == 0)).sum())
    assert numbers["saturated"] == 0 or fault.startswith("quantize")
    error = (y.double() - x.double())[torch.isfinite(y)]
    sums = {"sum_abs_error": error.abs().sum(), "sum_squared_error": error.square().sum(), "max_abs_error": error.abs().max()}
    for name, expected in sums.items():
        # A lane is fp32 (fp64 for fp64 tensors): squares beyond its range are counted as infinite.
        limit = 1e300 if dtype == torch.float64 else 1e37
        assert numbers[name] == pytest.approx(float(expected), rel=1e-4) or (expected > limit and numbers[name] == math.inf), name


@pytest.mark.parametrize("fault", FAULTS)
def test_the_in_place_form_writes_the_same_bits_and_returns_its_tensor(fault):
    x = normal(17, 40, dtype=torch.bfloat16)
    y = x.clone()
    result = faultline.apply_(y, fault, seed=1, step=2, call=3)
    assert result.data_ptr() == y.data_ptr()
    assert same_bits(y, faultline.apply(x, fault, seed=1, step=2, call=3))


def views(seed=7):
    base = normal(24, 48, seed=seed)
    images = normal(2, 8, 6, 16, seed=seed)
    return {
        "transposed": base.t(),
        "sliced rows": base[::2],
        "sliced columns": base[:, 3:41],
        "strided columns": base[:, ::3],
        "offset": base.view(-1)[5:].view(-1)[: 24 * 40].view(24, 40),
        "channels last": images.to(memory_format=torch.channels_last),
        "permuted": images.permute(3, 0, 2, 1),
        "size-one dimension": base[:, None, :],
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_non_contiguous_tensors_give_the_contiguous_result(fault):
    for name, x in views().items():
        expected = faultline.apply(x.contiguous().clone(), fault)
        assert same_bits(faultline.apply(x, fault), expected), name
    for name, x in views(seed=8).items():
        expected = faultline.apply(x.contiguous().clone(), fault)
        outside = x._base if x._base is not None else x
        untouched = outside.clone()
        faultline.apply_(x, fault)
        assert same_bits(x.contiguous(), expected), name
        if name == "sliced columns":
            assert same_bits(outside[:, :3], untouched[:, :3]) and same_bits(outside[:, 41:], untouched[:, 41:])


@pytest.mark.parametrize("fault", FAULTS)
def test_empty_tensors_and_scalars_are_calls_too(fault):
    if "count" in fault or "swap" in fault:
        pytest.skip("asks for more elements than there are; refused, see below")
    for shape in [(0,), (0, 5), (5, 0), ()]:
        x = torch.full(shape, 0.625)
        ledger = faultline.new_ledger()
        assert faultline.apply(x, fault, ledger=ledger).shape == x.shape
        numbers = faultline.read_ledger(ledger)
        assert numbers["calls"] == 1 and numbers["elements"] in (0, x.numel())


def test_a_ledger_adds_up_over_calls():
    ledger, x = faultline.new_ledger(), normal(64, 64)
    for call in range(5):
        faultline.apply(x, "relative_gaussian(strength=0.05)", call=call, ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["calls"] == 5 and numbers["elements"] == 5 * 4096
    assert numbers["relative_rms"] == pytest.approx(0.05, rel=0.2)
    assert numbers["sqnr_db"] == pytest.approx(20 * math.log10(1 / 0.05), abs=0.5)


# --- tensors that are refused -----------------------------------------------------------------------------------------
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


# --- random identity --------------------------------------------------------------------------------------------------
def test_torchs_own_random_numbers_are_untouched():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for fault in FAULTS:
        faultline.apply(normal(33, 72), fault)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("change", [dict(seed=1), dict(seed=-1), dict(seed=2**62), dict(step=1), dict(call=1), dict(site="layers.1.mlp")], ids=str)
def test_seed_site_step_and_call_each_change_the_draw(change):
    x = torch.ones(64, 64)
    common = dict(seed=0, site="layers.0.mlp", step=0, call=0)
    a = faultline.apply(x, "relative_gaussian(strength=0.05)", **common) - 1
    b = faultline.apply(x, "relative_gaussian(strength=0.05)", **{**common, **change}) - 1
    correlation = float((a * b).mean() / (a.std() * b.std()))
    assert abs(correlation) < 5 / 64


def test_the_rules_name_is_part_of_the_identity():
    x = torch.ones(64, 64)
    a = faultline.apply(x, "relative_gaussian(strength=0.05, rule.name=first)")
    b = faultline.apply(x, "relative_gaussian(strength=0.05, rule.name=second)")
    assert not torch.equal(a, b)


def test_a_row_meets_the_same_noise_in_any_batch():
    keyed = "relative_gaussian(strength=0.05, rule.keyed_by=row)"
    rows = normal(12, 40)
    keys = torch.arange(1000, 1012)
    together = faultline.apply(rows, keyed, row_keys=keys)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))[:5]
    apart = faultline.apply(rows[order].clone(), keyed, row_keys=keys[order].clone())
    assert same_bits(apart, together[order])
    moved = faultline.apply(rows, keyed, row_keys=keys + 1)
    assert not torch.equal(moved, together)
    default = faultline.apply(rows, keyed)  # without keys the row's position counts
    assert same_bits(default[3:4], faultline.apply(rows[:4].clone(), keyed)[3:4])


def test_extents_stay_fixed_over_calls_steps_and_batches():
    """Lesson 41: a broken unit is the same unit in every call."""
    for structure in ("channel", "element", "lane"):
        fault = f"zero(extent.fraction=0.2, extent.structure={structure})"
        dead = faultline.apply(torch.ones(8, 96), fault, seed=6) == 0
        assert 0 < dead[0].sum() < 96
        assert (dead == dead[0]).all()
        for call, step, rows in ((1, 0, 8), (0, 5, 8), (3, 9, 2), (0, 0, 31)):
            again = faultline.apply(torch.ones(rows, 96), fault, seed=6, call=call, step=step) == 0
            assert (again == dead[0]).all()
        other = faultline.apply(torch.ones(8, 96), fault, seed=7) == 0
        assert not torch.equal(other, dead)
    noise = "absolute_gaussian(strength=1, extent.fraction=0.2, extent.structure=channel)"
    hit = [faultline.apply(torch.zeros(64, 96), noise, call=call).ne(0).any(0) for call in range(4)]
    assert all(torch.equal(h, hit[0]) for h in hit)


def test_lifetimes_let_a_fault_act_when_they_say():
    x = torch.ones(4, 8)
    window = "zero(lifetime.kind=window, lifetime.from=3, lifetime.to=5)"
    acts = [bool((faultline.apply(x, window, step=step) == 0).all()) for step in range(7)]
    assert acts == [False, False, False, True, True, False, False]
    ledger = faultline.new_ledger()
    for call in range(1000):
        faultline.apply(x, "zero(lifetime.kind=transient, lifetime.probability=0.3)", call=call, ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["calls"] == 1000
    assert 300 - 5 * 14.5 < numbers["active_calls"] < 300 + 5 * 14.5


def test_lesson_14_a_thousand_applications_leave_the_master_bit_identical():
    master = normal(64, 64, dtype=torch.bfloat16)
    before, digest = master.clone(), faultline.digest(master)
    for step in range(1000):
        faultline.apply(master, "relative_gaussian(strength=0.05)", step=step)
    assert same_bits(master, before)
    assert faultline.digest(master) == digest
    walked = before.clone()  # the mistake itself: noise in place, never removed, is a random walk
    for step in range(100):
        faultline.apply_(walked, "relative_gaussian(strength=0.05)", step=step)
    drift = ((walked.double() - before.double()) / before.double()).square().mean().sqrt()
    assert drift > 0.3


# --- strength, resolution, axis ---------------------------------------------------------------------------------------
def test_lesson_55_a_strength_that_bf16_cannot_show_is_refused_with_a_way_out():
    x = normal(256, 256, dtype=torch.bfloat16)
    for strength in ("1e-5", "1e-4"):
        refused(["bf16", "strength", "rounding: stochastic", "expect: invisible"], faultline.apply, x, f"relative_gaussian(strength={strength})")
    faultline.apply(x.float(), "relative_gaussian(strength=1e-4)")
    ledger = faultline.new_ledger()
    faultline.apply(x, "relative_gaussian(strength=1e-4, rule.rounding=stochastic)", ledger=ledger)
    assert 0 < faultline.read_ledger(ledger)["changed"] < 0.1 * x.numel()
    silent = faultline.apply(x, "relative_gaussian(strength=1e-4, rule.expect=invisible)", ledger=ledger)
    assert same_bits(silent, x)


@pytest.mark.parametrize("strength, ratio", [(1e-3, 0.50), (3e-3, 1.12), (1e-2, 1.01)])
def test_the_strength_realised_in_bf16_is_the_one_the_rounding_leaves(strength, ratio):
    x = normal(1024, 2048, dtype=torch.bfloat16)
    x = torch.where(x == 0, torch.ones_like(x), x)
    y = faultline.apply(x, f"relative_gaussian(strength={strength})")
    relative = ((y.double() - x.double()) / x.double()).square().mean().sqrt().item()
    assert relative / strength == pytest.approx(ratio, abs=0.02)


def test_stochastic_rounding_of_the_result_keeps_the_expected_value():
    x = torch.full((512, 512), 1.0, dtype=torch.bfloat16)
    y = faultline.apply(x, "gain(strength=0.001, rule.rounding=stochastic)").double()
    ulp = 2.0**-7
    assert set(y.unique().tolist()) == {1.0, 1.0 + ulp}
    share = 0.001 / ulp
    assert y.mean().item() - 1 == pytest.approx(0.001, abs=5 * ulp * math.sqrt(share * (1 - share)) / 512)


def test_relative_noise_is_a_standard_normal_times_x():
    x = normal(2048, 512, seed=12)
    x = torch.where(x == 0, torch.ones_like(x), x)
    e = ((faultline.apply(x, "relative_gaussian(strength=0.05)") - x).double() / x.double() / 0.05).flatten()
    n = e.numel()
    assert abs(e.mean()) < 5 / math.sqrt(n)
    assert abs(e.square().mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((e**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((e**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((e[1:] * e[:-1]).mean()) < 5 / math.sqrt(n)


def test_lesson_60_one_outlier_token_does_not_move_the_other_tokens_dead_zone():
    x = normal(8, 256)
    outlier = x.clone()
    outlier[0, 0] = 23890.0
    for kind in ("deadzone(threshold=0.05{})", "saturate(margin=0.3{})", "spike(probability=0.1{})", "scaled_gaussian(strength=0.1{})", "offset(strength=0.1{})"):
        token, tensor = kind.format(", axis=token"), kind.format(", axis=tensor")
        assert same_bits(faultline.apply(outlier, token)[1:], faultline.apply(x, token)[1:]), kind
        assert not same_bits(faultline.apply(outlier, tensor)[1:], faultline.apply(x, tensor)[1:]), kind
        assert same_bits(faultline.apply(x, kind.format("")), faultline.apply(x, token)), "token is the default"
    assert (faultline.apply(outlier, "deadzone(threshold=0.05, axis=tensor)")[1:] == 0).all()


def test_lesson_61_one_huge_element_leaves_the_realised_strength_alone():
    x = normal(512, 512)
    x[100, 100] = 1e18
    ledger = faultline.new_ledger()
    faultline.apply(x, "relative_gaussian(strength=0.05)", ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["relative_rms"] == pytest.approx(0.05, rel=0.05)
    naive = math.sqrt(numbers["sum_squared_error"] / numbers["sum_squared_value"])
    assert abs(naive / 0.05 - 1) > 0.05  # what the lesson warns of: one sample decides


def test_analytic_faults_do_what_their_formula_says():
    x = normal(16, 40)
    std = x.std(1, keepdim=True, correction=0)
    assert torch.allclose(faultline.apply(x, "gain(strength=0.25)"), x * 1.25, rtol=1e-6)
    assert torch.equal(faultline.apply(x, "systematic_bias(strength=0.25)"), x + x.sign() * 0.25)
    assert torch.allclose(faultline.apply(x, "offset(strength=0.5)"), x + 0.5 * std, rtol=1e-5, atol=1e-6)
    assert torch.equal(faultline.apply(x, "offset(strength=0.5, scale=absolute)"), x + 0.5)
    limit = torch.tensor(0.7) * x.abs().max(1, keepdim=True).values
    assert torch.allclose(faultline.apply(x, "saturate(margin=0.3)"), x.clamp(-limit, limit), rtol=1e-6)
    assert torch.equal(faultline.apply(x, "inf()"), torch.copysign(torch.tensor(math.inf), x))
    assert faultline.apply(x, "nan()").isnan().all()
    flipped = faultline.apply(x, "bitflip(field=sign, count=5)")
    assert int((flipped == -x).sum()) == 5 and int((flipped == x).sum()) == x.numel() - 5
    stuck = faultline.apply(x, "stuck_at(bit=31, value=0)")
    assert torch.equal(stuck, x.abs())
    zero = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    for fault in ("relative_gaussian(strength=0.1)", "gain(strength=0.1)", "systematic_bias(strength=0.1)", "truncate(bits=4)"):
        assert same_bits(faultline.apply(zero, fault), zero), fault


# --- equal bits whatever runs them ------------------------------------------------------------------------------------
DIGESTS = """
import json, sys, torch, faultline
sys.path.insert(0, sys.argv[1])
from operators_test import FAULTS, DTYPES, normal
torch.set_num_threads(int(sys.argv[2]))
out = {}
for dtype in DTYPES:
    x = torch.cat([normal(150, 263, dtype=dtype), normal(150, 263, seed=9, scale=1e-3, dtype=dtype)])
    x[5, 7], x[6, 8], x[9, 1] = float("nan"), float("inf"), -0.0
    for fault in FAULTS:
        ledger = faultline.new_ledger()
        y = faultline.apply(x, fault, seed=11, site="layers.3.mlp", step=2, call=1, ledger=ledger)
        out[f"{dtype} {fault}"] = [faultline.digest(y), faultline.checksum(y), ledger.view(torch.int64).tolist()]
print(json.dumps(out))
"""


def digests(isa, threads):
    environment = {**os.environ, "FAULTLINE_CPU_ISA": isa}
    if not isa:
        del environment["FAULTLINE_CPU_ISA"]
    result = subprocess.run([sys.executable, "-c", DIGESTS, os.path.dirname(__file__), str(threads)], env=environment, capture_output=True, text=True)
    if "this processor offers" in result.stderr:
        return None
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def portable():
    return digests("portable", 1)


@pytest.mark.parametrize("isa, threads", [("avx2", 1), ("avx512", 1), ("", 2), ("portable", 2)])
def test_every_instruction_set_and_thread_count_gives_equal_bits_and_ledgers(portable, isa, threads):
    other = digests(isa, threads)
    if other is None:
        pytest.skip(f"this processor has no {isa}")
    assert len(portable) == len(FAULTS) * len(DTYPES)
    assert {key: value for key, value in other.items() if value != portable[key]} == {}


def test_an_unknown_instruction_set_is_refused():
    code = "import torch, faultline; faultline.apply(torch.ones(4), 'gain(strength=0.1)')"
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FAULTLINE_CPU_ISA": "avx1024"}, capture_output=True, text=True)
    assert result.returncode != 0 and "avx1024" in result.stderr and "portable" in result.stderr


# --- the device row ---------------------------------------------------------------------------------------------------
def test_inject_reads_the_device_row_and_counts_its_calls():
    fault, x = "relative_gaussian(strength=0.05)", normal(32, 64)
    control, ledger = OPS.control(fault, step=4, device="cpu"), faultline.new_ledger()
    for call in range(3):
        y = x.clone()
        OPS.inject_(y, control, ledger, fault, seed=2, site="a")
        assert same_bits(y, faultline.apply(x, fault, seed=2, site="a", step=4, call=call))
    control[0] = 0  # disarmed: not a bit, not a count
    y = x.clone()
    OPS.inject_(y, control, ledger, fault, seed=2, site="a")
    assert same_bits(y, x)
    assert faultline.read_ledger(ledger)["calls"] == 3


# --- the package ------------------------------------------------------------------------------------------------------
def test_the_package_refuses_another_torch_with_a_sentence(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(ImportError, match=r"built for torch 2\.11.*has torch 2\.10\.1"):
        faultline._check_torch()


def test_the_package_says_where_it_looked_for_the_library(monkeypatch):
    monkeypatch.setenv("FAULTLINE_LIBRARY", "/nonexistent/libfaultline.so")
    with pytest.raises(ImportError, match="/nonexistent/libfaultline.so"):
        faultline.library_path()
    monkeypatch.delenv("FAULTLINE_LIBRARY")
    assert faultline.library_path().name == "libfaultline.so"


def test_the_ledgers_columns_are_those_of_the_header():
    header = os.path.join(os.path.dirname(__file__), "..", "src", "numeric", "ledger.h")
    if not os.path.exists(header):
        pytest.skip("no sources in the bundle")
    body = open(header, encoding="utf-8").read().split("enum LedgerColumn : int {")[1].split("};")[0]
    names = [line.split(",")[0].strip()[1:] for line in body.splitlines() if line.strip().startswith("k")]
    snake = ["".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_") for name in names]
    assert [*faultline.LEDGER_COLUMNS, "ledger_columns"] == snake
    with pytest.raises(ValueError, match="448"):
        faultline.read_ledger(torch.zeros(3))
