"""Experiments from the command line, at scale tiny (a random model of two layers): every recipe that ships, trials that are
stopped, killed, split and merged, the design before the run, and trials whose noise did not happen."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

import program
from program import PROGRAM, ROOT, succeeded

RECIPES = ROOT / "recipes/experiments"
CLEAN = "{rollout: false, actor_forward: false, actor_backward: false, eval: both}"
SMALL = f"""
seed: 1
phases: {{eval: both}}
faults:
  - {{name: noise, where: {{operator: matmul}}, what: {{kind: relative_gaussian, strength: 0.05}}}}
train: {{algorithm: grpo, lr: 1.0e-4}}
experiment:
  question: does noise matter?
  control: clean
  seeds: 2
  arms:
    clean: {{phases: {CLEAN}}}
    noisy: {{}}
"""


ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as fast as two at this size, and the same everywhere


def launch(*arguments, timeout=600):
    return program.launch(*arguments, env=ONE_THREAD, timeout=timeout)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run(recipe, out, *arguments):
    return launch("run", recipe, *arguments, "--scale", "tiny", "--json", "--quiet", "--out", out)


def trials(record):
    with sqlite3.connect(pathlib.Path(record) / "campaign.sqlite") as store:
        rows = store.execute("SELECT cell, trial_index, status, outcome, body FROM trial JOIN evidence ON evidence.trial = trial.id")
        return {(cell, index): (status, json.loads(outcome), json.loads(body)) for cell, index, status, outcome, body in rows}


def results(record):
    """What must be equal in equal experiments: no times, no folder names."""
    return {
        key: (status, outcome["results"], outcome["curves"]["reward"], outcome["curves"]["loss"], evidence)
        for key, (status, outcome, evidence) in trials(record).items()
    }


def counts(evidence):
    return {(row["rule"], row["phase"]): row["changed"] for row in evidence["faults"]["counts"]}


def test_faults_that_draw_nothing_are_judged_once_and_noise_as_often_as_asked(tmp_path):
    path = tmp_path / "judged.yaml"
    evaluate = "{drawn: [{name: d, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.1}}], fixed: [{name: f, where: {operator: matmul}, what: {kind: gain, strength: 0.02}}]}"
    path.write_text(SMALL + f"  draws: 3\n  evaluate: {evaluate}\n")
    drawn = trials(succeeded(run(path, tmp_path / "runs", "--seeds", "0", "--arms", "noisy", "experiment.draws=3", "train.validation_draws=3"))["record"])
    what = "faults.0.what={kind: truncate, bits: 4}"
    fixed = trials(succeeded(run(path, tmp_path / "fixed", "--seeds", "0", "--arms", "noisy", "experiment.draws=3", "train.validation_draws=3", what))["record"])
    (_, _, noisy), (_, _, cut) = drawn[("noisy", 0)], fixed[("noisy", 0)]

    def calls(evidence, phase="eval"):
        return next(row["calls"] for row in evidence["counts"] if row["phase"] == phase)

    once = calls(noisy["evaluations"]["fixed"])
    assert once > 0 and 2 * once < calls(noisy["evaluations"]["drawn"]) <= 4 * once  # answers differ in length from draw to draw
    assert calls(noisy["faults"]) >= 2 * calls(cut["faults"])  # the start once, the end thrice, and both once


NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.fixture(scope="module")
def every_recipe(tmp_path_factory):
    """All of them, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        yield {name: pool.submit(run, RECIPES / f"{name}.yaml", tmp_path_factory.mktemp(name), "experiment.seeds=1") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_runs_at_tiny_with_the_evidence_of_every_arm(every_recipe, name):
    done = succeeded(every_recipe[name].result())
    arms = {row["arm"]: row for row in done["analysis"]["arms"]}
    assert done["left"] == 0 and all(row["trials"] == 1 for row in arms.values())
    for (arm, _), (status, outcome, evidence) in trials(done["record"]).items():
        assert status == "pass", (arm, outcome.get("complaints"), outcome.get("reason"))
        recipe = json.loads((pathlib.Path(done["record"]) / "trials" / outcome["run"] / "manifest.json").read_text())["recipe"]
        if recipe["faults"]:
            changed = counts(evidence)
            visible = {rule["name"] for rule in recipe["faults"] if rule.get("expect") != "invisible"}
            assert visible <= {rule for (rule, _), count in changed.items() if count > 0}, arm
            phases = {phase for _, phase in changed}
            assert ("rollout" in phases) == (recipe["phases"]["rollout"] or "aqn" in {rule for rule, _ in changed}), arm
        if recipe.get("aqn", {}).get("sites") == "norm_weight":
            assert evidence["aqn"]["noisy_steps"] > 0 and evidence["aqn"]["changed"] > 0, arm


def test_the_guided_arm_follows_calibration_and_diagnosis(every_recipe):
    done = succeeded(every_recipe["deadzone-guided"].result())
    record = pathlib.Path(done["record"])
    calibration = done["analysis"]["calibration"]
    assert 0.05 <= calibration["share"] <= 0.95 and len(calibration["sweep"]) >= 1
    verdict = json.loads((record / "verdict.json").read_text())
    assert verdict["candidates"][0]["layer"] == 1, "the layer that was broken"
    seen = {}
    for (arm, _), (_, outcome, evidence) in trials(record).items():
        recipe = json.loads((record / "trials" / outcome["run"] / "manifest.json").read_text())["recipe"]
        assert recipe["faults"][0]["what"]["threshold"] == calibration["value"], "every arm has the calibrated fault"
        seen[arm] = (recipe.get("aqn", {}).get("layers"), evidence.get("aqn", {}).get("weights"))
    assert seen["guided"] == ({"from_verdict": str(record / "verdict.json")}, 2), "two norms of one layer of two"
    assert seen["wrong_layer"] == (0, 2) and seen["none"] == (None, None)
    again = succeeded(run(RECIPES / "deadzone-guided.yaml", record.parent, "experiment.seeds=1"))
    assert again["analysis"] == done["analysis"], "nothing is calibrated or diagnosed twice"


def test_an_experiment_that_is_stopped_and_split_equals_one_that_is_not(recipe, tmp_path):
    whole = succeeded(run(recipe, tmp_path / "whole"))
    first = succeeded(run(recipe, tmp_path / "a", "--seeds", "0", "--arms", "noisy"))
    assert first["left"] == 0 and set(trials(first["record"])) == {("noisy", 0)}
    second = succeeded(run(recipe, tmp_path / "a"))
    assert results(second["record"]) == results(whole["record"])
    assert succeeded(run(recipe, tmp_path / "a"))["analysis"] == second["analysis"], "nothing is left, nothing is done twice"
    stopped = succeeded(run(recipe, tmp_path / "b", "--time-limit", "0.001s"))
    assert stopped["left"] == 3, "one trial begins, and after it none"


def test_a_merge_into_nothing_brings_design_calibration_and_verdict(every_recipe, tmp_path):
    done = succeeded(every_recipe["deadzone-guided"].result())
    model = json.loads((pathlib.Path(done["record"]) / "experiment.json").read_text())["recipe"]["model"]
    merged = succeeded(run(RECIPES / "deadzone-guided.yaml", tmp_path, "experiment.seeds=1", f"model={model}", "--merge", done["record"]))
    assert merged["merged"] == 7 and merged["left"] == 0
    for name in ("design.json", "calibration.json", "verdict.json"):
        assert (pathlib.Path(merged["record"]) / name).read_bytes() == (pathlib.Path(done["record"]) / name).read_bytes()
    assert merged["analysis"]["contrasts"] == done["analysis"]["contrasts"]


def test_the_arms_of_a_seed_start_from_the_same_weights(recipe, tmp_path):
    record = succeeded(run(recipe, tmp_path, "++train.sft={steps: 2, prompts: 4, lr: 1.0e-3}", "--jobs", "2"))["record"]
    starts = {key: outcome["curves"]["start_weights"] for key, (_, outcome, _) in trials(record).items()}
    for seed in (0, 1):
        assert starts["clean", seed] == starts["noisy", seed]
    assert starts["clean", 0] != starts["clean", 1]
    assert not (pathlib.Path(record) / "starts").exists(), "when no trial is left, nothing needs them"
    events = next((pathlib.Path(record) / "trials" / "noisy-0").glob("*/events.jsonl")).read_text().splitlines()
    kinds = [(event["kind"], event.get("stage"), event["step"]) for event in map(json.loads, events)]
    assert kinds == [("start", None, 2), ("step", "grpo", 3), ("step", "grpo", 4)], "supervised steps are not made again"


def test_a_seed_is_the_same_whatever_ran_before_it(recipe, tmp_path):
    sft = "++train.sft={steps: 2, prompts: 4, lr: 1.0e-2}"
    alone = results(succeeded(run(recipe, tmp_path / "alone", sft, "--seeds", "1"))["record"])
    after_another = results(succeeded(run(recipe, tmp_path / "both", sft, "--jobs", "1"))["record"])
    assert {key: after_another[key] for key in alone} == alone and len(alone) == 2
    begun = [outcome["curves"]["start_weights"] for record in (tmp_path / "alone", tmp_path / "both")
             for key, (_, outcome, _) in trials(next(record.glob("small-tiny-*"))).items() if key[1] == 1]  # fmt: skip
    assert len(begun) == 4 and len(set(begun)) == 1, "a start is made from the model as it is, never from what a trial before left"


def test_scale_short_makes_fewer_and_smaller_steps_of_the_same_arms(every_recipe, tmp_path):
    record = succeeded(every_recipe["noisy-ops"].result())["record"]
    model = json.loads((pathlib.Path(record) / "experiment.json").read_text())["recipe"]["model"]
    command = ("run", RECIPES / "noisy-ops.yaml", f"model={model}", "--dry-run", "--json", "--quiet", "--out", tmp_path)
    short, whole = (succeeded(launch(*command, "--scale", scale)) for scale in ("short", "default"))
    size = lambda dry: {name: arm["train"]["steps"] * arm["train"]["prompts"] * arm["train"]["n"] for name, arm in dry["arms"].items()}
    assert size(short) == dict.fromkeys(whole["arms"], 20 * 24 * 8) and size(whole) == dict.fromkeys(whole["arms"], 40 * 96 * 8)
    assert short["trials"] == whole["trials"] == 72, "six arms, twelve seeds"
    faults = lambda dry: {name: arm["faults"] for name, arm in dry["arms"].items()}
    assert faults(short) == faults(whole)


def test_trials_of_two_machines_are_merged_once_each(recipe, tmp_path):
    here = succeeded(run(recipe, tmp_path / "here", "--seeds", "0"))
    there = succeeded(run(recipe, tmp_path / "there", "--seeds", "1"))
    merged = succeeded(run(recipe, tmp_path / "here", "--merge", there["record"]))
    assert merged["merged"] == 2 and merged["left"] == 0
    assert results(merged["record"]) == results(here["record"]) | results(there["record"])
    assert succeeded(run(recipe, tmp_path / "here", "--merge", there["record"]))["merged"] == 0
    other = succeeded(run(recipe, tmp_path / "other", "train.lr=2.0e-4", "--seeds", "1"))
    refused = run(recipe, tmp_path / "here", "--merge", other["record"])
    assert refused.returncode == 64 and "its recipe differs, first at /train/lr" in refused.stderr, refused.stderr
    config = json.loads((pathlib.Path(there["record"]) / "experiment.json").read_text())
    model = pathlib.Path(config["recipe"]["model"])
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in model.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-2] ^= 0x20  # a bit of the last weight that bf16 shows too
    (changed / "model.safetensors").write_bytes(weights)
    foreign = succeeded(run(recipe, tmp_path / "foreign", f"model={changed}", "--seeds", "1"))
    refused = run(recipe, tmp_path / "here", "--merge", foreign["record"])
    assert refused.returncode == 64 and "other weights" in refused.stderr, refused.stderr


