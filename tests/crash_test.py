"""train, experiments, campaigns of diagnosis, triage and report under kill, terminate, stop, a full and an erring disk, at
random moments, then resumed: nothing lost, nothing twice, nothing torn, and the end as if nothing had happened. Trainings and
experiments are with faults that are drawn call by call, with AQN and a supervised start, and their joined evidence is compared
too. The suite's version has a few disturbances a command; FAULTLINE_KILLS sets how many strike in all (the long version: 200),
and FAULTLINE_CRASH_SEED chooses other moments. What struck is in crash.json of the build folder."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile

import pytest

import tiny_folder
import program
from program import PROGRAM, ROOT

sys.path.insert(0, str(pathlib.Path(__file__).parent / "crash"))
import harness  # noqa: E402

launch = functools.partial(program.launch, timeout=600)  # a busy machine may be slow
COMMANDS = 5
KILLS = -(-int(os.environ.get("FAULTLINE_KILLS", "15")) // COMMANDS)  # of each
SEED = int(os.environ.get("FAULTLINE_CRASH_SEED", "1"))
ACCOUNT = PROGRAM.parent / "crash.json"
TIMES = {"times", "seconds", "step_seconds", "slow", "started", "finished", "crc", "seal", "created", "timing_s/step", "overhead", "run", "noise_seconds", "noise_seconds_a_step"}
HISTORY = {"parts"}  # in how many parts a run was made


@pytest.fixture(scope="module", autouse=True)
def account():
    ACCOUNT.unlink(missing_ok=True)


def disturb(subject, folder, seed):
    struck = harness.disturb_until(subject, folder, KILLS, seed, account=ACCOUNT)
    assert sum(struck.values()) >= KILLS, struck


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("crash") / "model")


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES | HISTORY}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def visible(folder):
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []


def trials(store):
    """(cell, index) -> row without times. Read from a copy, which may be recovered as the program itself would recover it."""
    if not store.exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        for file in store.parent.glob(store.name + "*"):
            shutil.copy(file, folder)
        with contextlib.closing(sqlite3.connect(pathlib.Path(folder) / store.name)) as database:
            names = [name for (name,) in database.execute("select name from sqlite_master where type='table'")]
            if "trial" not in names:
                return {}
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
            selected = database.execute("select cell, trial_index, seed, status, fingerprint, outcome, body from trial left join evidence on evidence.trial = trial.id").fetchall()
    rows = {}
    for cell, index, seed, status, fingerprint, outcome, body in selected:
        assert body is not None, "a verdict without evidence"
        assert (cell, index) not in rows
        rows[cell, index] = {"seed": seed, "status": status, "fingerprint": fingerprint, "outcome": timeless(json.loads(outcome)), "evidence": timeless(json.loads(body))}
    return rows


def events(path):
    """All whole lines, read by the file's own rule: what follows the last newline never happened."""
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    assert [line["n"] for line in lines] == list(range(len(lines)))
    return [timeless(line) for line in lines]


FAULTS = """
phases: {eval: both}
faults:
  - {name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}
  - {name: now and then, where: {operator: matmul, layer: 1}, what: {kind: relative_gaussian, strength: 0.1}, lifetime: {kind: transient, probability: 0.5}}
aqn: {schedule: linear, sigma_start: 0.05, sigma_scale: relative}
"""


def joined(ledger):
    """The evidence of all parts of a run as one."""
    return timeless(ledger["ledger"]["joined"])


