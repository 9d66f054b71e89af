"""Taps on a backend of somebody else's: the test device `toy` (tests/backend/) stands in for an NPU. Whatever a plan does to a Hugging Face
model on the CPU it does there, to the bit: logits, gradients, tokens, ledgers, verdicts. Its own operators are reached through the recipe's
section `operators:`; what a plan cannot know or prove there is a sentence."""

import json
import os
import subprocess
import sys

import pytest
import torch

import faultline
import toy_device
from faultline.environment import Armed
from faultline.norms import NormNoise
from program import ROOT
from tap_models import calls_by_layer, llama, logits, qwen2, qwen3_moe, recipe, refused, rows, rule, same_bits, tokens, training_step

TOY = toy_device.NAME
KEY = f"PrivateUse1 ({TOY})"
MXFP4 = {"kind": "quantize", "format": "mxfp4"}


def on_host(value):
    if isinstance(value, dict):
        return {name: tensor.cpu() for name, tensor in value.items()}
    return [tensor.cpu() for tensor in value] if isinstance(value, (list, tuple)) else value.cpu()


def equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_bits(first[name], second[name]) for name in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same_bits, first, second))
    return same_bits(first, second)


def account(report):
    """The ledger without what names the device and its operators: fused attention has another name on each."""
    def row(each):
        operator = "attention" if "attention" in each["operator"] else each["operator"]
        return {**{key: each[key] for key in ("rule", "place", "phase", "dtype", "ledger")}, "operator": operator}

    return sorted((row(each) for each in report["rows"]), key=lambda each: json.dumps(each, sort_keys=True))


def placed(model, device=TOY):
    """torch gives a module on such a device new parameters: tied ones are tied again."""
    model.to(device)
    model.tie_weights()
    return model


def on(device, build, a_recipe, run, **options):
    model = placed(build(), device)
    with faultline.plan(a_recipe, model=model, **options) as plan:
        result = run(model, device)
    return on_host(result), plan.report


def same_on_both(build, a_recipe, run):
    """-> the device's result and report, which are the CPU's"""
    expected, wanted = on("cpu", build, a_recipe, run)
    got, report = on(TOY, build, a_recipe, run)
    assert {row["device"] for row in report["rows"]} == {f"{TOY}:0"}
    assert equal(got, expected)
    assert account(report) == account(wanted)
    assert report["forwards"] == wanted["forwards"]
    return got, report


def forward(model, device):
    return logits(model, tokens().to(device))


def step(model, device):
    return training_step(model.train(), tokens().to(device))


def python(code, **environment):
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, **environment})


# --- the whole path ---------------------------------------------------------------------------------------------------
def test_the_device_computes_what_the_cpu_computes_and_faults_are_gone_after_the_plan():
    model = placed(llama(2))
    clean = forward(model, TOY)
    assert clean.device.type == TOY and same_bits(clean.cpu(), logits(llama(2), tokens()))
    with faultline.plan(recipe(), model=model):
        assert not same_bits(forward(model, TOY).cpu(), clean.cpu())
    assert same_bits(forward(model, TOY).cpu(), clean.cpu())


@pytest.mark.parametrize("build", [llama, qwen2, lambda: qwen3_moe(2, experts="eager"), lambda: llama(2, attn_implementation="eager"), lambda: llama(2).to(torch.bfloat16)], ids=["llama", "qwen2", "mixture", "eager attention", "bf16"])
def test_a_forward_has_the_bits_and_the_ledger_of_the_cpu(build):
    same_on_both(build, recipe(rule(), rule("attention", where={"operator": "attention"}) if build in (llama, qwen2) else rule("softmax", where={"operator": "norm"})), forward)


@pytest.mark.parametrize("what", [{"kind": "bitflip", "rate": 0.001}, {"kind": "deadzone", "threshold": 0.05}, {"kind": "gain", "strength": 0.05}, MXFP4], ids=lambda what: what["kind"])
def test_kinds_that_are_no_noise_do_too(what):
    same_on_both(lambda: llama(1), recipe(rule(what=what)), forward)