def rewrite(record, change):
    """Of every stored trial's curves."""
    with sqlite3.connect(pathlib.Path(record) / "campaign.sqlite") as store:
        for number, text in store.execute("SELECT id, outcome FROM trial").fetchall():
            outcome = json.loads(text)
            change(outcome["curves"])
            store.execute("UPDATE trial SET outcome = ? WHERE id = ?", (json.dumps(outcome), number))


def test_arms_of_a_seed_that_began_with_other_weights_are_not_put_together(recipe, tmp_path):
    sft = "++train.sft={steps: 2, prompts: 4, lr: 1.0e-3}"
    here = succeeded(run(recipe, tmp_path / "here", sft, "--arms", "clean", "--seeds", "0"))["record"]
    there = succeeded(run(recipe, tmp_path / "there", sft, "--arms", "noisy", "--seeds", "0"))["record"]
    digest = trials(here)["clean", 0][1]["curves"]["start_weights"]
    assert trials(there)["noisy", 0][1]["curves"]["start_weights"] == digest, "one kind of machine, the same bits"
    other = "0" * len(digest)
    rewrite(there, lambda curves: curves.update(start_weights=other))  # as on other hardware
    refused = run(recipe, tmp_path / "here", sft, "--merge", there)
    assert refused.returncode == 64 and "arm 'noisy' began seed 0 with other weights than arm 'clean'" in refused.stderr, refused.stderr
    assert digest[:16] in refused.stderr and set(trials(here)) == {("clean", 0)}, "nothing was taken"
    rewrite(there, lambda curves: curves.pop("start_weights"))
    refused = run(recipe, tmp_path / "here", sft, "--merge", there)
    assert refused.returncode == 64 and "does not say which weights it began with" in refused.stderr, refused.stderr
    # The same folder on another machine, which has to train the supervised steps anew.
    rewrite(here, lambda curves: curves.update(start_weights=other))
    refused = run(recipe, tmp_path / "here", sft, "--arms", "noisy", "--seeds", "0")
    assert refused.returncode == 64 and "arm 'noisy' began seed 0 with other weights" in refused.stderr, refused.stderr
    assert succeeded(run(recipe, tmp_path / "here", sft, "--seeds", "1"))["left"] == 0, "other seeds are other pairs"
    rewrite(here, lambda curves: curves.update(start_weights=digest) if curves["start_weights"] == other else None)
    rewrite(there, lambda curves: curves.update(start_weights=digest))
    assert succeeded(run(recipe, tmp_path / "here", sft, "--merge", there))["merged"] == 1


