"""A folder holds one experiment: trials of another recipe, calibration or verdict are refused, a design is of a whole pilot, a merge
takes all of its folders or none, and arms that are judged by different rules are no experiment."""

import json
import pathlib
import shutil
import sqlite3

import pytest

from experiment_test import RECIPES, SMALL, run, trials
from program import succeeded

GUIDED = RECIPES / "deadzone-guided.yaml"


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """By its path: then a folder's name is the same wherever it lies."""
    folder = tmp_path_factory.mktemp("model")
    path = folder / "small.yaml"
    path.write_text(SMALL)
    record = pathlib.Path(succeeded(run(path, folder, "--arms", "clean", "--seeds", "0"))["record"])
    return json.loads((record / "experiment.json").read_text())["recipe"]["model"]


@pytest.fixture(scope="module")
def two_arms(model):
    return f"model={model}", "--arms", "none,guided"


@pytest.fixture(scope="module")
def guided(two_arms, tmp_path_factory):
    """One seed of two arms of deadzone-guided."""
    return pathlib.Path(succeeded(run(GUIDED, tmp_path_factory.mktemp("guided"), *two_arms, "--seeds", "0"))["record"])


@pytest.fixture
def copy(guided, tmp_path):
    return pathlib.Path(shutil.copytree(guided, tmp_path / "runs" / guided.name))


def test_the_folder_of_another_recipe_is_refused(recipe, tmp_path):
    other, changed = tmp_path / "other", ["train.lr=2.0e-4"]
    ours = pathlib.Path(succeeded(run(recipe, tmp_path / "ours", "--seeds", "0"))["record"])
    shutil.copytree(ours, succeeded(run(recipe, other, *changed, "--dry-run"))["record"])
    refused = run(recipe, other, *changed)
    assert refused.returncode == 64 and not refused.stdout, refused.stdout
    assert "begun as another experiment" in refused.stderr and "/train/lr" in refused.stderr and "--out" in refused.stderr


def test_trials_of_another_calibration_are_refused(copy, two_arms, tmp_path):
    other = succeeded(run(GUIDED, tmp_path / "elsewhere", *two_arms, "experiment.calibrate.from=0.01", "--seeds", "0"))["record"]
    shutil.copy(pathlib.Path(other) / "calibration.json", copy / "calibration.json")  # as another machine may find it
    for seed in ("1", "0"):  # more trials, and the table alone
        refused = run(GUIDED, copy.parent, *two_arms, "--seeds", seed)
        assert refused.returncode == 64 and "was run with another recipe, calibration or verdict" in refused.stderr, refused.stderr
    assert set(trials(copy)) == {("none", 0), ("guided", 0)}


def test_a_verdict_is_sealed(copy, two_arms):
    verdict = json.loads((copy / "verdict.json").read_text())
    assert verdict["kind"] == "diagnose" and verdict["diagnosis_version"] == 1
    again = (*two_arms, "--seeds", "0")
    (copy / "verdict.json").write_text(json.dumps({**verdict, "candidates": [{**verdict["candidates"][0], "layer": 0}]}))
    refused = run(GUIDED, copy.parent, *again)
    assert refused.returncode == 2 and "edited or damaged" in refused.stderr, refused.stderr
    verdict.pop("seal")
    (copy / "verdict.json").write_text(json.dumps(verdict))
    refused = run(GUIDED, copy.parent, *again)
    assert refused.returncode == 64 and "it has no seal" in refused.stderr and "remove it" in refused.stderr, refused.stderr
    (copy / "verdict.json").unlink()
    assert succeeded(run(GUIDED, copy.parent, *again))["left"] == 0, "the same verdict once more"


def test_a_part_of_a_pilot_freezes_nothing(recipe, tmp_path):
    def pilot(*words):
        return run(recipe, tmp_path / "runs", "--pilot", *words)

    part = succeeded(pilot("--seeds", "0"))
    design = pathlib.Path(part["record"]) / "design.json"
    assert part["left"] == 2 and not design.exists()
    early = run(recipe, tmp_path / "runs")
    assert early.returncode == 64 and "2 of its trials are left" in early.stderr, early.stderr
    assert succeeded(pilot("--arms", "noisy"))["left"] == 1 and not design.exists()
    assert succeeded(pilot())["design"]["pilot"]["pairs"] == 2 and design.exists()
    third = ["++experiment.arms.third={}", "++experiment.contrasts=[{arm: noisy, against: clean}]"]
    nothing = run(recipe, tmp_path / "third", *third, "--pilot", "--arms", "third")
    assert nothing.returncode == 64 and "'noisy' and 'clean' alone" in nothing.stderr, nothing.stderr


