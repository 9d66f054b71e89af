"""`faultline reproduce`: records of eval, run, train, race, triage, experiments and campaigns are made again from themselves and are equal to the bit;
a changed number is named; another model, another version, a damaged or unfinished record and a command that hides in a record
are refused."""

import functools
import json
import pathlib
import shutil
import sqlite3

import pytest

import tiny_folder
import program
from program import ROOT
from triage_test import TINY as TRIAGE

launch = functools.partial(program.launch, timeout=600)  # a busy machine may be slow
NOISE = "relative_gaussian(strength=0.3) @ operator=matmul"
EVAL = ["--dtype", "fp32", "--limit", "4", "--shots", "0", "--max-new-tokens", "6", "--slots", "4"]
RUN = """
model: {model}
seed: 4
task: {{name: arithmetic, difficulty: 1}}
evaluate: {{limit: 4, max_new_tokens: 6, slots: 4}}
faults: [{{name: noise, where: {{operator: matmul}}, what: {{kind: relative_gaussian, strength: 0.3}}}}]
"""
RACE = ["race", "--ranks", "2", "verify_iterations=4", "stop_on_first_corruption=false", "inject={kind: bitflip, layer: 1, rank: 1, iteration: 2}"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("reproduce") / "model")


def recorded(*arguments, key="record"):
    done = launch(*arguments, "--json", "--quiet")
    assert done.returncode in (0, 1), done.stderr
    return pathlib.Path(json.loads(done.stdout)[key])


@pytest.fixture(scope="module")
def evaluation(model, tmp_path_factory):
    return recorded("eval", "--model", model, *EVAL, "--fault", NOISE, "--seed", "3", "--out", tmp_path_factory.mktemp("eval"))


def reproduce(record, tmp_path, *arguments):
    done = launch("reproduce", record, "--out", tmp_path / "again", "--json", *arguments)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def equal(record, tmp_path):
    code, result = reproduce(record, tmp_path)
    assert code == 0, result
    assert result["equal"] and result["different"] == 0 and result["within_tolerance"] == 0 and result["changed"] == []
    assert pathlib.Path(result["again"]).exists() and str(tmp_path / "again") in result["again"]
    return result


def test_an_evaluation_is_reproduced_to_the_bit(evaluation, tmp_path):
    result = equal(evaluation, tmp_path)
    assert result["values"] > 50
    done = launch("reproduce", evaluation, "--out", tmp_path / "again")
    assert "bit for bit" in done.stdout and "-2" in done.stdout, "a second reproduction gets a folder of its own"
    assert "100%" in done.stderr, "progress is shown"
    assert launch("reproduce", evaluation, "--out", tmp_path / "again", "--quiet").stderr == ""


def test_an_injection_run_is_reproduced_to_the_bit(model, tmp_path):
    recipe = tmp_path / "noise.yaml"
    recipe.write_text(RUN.format(model=model))
    record = recorded("run", recipe, "--dtype", "fp32", "--out", tmp_path / "runs")
    recipe.unlink()  # the record alone must do
    equal(record, tmp_path)


