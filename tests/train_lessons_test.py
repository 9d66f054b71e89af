"""Lessons about training and its evaluation (lessons 3, 25, 30, 32, 35, 36, 58, 59), and what a trainer does with input that is
empty, torn, too long or without a spread. The task here has one answer to everything, so that a random model of two layers
learns it in seconds and accuracies are not zero."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess

import pytest

import program
import tiny_folder
from program import PROGRAM, ROOT, succeeded

TINY = ROOT / "recipes/train/tiny.yaml"
NOISE = "{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}"


ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as fast as two at this size, and the same everywhere


def launch(*arguments):
    return program.launch(*arguments, env=ONE_THREAD, timeout=600)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    """A task in GSM8K's format: whatever is asked, the answer is 7."""
    file = tmp_path_factory.mktemp("task") / "seven.jsonl"
    file.write_text("".join(json.dumps({"question": f"What is {i}?", "answer": "It is\n#### 7"}) + "\n" for i in range(32)))
    return file


def arguments(model, seven, *more):
    return ["train", str(TINY), f"model={model}", f"task={{name: gsm8k, train_file: {seven}, test_file: {seven}}}",
            "train.sft={steps: 60, prompts: 16, lr: 1.0e-2}", "train.steps=2", *more, "--json", "--quiet", "--dtype", "fp32"]  # fmt: skip


