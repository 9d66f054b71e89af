"""`faultline train` from the command line, on a random model of two layers: recipes that ship, faults and
noise with their proof, resuming, exporting, and what is refused."""

import json
import pathlib
import shutil

import pytest

import tiny_folder
from program import ROOT, launch, succeeded

TINY = ROOT / "recipes/train/tiny.yaml"
NOISE = "{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("tiny") / "model")


def train(model, out, *arguments, recipe=TINY, dtype="fp32"):
    named = [str(recipe)] if recipe else []
    return launch("train", *named, f"model={model}", *arguments, "--json", "--quiet", "--dtype", dtype, "--out", out)


def events(record):
    lines = [json.loads(line) for line in (pathlib.Path(record) / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("crc", "times")} for line in lines]


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    return succeeded(train(model, tmp_path_factory.mktemp("plain"), "train.save_model=true"))


def test_the_tiny_recipe_trains_and_leaves_a_whole_record(plain):
    steps = [event for event in events(plain["record"]) if event["kind"] == "step"]
    assert [event["stage"] for event in steps] == ["sft"] * 3 + ["grpo"] * 4
    assert [event["step"] for event in steps] == list(range(1, 8))
    for name in ("actor/pg_loss", "actor/entropy", "actor/pg_clipfrac", "actor/grad_norm", "critic/score/mean", "response_length/mean",
                 "rollout_corr/kl", "rollout_corr/k3_kl", "training/rollout_probs_diff_mean"):  # fmt: skip
        assert name in steps[-1]["metrics"], name
    assert "val-core/arithmetic/acc/mean@1" in steps[-1]["metrics"], "lesson 29: the last step is evaluated"
    summary = json.loads((pathlib.Path(plain["record"]) / "summary.json").read_text())
    assert summary["step_reached"] == summary["step_evaluated"] == 7
    assert steps[-1]["metrics"]["faultline/rollout_logp_diff_max"] < 1e-3, "sampler and learner are one model"


def test_the_same_recipe_gives_the_same_events(model, plain, tmp_path):
    again = succeeded(train(model, tmp_path, "train.save_model=true"))
    assert events(again["record"]) == events(plain["record"])
    other = succeeded(train(model, tmp_path, "seed=8"))
    assert events(other["record"]) != events(plain["record"])


def test_the_exported_model_is_the_trained_one(model, plain):
    import torch
    from safetensors.torch import load_file

    start, end = load_file(model / "model.safetensors"), load_file(pathlib.Path(plain["model"]) / "model.safetensors")
    assert start.keys() == end.keys()
    assert not torch.equal(start["model.layers.0.self_attn.k_proj.weight"], end["model.layers.0.self_attn.k_proj.weight"])
    evaluated = launch("eval", "--model", plain["model"], "--dtype", "fp32", "--limit", "8", "--difficulty", "1", "--shots", "0",
                       "--max-new-tokens", "12", "--json", "--quiet")  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr


def test_a_finished_run_resumes_to_the_same_result(plain):
    again = succeeded(launch("train", "--resume", plain["record"], "--json", "--quiet", "--dtype", "fp32"))
    assert again["results"] == plain["results"]


@pytest.mark.parametrize("phases,changed", [
    ("{rollout: true, actor_forward: false, actor_backward: false, eval: clean}", ["rollout"]),
    ("{rollout: false, actor_forward: true, actor_backward: false, eval: clean}", ["actor_forward"]),
    ("{rollout: false, actor_forward: false, actor_backward: true, eval: clean}", ["actor_backward"]),
    ("{rollout: true, actor_forward: true, actor_backward: true, ref: true, eval: both}", ["rollout", "actor_forward", "actor_backward", "ref", "eval"]),
])  # fmt: skip
def test_faults_act_in_the_phases_that_are_named_and_nowhere_else(model, tmp_path, phases, changed):
    result = succeeded(train(model, tmp_path, f"faults=[{NOISE}]", f"+phases={phases}", "train.use_kl_loss=true", "~train.sft"))
    assert result["complaints"] == []
    assert {row["phase"] for row in result["evidence"]["rows"] if row["ledger"]["calls"] > 0} == set(changed)
    faulty = "faultline/val-faulty/arithmetic/acc/mean@1"
    assert (faulty in result["results"]) == ("eval" in changed), "lesson 15: clean and faulty are told apart"


