"""A dry run refuses what the run refuses, in the same words and with the same exit code, and every command that runs a model
judges evidence alike: `run`, `eval`, `generate`, `diagnose --fault`, `train`. On a random model of two layers."""

import json

import pytest
import tiny_folder
from program import as_json, launch

WHAT = "what: {kind: relative_gaussian, strength: 0.05}"
MATMUL = f"{{name: noise, where: {{operator: matmul}}, {WHAT}}}"
LAYER = f"{{name: noise, where: {{module: layer_output}}, {WHAT}}}"
TRAIN = "task: {name: arithmetic, train: 8, test: 4}\ntrain: {algorithm: %s, steps: 2, prompts: 2, %s, lr: 1.0e-4, validation_problems: %d, checkpoint_every: 0}\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("same") / "model", layers=2)


@pytest.fixture
def written(model, tmp_path):
    def write(text):
        file = tmp_path / "recipe.yaml"
        file.write_text(f"model: {model}\n{text}")
        return file

    return write


def with_key(rule, more):
    return rule[:-1] + f", {more}}}"


def refused_alike(code, *command, out):
    """The dry run and the run. -> what both say"""
    command = [*command, "--out", out, "--quiet"]
    dry, real = launch(*command, "--dry-run"), launch(*command)
    assert (dry.returncode, real.returncode) == (code, code), (dry.stdout, dry.stderr, real.stdout, real.stderr)
    said = [[line for line in done.stderr.splitlines() if line.startswith("error: ")] for done in (dry, real)]  # torch warns, too
    assert said[0] == said[1] and len(said[0]) == 1 and dry.stdout == real.stdout == "", (dry.stdout, dry.stderr, real.stdout, real.stderr)
    return said[0][0]


# --- a rule that cannot act in this run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [MATMUL, LAYER], ids=["operator", "module"])
def test_a_phase_that_is_off_is_refused_by_run_and_eval_dry_and_real(rule, model, written, tmp_path):
    out = tmp_path / "out"
    evaluate = "evaluate: {limit: 2, max_new_tokens: 2}\n"
    by_recipe = refused_alike(64, "run", written(f"phases: {{eval: clean}}\nfaults: [{rule}]\n{evaluate}"), out=out)
    by_rule = refused_alike(64, "run", written(f"faults: [{with_key(rule, 'phases: {eval: clean}')}]\n{evaluate}"), out=out)
    by_eval = refused_alike(64, "eval", "--model", model, "--limit", "2", "--max-new-tokens", "2", "--fault", with_key(rule, "phases: {eval: clean}"), out=out)
    assert by_recipe == by_rule == by_eval
    assert "rule 'noise'" in by_recipe and "phase eval is off" in by_recipe
    assert not out.exists(), "nothing was run"


def test_what_phases_leave_on_acts(written, tmp_path):
    """The other way round: the recipe switches evaluations off and the rule on again."""
    rule = with_key(MATMUL, "phases: {eval: both}")
    done = launch("run", written(f"phases: {{eval: clean}}\nfaults: [{rule}]\nevaluate: {{limit: 2, max_new_tokens: 2}}\n"), "--json", "--quiet", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][1]["evidence"]["rules"][0]["calls"] > 0


@pytest.mark.parametrize("command, phase", [(["generate", "Hi", "--max-new-tokens", "2"], "rollout"), (["diagnose"], "diagnose")])
@pytest.mark.parametrize("rule", [MATMUL, LAYER], ids=["operator", "module"])
def test_generate_and_diagnose_refuse_a_phase_that_is_off(command, phase, rule, model):
    done = launch(*command, "--model", model, "--fault", with_key(rule, f"phases: {{{phase}: false}}"))
    assert done.returncode == 64 and f"phase {phase} is off" in done.stderr and done.stdout == "", (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "code, rule, says",
    [
        (64, f"{{name: noise, where: {{module: layer_output, surface: gradient}}, {WHAT}}}", "nothing goes backward in eval"),
        (64, with_key(MATMUL, "lifetime: {kind: window, from: 10, to: 20}"), "its window opens at step 10"),
        (64, with_key(MATMUL, "schedule: {kind: linear, sigma_start: 0, sigma_end: 0.1}"), "its schedule is 0"),
        (64, "{name: nothing, where: {operator: aten::gelu}, what: {kind: zero}}", "aten::gelu"),
        (3, "{name: nothing, where: {operator: matmul}, what: {kind: deadzone, threshold: 1.0e-30, relative_to: none}}", "canary: "),
    ],
    ids=["gradient", "window", "schedule", "operator", "canary"],
)
def test_what_would_never_act_is_refused_before_anything_is_run(code, rule, says, model, written, tmp_path):
    recipe = written(f"faults: [{MATMUL.replace('name: noise', 'name: first').replace('matmul', 'norm') if code == 64 else rule}{', ' + rule if code == 64 else ''}]\nevaluate: {{limit: 2, max_new_tokens: 2}}\n")
    said = refused_alike(code, "run", recipe, out=tmp_path / "out")
    assert says in said
    assert says in refused_alike(code, "eval", "--model", model, "--limit", "2", "--max-new-tokens", "2", "--fault", rule, out=tmp_path / "out")