def test_a_training_is_reproduced_to_the_bit(model, tmp_path):
    settings = ["train.steps=2", "train.sft.steps=1", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.validation_problems=2", "train.checkpoint_every=1"]
    record = recorded("train", ROOT / "recipes/train/tiny.yaml", f"model={model}", *settings, "--dtype", "fp32", "--out", tmp_path / "runs")
    result = equal(record, tmp_path)
    newest = sorted((pathlib.Path(result["again"]) / "checkpoints").iterdir())[-1]
    assert (newest / "state.safetensors").read_bytes() == (record / "checkpoints" / newest.name / "state.safetensors").read_bytes()
    shutil.rmtree(record / "checkpoints")  # they may be gigabytes; what is left is compared
    assert equal(record, tmp_path)["values"] < result["values"]


def test_a_training_that_was_resumed_is_reproduced_by_one_that_was_not(model, tmp_path):
    settings = ["train.steps=2", "train.sft.steps=1", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.validation_problems=2", "train.checkpoint_every=1",
                "faults=[{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}]"]  # fmt: skip
    record = recorded("train", ROOT / "recipes/train/tiny.yaml", f"model={model}", *settings, "--dtype", "fp32", "--out", tmp_path / "runs")
    shutil.rmtree(sorted((record / "checkpoints").iterdir())[-1])
    assert recorded("train", "--resume", record, "--dtype", "fp32") == record
    assert json.loads((record / "ledger.json").read_text())["ledger"]["joined"]["parts"] == 2
    equal(record, tmp_path)


def test_a_race_is_reproduced_with_its_findings(tmp_path):
    record = tmp_path / "race.json"
    assert launch(*RACE, "--seed", "9", "--out", record).returncode == 1
    assert json.loads(record.read_text())["made_by"]["seed"] == "9"
    equal(record, tmp_path)


def test_a_triage_is_reproduced_trial_by_trial(tmp_path):
    recipe = tmp_path / "matrix.yaml"
    recipe.write_text((TRIAGE % 1).replace(", {name: unread, mitigations: [ll-protocol]}", ""))
    assert launch("triage", "run", "--recipe", recipe, "--out", tmp_path / "matrix").returncode == 0
    recipe.unlink()
    equal(tmp_path / "matrix", tmp_path)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return recorded("run", ROOT / "recipes/experiments/deadzone-guided.yaml", "--scale", "tiny", "--arms", "none,guided", "--out", tmp_path_factory.mktemp("experiment"))


def test_an_experiment_is_reproduced_with_its_calibration_its_trials_and_its_table(experiment, tmp_path):
    whole = equal(experiment, tmp_path)
    one = reproduce(experiment, tmp_path, "--arms", "guided", "--seeds", "1")[1]
    assert one["equal"] and 20 < one["values"] < whole["values"] / 2, "a trial alone, without the table"
    assert len(list((pathlib.Path(one["again"]) / "trials").iterdir())) == 1


def edit_store(folder, statement, *values):
    store = sqlite3.connect(folder / "campaign.sqlite")
    store.execute(statement, values)
    store.commit()
    store.close()


def test_a_changed_trial_of_an_experiment_is_named_and_others_are_refused(experiment, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    first = "WHERE cell = 'none' AND trial_index = 0"
    edit_store(copy, f"UPDATE trial SET outcome = json_set(outcome, '$.results.\"val-core/arithmetic/acc/mean@1\"', 0.75) {first}")
    code, result = reproduce(copy, tmp_path)
    assert code == 1 and [one["path"] for one in result["differences"]] == ["/trials/none/0/results/val-core/arithmetic/acc/mean@1"]
    assert reproduce(copy, tmp_path, "--arms", "guided")[0] == 0
    code, text = reproduce(copy, tmp_path, "--arms", "global")
    assert code == 64 and "no trial of arm 'global'" in text
    edit_store(copy, f"UPDATE trial SET outcome = json_set(outcome, '$.versions.torch', '1.0') {first}")
    code, text = reproduce(copy, tmp_path)
    assert code == 64 and 'torch: it was made with "1.0"' in text
    assert reproduce(copy, tmp_path, "--seeds", "1")[0] == 0, "the others were made with this program"
    edit_store(copy, f"UPDATE trial SET outcome = json_remove(outcome, '$.device') {first}")
    code, text = reproduce(copy, tmp_path, "--arms", "none", "--anyway")
    assert code == 64 and "not a record as this program writes it" in text
    (copy / "provenance.json").write_text("x")
    assert reproduce(copy, tmp_path, "--seeds", "1")[0] == 64
    (copy / "provenance.json").unlink()
    (copy / "experiment.json").unlink()
    code, text = reproduce(copy, tmp_path, "--seeds", "1")
    assert code == 64 and "does not say how it was made" in text


def test_names_that_an_author_chose_are_no_times(tmp_path):
    """An arm called slow and a fault called seconds are compared like any other."""
    recipe = tmp_path / "slow.yaml"
    recipe.write_text((ROOT / "recipes/experiments/robustness.yaml").read_text().replace("clean_training", "slow").replace("noise_10", "seconds"))
    record = recorded("run", recipe, "--scale", "tiny", "--seeds", "0", "--arms", "slow", "--out", tmp_path / "runs")
    equal(record, tmp_path)
    edit_store(record, "UPDATE evidence SET body = json_set(body, '$.evaluations.seconds.counts[0].changed', 1)")
    code, result = reproduce(record, tmp_path)
    assert code == 1 and [one["path"] for one in result["differences"]] == ["/trials/slow/0/evidence/evaluations/seconds/counts/0/changed"]


def test_trials_of_several_devices_are_chosen_apart(experiment, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    edit_store(copy, "UPDATE trial SET outcome = json_set(outcome, '$.device', 'cuda:0') WHERE cell = 'guided'")
    code, text = reproduce(copy, tmp_path)
    assert code == 64 and "cpu and cuda:0" in text
    assert reproduce(copy, tmp_path, "--arms", "none", "--seeds", "0")[0] == 0


def test_a_model_that_was_moved_is_named(tmp_path):
    record = recorded("run", ROOT / "recipes/experiments/aqn-only.yaml", "--scale", "tiny", "--seeds", "0", "--arms", "none", "--out", tmp_path / "runs")
    moved = (tmp_path / "runs").rename(tmp_path / "moved") / record.name
    code, text = reproduce(moved, tmp_path)
    assert code == 64 and "not here" in text and "--model" in text
    assert not list((tmp_path / "again").iterdir()), "a refusal leaves no folder"
    assert reproduce(moved, tmp_path, "--model", tmp_path / "moved" / ".small-model")[0] == 0
    code, text = reproduce(moved, tmp_path, "--model", tiny_folder.make(tmp_path / "other"))
    assert code == 64 and "the model has changed" in text
    (moved / "provenance.json").unlink()
    code, text = reproduce(moved, tmp_path, "--model", tmp_path / "moved" / ".small-model")
    assert code == 64 and "does not say which model it used" in text
    assert reproduce(moved, tmp_path, "--model", tmp_path / "moved" / ".small-model", "--anyway")[0] == 0, "of the published tables"


def test_a_campaign_of_diagnoses_is_reproduced_trial_by_trial(model, tmp_path):
    recipe, store = tmp_path / "campaign.yaml", tmp_path / "diagnosis.db"

    def go_on(healthy, *words):
        recipe.write_text(f"{{model: {model}, seed: 5, diagnose: {{campaign: smoke, methods: [self], healthy: {healthy}, store: {store.name}}}}}")
        assert launch("run", recipe, "--dtype", "fp32", "--out", tmp_path, *words).returncode == 0

    go_on(2, "--time-limit", "0.01")
    code, text = reproduce(store, tmp_path)
    assert code == 64 and "left to do" in text
    go_on(2)
    few = equal(store, tmp_path)["values"]
    go_on(3)
    assert equal(store, tmp_path)["values"] > few > 50, "a store that was made larger is made again as it is"
    beside = tmp_path / "diagnosis.db.provenance.json"
    assert json.loads(beside.read_text())["recipe"]["diagnose"]["healthy"] == 3
    beside.unlink()
    code, text = reproduce(store, tmp_path, "--anyway")
    assert code == 64 and "does not say how it was made" in text
    go_on(3)
    assert not beside.exists(), "who only goes on with a store does not say that he began it"


def test_a_trial_alone_is_referred_to_its_experiment(experiment, tmp_path):
    (trial,) = (experiment / "trials" / "none-0").glob("none-0-*")
    code, text = reproduce(trial, tmp_path)
    assert code == 64 and "--arms and --seeds" in text


# --- what differs, and what is refused ----------------------------------------------------------------------------------
def test_a_number_that_was_changed_is_named(tmp_path):
    record = tmp_path / "race.json"
    assert launch(*RACE, "--out", record).returncode == 1
    changed = json.loads(record.read_text())
    changed["iterations"] += 1
    record.write_text(json.dumps(changed))
    code, result = reproduce(record, tmp_path)
    assert code == 1 and not result["equal"]
    assert [one["path"] for one in result["differences"]] == ["/iterations"]
    code, result = reproduce(record, tmp_path, "--tolerance", "0.5")
    assert code == 0 and result["within_tolerance"] == 1
    code, text = reproduce(record, tmp_path, "--seeds", "0")
    assert code == 64 and "it is none" in text


def test_another_model_is_refused_unless_asked_for(model, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    record = recorded("eval", "--model", copy, *EVAL, "--out", tmp_path / "runs")
    tiny_folder.make(copy, seed=1)  # the same shape, other weights
    code, text = reproduce(record, tmp_path)
    assert code == 64 and "the model has changed" in text and "--anyway" in text
    code, result = reproduce(record, tmp_path, "--anyway")
    assert code in (0, 1) and any("fingerprint" in sentence for sentence in result["changed"])  # so small a model may still answer alike
    shutil.rmtree(copy)
    code, text = reproduce(record, tmp_path, "--anyway")
    assert code == 64 and "not here" in text


def test_another_version_is_refused_unless_asked_for(tmp_path):
    record = tmp_path / "race.json"
    assert launch(*RACE, "--out", record).returncode == 1
    changed = json.loads(record.read_text())
    changed["made_by"]["versions"]["torch"] = "1.0"
    record.write_text(json.dumps(changed))
    code, text = reproduce(record, tmp_path)
    assert code == 64 and 'torch: it was made with "1.0"' in text
    assert reproduce(record, tmp_path, "--anyway")[0] == 0
    del changed["made_by"]
    record.write_text(json.dumps(changed))
    code, text = reproduce(record, tmp_path, "--anyway")
    assert code == 64 and "does not say how it was made" in text


def test_records_that_are_not_whole_are_refused(evaluation, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(evaluation, broken)
    (broken / "summary.json").unlink()
    code, text = reproduce(broken, tmp_path)
    assert code == 64 and "summary.json" in text and "whole" in text
    edited = tmp_path / "edited"
    shutil.copytree(evaluation, edited)
    summary = json.loads((edited / "summary.json").read_text())
    summary["results"]["rows"][0]["label"] += "!"
    (edited / "summary.json").write_text(json.dumps(summary))
    code, text = reproduce(edited, tmp_path)
    assert code == 64 and "seal" in text
    assert reproduce(tmp_path / "nothing", tmp_path)[0] == 64
    assert launch("reproduce", evaluation, "--tolerance", "2").returncode == 64


def test_the_record_says_what_made_it(evaluation, model):
    made_by = json.loads((evaluation / "provenance.json").read_text())
    assert made_by["command"][0] == "eval" and made_by["model"]["dtype"] == "fp32"
    assert len(made_by["model"]["fingerprint"]) == 16 and made_by["model"]["path"] == str(model)
    assert set(made_by["versions"]) >= {"version", "commit", "torch"}
