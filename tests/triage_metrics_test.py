"""Trials of a command that are judged by what they leave: rules on a metrics file, what must be the same in every trial of a
cell, and the verdict of our own tap. The commands are a few lines of Python; none of them measures time."""

import json
import subprocess
import sys

import pytest

from program import PROGRAM, ROOT, launch

RECIPE = """
workload: command
trials: 2
timeout_per_trial: 300
confound: {threshold: 100}  # time decides nothing here
cells: [{name: baseline}, {name: fixed, extra_env: {MY_FIX: "1"}}]
"""
ONE = RECIPE.replace(', {name: fixed, extra_env: {MY_FIX: "1"}}', "").replace("trials: 2", "trials: 1")
WRITE = """import json, os, sys
folder = os.environ["FAULTLINE_TRIAL_FOLDER"]
with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
    for step in range(1, 5):
        loss = float("nan") if step == 3 and not os.environ.get("MY_FIX") else 4.0 / step
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
"""


def write(tmp_path, text, name="recipe.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def triage(tmp_path, text, *command, code=0, overrides=(), env=None):
    done = launch("triage", "run", "--recipe", write(tmp_path, text), "--out", tmp_path / "out", "--json", *overrides, "--", *command, env=env)
    assert done.returncode == code, done.stderr + done.stdout
    return {cell["name"]: cell for cell in json.loads(done.stdout)["cells"]}


def python(tmp_path, text):
    return ["python3", write(tmp_path, text, "command.py")]


def trial(tmp_path, cell, index=0):
    return json.loads((tmp_path / "out" / "trials" / cell / f"{index:04}.json").read_text())


def dry(tmp_path, text, *command):
    return launch("triage", "run", "--recipe", write(tmp_path, text), "--dry-run", "--", *(command or ["true"]))


# --- rules on metrics
def test_a_loss_that_is_not_finite_makes_a_trial_wrong_and_the_fix_is_named(tmp_path):
    text = RECIPE.replace("trials: 2", "trials: 6") + "metrics: [{file: metrics.jsonl, metric: loss}]\n"
    cells = triage(tmp_path, text, *python(tmp_path, WRITE))
    assert cells["baseline"]["outcomes"] == {"wrong": 6} and cells["fixed"]["failed"] == 0 and "removes the failure" in cells["fixed"]["finding"]
    recorded = trial(tmp_path, "baseline")
    assert recorded["sentence"] == "metrics.jsonl:3: loss is nan, which is not finite" and recorded["verdict"] == "fail"
    assert recorded["result"]["metrics"][0]["value"] == "NaN" and recorded["result"]["metrics"][0]["values"] == 3
    assert (tmp_path / "out/trials/fixed/0001.files/metrics.jsonl").read_text().count("\n") == 4
    assert "6 wrong" in (tmp_path / "out/matrix.md").read_text() and "unproven" in (tmp_path / "out/matrix.html").read_text()


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("at: last", "clean"),
        ("at: 3", "wrong"),
        ("at: 2, wrong_if: {above: 1.5}", "wrong"),
        ("at: 2, wrong_if: {above: 2}", "clean"),
        ("at: last, wrong_if: {below: 1.5}", "wrong"),
        ("wrong_if: {not_finite: false}", "clean"),
        ("at: 9", "wrong"),
        ("at: 9, wrong_if: {missing: false}", "clean"),
    ],
)
def test_a_rule_is_about_any_value_the_last_one_or_one_step(tmp_path, rule, outcome):
    text = ONE + f"metrics: [{{file: metrics.jsonl, metric: loss, {rule}}}]\n"
    assert triage(tmp_path, text, *python(tmp_path, WRITE))["baseline"]["outcomes"] == {outcome: 1}


def test_the_trials_folder_may_stand_among_the_words_of_the_command(tmp_path):
    text = ONE + "metrics: [{file: sub/m.csv, metric: loss, wrong_if: {above: 3}}]\n"
    script = 'mkdir "$1/sub"; printf "step,loss\\n1,2.5\\n2,9\\n" > "$1/sub/m.csv"; [ "$1" = "$FAULTLINE_TRIAL_FOLDER" ]'
    triage(tmp_path, text, "bash", "-c", script, "x", "{trial_folder}")
    assert trial(tmp_path, "baseline")["sentence"] == "sub/m.csv:3: loss is 9, above 3"