@pytest.mark.parametrize(
    "evaluate, says",
    [("max_new_tokens: 4000", "the model's context holds"), ("text: NOWHERE", "there is no such file"), ("text: SHORT", "at least two tokens")],
    ids=["context", "no text", "short text"],
)
def test_a_task_or_text_that_cannot_be_run_is_refused_by_both(evaluate, says, written, tmp_path):
    (tmp_path / "short.txt").write_text("a")
    evaluate = evaluate.replace("NOWHERE", str(tmp_path / "nowhere.txt")).replace("SHORT", str(tmp_path / "short.txt"))
    assert says in refused_alike(64, "run", written(f"faults: [{MATMUL}]\nevaluate: {{limit: 2, {evaluate}}}\n"), out=tmp_path / "out")


def test_a_training_refuses_a_rule_whose_phases_it_does_not_have(written, tmp_path):
    off = "{actor_forward: false, actor_backward: false, eval: clean}"
    for phases, algorithm, more in [(off, "sft", "micro_batch: 2"), ("{rollout: false, " + off[1:], "grpo", "n: 2, max_new_tokens: 2")]:
        recipe = written(f"faults: [{with_key(MATMUL, f'phases: {phases[:-1]}, ref: true}}')}]\n" + TRAIN % (algorithm, more, 2))
        assert "rule 'noise' acts in no phase that this training has" in refused_alike(64, "train", recipe, out=tmp_path / "out")
    recipe = written(f"faults: [{with_key(MATMUL, 'phases: {rollout: false, actor_forward: false, actor_backward: false}')}]\n" + TRAIN % ("grpo", "n: 2, max_new_tokens: 2", 0))
    assert "acts in no phase" in refused_alike(64, "train", recipe, out=tmp_path / "out"), "without problems nothing is validated"


def test_a_campaign_has_a_dry_run(written, tmp_path):
    recipe = written("seed: 1\ndiagnose: {campaign: smoke, methods: [self], trials: 0, healthy: 2, rare: 1, store: trials.sqlite}\n")
    dry = as_json("run", recipe, "--dry-run", "--out", tmp_path / "out")
    assert (dry["dry_run"], dry["trials"], dry["left"]) == (True, 3, 3) and not (tmp_path / "out").exists()
    assert launch("run", recipe, "--quiet", "--out", tmp_path / "out", "diagnose.rare=0").returncode == 0
    assert "3 trials, 1 left" in launch("run", recipe, "--dry-run", "--out", tmp_path / "out").stdout
    refused = refused_alike(64, "run", recipe, "seed=2", out=tmp_path / "out")
    assert "trials of another campaign" in refused


# --- evidence -----------------------------------------------------------------------------------------------------------

RARE = "relative_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=1e-9) @ operator=matmul"


@pytest.mark.parametrize("command", [["generate", "Hi", "--max-new-tokens", "2"], ["eval", "--limit", "2", "--max-new-tokens", "2"], ["diagnose"], ["diagnose", "--method", "all"]], ids=" ".join)
def test_a_fault_that_never_acted_is_missing_evidence(command, model):
    done = launch(*command, "--model", model, "--fault", RARE, "--json")
    assert done.returncode == 3, (done.stdout, done.stderr)
    said = json.loads(done.stdout)
    (complaint,) = (said["rows"][1] if "rows" in said else said)["complaints"]
    assert (complaint["code"], complaint["rule"]) == ("asleep", "relative_gaussian")
    text = launch(*command, "--model", model, "--fault", RARE)
    assert text.returncode == 3 and "evidence missing: " in text.stdout and complaint["sentence"] in text.stdout


def test_every_row_without_evidence_is_named(model):
    done = launch("eval", "--model", model, "--limit", "2", "--max-new-tokens", "2", "--fault", RARE, "--fault", RARE.replace("0.05", "0.06"))
    assert done.returncode == 3 and done.stdout.count("evidence missing: relative_gaussian") == 2, done.stdout


def test_a_planted_fault_is_proven_beside_the_verdict(model):
    done = launch("diagnose", "--model", model, "--fault", "gain(strength=0.05) @ module=layer_output,layer=1", "--json")
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert said["complaints"] == [] and said["evidence"]["rules"][0]["calls"] > 0 and said["planted"]["changed"] > 0


def test_one_of_two_planted_faults_that_never_acted_is_missed_though_the_other_is_found(model, tmp_path):
    verdict = tmp_path / "verdict.json"
    done = launch("diagnose", "--model", model, "--fault", "gain(strength=0.05) @ module=layer_output,layer=1", "--fault", RARE, "--json", "--out", verdict)
    said = json.loads(done.stdout)
    assert done.returncode == 3 and said["verdicts"][0]["verdict"] == "fault" and [one["rule"] for one in said["complaints"]] == ["relative_gaussian"]
    assert not verdict.exists()


# --- allow_partial ------------------------------------------------------------------------------------------------------


def test_allow_partial_is_a_list_of_names_and_absent_unless_it_is_written(written):
    field = as_json("schema")["properties"]["allow_partial"]
    assert field["type"] == "array" and "the report says so first" in field["description"]
    assert "allow_partial" not in as_json("check", written(f"faults: [{MATMUL}]\n"))
    names = ["lm_head", "layers.3.mlp.*"]
    assert as_json("check", written(f"allow_partial: {json.dumps(names)}\nfaults: [{MATMUL}]\n"))["allow_partial"] == names
    for wrong in ("lm_head", "[1]", "['']", "{a: b}"):
        done = launch("check", written(f"allow_partial: {wrong}\n"))
        assert done.returncode == 64 and "allow_partial" in done.stderr, wrong
