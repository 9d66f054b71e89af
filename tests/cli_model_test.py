"""The commands that run a model, as a user types them: generate, eval, census, run. On the default model, with few tokens."""

import json
import os
import pathlib

import program
import pytest

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "faultline"
pytestmark = pytest.mark.skipif(not (CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").exists(), reason="no default model; ./dev setup fetches it")


def faultline(*arguments):
    return program.launch(*arguments, timeout=600)


NOISE = "relative_gaussian(strength=0.5) @ operator=matmul"  # so much that no answer survives it, whatever the rounding
# In bf16 the first word of the answer is a near tie (25.3 against 25.2), which the rounding of the processor decides. In fp32 the
# two are 0.08 apart where rounding moves them by less than 0.002.
CAPITAL = ["generate", "What is the capital of France?", "--max-new-tokens", "12", "--json"]


def read(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_generate_answers_and_repeats_itself():
    exact = read(faultline(*CAPITAL, "--dtype", "fp32"))
    assert exact["clean"]["text"] == "The capital of France is Paris." and exact["clean"]["ended"]
    first, again = (read(faultline(*CAPITAL))["clean"] for _ in range(2))
    assert first["text"] and (first["text"], first["tokens"], first["ended"]) == (again["text"], again["tokens"], again["ended"])


def test_generate_shows_the_broken_answer_and_its_evidence():
    result = read(faultline("generate", "What is the capital of France?", "--max-new-tokens", "8", "--fault", NOISE, "--json"))
    assert result["faulty"]["tokens"] != result["clean"]["tokens"]
    assert result["complaints"] == []
    (rule,) = result["evidence"]["rules"]
    assert rule["sites"] == 121  # 30 x (qkv, o, gate_up, down) + the head
    assert result["evidence"]["forwards"]["rollout"] == 1 + len(result["faulty"]["tokens"])  # one prefill, then a step a token


def test_the_same_seed_breaks_the_same_way_and_another_does_not():
    texts = [read(faultline("generate", "Count to ten.", "--max-new-tokens", "6", "--fault", NOISE, "--json", "--seed", seed))["faulty"]["tokens"] for seed in ("3", "3", "4")]
    assert texts[0] == texts[1] != texts[2]


def test_a_fault_that_matches_nothing_is_refused_before_the_first_token():
    done = faultline("generate", "Hi", "--fault", "gain(strength=0.1) @ module=layer_output,layer=77")
    assert done.returncode == 64 and "layer 77 does not exist" in done.stderr and done.stdout == ""
    done = faultline("generate", "Hi", "--fault", "gain(strength=0.1) @ operator=aten::nonsense")
    assert done.returncode == 64 and done.stdout == ""


@pytest.mark.parametrize("arguments, sentence", [(["", "--max-new-tokens", "4"], "the prompt is empty"), (["Hi", "--model", "/nowhere"], "/nowhere"), (["Hi", "--dtype", "int8"], "bf16, fp16 or fp32"), (["Hi", "--top-p", "2"], "--top-p")])
def test_what_cannot_be_run_gets_a_sentence(arguments, sentence):
    done = faultline("generate", *arguments)
    assert done.returncode == 64 and sentence in done.stderr


def test_eval_puts_clean_and_faulty_side_by_side_and_records_them(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sun rises in the east and sets in the west. " * 40)
    result = read(faultline("eval", "--task", "arithmetic", "--limit", "4", "--max-new-tokens", "8", "--text", str(text), "--window", "64", "--fault", NOISE, "--strengths", "0.1,0.5", "--out", str(tmp_path / "runs"), "--json"))
    clean, weak, strong = result["rows"]
    assert clean["task"]["questions"] == weak["task"]["questions"] == 4
    assert clean["text"]["perplexity"] < weak["text"]["perplexity"] < strong["text"]["perplexity"]
    low, high = strong["text"]["added_nats_interval"]
    assert 0 < low < strong["text"]["added_nats"] < high
    record = pathlib.Path(result["record"])
    summary = json.loads((record / "summary.json").read_text())
    assert "rows" in json.dumps(summary) and (record / "manifest.json").exists() and (record / "events.jsonl").exists()


def test_both_sides_have_the_same_questions_and_the_same_scorer(tmp_path):
    """Lesson 30: under a fault that changes nothing every answer and every reward is the clean side's, question by question."""
    silent = "relative_gaussian(strength=1e-12, rule.expect=invisible) @ operator=matmul"
    for scoring in ("strict", "flexible"):
        result = read(faultline("eval", "--limit", "6", "--max-new-tokens", "24", "--scoring", scoring, "--fault", silent, "--out", str(tmp_path / scoring), "--json"))
        sides = {}
        for line in (pathlib.Path(result["record"]) / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "answer":
                sides.setdefault(event["row"], []).append([event[key] for key in ("id", "text", "extracted", "reward", "tokens", "ended")])
        clean, faulty = sides.values()
        assert len(clean) == 6 and clean == faulty and len({answer[1] for answer in clean}) > 3, "answers that tell questions apart"
        # Strictly there may be none: what the model says within 24 tokens depends on the processor's rounding.
        assert scoring == "strict" or any(answer[2] for answer in clean), "something was found to score"
        assert result["rows"][1]["complaints"] == []


def test_census_counts_what_the_architecture_says():
    result = read(faultline("census", "--kind", "decode", "--json"))
    calls = {}
    for entry in result["forwards"]["decode"]:
        calls[entry["operator"]] = calls.get(entry["operator"], 0) + entry["calls"]
    assert result["layers"] == 30 and result["norms"] == 61
    assert calls["faultline::few_rows_linear"] == 4 * 30 + 1
    assert calls["faultline::rms_norm"] + calls["faultline::add_rms_norm"] == 61
    assert calls["faultline::attend_cached"] == calls["faultline::swiglu"] == 30


def test_census_of_training_sees_the_backward():
    result = read(faultline("census", "--kind", "train", "--dtype", "fp32", "--json"))
    backward = {entry["operator"] for entry in result["forwards"]["actor_backward"]}
    assert "aten::mm" in backward
    layers = {entry["layer"] for entry in result["forwards"]["actor_backward"] if entry["operator"] == "aten::mm"}
    assert set(range(30)) <= layers


def test_a_dry_run_predicts_and_a_run_proves(tmp_path):
    recipe = "recipes/noise.yaml"
    dry = read(faultline("run", recipe, "--dry-run", "--json"))
    assert dry["predictions"][0]["decode"][0]["calls"] == 121 and dry["predictions"][0]["prefill"][0]["calls"] == 120
    result = read(faultline("run", recipe, "evaluate.limit=2", "evaluate.max_new_tokens=4", "--out", str(tmp_path), "--json"))
    assert result["rows"][1]["complaints"] == []
    assert list(tmp_path.iterdir())


def test_a_recipe_for_another_architecture_is_refused():
    done = faultline("run", "recipes/noise.yaml", "faults.0.where.operator=_C::onednn_mm")
    assert done.returncode == 64 and "_C::onednn_mm" in done.stderr
