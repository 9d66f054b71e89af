"""lm-eval under a recipe, in the environment of ./dev test-clients: `python -m faultline … -m lm_eval` on a task that needs no download, on a
small random model. The noise reaches every product, the clean run's answers differ from the faulty one's, and a rule that meets
nothing ends the run with status 3."""

import json
import pathlib

import pytest
import tiny_folder
from clients_process import ROOT, python, write

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    questions = [json.loads(line)["question"] for line in (ROOT / "examples/lm_eval/sums.jsonl").read_text().splitlines()]
    return tiny_folder.make(tmp_path_factory.mktemp("lm_eval") / "tiny", learned_from=questions, context=2048)


def lm_eval(model, out, *before):
    """-> the process and its answers by question."""
    done = python(*before, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32", "--tasks", "faultline_sums", "--include_path", "examples/lm_eval", "--device", "cpu",
                  "--batch_size", "8", "--limit", "8", "--log_samples", "--output_path", out, cwd=ROOT, HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(out / "cache"), HF_HOME=str(out / "home"))  # fmt: skip
    answers = {}
    for file in pathlib.Path(out).rglob("samples_*.jsonl"):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            answers[sample["doc"]["question"]] = sample["resps"][0][0]
    return done, answers


def test_a_task_runs_under_noise_and_the_evidence_says_so(model, tmp_path):
    clean, right = lm_eval(model, tmp_path / "clean")
    assert clean.returncode == 0 and len(right) == 8, clean.stderr[-2000:]
    noise = write(tmp_path, "noise.json", {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.5}}]})
    faulty, wrong = lm_eval(model, tmp_path / "faulty", "-m", "faultline", "--recipe", noise, "--evidence", tmp_path / "evidence")
    assert faulty.returncode == 0, faulty.stderr[-2000:]
    assert set(wrong) == set(right) and wrong != right
    assert "[fault noise] " in faulty.stdout + faulty.stderr and " elements changed" in faulty.stdout + faulty.stderr
    [record] = (tmp_path / "evidence").glob("process-*.json")
    [rule] = json.loads(record.read_text())["report"]["rules"]
    assert rule["calls"] > 100 and rule["changed"] > 0


def test_a_rule_that_meets_nothing_fails_the_run(model, tmp_path):
    nothing = write(tmp_path, "nothing.json", {"seed": 7, "phases": {"actor_backward": True}, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.5}}]})
    done, _ = lm_eval(model, tmp_path / "out", "-m", "faultline", "--recipe", nothing)
    assert done.returncode == 3, done.stdout[-1000:] + done.stderr[-1000:]