def events(record):
    return [json.loads(line) for line in (pathlib.Path(record) / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def learnt(model, seven, tmp_path_factory):
    return succeeded(launch(*arguments(model, seven, "train.save_model=true"), "--out", tmp_path_factory.mktemp("learnt")))


def test_the_task_is_learnt(learnt):
    assert learnt["results"]["val-core/openai/gsm8k/acc/mean@1"] >= 0.75, "or the tests below show nothing"


def test_lesson_58_noise_that_takes_the_policy_apart_is_refused_unless_forced(model, seven, tmp_path):
    loud = "+aqn={schedule: constant, sigma_start: 3.0%s}"
    refused = launch(*arguments(model, seven, loud % ""), "--out", tmp_path / "a")
    assert refused.returncode == 64 and "below four fifths" in refused.stderr, refused.stderr
    forced = launch(*[word for word in arguments(model, seven, loud % ", force: true") if word not in ("--json", "--quiet")],
                    "--out", tmp_path / "b")  # fmt: skip
    assert forced.returncode == 0, forced.stderr
    assert f"[aqn] {2 * tiny_folder.LAYERS + 1} RMSNorm weights, sigma up to 3" in forced.stdout
    assert "under the strongest noise" in forced.stdout


@pytest.mark.parametrize("aqn", [
    "schedule: zones, sigma_start: 0.01, zones: [{first_layer: 0, last_layer: 1, early: 1, late: 300}]",
    "schedule: constant, sigma_start: 0.05, layer_multipliers: [300, 300], sites: layer_output, sigma_scale: row",
])  # fmt: skip
def test_lesson_58_the_strongest_noise_is_that_of_the_strongest_layers_and_steps(model, seven, tmp_path, aqn):
    refused = launch(*arguments(model, seven, f"+aqn={{{aqn}}}"), "--out", tmp_path)
    assert refused.returncode == 64 and "below four fifths" in refused.stderr, refused.stderr


@pytest.mark.parametrize("sites", ["layer_output", "matmul_output"])
def test_noise_on_activations_is_counted_in_the_rollout_alone(model, tmp_path, sites):
    aqn = f"+aqn={{schedule: linear, sigma_start: 0.05, sites: {sites}, sigma_scale: row, force: true}}"
    done = succeeded(launch("train", TINY, f"model={model}", aqn, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path))
    rows = done["joined"]["faults"]["counts"]
    assert [(row["rule"], row["phase"]) for row in rows] == [("aqn", "rollout")] and rows[0]["changed"] > 0
    assert rows[0]["sites"] == (tiny_folder.LAYERS if sites == "layer_output" else rows[0]["sites"])
    assert done["complaints"] == []


def test_noise_on_activations_may_be_silent_at_first_and_stands_before_or_behind_a_dead_zone(model, tmp_path):
    zone = "{name: zone, where: {module: layer_output, layer: 1}, what: {kind: deadzone, threshold: 0.3}}"
    zeroed = {}
    for order in ("before", "after"):
        aqn = f"+aqn={{schedule: global_decay, num_stages: 3, sigma_start: 0.5, sites: layer_output, sigma_scale: row, layers: 1, order: {order}, force: true}}"
        done = succeeded(launch("train", TINY, f"model={model}", f"faults=[{zone}]", aqn, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path / order))
        zeroed[order] = {row["rule"]: row for row in done["joined"]["faults"]["counts"] if row["phase"] == "rollout"}
    assert zeroed["after"]["aqn"]["zeroed"] == 0 and zeroed["before"]["aqn"]["changed"] > 0
    assert zeroed["before"]["zone"]["zeroed"] != zeroed["after"]["zone"]["zeroed"], "the zone sees the noise, or it does not"


def test_lesson_59_relative_noise_rescues_nothing_from_a_dead_zone_and_additive_noise_before_it_does():
    import torch

    import faultline

    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(5))
    zone = "deadzone(threshold=0.5, relative_to=none)"
    dead = faultline.apply(x, zone) == 0

    def rescued(noise):  # of the dead ones; and how many of the others it costs
        alive = faultline.apply(faultline.apply(x, noise, seed=3), zone) != 0
        return (alive & dead).sum().item() / dead.sum().item(), (~alive & ~dead).sum().item() / (~dead).sum().item()

    relative, _ = rescued("relative_gaussian(strength=0.05)")
    additive, lost = rescued("absolute_gaussian(strength=0.25)")
    assert relative < 0.05 and additive > 0.1 and additive > 4 * relative and lost < additive
    alive = faultline.apply(faultline.apply(x, "relative_gaussian(strength=0.05)", seed=3), zone) != 0
    lifted, killed = (alive & dead).sum().item(), (~alive & ~dead).sum().item()
    assert min(lifted, killed) > 1000 and abs(lifted - killed) < 0.2 * lifted, "it kills as many as it rescues"
    after = faultline.apply(faultline.apply(x, zone), "relative_gaussian(strength=0.5)", seed=3)
    assert (after[dead] == 0).all(), "behind the zone it revives nothing"


def test_lesson_25_half_precision_is_refused_for_log_probabilities():
    import torch

    import faultline  # noqa: F401

    values = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises((RuntimeError, ValueError)):
        torch.ops.faultline.grpo_kl_terms(values, values, "k3")


def test_lesson_30_both_sides_are_scored_alike(model, tmp_path):
    """The same prompts, scorer and problems: under a fault that changes nothing the faulty validation is the clean one."""
    silent = "{name: silent, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 1.0e-12}, expect: invisible}"
    done = succeeded(launch("train", TINY, f"model={model}", f"faults=[{silent}]", "+phases={eval: both}", "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path))
    assert done["results"]["val-core/arithmetic/acc/mean@1"] == done["results"]["faultline/val-faulty/arithmetic/acc/mean@1"]


def test_lesson_32_a_dry_run_says_all_that_an_arm_changes(tmp_path):
    """An arm that changes two things says both; what it says is what its recipe differs in."""
    command = ["run", ROOT / "recipes/experiments/noisy-ops.yaml", "--scale", "tiny", "--dry-run", "--out", tmp_path]
    arms = succeeded(launch(*command, "--json", "--quiet"))["arms"]
    done = launch(*command)
    assert done.returncode == 0, done.stderr
    said = dict(line.strip().split(":", 1) for line in done.stdout.splitlines() if line.strip().split(":")[0] in arms)
    assert set(said) == set(arms)
    base = arms["e5"]  # changes nothing
    assert said["e5"].strip() == ""
    for arm, recipe in arms.items():
        differs = {key for key in recipe.keys() | base.keys() if recipe.get(key) != base.get(key)}
        named = {key for key in recipe.keys() | base.keys() if f"{key}=" in said[arm] or f"{key}." in said[arm] or f"~{key}" in said[arm]}
        assert named == differs, arm


def test_lesson_32_arms_differ_in_what_they_name_and_in_nothing_else(tmp_path):
    dry = succeeded(launch("run", ROOT / "recipes/experiments/noisy-ops.yaml", "--scale", "tiny", "--dry-run", "--json", "--quiet", "--out", tmp_path))
    control = dry["arms"]["e5"]
    differs = {arm: {key for key in recipe.keys() | control.keys() if recipe.get(key) != control.get(key)} for arm, recipe in dry["arms"].items()}
    assert differs == {"baseline": {"phases"}, "e5": set(), "e5a": {"aqn"}, "e5b": {"aqn"}, "e5c": {"faults"}, "e5d": {"aqn", "faults"}}


BASE = {"schedule": "linear", "sigma_start": 0.02, "sigma_end": 0.01, "sigma_scale": "relative", "force": True}


@pytest.fixture(scope="module")
def noise_of(model, tmp_path_factory):
    """The noise of a training's steps, as its weights had it, for an AQN section given in a recipe."""

    def steps(**aqn):
        section = "+aqn=" + json.dumps({**BASE, **aqn}).replace('"', "")
        done = succeeded(launch("train", TINY, f"model={model}", "~train.sft", section, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path_factory.mktemp("noise")))
        keys = [f"faultline/aqn/{name}" for name in ("sigma", "expected", "measured", "weights", "elements", "changed")]
        return [[event["metrics"][key] for key in keys] for event in events(done["record"]) if event["kind"] == "step"]

    return steps


@pytest.fixture(scope="module")
def plain(noise_of):
    return noise_of()


@pytest.mark.parametrize("field", [{"sigma_start": 0.03}, {"sigma_end": 0.005}, {"sigma_scale": "absolute"}, {"layers": 1}, {"layer_multipliers": [1, 2]}, {"layer_multipliers": [2, 1]}, {"schedule": "global_decay", "num_stages": 2}])
def test_lesson_3_every_field_of_the_noise_goes_from_the_recipe_to_the_sampler(noise_of, plain, field):
    found = noise_of(**field)
    assert len(found) == len(plain) == 4
    assert all(one != other for one, other in zip(found[1:3], plain[1:3], strict=True)), "the field was dropped on the way"


def test_lesson_3_a_layer_whose_multiplier_is_0_is_left_alone(noise_of, plain):
    for multipliers in ([1, 0], [0, 1]):
        for one, other in zip(noise_of(layer_multipliers=multipliers), plain, strict=True):
            assert other[5] - one[5] == 2 * tiny_folder.HIDDEN, "the two norms of that layer, every element"


def test_lesson_35_nothing_after_any_of_the_end_tokens_is_scored(learnt, tmp_path):
    """generation_config.json names several: an answer ends at whichever comes first, and neither it nor what would follow counts."""
    texts = {}
    for name, tokens in {"as trained": [2], "and a new line": [2, "\u010a"]}.items():
        folder = tmp_path / name.replace(" ", "_")
        shutil.copytree(learnt["model"], folder)
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [token if isinstance(token, int) else vocabulary[token] for token in tokens]}))
        done = succeeded(launch("eval", "--model", folder, "--dtype", "fp32", "--limit", "8", "--shots", "0", "--max-new-tokens", "16", "--json", "--quiet", "--out", tmp_path / "runs"))
        texts[name] = [event for event in events(done["record"]) if event["kind"] == "answer"]
    said = [event["text"] for event in texts["as trained"] if event["extracted"]]
    assert len(said) >= 4 and all("\n####" in text for text in said), "or the next lines show nothing"
    cut = texts["and a new line"]
    assert all(event["extracted"] == "" and event["reward"] == 0 and "\n" not in event["text"] for event in cut)
    assert all(event["ended"] for event, whole in zip(cut, texts["as trained"], strict=True) if "\n" in whole["text"])