def test_backward_belongs_to_the_layers_of_the_forward():
    _, report = same_on_both(lambda: qwen2(2), recipe(), step)
    assert calls_by_layer(report, phase="actor_backward") == {-1: 2, 0: 14, 1: 14}


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpoints(reentrant):
    def run(model, device):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        return step(model, device)

    _, report = same_on_both(lambda: llama(2), recipe(rule(what=MXFP4)), run)
    assert rows(report, phase="recompute")


def test_weights_and_inputs_are_replaced_and_the_master_stays():
    digests = {}

    def run(model, device):
        digests[device] = {name: faultline.digest(parameter) for name, parameter in model.named_parameters()}
        gradients = step(model, device)
        assert digests[device] == {name: faultline.digest(parameter) for name, parameter in model.named_parameters()}
        return gradients

    weights = rule("w4", where={"operator": "matmul", "surface": "weight", "except": ["lm_head"]}, what=MXFP4)
    inputs = rule("a4", where={"operator": "matmul", "surface": "input", "except": ["lm_head"]}, what=MXFP4)
    _, report = same_on_both(lambda: llama(2), recipe(weights, inputs), run)
    assert digests["cpu"] == digests[TOY]
    assert calls_by_layer(report, rule="w4") == {0: 7, 1: 7}


def test_module_boundaries_and_gradients():
    rules = [rule("norms", where={"module": "rmsnorm"}), rule("masked", where={"module": "layer_output", "layer": 0}, what={"kind": "deadzone", "threshold": 0.05}, gradient="masked"),
             rule("gradients", where={"module": "down_proj", "surface": "gradient"})]
    _, report = same_on_both(lambda: llama(2), recipe(*rules), step)
    assert len(rows(report, rule="norms")) == 5 and len(rows(report, rule="gradients")) == 2


def test_generation_tells_prefill_from_decoding_and_its_counts_are_predicted():
    def run(model, device):
        ids = tokens().to(device)
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)

    same_on_both(lambda: llama(2), recipe(rule(what={"kind": "gain", "strength": 0.2})), run)
    model = placed(llama(2))
    with faultline.plan(recipe(), model=model) as plan:
        prediction = plan.dry_run(lambda: run(model, TOY))
        run(model, TOY)
    assert prediction["rules"][0]["calls_per_forward"] == {"prefill": {"rollout": 15}, "decode": {"rollout": 15}}
    assert plan.report["coverage"]["decode"]["rollout"]["reached"] == 3 * 15


def test_a_schedule_moves_with_the_steps_and_a_canary_shows():
    moving = rule(schedule={"kind": "linear", "sigma_start": 0.2, "sigma_end": 0.02})

    def run(model, device):
        torch.ops.faultline.begin_step(0)
        first = forward(model, device)
        torch.ops.faultline.begin_step(9)
        return [first, forward(model, device)]

    expected, _ = on("cpu", lambda: llama(1), recipe(moving), run, total_steps=10)
    got, _ = on(TOY, lambda: llama(1), recipe(moving), run, total_steps=10)
    assert equal(got, expected) and not same_bits(got[0], got[1])
    model = placed(llama(1))
    with faultline.plan(recipe(), model=model) as plan:
        plan.verify(lambda: forward(model, TOY))


def test_a_weight_that_changes_behind_the_plan_is_found():
    model = placed(llama(2))
    weight = model.model.layers[1].mlp.up_proj.weight
    w4 = rule("w4", where={"operator": "matmul", "surface": "weight"}, what=MXFP4)
    with refused("weight_changed", rule="", place="model.layers.1.mlp.up_proj"), faultline.plan(recipe(w4), model=model):
        forward(model, TOY)
        weight.data.copy_(weight.data * 2)
        forward(model, TOY)


def test_an_optimizer_learns_through_faulted_weights_as_on_the_cpu():
    def run(model, device):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            step(model, device)
            optimizer.step()
        return forward(model.eval(), device)

    same_on_both(lambda: llama(1), recipe(rule(where={"operator": "matmul", "surface": "weight", "except": ["lm_head"]}, what=MXFP4)), run)