BROKEN = [
    (b"", "m.jsonl: no record holds loss"),
    (None, "m.jsonl: the trial left no such file in its folder"),
    (b'{"loss": 1}\nloss 2\n', "m.jsonl:2: not valid JSON"),
    (b'{"loss": 1, "text": "\xff\xfe"}\n', "m.jsonl:1: not UTF-8"),
    (b'{"loss": 1}\n' + b" " * (1 << 21), "m.jsonl:2: a line longer than 1024 KiB"),
    (b'{"loss": 1}\n{"lo', "exited with status 0"),
]


@pytest.mark.parametrize(("content", "sentence"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_cannot_be_judged_has_an_outcome_and_a_sentence(tmp_path, content, sentence):
    script = "import os\n" + ("" if content is None else f"open(os.environ['FAULTLINE_TRIAL_FOLDER'] + '/m.jsonl', 'wb').write({content!r})\n")
    if content is not None and len(content) > 1000:
        script = "import os\nopen(os.environ['FAULTLINE_TRIAL_FOLDER'] + '/m.jsonl', 'wb').write(b'{\"loss\": 1}\\n' + b' ' * (1 << 21))\n"
    cells = triage(tmp_path, ONE + "metrics: [{file: m.jsonl, metric: loss}]\n", *python(tmp_path, script))
    recorded = trial(tmp_path, "baseline")
    torn = sentence.startswith("exited")
    assert cells["baseline"]["outcomes"] == {"clean" if torn else "wrong": 1} and sentence in recorded["sentence"]
    assert not torn or "torn" in recorded["result"]["metrics"][0]["note"]


def test_a_crash_is_a_crash_whatever_the_metrics_say(tmp_path):
    text = ONE + "metrics: [{file: metrics.jsonl, metric: loss}]\n"
    triage(tmp_path, text, *python(tmp_path, WRITE + "sys.exit(7)\n"))
    assert trial(tmp_path, "baseline")["outcome"] == "crashed"
    assert "not finite" in trial(tmp_path, "baseline")["result"]["metrics"][0]["wrong"]


def test_rules_stand_in_the_dry_run_and_decide_whether_a_folder_goes_on(tmp_path):
    text = RECIPE + "metrics: [{file: metrics.jsonl, metric: loss, wrong_if: {above: 10}}]\nsame_between_trials: [metrics.jsonl]\nfault_evidence: ignored\n"
    out = dry(tmp_path, text).stdout
    for line in ("metrics: wrong if loss of metrics.jsonl (any) is not finite or missing or above 10", "same_between_trials: metrics.jsonl", "fault_evidence: not read"):
        assert line in out
    command = python(tmp_path, WRITE)
    triage(tmp_path, text, *command)
    again = launch("triage", "run", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "--json", "--", *command)
    assert (json.loads(again.stdout)["ran"], json.loads(again.stdout)["resumed"]) == (0, 4)
    write(tmp_path, text.replace("above: 10", "above: 11"))
    other = launch("triage", "run", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "--", *command)
    assert other.returncode == 64 and "another request" in other.stderr


REFUSED = [
    ("metrics: [{file: m.txt, metric: loss}]", "ends in no format that is read"),
    ("metrics: [{file: ../m.csv, metric: loss}]", "no file within the trial's folder"),
    ("metrics: [{file: m.csv, metrc: loss}]", "did you mean 'metric'"),
    ("metrics: [{file: m.csv, metric: loss, wrong_if: {above: many}}]", "above"),
    ("same_between_trials: [/etc/passwd]", "same_between_trials"),
    ("fault_evidence: maybe", "'read', 'required', 'ignored'"),
]


@pytest.mark.parametrize(("keys", "says"), REFUSED, ids=range(len(REFUSED)))
def test_rules_that_cannot_be_meant_are_refused(tmp_path, keys, says):
    done = dry(tmp_path, RECIPE + keys + "\n")
    assert done.returncode == 64 and says in done.stderr, done.stderr


def test_a_race_reads_none_of_these_keys(tmp_path):
    for key in ("metrics: []", "same_between_trials: []", "fault_evidence: read"):
        done = launch("triage", "run", "--recipe", write(tmp_path, "cells: [{name: a}]\n" + key + "\n"), "--dry-run")
        assert done.returncode == 64 and "is read with workload: command only" in done.stderr


# --- what must be the same
COUNTED = """import os, pathlib
count = pathlib.Path(os.environ["COUNTER"])
turn = int(count.read_text()) if count.exists() else 0
count.write_text(str(turn + 1))
folder = pathlib.Path(os.environ["FAULTLINE_TRIAL_FOLDER"])
odd = turn in map(int, os.environ["ODD"].split(","))
(folder / "weights.bin").write_bytes(b"\\1" if odd else b"\\0")
(folder / "m.csv").write_text("step,loss\\n1,%s\\n" % (0.25000000000000006 if odd else 0.25))
"""


@pytest.mark.parametrize("what", ["weights.bin", "{file: m.csv, metric: loss}"])
@pytest.mark.parametrize(("odd", "different"), [("9", []), ("1", [1]), ("0", [0]), ("1,2,3", [0])])
def test_a_trial_that_does_not_repeat_the_others_differs(tmp_path, what, odd, different):
    text = ONE.replace("trials: 1", "trials: 4") + f"same_between_trials: [{what}]\n"
    env = {"COUNTER": str(tmp_path / "counter"), "ODD": odd}
    command = python(tmp_path, COUNTED)
    cell = triage(tmp_path, text, *command, env=env)["baseline"]
    assert cell["failed"] == len(different) and [one["index"] for one in cell.get("different", [])] == different
    assert cell["outcomes"] == ({"clean": 4 - len(different), "differs": len(different)} if different else {"clean": 4})
    for index in range(4):
        recorded = trial(tmp_path, "baseline", index)
        assert (recorded["outcome"], recorded["verdict"]) == (("differs", "fail") if index in different else ("clean", "pass"))
    for one in cell.get("different", []):
        assert "where 3 of 4 trials of the cell have" in one["sentence"] and one["sentence"] in (tmp_path / "out/matrix.html").read_text()
    # Taken up again, the same trials are judged alike.
    again = triage(tmp_path, text, *command, env=env)["baseline"]
    assert again == cell


def test_of_two_trials_nobody_can_tell_which_differs_and_the_sentence_says_so(tmp_path):
    text = RECIPE + "same_between_trials: [weights.bin]\n"
    cells = triage(tmp_path, text, *python(tmp_path, COUNTED), env={"COUNTER": str(tmp_path / "counter"), "ODD": "2,3"})
    both = [one for cell in cells.values() for one in cell.get("different", [])]
    assert all(one["index"] == 1 and "which of them is wrong cannot be told" in one["sentence"] for one in both)


def test_stop_after_and_bisect_see_what_differs(tmp_path):
    text = ONE.replace("trials: 1", "trials: 6") + "same_between_trials: [weights.bin]\n"
    env = {"COUNTER": str(tmp_path / "counter"), "ODD": "2"}
    cell = triage(tmp_path, text, *python(tmp_path, COUNTED), env=env, overrides=["stop_after.events=1"])["baseline"]
    assert cell["valid"] == 3 and cell["failed"] == 1
    script = "import os, random\nopen(os.environ['FAULTLINE_TRIAL_FOLDER'] + '/weights.bin', 'w').write('0' if os.environ.get('DISABLE_TF32') else str(random.random()))\n"
    words = ["--mitigation", "tf32_off", "--baseline-trials", 6, "--error", 0.4, "--json", "--", *python(tmp_path, script)]
    found = json.loads(launch("triage", "bisect", "--recipe", write(tmp_path, text), *words).stdout)
    assert found["mitigations"] == ["tf32_off"] and found["steps"][0]["failures"] == 5


# --- our own tap
MODEL = """import sys, torch
layer = torch.nn.Linear(4, 4)
torch.manual_seed(0)
if "crash" in sys.argv:
    raise ValueError("of the script's own")
if "run" in sys.argv:
    layer(torch.randn(2, 4))
if "status" in sys.argv:
    sys.exit(1)
"""
PLAN = "seed: 1\nfaults:\n  - {name: noise, what: {kind: relative_gaussian, strength: 0.1}, where: {operator: aten::addmm}}\n"


def tap(tmp_path, *words, launcher=(), text=ONE, code=0):
    plan = write(tmp_path, PLAN, "plan.yaml")
    script = write(tmp_path, MODEL, "model.py")
    env = {"PYTHONPATH": str(ROOT / "python"), "FAULTLINE_BUILD": str(PROGRAM.parent)}
    command = [*launcher, sys.executable, "-m", "faultline", "--recipe", plan, script, *words]
    cells = triage(tmp_path, text, *command, env=env, code=code)
    return cells["baseline"], trial(tmp_path, "baseline")


def test_a_trial_whose_fault_is_proven_is_clean_and_shows_the_counts(tmp_path):
    cell, recorded = tap(tmp_path, "run")
    assert cell["outcomes"] == {"clean": 1}, recorded
    assert recorded["result"]["tap"]["processes"] == 1 and recorded["result"]["tap"]["codes"] == {}
    assert recorded["result"]["tap"]["rules"]["noise"]["calls"] == 1


def test_a_trial_whose_fault_is_not_proven_leaves_the_denominator(tmp_path):
    cell, recorded = tap(tmp_path, code=2)
    assert cell["outcomes"] == {"unproven": 1} and cell["valid"] == 0 and cell["complaints"]["never_fired"] >= 1
    assert recorded["verdict"] == "error" and recorded["severity"] == "setup_failed" and recorded["sentence"].startswith("the fault is not proven: ")
    assert recorded["result"]["exit_status"] == 3


def test_a_launcher_with_an_exit_status_of_its_own_changes_nothing(tmp_path):
    _, recorded = tap(tmp_path, launcher=["bash", "-c", '"$@"; exit 1', "x"], code=2)
    assert recorded["outcome"] == "unproven" and recorded["result"]["exit_status"] == 1


@pytest.mark.parametrize("how", ["crash", "status"])
def test_a_script_that_fails_by_itself_crashed(tmp_path, how):
    cell, recorded = tap(tmp_path, how)
    assert cell["outcomes"] == {"crashed": 1}, recorded
    assert recorded["result"]["tap"]["codes"] == ({} if how == "crash" else {"never_fired": 1})  # an exception leaves no judgement of the whole


def test_evidence_may_be_required_or_ignored(tmp_path):
    cells = triage(tmp_path, ONE + "fault_evidence: required\n", "true", code=2)
    assert cells["baseline"]["outcomes"] == {"unproven": 1} and cells["baseline"]["complaints"] == {"no_evidence": 1}
    script = "echo ${FAULTLINE_EVIDENCE-none}"
    assert launch("triage", "run", "--recipe", write(tmp_path, ONE + "fault_evidence: ignored\n"), "--out", tmp_path / "other", "--", "bash", "-c", script).returncode == 0
    assert (tmp_path / "other/trials/baseline/0000.stdout.log").read_text() == "none\n"


def test_the_words_of_a_log_decide_nothing(tmp_path):
    cells = triage(tmp_path, ONE, "bash", "-c", "echo 'faultline: the evidence is missing' >&2; exit 3")
    assert cells["baseline"]["outcomes"] == {"crashed": 1}


def test_the_keys_are_in_the_schema():
    text = subprocess.run([PROGRAM, "schema"], capture_output=True, text=True, check=True).stdout
    section = json.loads(text)["properties"]["triage"]["properties"]
    assert {"metrics", "same_between_trials", "fault_evidence"} <= set(section)
