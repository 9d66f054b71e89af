"""A sceptic at the test backend: kernels that a backend has for composite operators, that it replaces or registers when a plan is armed
already, results in strided, shared or given memory, autocast, operators that go to the CPU and back. Either the device gives the CPU's
bits and ledger, or the run is refused with a sentence."""

import pytest
import torch

import faultline
import toy_device
from backend_test import TOY, account, equal, forward, on, on_host, placed, python, same_on_both, step
from tap_models import calls_by_layer, llama, recipe, rule, same_bits, tokens

PRELUDE = """
import torch, faultline, toy_device
from tap_models import calls_by_layer, llama, logits, recipe, rule, tokens
model = llama(2).to("toy")
run = lambda: logits(model, tokens().to("toy"))
"""


def linear(x, weight, bias=None):
    return torch.nn.functional.linear(x.cpu(), weight.cpu(), None if bias is None else bias.cpu()).to(TOY)


@pytest.fixture
def own_linear():
    """The device computes a linear at once, by going to the CPU and back: neither its products nor the CPU's are meant besides."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", linear, "PrivateUse1")
    yield
    torch.ops.faultline.unwrap()
    library._destroy()


def test_a_kernel_of_its_own_for_a_composite_operator_is_the_product_once(own_linear):
    expected, wanted = on("cpu", lambda: llama(2), recipe(), forward)
    got, report = on(TOY, lambda: llama(2), recipe(), forward)
    assert {row["operator"] for row in report["rows"]} == {"aten::linear"} and {row["device"] for row in report["rows"]} == {f"{TOY}:0"}
    assert calls_by_layer(report) == calls_by_layer(wanted) == {-1: 1, 0: 7, 1: 7}
    assert equal(got, expected)


def test_weights_of_such_a_kernel_are_replaced(own_linear):
    w4 = recipe(rule("w4", where={"operator": "matmul", "surface": "weight", "except": ["lm_head"]}, what={"kind": "quantize", "format": "mxfp4"}))
    expected, wanted = on("cpu", lambda: llama(2), w4, forward)
    got, report = on(TOY, lambda: llama(2), w4, forward)
    assert equal(got, expected) and calls_by_layer(report) == calls_by_layer(wanted)


REPLACED = PRELUDE + """
import torch.library
with faultline.plan(recipe(), model=model):
    run()
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda x, y: torch.from_numpy(x.cpu().numpy() @ y.cpu().numpy()).to("toy"), "PrivateUse1")
    run()
"""


def test_a_kernel_that_replaces_a_wrapped_one_is_not_taken_for_it():
    done = python(REPLACED)
    assert done.returncode != 0 and "EvidenceError" in done.stderr, done.stderr[-2000:]


LATE = PRELUDE + """
with faultline.plan(recipe(rule("norms", where={"operator": "norm"})), model=model):
    run()
    library = torch.library.Library("later", "DEF")
    library.define("fused_rms_norm(Tensor x) -> Tensor")
    library.impl("fused_rms_norm", torch.clone, "PrivateUse1")
    run()
"""


def test_an_operator_that_is_registered_after_arming_is_said():
    source = LATE.replace('where={"operator": "norm"})', 'where={"operator": "norm"}), operators={"norm": ["later::*"]}')
    done = python(source)
    assert done.returncode != 0 and "operator later::fused_rms_norm was registered for PrivateUse1 (toy) after the plan was armed" in done.stderr, done.stderr[-2000:]
    before = source.replace("with faultline.plan", "library = torch.library.Library('later', 'DEF')\nlibrary.define('fused_rms_norm(Tensor x) -> Tensor')\nlibrary.impl('fused_rms_norm', torch.clone, 'PrivateUse1')\nwith faultline.plan")
    before = before.split("    library = ")[0]
    done = python(before)
    assert done.returncode == 0, done.stderr[-2000:]


def strided(device):
    """Results into every second column, into a transposed tensor, into memory that a view shares."""
    torch.manual_seed(0)
    x, y, z = (torch.randn(6, 8).to(device) for _ in range(3))
    wide, turned, base = torch.zeros(6, 12).to(device), torch.zeros(6, 6).to(device), torch.randn(12, 6).to(device)
    torch.mm(x, y.t(), out=wide[:, ::2])
    torch.mm(x, z.t(), out=turned.t())
    base[3:9].addmm_(x, y.t())
    base.view(-1)[:36].view(6, 6).copy_(x.t().contiguous().t() @ y.t())
    return [wide, turned, base, torch.nn.functional.silu(x, inplace=True)]


def test_results_in_strided_given_and_shared_memory():
    noise = recipe(rule(), rule("activation", where={"operator": "activation"}))
    results = {}
    for device in ("cpu", TOY):
        with faultline.plan(noise) as plan:
            results[device] = on_host(strided(device)), account(plan.read())
        results[device] = results[device][0], account(plan.report)
    assert equal(results["cpu"][0], results[TOY][0]) and results["cpu"][1] == results[TOY][1]
    assert not equal(results["cpu"][0], on_host(strided("cpu")))
    untouched = results[TOY][0][0][:, 1::2]
    assert same_bits(untouched, torch.zeros_like(untouched))  # between the columns


def test_autocast_gives_the_bits_of_the_cpus():
    def run(model, device):
        with torch.autocast(device, torch.bfloat16):
            return step(model, device)

    w4 = rule("w4", where={"operator": "matmul", "surface": "weight", "except": ["lm_head"]}, what={"kind": "quantize", "format": "mxfp4"})
    for one in (recipe(), recipe(w4)):
        same_on_both(lambda: llama(2), one, run)


def test_a_model_whose_parts_lie_on_two_devices_counts_each_call_once():
    model = placed(llama(2))
    model.lm_head.to("cpu")
    model.lm_head.register_forward_pre_hook(lambda _module, inputs: inputs[0].cpu())
    with faultline.plan(recipe(), model=model) as plan:
        forward(model, TOY)
    assert calls_by_layer(plan.report) == {-1: 1, 0: 7, 1: 7}
    assert {row["device"]: row["place"] for row in plan.report["rows"]}["cpu"] == "lm_head"
    assert toy_device.OPS.calls_on_host() > 0 and tokens().device.type == "cpu"