def test_a_diagnosis_names_what_is_planted_and_accuses_no_healthy_model():
    def verdict_of(device, *rules):
        model = placed(llama(2).to(torch.bfloat16), device)
        if not rules:
            return faultline.diagnose(model, prompt=tokens(1, 16))
        with faultline.plan(recipe(*rules, phases={"diagnose": True}), model=model, on_missing="warn"):
            return faultline.diagnose(model, prompt=tokens(1, 16))

    planted = rule(where={"module": "layer_output", "layer": 1}, what={"kind": "gain", "strength": 0.05})
    assert verdict_of(TOY)["candidates"] == [] and verdict_of(TOY)["verdict"] == verdict_of("cpu")["verdict"] == "healthy"
    found, wanted = verdict_of(TOY, planted)["candidates"], verdict_of("cpu", planted)["candidates"]
    assert [(one["place"], one["kind"]) for one in found] == [(one["place"], one["kind"]) for one in wanted] == [("model.layers.1", "gain")]


def test_aqns_noise_on_norm_weights_is_the_cpus():
    clean, noisy = logits(llama(2), tokens()), {}
    for device in ("cpu", TOY):
        own = Armed(json.dumps({"seed": 7, "aqn": {"schedule": "constant", "sigma_start": 0.05}}))
        try:
            model = placed(llama(2), device)
            NormNoise(model, own._recipe, own)
            noisy[device] = [forward(model, device).cpu(), *(parameter.detach().cpu() for name, parameter in model.named_parameters() if "norm" in name)]
            own.note_work("rollout")
            assert own.snapshot()["notes"]["aqn"]["norms"] == 5
        finally:
            own._optimizer_steps.remove()
            own.plan.disarm()
    assert equal(noisy["cpu"], noisy[TOY]) and not same_bits(noisy[TOY][0], clean)


# --- operators of the backend's own ------------------------------------------------------------------------------------
TABLE = {"norm": [f"{TOY}::fused_rms_norm*"], "activation": [f"{TOY}::fused_swiglu"]}


def fused(layers=2):
    return toy_device.use_fused_norms(llama(layers))


def test_a_fused_norm_is_reached_through_the_recipes_table_forward_and_backward():
    noise = recipe(rule(where={"operator": "norm"}, phases={"actor_forward": True, "actor_backward": True}), operators=TABLE)
    _, report = same_on_both(fused, noise, step)
    assert {row["operator"] for row in report["rows"]} == {f"{TOY}::fused_rms_norm", f"{TOY}::fused_rms_norm_backward"}
    assert calls_by_layer(report, phase="actor_forward") == {-1: 1, 0: 2, 1: 2}  # the norm's result, not its scale
    assert calls_by_layer(report, phase="actor_backward") == {-1: 2, 0: 4, 1: 4}  # to the input and to the weight


def test_a_file_holds_the_table_for_several_recipes(tmp_path):
    (tmp_path / "toy.yaml").write_text(json.dumps(TABLE))
    _, report = on(TOY, fused, recipe(rule(where={"operator": "norm"}), operators={"file": str(tmp_path / "toy.yaml")}), forward)
    assert calls_by_layer(report) == {-1: 1, 0: 2, 1: 2}


def test_an_operator_of_no_family_is_named_by_census_coverage_and_log():
    model = placed(fused())
    with faultline.plan(recipe(), model=model) as plan:
        plan.dry_run(lambda: forward(model, TOY))
        forward(model, TOY)
    assert plan.report["coverage"]["rollout"]["unknown"] == {f"{TOY}::fused_rms_norm": 5}
    assert any(f"{TOY}::fused_rms_norm ran 5 times and is of no family" in line for line in plan.report["log"])
    census = faultline.census(lambda: forward(model, TOY), model=model)  # by the last plan's table
    assert {entry["operator"] for entry in census if entry["family"] == "unknown"} == {f"{TOY}::fused_rms_norm"}


def test_a_later_plans_table_is_its_own():
    """Wrappers know an operator's family: another table makes them anew."""
    for table, results in ((TABLE, 1), ({"reduce": TABLE["norm"]}, 2)):  # of a norm the first result is faulted, of a sum both
        family = next(iter(table))
        _, report = on(TOY, lambda: fused(1), recipe(rule(where={"operator": family}), operators=table), forward)
        assert {row["operator"]: int(row["ledger"]["calls"]) for row in rows(report, place="model.norm")} == {f"{TOY}::fused_rms_norm": results}


