"""What faultline does in verl's processes, where verl itself is not installed: phases, steps, validation, metrics, judgement and exit
status, on a stand-in that carries verl's names (verl_stand_in.py). verl itself: clients_verl_test.py."""

import contextlib
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import faultline
from faultline import verl_checkpoints, verl_metrics, verl_recipe, vllm_plugin

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "libfaultline.so"
NOISE = {"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}
E5 = {"rollout": True, "actor_forward": True, "actor_backward": True, "ref": False, "eval": "clean"}


def run(place, recipe, environment=None, **wish):
    (place / "recipe.json").write_text(json.dumps(recipe))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FAULTLINE_")}
    variables |= {"FAULTLINE_RECIPE": "recipe.json", "FAULTLINE_EVIDENCE": "evidence", "FAULTLINE_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")]), **(environment or {})}
    return subprocess.run([sys.executable, ROOT / "tests/verl_stand_in.py", json.dumps(wish)], cwd=place, env=variables, capture_output=True, text=True)


def result_of(done):
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    return json.loads(line.removeprefix("result "))


def counts(place, folder="evidence"):
    """-> by role, of processes that computed: calls by phase, work, the whole entry"""
    found = {}
    for file in (place / folder).glob("process-*.json"):
        entry = json.loads(file.read_text())
        if not entry["work"]:
            continue
        calls = {}
        for row in entry["report"]["rows"]:
            calls[row["phase"]] = calls.get(row["phase"], 0) + row["ledger"]["calls"]
        found[entry["role"]] = (calls, entry["work"], entry)
    return found


# --- a whole run ----------------------------------------------------------------------------------------------------------
def test_every_phase_is_counted_in_its_process_and_no_reference_is_faulted(tmp_path):
    result = result_of(run(tmp_path, {"seed": 7, "phases": E5, "faults": [NOISE]}, total=4))
    found = counts(tmp_path)
    assert set(found) == {"worker", "vllm"}
    calls, work, trained = found["worker"]
    # A step: one forward for old log-probabilities and one that learns; the backward of a first layer multiplies for its weight alone.
    assert calls == {"actor_forward": 8, "actor_backward": 4} and trained["ended"]
    assert {name: work[name] for name in ("old_log_prob", "ref", "update_actor", "actor_forward")} == dict.fromkeys(("old_log_prob", "ref", "update_actor", "actor_forward"), 4)
    calls, _, served = found["vllm"]
    assert calls == {"rollout": 12} and served["ended"] and served["notes"]["eval"] == {"clean": 2, "faulty": 0}
    assert served["report"]["apart"] == {"validation": 2}
    for entry in (trained, served):
        assert entry["report"]["steps"] == {"from": "trainer", "now": 3, "seen": 4, "total": 4}
    last = result["logged"][-1]
    assert last["critic/score/mean"] == 0.5 and last["faultline/complaints"] == last["faultline/partial"] == 0
    assert (last["faultline/noise/calls"], last["faultline/noise/rollout/calls"], last["faultline/noise/actor_backward/calls"]) == (24, 12, 4)
    assert 0.5 < last["faultline/noise/changed"] <= 1 and 0.02 < last["faultline/noise/relative_error"] < 0.1
    assert last["faultline/mismatch/kl_k1"] == pytest.approx(0.25)  # the third token is padding


def test_what_the_driver_computes_is_neither_faulted_nor_counted(tmp_path):
    result = result_of(run(tmp_path, {"seed": 7, "phases": E5, "faults": [NOISE]}, total=2))
    exact = torch.corrcoef(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]]))[0, 1].item()
    assert [step["training/corr"] for step in result["logged"]] == [exact] * 2
    others = [entry for file in (tmp_path / "evidence").glob("process-*.json") if not (entry := json.loads(file.read_text()))["work"]]
    assert others and all(rule["calls"] == 0 for entry in others for rule in entry["report"]["rules"])


def test_old_log_probabilities_are_ref_where_the_user_says_so(tmp_path):
    result_of(run(tmp_path, {"seed": 7, "phases": {**E5, "ref": True}, "faults": [NOISE]}, {"FAULTLINE_OLD_LOG_PROBS": "ref"}, changes={"reference": False}))
    assert counts(tmp_path)["worker"][0] == {"ref": 2, "actor_forward": 2, "actor_backward": 2}


def test_a_faulty_validation_counts_with_the_rollouts(tmp_path):
    result_of(run(tmp_path, {"seed": 7, "phases": {**E5, "eval": "faulty"}, "faults": [NOISE]}))
    calls, _, served = counts(tmp_path)["vllm"]
    assert calls == {"rollout": 7} and served["notes"]["eval"] == {"clean": 0, "faulty": 1}


FALLING = {"seed": 7, "phases": E5, "faults": [{**NOISE, "schedule": {"kind": "linear", "sigma_start": 0.08, "sigma_end": 0.02}}]}


