"""`faultline demo`, on a random model of six layers: every act with its proof, one record, a page; the seed chooses the fault;
nothing but JSON with --json."""

import json
import pathlib

import pytest

import tiny_folder
from program import ROOT, launch

QUESTIONS = [json.loads(line)["question"] for line in (ROOT / "data/gsm8k/test.jsonl").read_text().splitlines()[:300]]
ACTS = ["census", "healthy", "damage", "diagnosis", "hardening", "race"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("demo") / "model", layers=6, learned_from=QUESTIONS, context=2048)


def demo(model, out, *arguments):
    done = launch("demo", "--model", model, "--json", "--output", out, *arguments, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    assert (done.returncode == 0) == answer["passed"]
    return answer, {act["act"]: act["record"] for act in answer["acts"]}


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    return demo(model, tmp_path_factory.mktemp("runs"), "--seed", 3, "--minutes", 60)


def test_every_act_is_played_and_kept(whole):
    answer, acts = whole
    assert list(acts) == ACTS
    folder = pathlib.Path(answer["record"])
    summary = json.loads((folder / "summary.json").read_text())["results"]
    assert summary["kind"] == "demo" and [act["act"] for act in summary["acts"]] == ACTS
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["seeds"] == {"seed": 3} and manifest["recipe"]["fault"] == answer["fault"] and manifest["plan"]
    assert {"healthy.json", "verdict.json", "race.json", "text.txt", "events.jsonl", "report.html"} <= {path.name for path in folder.iterdir()}
    assert len(list((folder / "runs").iterdir())) == 3, "SFT, global, guided"
    assert answer["page"] == str(folder / "report.html")


def test_every_number_stands_on_a_ledger(whole):
    _, acts = whole
    assert acts["census"]["forwards"]["decode"]["matmul"]["calls"] > 0
    assert acts["healthy"]["verdict"]["verdict"] == "healthy"
    for evidence in (acts["damage"]["speech"]["evidence"], acts["damage"]["rows"][1]["evidence"]):
        assert evidence["complaints"] == [] and evidence["rules"][0]["changed"] > 0
    clean, broken = (row["task"] for row in acts["damage"]["rows"])
    assert clean["questions"] == broken["questions"] == 48 and "p_mcnemar" in broken
    assert acts["diagnosis"]["planted"]["changed"] > 0
    for arm in acts["hardening"]["arms"][1:]:
        assert arm["training_rules"][0]["calls"] > 0 and arm["changed"] > 0
    assert acts["race"]["clean"]["verdict"] == "pass" and acts["race"]["broken"]["verdict"] == "fail" and acts["race"]["attributed"]


def test_the_fault_is_found_where_it_was_planted(whole):
    answer, acts = whole
    assert acts["diagnosis"]["layer_right"] and acts["diagnosis"]["accused_layer"] == acts["damage"]["layer"]
    assert f"layer={acts['damage']['layer']}" in answer["fault"]


def test_a_difference_that_may_be_none_is_inconclusive(whole):
    _, acts = whole
    said = acts["hardening"]["comparison"]
    low, high = said["interval"]
    assert low <= said["difference"] <= high
    assert (said["verdict"] == "inconclusive") == (low <= 0 <= high)


def test_a_terminal_sees_the_acts_of_another_seed_without_training_and_last_the_page(model, whole, tmp_path):
    done = launch("demo", "--model", model, "--quick", "--quiet", "--seed", 4, "--output", tmp_path, timeout=600)
    lines = done.stdout.splitlines()
    assert [line[:2] for line in lines if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5."]
    assert any("clean" in line and "broken" in line for line in lines) and sum("proof:" in line for line in lines) == 3
    assert any(line.strip().startswith("planted: ") and whole[0]["fault"] not in line for line in lines)
    assert pathlib.Path(lines[-1]).name == "report.html" and pathlib.Path(lines[-1]).exists() and done.stderr == ""
    summary = json.loads((pathlib.Path(lines[-1]).parent / "summary.json").read_text())["results"]
    assert [act["act"] for act in summary["acts"]] == [act for act in ACTS if act != "hardening"]


def test_a_tour_that_has_no_time_trains_less_and_says_so(model, whole, tmp_path):
    _, acts = whole
    assert [(len(arm.get("curve", "12345678")), arm["clean"]["problems"]) for arm in acts["hardening"]["arms"]] == [(8, 32), (2, 32), (2, 32)]
    done = launch("demo", "--model", model, "--seed", 3, "--minutes", 0.1, "--output", tmp_path, timeout=600)
    assert done.returncode in (0, 1) and "2 SFT steps, 1 GRPO steps, 8 problems (--minutes gives it more)" in done.stdout, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    arms = {act["act"]: act["record"] for act in json.loads((folder / "summary.json").read_text())["results"]["acts"]}["hardening"]["arms"]
    assert [arm["clean"]["problems"] for arm in arms] == [8, 8, 8] and [len(arm["curve"]) for arm in arms[1:]] == [1, 1]


def test_what_cannot_be_is_refused():
    done = launch("demo", "--minutes", "0")
    assert done.returncode == 64 and "--minutes 0: wanted 0.1 or more; --quick leaves the training out" in done.stderr
    assert launch("demo", "--model", "nowhere").returncode == 64
    assert launch("demo", "--seed", "-1").returncode == 64