@pytest.mark.parametrize("section, says", [({"norms": []}, "norm"), ({"norm": ["fused_rms_norm"]}, "names no namespace"), ({"norm": [f"{TOY}::x"], "matmul": [f"{TOY}::x"]}, "two families"),
                                           ({"file": "nowhere.yaml"}, "nowhere.yaml"), ({"norm": "toy::x"}, "list")])
def test_mistakes_in_the_table_are_sentences(section, says):
    with pytest.raises(ValueError, match=says), faultline.plan(recipe(operators=section)):
        pass


LONELY = """
import torch, faultline
from tap_models import recipe, rule
library = torch.library.Library("lonely", "DEF")
library.define("norm(Tensor x) -> Tensor")
library.impl("norm", torch.clone, "XPU")
faultline.plan(recipe(rule(where={"operator": "lonely::norm"}))).arm()
"""


def test_refusals_name_the_keys():
    done = python(LONELY)
    assert "ValueError: operator 'lonely::norm' has no kernel for the backends of this process (CPU" in done.stderr and "import its backend before the plan is armed" in done.stderr, done.stderr
    with faultline.plan(recipe(), model=placed(llama(1)), on_missing="warn"):
        wrapped = {each["key"] for each in json.loads(torch.ops.faultline.wrapped_operators())}
    assert KEY in wrapped and not wrapped & {"XPU", "HPU", "PrivateUse2", "Meta"}


# --- devices that cannot be trusted ------------------------------------------------------------------------------------
REFUSED = """
import torch, faultline, toy_device
from tap_models import llama, logits, recipe, tokens
model = llama(1).to("toy")
with toy_device.defect("{defect}"):
    with faultline.plan(recipe(), model=model, on_missing="warn"):
        logits(model, tokens().to("toy"))
"""


@pytest.mark.parametrize("defect, says", [("no_shifts", "torch says: aten::bitwise_right_shift has no kernel on toy"), ("flushed", "fp32 numbers below 1.2e-38 are flushed to zero"),
                                          ("imprecise", "fp32 sums and products are not rounded to nearest: the device loses precision")])
def test_a_device_that_is_not_ieee_is_refused_with_its_cause(defect, says):
    done = python(REFUSED.format(defect=defect))
    assert done.returncode != 0
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("ValueError: relative_gaussian is refused on toy:0: ") and says in sentence, sentence
    assert "python -m faultline.selftest --device toy:0" in sentence


def test_the_selftest_agrees_that_the_healthy_device_may_be_trusted():
    answer = faultline.selftest(TOY)
    assert answer["arithmetic"] == "portable"
    assert [finding for finding in answer["operations"] + answer["kinds"] if not finding["ok"]] == []


LATE = """
import torch, faultline
from tap_models import llama, logits, recipe, tokens
with faultline.plan(recipe()):
    torch.ones(64, 64) @ torch.ones(64, 64)
    import toy_device
    torch.ones(64, 64, device="toy") @ torch.ones(64, 64, device="toy")
"""


def test_a_backend_that_is_imported_after_arming_is_said():
    done = python(LATE)
    assert done.returncode != 0 and "backend PrivateUse1 (toy) was loaded after the plan was armed" in done.stderr, done.stderr


def test_two_kinds_of_device_in_one_run_are_said_and_counted_apart():
    first, second = llama(1), placed(llama(1))
    with faultline.plan(recipe()) as plan:
        forward(first, "cpu")
        forward(second, TOY)
    assert {row["device"] for row in plan.report["rows"]} == {"cpu", f"{TOY}:0"}
    assert f"[taps] rules acted on 2 kinds of device: cpu 8 calls, {TOY} 8 calls" in plan.report["log"]


def test_a_second_backend_under_the_same_key_is_torchs_to_refuse():
    with pytest.raises(RuntimeError, match="already"):
        torch.utils.rename_privateuse1_backend("other")