def test_lesson_36_a_run_never_takes_the_place_of_another(model, tmp_path):
    command = ["train", TINY, f"model={model}", "train.steps=1", "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path]
    records = [succeeded(launch(*command))["record"] for _ in range(2)]
    assert records[0] != records[1] and all((pathlib.Path(record) / "summary.json").exists() for record in records)


def test_groups_without_a_spread_teach_nothing_and_break_nothing(model, tmp_path):
    """A random model is never right: every reward is 0, every group equal."""
    common = [f"model={model}", "~train.sft", "--json", "--quiet", "--dtype", "fp32"]
    kept = succeeded(launch("train", TINY, *common, "--out", tmp_path / "kept"))
    metrics = [event["metrics"] for event in events(kept["record"]) if event["kind"] == "step"]
    assert all(one["faultline/groups_that_differ"] == 0 and one["actor/pg_loss"] == 0 for one in metrics)
    dropped = succeeded(launch("train", TINY, "train.filter_groups=true", *common, "--out", tmp_path / "dropped"))
    metrics = [event["metrics"] for event in events(dropped["record"]) if event["kind"] == "step"]
    assert all(one["faultline/update_skipped"] == 1 and one["faultline/groups_kept"] == 0 for one in metrics), "an empty batch"


@pytest.mark.parametrize("line,sentence", [
    ('{"question": "What?"}', "answer"),
    ('{"question": 3, "answer": "#### 1"}', "question"),
    ("not json", "seven.jsonl:1"),
    ("", "seven.jsonl"),
])  # fmt: skip
def test_a_task_file_with_missing_fields_is_refused_with_its_line(model, tmp_path, line, sentence):
    file = tmp_path / "seven.jsonl"
    file.write_text(line + "\n" if line else "")
    result = launch(*arguments(model, file), "--out", tmp_path / "runs")
    assert result.returncode == 64 and sentence in result.stderr, result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("stages,levels", [(1, [0.05] * 4), (2, [0, 0, 0.05, 0.05])])
def test_schedules_of_one_and_two_stages_are_never_silent_by_accident(model, tmp_path, stages, levels):
    aqn = f"+aqn={{schedule: global_decay, num_stages: {stages}, sigma_scale: relative, force: true}}"
    done = succeeded(launch("train", TINY, f"model={model}", "~train.sft", aqn, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path))
    steps = [event["metrics"] for event in events(done["record"]) if event["kind"] == "step"]
    assert [one["faultline/aqn/sigma"] for one in steps] == levels
    assert [one["faultline/aqn/changed"] > 0 for one in steps] == [level > 0 for level in levels]
    assert [one["faultline/aqn/delta_over_sigma"] > 0 for one in steps] == [level > 0 for level in levels]


@pytest.mark.parametrize("arguments,sentence", [
    (["+aqn={schedule: linear, sigma_start: 0.05, sites: layer_output, layers: 5}"], "the model has layers 0 to 1"),
    (["+aqn={schedule: constant, sigma_scale: row}"], "activations"),
    (["+aqn={schedule: constant, exclude_router_input: true}"], "no router"),
    (["+aqn={schedule: constant, sites: layer_outputs}"], "layer_output"),
    (["train.n=3", "train.micro_batch=8"], "does not divide"),
    (["train.updates=3"], "cannot be divided into 3 updates"),
])  # fmt: skip
def test_noise_and_batches_that_cannot_be_are_refused(model, tmp_path, arguments, sentence):
    result = launch("train", TINY, f"model={model}", *arguments, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path / "runs")
    assert result.returncode == 64 and sentence in result.stderr, result.stderr
    assert not (tmp_path / "runs").exists()


def test_the_evidence_of_a_resumed_run_is_that_of_an_uninterrupted_one(model, tmp_path):
    common = [f"faults=[{NOISE}]", "+phases={eval: both}", "train.checkpoint_every=1", "train.keep=20",
              "+aqn={schedule: constant, sigma_start: 0.01, sigma_scale: relative, force: true}"]  # fmt: skip
    whole = succeeded(launch("train", TINY, f"model={model}", *common, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path))
    assert whole["complaints"] == [] and whole["joined"]["faults"]["parts"] == 1
    record = pathlib.Path(whole["record"])
    for stands_at in (7, 5, 2):  # finished, within GRPO, within the supervised steps
        for checkpoint in (record / "checkpoints").iterdir():
            if checkpoint.name > f"step-{stands_at:06d}":
                for file in checkpoint.iterdir():
                    file.unlink()
                checkpoint.rmdir()
        again = succeeded(launch("train", "--resume", record, "--json", "--quiet", "--dtype", "fp32"))
        assert again["joined"]["faults"]["counts"] == whole["joined"]["faults"]["counts"], stands_at
        assert again["joined"]["aqn"] == whole["joined"]["aqn"] and again["complaints"] == []
        assert again["results"] == whole["results"]


def limited():  # a file may not grow beyond 64 KiB, and the write that tries it fails as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


def test_a_full_disk_stops_the_run_with_a_sentence_and_loses_nothing(model, tmp_path):
    command = [PROGRAM, "train", TINY, f"model={model}", "--json", "--quiet", "--dtype", "fp32", "--out"]
    whole = succeeded(launch(*command[1:], tmp_path / "whole"))
    full = subprocess.run([*map(str, command), str(tmp_path / "full")], capture_output=True, text=True, cwd=ROOT, preexec_fn=limited, timeout=600,
                          env={**os.environ, **ONE_THREAD, "NO_COLOR": "1"})  # fmt: skip
    assert full.returncode == 2 and "File too large" in full.stderr, (full.returncode, full.stderr)
    record = next((tmp_path / "full").iterdir())
    assert not list(record.glob("checkpoints/*")) or all(not path.name.startswith("step-") for path in record.glob("checkpoints/*"))
    again = succeeded(launch("train", "--resume", record, "--json", "--quiet", "--dtype", "fp32"))
    assert again["results"] == whole["results"]
    kept = [event for event in events(record) if event["kind"] == "step"]
    assert [event["step"] for event in kept] == list(range(1, 8)), "no step lost, none twice"