def children(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"PPid:\t{pid}\n" in (entry / "status").read_text(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def test_a_killed_worker_loses_nothing(recipe, tmp_path):
    whole = succeeded(run(recipe, tmp_path / "whole"))
    command = [PROGRAM, "run", recipe, "--scale", "tiny", "--json", "--quiet", "--out", tmp_path / "jobs", "--jobs", "2"]
    environment = {**os.environ, **ONE_THREAD}
    parent = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    workers = []
    while parent.poll() is None and not (workers := children(parent.pid)):
        time.sleep(0.01)
    assert workers, "it ended before it had a worker"
    os.kill(workers[0], signal.SIGKILL)
    output, errors = parent.communicate(timeout=600)
    assert parent.returncode == 0, errors
    done = json.loads(output)
    assert done["left"] == 0 and results(done["record"]) == results(whole["record"])


def test_a_pilot_makes_the_design_and_the_design_is_frozen(recipe, tmp_path):
    pilot = succeeded(run(recipe, tmp_path, "--pilot"))
    assert pilot["design"]["pilot"]["pairs"] == 2 and pilot["design"]["seeds"] == 2
    assert set(trials(pilot["record"])) == {("pilot:clean", 0), ("pilot:clean", 1), ("pilot:noisy", 0), ("pilot:noisy", 1)}
    done = succeeded(run(recipe, tmp_path))
    assert done["analysis"]["design"] == pilot["design"] and done["record"] == pilot["record"]
    seeds = {seed: outcome["run"] for (cell, seed), (_, outcome, _) in trials(done["record"]).items() if cell == "noisy"}
    assert len(seeds) == 2
    succeeded(run(recipe, tmp_path / "late"))
    late = run(recipe, tmp_path / "late", "--pilot")
    assert late.returncode == 64 and "frozen" in late.stderr


def test_the_statistics_are_those_of_the_trials(recipe, tmp_path):
    done = succeeded(run(recipe, tmp_path))
    metric = "faultline/val-faulty/arithmetic/acc/mean@1"
    by_arm = {arm: [trials(done["record"])[arm, seed][1]["results"][metric] for seed in (0, 1)] for arm in ("clean", "noisy")}
    contrast = done["analysis"]["contrasts"][0]
    differences = [a - b for a, b in zip(by_arm["noisy"], by_arm["clean"])]
    assert contrast["difference"] == pytest.approx(sum(differences) / 2) and contrast["pairs"] == 2
    assert contrast["p"] >= contrast["smallest_p"] == 0.5, "lesson 57: two seeds cannot say anything"
    assert done["analysis"]["fewest_pairs_for_holm"] == 6


def test_a_trial_whose_fault_never_acted_fails_closed(recipe, tmp_path):
    rare = "faults.0.lifetime={kind: transient, probability: 1.0e-12}"
    result = run(recipe, tmp_path, f"++{rare}", "--arms", "noisy", "--seeds", "0")
    assert result.returncode == 3 and "the evidence of 1 trials is missing" in result.stderr, result.stderr
    record = next(path for path in tmp_path.iterdir() if path.name.startswith("small-tiny"))
    status, outcome, _ = trials(record)["noisy", 0]
    assert status == "error" and "results" not in outcome
    assert {complaint["code"] for complaint in outcome["complaints"]} == {"asleep"}, outcome["complaints"]


def test_the_tables_of_a_page_come_from_the_analysis(every_recipe, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n")
    records = [succeeded(every_recipe[name].result())["record"] for name in ("noisy-ops", "deadzone-guided")]
    subprocess.run([sys.executable, ROOT / "tests/experiment_tables.py", page, *records], check=True)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    for words in ("### noisy-ops-tiny", "| e5d | 1 |", "| unseen_gain | baseline |", "Calibrated: ", "guided against global (guided − global)"):
        assert words in text, words


def test_the_published_tables_are_those_of_their_records(tmp_path):
    published = ROOT / "docs/results/aqn.md"
    page = tmp_path / "aqn.md"
    page.write_bytes(published.read_bytes())
    records = sorted(path.parent for path in (ROOT / "docs/results/aqn").glob("*-default/analysis.json"))
    subprocess.run([sys.executable, ROOT / "tests/experiment_tables.py", page, *records], check=True)
    assert page.read_text() == published.read_text()


def test_a_trial_whose_noise_the_model_cannot_bear_leaves_the_others_alone(tmp_path):
    # Whatever is asked, the answer is 7: a model of two layers knows it after the supervised steps, and loses it under the noise.
    seven = tmp_path / "seven.jsonl"
    seven.write_text("".join(json.dumps({"question": f"What is {i}?", "answer": "It is\n#### 7"}) + "\n" for i in range(32)))
    file = tmp_path / "small.yaml"
    file.write_text(SMALL.replace("    noisy: {}", "    noisy: {aqn: {schedule: constant, sigma_start: 3.0}}"))
    task = [f"task={{name: gsm8k, train_file: {seven}, test_file: {seven}}}", "++train.sft={steps: 60, prompts: 16, lr: 1.0e-2}",
            "train.max_new_tokens=12", "train.validation_problems=8", "experiment.seeds=1"]  # fmt: skip
    done = run(file, tmp_path / "runs", *task, "--dtype", "fp32")
    assert done.returncode == 3 and "arm 'noisy': the evidence of 1 trials is missing" in done.stderr, done.stderr
    record = next(path for path in (tmp_path / "runs").iterdir() if path.name.startswith("small-tiny"))
    kept = trials(record)
    before = shutil.copytree(record, tmp_path / "before")
    assert kept["clean", 0][0] == "pass" and kept["noisy", 0][0] == "error"
    [complaint] = kept["noisy", 0][1]["complaints"]
    assert complaint["code"] == "unproven" and "below four fifths" in complaint["sentence"]
    same = run(file, tmp_path / "runs", *task, "--dtype", "fp32")
    assert same.returncode == 3 and set(trials(record)) == set(kept)
    for words, left in (([], 0), (["--again"], 1)):
        asked = run(file, tmp_path / "runs", *task, "--dtype", "fp32", "--dry-run", *words)
        assert (answer := succeeded(asked))["left"] == left and answer["record"] == str(record)
    again = run(file, tmp_path / "runs", *task, "--dtype", "fp32", "--again", "--jobs", "2")
    assert again.returncode == 3, again.stderr
    tried = trials(record)
    assert set(tried) == {*kept, ("earlier-1:noisy", 0)} and tried["earlier-1:noisy", 0] == kept["noisy", 0]
    assert tried["clean", 0] == kept["clean", 0] and "below four fifths" in tried["noisy", 0][1]["complaints"][0]["sentence"]
    analysis = json.loads((record / "analysis.json").read_text())
    row = next(row for row in analysis["arms"] if row["arm"] == "noisy")
    assert row["earlier_attempts"] == [complaint["sentence"]] and row["evidence_missing"] == 1
    after = record.rename(tmp_path / "after")
    before.rename(record)
    for taken in (1, 0):
        merged = run(file, tmp_path / "runs", *task, "--dtype", "fp32", "--merge", after)
        assert merged.returncode == 3 and json.loads(merged.stdout)["merged"] == taken, merged.stderr
        assert trials(record) == tried, "a later attempt takes the place of the one that it repeats"
    both = launch("run", file, "--scale", "tiny", "--again", "--merge", record)
    assert both.returncode == 64 and "one of them" in both.stderr


def test_robustness_has_accuracy_loss_and_recovery_under_unseen_faults(every_recipe):
    done = succeeded(every_recipe["robustness"].result())
    row = next(row for row in done["analysis"]["arms"] if row["arm"] == "noisy_training")
    assert set(row["under"]) == {"noise_5", "noise_10", "unseen_gain", "unseen_truncation"}
    assert all(set(one) >= {"accuracy", "degradation", "recovery"} for one in row["under"].values())
    _, _, evidence = trials(done["record"])["noisy_training", 0]
    for label, one in evidence["evaluations"].items():
        assert one["counts"][0]["rule"] == label and one["counts"][0]["changed"] > 0 and set(one["forwards"]) == {"eval"}


def test_a_dry_run_predicts_time_and_memory_and_writes_nothing(recipe, tmp_path):
    dry = succeeded(run(recipe, tmp_path / "runs", "--dry-run"))
    assert dry["trials"] == dry["left"] == 4 and dry["seconds"] > 0 and dry["prediction"]["memory_bytes"]["total"] > 0
    assert not (tmp_path / "runs").exists()
    text = launch("run", recipe, "--scale", "tiny", "--dry-run", "--out", tmp_path / "runs")
    assert "contrast noisy - clean" in text.stdout and "memory" in text.stdout


def test_finished_trials_keep_their_record_and_no_checkpoint(recipe, tmp_path):
    done = succeeded(run(recipe, tmp_path, "--arms", "noisy", "--seeds", "0"))
    _, outcome, _ = trials(done["record"])["noisy", 0]
    kept = pathlib.Path(done["record"]) / "trials" / outcome["run"]
    assert (kept / "ledger.json").exists() and (kept / "events.jsonl").exists() and not (kept / "checkpoints").exists()


@pytest.mark.parametrize("arguments,sentence", [
    (["--scale", "tyni"], "did you mean 'tiny'"),
    (["--scale", "paper"], "give a model"),
    (["--scale", "tiny", "--arms", "noysi"], "did you mean 'noisy'"),
    (["--scale", "tiny", "--seeds", "0-7"], "the seeds 0 to 1"),
    (["--scale", "tiny", "--seeds", "3-1"], "counts downwards"),
    (["--scale", "tiny", "--jobs", "0"], "--jobs"),
    (["--scale", "tiny", "--time-limit", "soon"], "--time-limit"),
    (["--scale", "tiny", "++experiment.contrasts=[{arm: noisy, against: cleen}]"], "did you mean 'clean'"),
    (["--scale", "tiny", "++experiment.contrasts=[{arm: noisy, against: noisy}]"], "compared with itself"),
    (["--scale", "tiny", "experiment.control=cleann"], "did you mean 'clean'"),
    (["--scale", "tiny", "++experiment.arms.noisy={train.steps: 0}"], "arm 'noisy'"),
    (["--scale", "tiny", "++experiment.arms.noisy={experiment.seeds: 9}"], "not the experiment"),
    (["--scale", "tiny", "++experiment.arms.noisy={aqn: {schedule: constan}}"], "arm 'noisy'"),
    (["--scale", "tiny", "++experiment.arms.noisy={model: elsewhere}"], "one model"),
    (["--scale", "tiny", "++experiment.arms.noisy={by_seed: {seed: 3}}"], "by_seed"),
    (["--scale", "tiny", "train.prompts=3"], "micro_batch 4 does not divide"),
    (["--scale", "tiny", "++experiment.calibrate={rule: nois, from: 0.1, to: 0.2}"], "there is no fault 'nois'"),
])  # fmt: skip
def test_what_cannot_be_an_experiment_is_refused(recipe, tmp_path, arguments, sentence):
    result = launch("run", recipe, *arguments, "--quiet", "--out", tmp_path / "runs")
    assert result.returncode == 64 and sentence in result.stderr, (result.returncode, result.stderr)


def test_options_of_experiments_are_refused_elsewhere(tmp_path):
    result = launch("run", ROOT / "recipes/example.yaml", "--arms", "e5")
    assert result.returncode == 64 and "no section experiment" in result.stderr
    result = launch("run", ROOT / "recipes/example.yaml", "--jobs", "2")
    assert result.returncode == 64 and "belong to experiments and campaigns" in result.stderr