def test_every_process_is_told_the_number_of_steps_and_the_plan(tmp_path):
    result = result_of(run(tmp_path, FALLING, total=4))
    for _, _, entry in counts(tmp_path).values():
        assert entry["report"]["steps"] == {"from": "trainer", "now": 3, "seen": 4, "total": 4}
        [strength] = {row["strength"] for row in entry["report"]["rows"]}
        assert strength == pytest.approx(0.02)
    assert result["environment"]["OF_VERL"] == "1" and result["environment"]["FAULTLINE_RECIPE"] == str(tmp_path / "recipe.json")
    for told in (result["server"], result["worker"]["runtime_env"]["env_vars"]):
        assert told["FAULTLINE_TOTAL_STEPS"] == "4" and told["FAULTLINE_EVIDENCE"] == str(tmp_path / "evidence")
    assert result["worker"]["name"] == "one" and result["worker"]["runtime_env"]["env_vars"]["RANK"] == "0" and result["server"]["OF_THE_PLATFORM"] == "1"


# --- killed and resumed -----------------------------------------------------------------------------------------------------
VALIDATED = {**FALLING, "phases": {**E5, "eval": "faulty"}}


def calls_of(metrics):
    return {name: value for name, value in metrics.items() if name.endswith("calls")}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    place = tmp_path_factory.mktemp("unbroken")
    return calls_of(result_of(run(place, VALIDATED, total=4))["logged"][-1])


@pytest.mark.parametrize(("how", "done"), [("kills", 3), ("killed", 2)])
def test_a_killed_run_says_so_and_a_resumed_one_goes_on_with_its_counts(unbroken, tmp_path, how, done):
    """The worker is killed with one step left, the driver after a validation, which comes after its step's checkpoint."""
    killed = run(tmp_path, VALIDATED, total=4, saves=True, **{how: done})
    assert killed.returncode not in (0, 64)
    with pytest.warns(UserWarning, match="computed were killed or left") if how == "kills" else contextlib.nullcontext():
        assert faultline.collect(tmp_path / "evidence", on_missing="warn")["rules"]["noise"]["calls"] > 0
    if how == "kills":
        assert not counts(tmp_path)["worker"][2]["ended"] and "the training failed, its evidence is as far as it came" in killed.stderr
    logged = result_of(run(tmp_path, VALIDATED, {"FAULTLINE_EVIDENCE": "resumed"}, total=4, resumed=done))["logged"]
    assert len(logged) == 4 - done and calls_of(logged[-1]) == unbroken and logged[-1]["faultline/complaints"] == 0
    for _, _, entry in counts(tmp_path, "resumed").values():
        assert entry["report"]["steps"] == {"from": "trainer", "now": 3, "seen": 4 - done, "total": 4}
    joined = faultline.collect(tmp_path / "resumed")
    assert joined["rules"]["noise"]["calls"] == unbroken["faultline/noise/calls"] and joined["complaints"] == []


def test_a_checkpoint_without_evidence_or_of_another_recipe_is_not_resumed(tmp_path):
    refused = run(tmp_path, FALLING, total=4, resumed=2)
    assert refused.returncode == 64 and "global_step_2 was trained without a plan, or keeps no evidence" in refused.stderr
    verl_checkpoints.write(tmp_path / "checkpoints/global_step_2", [{"run": "a", "host": "h", "pid": 1, "format": 2, "recipe": "another"}])
    refused = run(tmp_path, FALLING, total=4, resumed=2)
    assert refused.returncode == 64 and "global_step_2 was trained under another recipe" in refused.stderr


# --- the end --------------------------------------------------------------------------------------------------------------
def test_a_phase_that_is_named_and_got_no_fault_ends_the_run_with_3(tmp_path):
    # The stand-in learns without this family, and generates without it.
    softmax = {"name": "soft", "where": {"operator": "softmax"}, "what": {"kind": "gain", "strength": 0.1}}
    done = run(tmp_path, {"seed": 7, "phases": {"rollout": True, "actor_forward": True, "actor_backward": False}, "faults": [{**NOISE, "phases": {"actor_forward": False}}, {**softmax, "phases": {"rollout": False}}]})
    assert done.returncode == 3 and "the recipe names actor_forward, and no fault acted there" in done.stderr
    verdict = next((tmp_path / "evidence").glob("verdict-run-*.json"))
    assert "never_fired" in {one["code"] for one in json.loads(verdict.read_text())["complaints"]}


def test_a_script_that_fails_keeps_its_status_and_its_evidence(tmp_path):
    done = run(tmp_path, {"seed": 7, "phases": E5, "faults": [NOISE]}, total=4, dies=1)
    assert done.returncode == 1 and "the training failed, its evidence is as far as it came: KeyError" in done.stderr
    assert counts(tmp_path)["worker"][0]["actor_backward"] == 1
    assert json.loads(next((tmp_path / "evidence").glob("verdict-run-*.json")).read_text())["script_error"] == "KeyError"