@pytest.mark.parametrize("operator", ["matmul", "all_ops"])
def test_two_updates_a_step_are_counted_call_by_call(model, tmp_path, operator):
    """Old log-probabilities are scored in the actor's forward phase without gradients, where other operators run."""
    phases = "{rollout: false, actor_forward: true, actor_backward: true, eval: clean}"
    result = succeeded(train(model, tmp_path, f"faults=[{NOISE.replace('matmul', operator)}]", f"+phases={phases}", "train.updates=2", "~train.sft"))
    assert result["complaints"] == []
    assert result["evidence"]["forwards_by_kind"]["actor_forward"]["body"] == 4 * 2 * (1 + 1), "steps, updates, scored and learnt from"
    calls = {phase: sum(row["ledger"]["calls"] for row in result["evidence"]["rows"] if row["phase"] == phase) for phase in ("actor_forward", "actor_backward")}
    assert min(calls.values()) > 0
    if operator == "matmul":  # each of the body's linears twice, once with and once without gradients
        linears = [row["ledger"]["calls"] for row in result["evidence"]["rows"] if row["phase"] == "actor_forward" and row["place"].endswith("down_proj")]
        assert sum(linears) == 16 * tiny_folder.LAYERS


def test_aqn_is_applied_measured_and_seen_by_the_rollout_alone(model, plain, tmp_path):
    noisy = succeeded(train(model, tmp_path, "+aqn={schedule: constant, sigma_start: 0.1, force: true}"))
    steps = [event["metrics"] for event in events(noisy["record"]) if event["kind"] == "step" and event["stage"] == "grpo"]
    clean = [event["metrics"] for event in events(plain["record"]) if event["kind"] == "step" and event["stage"] == "grpo"]
    for metrics in steps:
        assert metrics["faultline/aqn/weights"] == 2 * tiny_folder.LAYERS + 1
        assert metrics["faultline/aqn/measured"] == pytest.approx(metrics["faultline/aqn/expected"], rel=0.2)
    assert steps[0]["faultline/rollout_logp_diff_mean"] > 100 * clean[0]["faultline/rollout_logp_diff_mean"]
    assert events(noisy["record"])[0] == events(plain["record"])[0], "validation stays clean"


def test_adapters_alone_are_trained(model, tmp_path):
    import torch
    from safetensors.torch import load_file

    result = succeeded(train(model, tmp_path, "+train.lora={rank: 4, targets: [o_proj]}", "train.save_model=true", "train.sft.lr=0.05"))
    start, end = load_file(model / "model.safetensors"), load_file(pathlib.Path(result["model"]) / "model.safetensors")
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {f"model.layers.{i}.self_attn.o_proj.weight" for i in range(tiny_folder.LAYERS)}


def test_a_dry_run_predicts_and_writes_nothing(model, tmp_path):
    result = succeeded(train(model, tmp_path / "runs", f"faults=[{NOISE}]", "--dry-run"))
    assert result["prediction"]["memory_bytes"]["total"] > 0 and result["prediction"]["sequences_a_step"] == 16
    assert "faults" in result["prediction"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments,sentence", [
    (["train.micro_batch=5"], "does not divide"),
    (["train.prompts=34"], "the task has 32 problems"),
    (["train.max_new_tokens=2000"], "context holds 1024"),
    (["train.loss_agg_mode=token-men"], "token-mean"),
    (["+aqn={schedule: constant, layers: 7}"], "the model has layers 0 to 1"),
    (["+aqn={schedule: global_decay, num_stages: 0}"], "num_stages"),
    (["+aqn={schedule: constant, sigma_start: 1.0e-12}"], "below half a step"),
    (["+aqn={schedule: zones, zones: [{first_layer: 0, last_layer: 9, early: 1, late: 1}]}"], "reach beyond the model"),
    (["+aqn={schedule: constant, layer_multipliers: [1, 1, 1]}"], "the model has 2 layers"),
    (["+aqn={schedule: constant, sites: layer_output, layer_multipliers: [1, 1, 1]}"], "the model has 2 layers"),
    (["+aqn={schedule: constant, layers: 1, layer_multipliers: [1, 0]}"], "noise of 0 at every step"),
    (["+aqn={schedule: constant}", "train.validation_problems=0"], "nobody can check"),
    (["train.n=1", "train.micro_batch=1", "train.filter_groups=true"], "nothing would be learnt"),
    (["task.shots=2"], "task.shots"),
    ([f"faults=[{NOISE}]", "train.updates=2", "train.shards=2", "train.micro_batch=4"], "mixtures of experts and shards have one update a step"),
    (["+train.clip_ration=0.2"], "clip_ratio"),
    ([f"faults=[{NOISE.replace('matmul', 'aten::adm')}]"], "did you mean"),
])  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_written(model, tmp_path, arguments, sentence):
    result = train(model, tmp_path / "runs", *arguments)
    assert result.returncode == 64 and sentence in result.stderr, result.stderr
    assert not (tmp_path / "runs").exists()


WEIGHTS = "{name: flips, where: {operator: matmul, surface: weight}, what: {kind: %s}}"