def test_a_pilot_without_proof_makes_no_design(recipe, tmp_path):
    rare = "++faults.0.lifetime={kind: transient, probability: 1.0e-12}"
    result = run(recipe, tmp_path, rare, "--pilot")
    assert result.returncode == 3 and "of the pilot's trials is missing" in result.stderr and "--again" in result.stderr, result.stderr
    record = next(path for path in tmp_path.iterdir() if path.name.startswith("small-tiny"))
    assert not (record / "design.json").exists()


def test_a_merge_takes_all_folders_or_none(guided, copy, two_arms, tmp_path):
    with sqlite3.connect(copy / "campaign.sqlite") as store:
        store.execute("UPDATE trial SET fingerprint = 'other'")
    words = (*two_arms, "--seeds", "0")
    refused = run(GUIDED, tmp_path / "fresh", *words, "--merge", guided, "--merge", copy)
    assert refused.returncode == 64 and f"--merge {copy}" in refused.stderr, refused.stderr
    record = tmp_path / "fresh" / guided.name
    assert not trials(record) and not (record / "calibration.json").exists()
    done = succeeded(run(GUIDED, tmp_path / "fresh", *words, "--merge", guided))
    assert done["merged"] == 2 and done["record"] == str(record)
    twice = succeeded(run(GUIDED, tmp_path / "twice", *words, "--merge", guided, "--merge", guided))
    assert twice["merged"] == 2, "each trial once"


@pytest.mark.parametrize("arm,sentence", [
    ("{task: {name: arithmetic, difficulty: 2, train: 32, test: 8}}", "task differs from that of 'clean'"),
    ("{train.validation_problems: 1}", "train.validation_problems differs"),
    ("{train.validation_draws: 2}", "train.validation_draws differs"),
    ("{train.sft: {steps: 1, prompts: 4, lr: 1.0e-3}}", "train.sft differs"),
    ("{by_seed: {train.validation_problems: [2, 1]}}", "train.validation_problems differs"),
    ("{seed: 7}", "share its seeds"),
    ("{by_seed: {seed: [7, 8]}}", "share its seeds"),
])  # fmt: skip
def test_arms_that_are_judged_by_other_rules_are_refused(recipe, tmp_path, arm, sentence):
    refused = run(recipe, tmp_path / "runs", f"++experiment.arms.noisy={arm}")
    assert refused.returncode == 64 and "arm 'noisy'" in refused.stderr and sentence in refused.stderr, refused.stderr


@pytest.mark.parametrize("damage", [
    "json_set(outcome, '$.results', json('[1]'))",
    "json_remove(outcome, '$.curves.loss')",
    "json_set(outcome, '$.curves.seconds', 'soon')",
    "json_set(outcome, '$.run', 7)",
    "json_remove(outcome, '$.device')",
    "'[]'",
])  # fmt: skip
def test_trials_of_another_shape_are_refused_before_they_are_taken(guided, copy, two_arms, tmp_path, damage):
    with sqlite3.connect(copy / "campaign.sqlite") as store:
        store.execute(f"UPDATE trial SET outcome = {damage} WHERE cell = 'none'")
    words = (*two_arms, "--seeds", "0")
    refused = run(GUIDED, tmp_path / "fresh", *words, "--merge", copy)
    assert refused.returncode == 64 and "is not as this program writes it" in refused.stderr, refused.stderr
    opened = run(GUIDED, copy.parent, *words)
    assert opened.returncode == 64 and "is not as this program writes it" in opened.stderr, opened.stderr
    assert succeeded(run(GUIDED, tmp_path / "fresh", *words, "--merge", guided))["merged"] == 2, "nothing of it stayed"


def test_a_merge_copies_nothing_that_is_only_pointed_at(copy, two_arms, tmp_path):
    private = tmp_path / "private.txt"
    private.write_text("nobody's business")
    events = next(copy.glob("trials/*/*/events.jsonl"))
    events.unlink()
    events.symlink_to(private)
    refused = run(GUIDED, tmp_path / "fresh", *two_arms, "--seeds", "0", "--merge", copy)
    assert refused.returncode == 64 and "is a link to another place" in refused.stderr, refused.stderr
    assert not list((tmp_path / "fresh").rglob("events.jsonl"))