# --- refused before the first step ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("recipe", "environment", "wish", "sentence"), [
    ({"phases": {**E5, "critic": True}}, {}, {}, "name critic, which this run of verl never enters"),
    ({"phases": {**E5, "ref": True}}, {}, {"changes": {"reference": False}}, "name ref, which this run of verl never enters (a reference needs"),
    ({"phases": {**E5, "eval": "faulty"}}, {}, {"test_freq": -1}, "name eval, which this run of verl never enters (a validation needs"),
    ({"phases": {**E5, "rollout": False, "eval": "faulty"}}, {}, {}, "would act in rollout or in eval and not in both"),
    ({"phases": E5}, {"FAULTLINE_TOTAL_STEPS": "3"}, {}, "FAULTLINE_TOTAL_STEPS=3, and verl's trainer has 2 steps"),
    ({"phases": E5}, {}, {"changes": {"rollout": {"name": "sglang"}}}, "rollout.name=sglang: only vLLM's workers have a plug-in"),
    ({"phases": E5}, {}, {"changes": {"critic": True}}, "a critic's backward could not be told from the actor's"),
    ({"phases": E5}, {}, {"clean_server": True}, "a worker of verl does not know faultline"),
    ({"phases": E5}, {}, {"legacy": True}, "use_v1=False is verl's old trainer"),
    ({"phases": E5}, {"FAULTLINE_OLD_LOG_PROBS": "rollout"}, {}, "FAULTLINE_OLD_LOG_PROBS is actor_forward or ref"),
])  # fmt: skip
def test_refused(tmp_path, recipe, environment, wish, sentence):
    done = run(tmp_path, {"seed": 7, "faults": [NOISE], **recipe}, environment, **wish)
    assert done.returncode == 64 and sentence in done.stderr and "trained" not in done.stdout and "result" not in done.stdout, done.stderr[-2000:]


def test_a_vllm_in_a_verl_that_has_not_taken_us_in_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    monkeypatch.delitem(sys.modules, "faultline_verl", raising=False)
    with pytest.raises(ValueError, match="verl runs here and has not loaded faultline_verl.*cannot be followed"):
        vllm_plugin._refuse_verl_without_us()
    monkeypatch.setitem(sys.modules, "faultline_verl", None)
    vllm_plugin._refuse_verl_without_us()


# --- phases and numbers by themselves ---------------------------------------------------------------------------------------
def test_a_validation_follows_the_rollouts_where_nothing_is_said():
    rules = [{"name": "a", "where": {"operator": "matmul"}}, {"name": "b", "where": {"operator": "matmul"}}]
    assert verl_recipe.validation_of({"faults": rules}) == "faulty"
    assert verl_recipe.validation_of({"faults": rules, "phases": {"rollout": False}}) == "clean"
    assert verl_recipe.validation_of({"faults": rules, "phases": {"eval": "clean"}}) == "clean"
    assert verl_recipe.validation_of({"aqn": {}}) == "clean"
    with pytest.raises(ValueError, match="rule 'b' would act"):
        verl_recipe.validation_of({"faults": [rules[0], {**rules[1], "phases": {"eval": "clean"}}]})


def test_a_rule_on_modules_owes_no_backward():
    rule = {"name": "dead", "where": {"module": "layer_output"}}
    entry = {"report": {"rows": [{"phase": "rollout", "ledger": {"calls": 1}}, {"phase": "actor_forward", "ledger": {"calls": 1}}]}, "notes": {}}
    assert verl_recipe.complaints({"faults": [rule], "phases": E5}, [entry]) == []
    [one] = verl_recipe.complaints({"faults": [{**rule, "where": {"operator": "matmul"}}], "phases": E5}, [entry])
    assert one["code"] == "never_fired" and "actor_backward" in one["sentence"]


def test_the_mismatch_of_two_policies():
    sampled, learning = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.2, -1.5, -0.5])
    ratios = [math.exp(-0.2), math.exp(0.5), 1.0]
    found = verl_metrics.of_mismatch(sampled, learning)
    assert found["faultline/mismatch/kl_k1"] == pytest.approx(-0.1, abs=1e-6)
    assert found["faultline/mismatch/kl_k3"] == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 3, abs=1e-6)
    assert found["faultline/mismatch/effective_sample_share"] == pytest.approx(sum(ratios) ** 2 / (3 * sum(ratio**2 for ratio in ratios)), abs=1e-6)
    assert [found[f"faultline/mismatch/ratio_p{percentile}"] for percentile in (1, 50, 99)] == pytest.approx(sorted(ratios), abs=1e-6)
    assert verl_metrics.of_mismatch(sampled[:0], learning[:0]) == {}