class Train:
    SETTINGS = ["train.steps=3", "train.sft.steps=1", "train.checkpoint_every=1", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.validation_problems=2"]

    def __init__(self, model, folder):
        self.model, self.recipe = model, folder / "faulty.yaml"
        self.recipe.write_text((ROOT / "recipes/train/tiny.yaml").read_text() + FAULTS)

    def words(self, out):
        common = ["--json", "--quiet"]
        runs = visible(out)
        if runs:
            return ["train", "--resume", runs[0], *common]
        return ["train", self.recipe, f"model={self.model}", *self.SETTINGS, "--dtype", "fp32", "--out", out, *common]

    def check(self, out):
        runs = visible(out)
        assert len(runs) <= 1
        return {"manifest": (runs[0] / "manifest.json").read_text()} if runs else {}

    def content(self, out):
        (run,) = visible(out)
        newest = visible(run / "checkpoints")[-1]
        assert not [path for path in run.iterdir() if path.name.startswith(".")], "leftovers"
        evidence = joined(json.loads((run / "ledger.json").read_text()))
        assert {row["rule"] for row in evidence["counts"]} == {"noise", "now and then"}, evidence
        return events(run / "events.jsonl"), newest.name, (newest / "state.safetensors").read_bytes(), timeless(json.loads((run / "summary.json").read_text())), evidence


class Experiment:
    RECIPE = """
model: %s
seed: 5
task: {name: arithmetic, difficulty: 1, train: 16, test: 4}
train: {algorithm: grpo, sft: {steps: 1, prompts: 2, lr: 1.0e-3}, steps: 2, prompts: 2, n: 2, lr: 1.0e-4, micro_batch: 4, max_new_tokens: 8, slots: 4, validation_problems: 2, checkpoint_every: 1}
experiment:
  seeds: 2
  control: slow
  arms: {slow: {}, fast: {train.lr: 1.0e-3}}
"""

    def __init__(self, model, folder):
        self.recipe = folder / "arms.yaml"
        self.recipe.write_text(self.RECIPE % model + FAULTS)

    def words(self, out):
        return ["run", self.recipe, "--dtype", "fp32", "--out", out, "--json", "--quiet"]

    def store(self, out):
        folders = visible(out)
        assert len(folders) <= 1
        return folders[0] / "campaign.sqlite" if folders else out / "none"

    def check(self, out):
        return trials(self.store(out))

    def content(self, out):
        rows = trials(self.store(out))
        assert len(rows) == 4
        arms = timeless(json.loads((self.store(out).parent / "analysis.json").read_text()))["arms"]
        for row in rows.values():
            assert {count["rule"] for count in row["evidence"]["faults"]["counts"]} == {"noise", "now and then"} and row["evidence"]["aqn"]["noisy_steps"] > 0
        return rows, [{key: value for key, value in arm.items() if key != "seconds_a_step"} for arm in arms]


class Campaign:
    def __init__(self, model):
        self.model = model

    def words(self, out):
        out.mkdir(exist_ok=True)
        return ["diagnose", "--model", self.model, "--campaign", "smoke", "--method", "self", "--store", out / "trials.sqlite", "--json", "--quiet"]

    def check(self, out):
        return trials(out / "trials.sqlite")

    def content(self, out):
        rows = self.check(out)
        assert len(rows) == 13
        return rows


class Triage:
    RECIPE = """
schema_version: 1
ranks: 2
trials: 2
steps: 2
warmup_trial: false
timeout_per_trial: 120
workload_config: {mode: fsdp, warmup_iterations: 0, fsdp_shard_size: 200, h2d_tensor_size: 100, compute_type: transformer,
  model_dim: 16, num_heads: 2, num_layers: 2, seq_len: 4, stop_on_first_corruption: false, timeout_seconds: 60,
  inject: {kind: bitflip, layer: 1, rank: 1, iteration: 1}}
cells: [{name: baseline}, {name: fixed, mitigations: [no-drill]}]
"""

    def __init__(self, folder):
        self.recipe = folder / "matrix.yaml"
        self.recipe.write_text(self.RECIPE)

    def words(self, out):
        return ["triage", "run", "--recipe", self.recipe, "--out", out, "--json", "--quiet"]

    def check(self, out):
        return trials(out / "campaign.sqlite")

    def content(self, out):
        rows = trials(out / "campaign.sqlite")
        assert len(rows) == 4 and not list((out / "trials").glob(".running*"))
        matrix = timeless(json.loads((out / "matrix.json").read_text()))
        assert len(matrix["cells"]) == 2
        for cell in matrix["cells"]:
            del cell["slowdown"], cell["confound"]  # of the times that the trials took
        return rows, matrix


class Report:
    def __init__(self, record):
        self.record = record

    def words(self, out):
        out.mkdir(exist_ok=True)
        return ["report", self.record, "-o", out / "page.html", "--json", "--quiet"]

    def check(self, out):
        page = out / "page.html"
        assert not page.exists() or page.read_text().rstrip().endswith("</html>"), "torn"
        return {}

    def content(self, out):
        assert [path.name for path in visible(out)] == ["page.html"]
        return (out / "page.html").read_text()


def test_training_survives(model, tmp_path):
    disturb(Train(model, tmp_path), tmp_path, SEED)


def test_an_experiment_survives(model, tmp_path):
    disturb(Experiment(model, tmp_path), tmp_path, SEED + 1)


def test_a_campaign_of_diagnosis_survives(model, tmp_path):
    disturb(Campaign(model), tmp_path, SEED + 2)


def test_triage_survives(tmp_path):
    disturb(Triage(tmp_path), tmp_path, SEED + 3)


def test_a_report_survives(model, tmp_path):
    done = launch("eval", "--model", model, "--dtype", "fp32", "--limit", "2", "--shots", "0", "--max-new-tokens", "4", "--json", "--quiet", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    disturb(Report(json.loads(done.stdout)["record"]), tmp_path, SEED + 4)