@pytest.mark.parametrize("faults", [
    WEIGHTS % "bitflip, bit: 20, count: 1",
    WEIGHTS % "relative_gaussian, strength: 0.05",
    WEIGHTS % "quantize, format: int8",
    "{name: zone, where: {module: layer_output}, what: {kind: deadzone, threshold: 0.3}, reevaluate: true}, "
    "{name: lift, where: {module: layer_output}, what: {kind: absolute_gaussian, strength: 0.05}}",
    "{name: old, where: {operator: matmul}, what: {kind: stale}}",
    NOISE[:-1] + ", lifetime: {kind: window, from: 2, to: 4}}",
    NOISE[:-1] + ", lifetime: {kind: transient, probability: 0.02}}",
])  # fmt: skip
def test_faults_of_every_surface_and_lifetime_are_trained_under_and_resume_to_the_bit(model, tmp_path, faults):
    common = [f"faults=[{faults}]", "+phases={eval: both}", "train.checkpoint_every=1", "train.keep=20"]
    whole = succeeded(train(model, tmp_path, *common))
    assert whole["complaints"] == [] and sum(row["changed"] for row in whole["joined"]["faults"]["counts"]) > 0
    record, before = pathlib.Path(whole["record"]), events(whole["record"])
    for stands_at in (5, 2):  # within GRPO, within the supervised steps
        for checkpoint in (record / "checkpoints").iterdir():
            if checkpoint.name > f"step-{stands_at:06d}":
                shutil.rmtree(checkpoint)
        again = succeeded(launch("train", "--resume", record, "--json", "--quiet", "--dtype", "fp32"))
        assert events(record) == before, stands_at
        assert again["joined"]["faults"]["counts"] == whole["joined"]["faults"]["counts"], stands_at


def test_an_evaluation_takes_faulted_weights_and_stale_results(model):
    for fault in ("bitflip(bit=20,count=1) @ operator=matmul,surface=weight", "stale() @ operator=matmul"):
        done = launch("eval", "--model", model, "--dtype", "fp32", "--limit", "4", "--difficulty", "1", "--shots", "0", "--max-new-tokens", "6",
                      "--fault", fault, "--json", "--quiet")  # fmt: skip
        assert done.returncode == 0, (fault, done.stderr)


def test_noise_is_counted_where_it_is_and_not_where_the_schedule_speaks(model, tmp_path):
    aqn = "+aqn={schedule: zones, sigma_start: 0.05, zones: [{first_layer: 0, last_layer: 1, early: 0, late: 1}], elsewhere: 0, force: true}"
    whole = succeeded(train(model, tmp_path, aqn, "train.checkpoint_every=1", "train.keep=20"))
    steps = [event["metrics"] for event in events(whole["record"]) if event.get("stage") == "grpo"]
    assert [one["faultline/aqn/changed"] > 0 for one in steps] == [False, False, True, True]
    assert [one["faultline/aqn/weights"] for one in steps] == [0, 0, 2 * tiny_folder.LAYERS, 2 * tiny_folder.LAYERS]
    assert whole["joined"]["aqn"]["noisy_steps"] == 2 and whole["joined"]["aqn"]["steps"] == 4
    shares = whole["joined"]["aqn"]["sum_of_measured_over_expected"]
    assert 1.5 < shares < 2.5, "silent steps add nothing"
    record, before = pathlib.Path(whole["record"]), events(whole["record"])
    for checkpoint in (record / "checkpoints").iterdir():
        if checkpoint.name > "step-000004":
            shutil.rmtree(checkpoint)
    again = succeeded(launch("train", "--resume", record, "--json", "--quiet", "--dtype", "fp32"))
    assert events(record) == before and again["joined"]["aqn"] == whole["joined"]["aqn"]


def test_adapters_do_not_resume_on_another_model(model, tmp_path):
    base = tmp_path / "model"
    shutil.copytree(model, base)
    done = succeeded(train(base, tmp_path, "+train.lora={rank: 4, targets: [o_proj]}", "train.checkpoint_every=2", "train.keep=20"))
    shutil.rmtree(sorted((pathlib.Path(done["record"]) / "checkpoints").iterdir())[-1])
    tiny_folder.make(tmp_path / "other", seed=99)
    shutil.copy(tmp_path / "other" / "model.safetensors", base / "model.safetensors")
    refused = launch("train", "--resume", done["record"], "--json", "--quiet", "--dtype", "fp32")
    assert refused.returncode == 64 and "of another model" in refused.stderr, refused.stderr


def test_weights_that_are_not_finite_are_never_saved(model, tmp_path):
    result = train(model, tmp_path, "train.sft.lr=1e38", "train.checkpoint_every=1")
    assert result.returncode == 2 and "not finite" in result.stderr, result.stderr
    (record,) = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert events(record)[-1]["kind"] == "stopped"
    assert not list(record.glob("checkpoints/step-*"))
