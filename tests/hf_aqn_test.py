"""AQN where TRL samples from the model that it trains, on a CPU: norms noisy in generate() and clean in the update and in evaluations, by
what forwards really read; the trainer's steps; trainers without a rollout; and runs whose noise never went on, or stayed on."""

import contextlib
import os

import pytest
import torch

import faultline
from faultline import armed, environment, evidence, phases, trainer_norms
from tap_models import recipe

pytest.importorskip("trl")
from clients_process import python, write  # noqa: E402
from hf_trl_test import LAYERS, tokenizer, trainer  # noqa: E402

STEPS = 3
NORMS = 2 * LAYERS + 1
AQN = {"schedule": "linear", "sigma_start": 0.05, "sigma_end": 0.01, "sigma_scale": "relative"}


@contextlib.contextmanager
def under_plan(tmp_path, monkeypatch, *, total=STEPS, **changes):
    """This process as FAULTLINE_RECIPE arms it."""
    monkeypatch.setenv("FAULTLINE_RECIPE", str(write(tmp_path, "recipe.json", {"seed": 7, "aqn": AQN, **changes})))
    monkeypatch.setenv("FAULTLINE_TOTAL_STEPS", str(total))
    own = environment.Armed(os.environ["FAULTLINE_RECIPE"])
    armed.hold(own)
    armed.take_role("launcher")
    phases.watch(own)
    try:
        yield own
    finally:
        armed.hold(None)
        own.plan.disarm()
        own._optimizer_steps.remove()
        for attachment in set(phases._known.values()):
            attachment.detach()
        phases._known.clear()


def weights_read(model):
    """-> a list that fills with the phase and the final norm's weight of every forward"""
    seen = []
    model.model.norm.register_forward_pre_hook(lambda module, _: seen.append((torch.ops.faultline.get_phase(), module.weight.detach().clone())))
    return seen


def test_norms_are_noisy_in_the_rollout_and_clean_in_everything_else(tmp_path, monkeypatch):
    with under_plan(tmp_path, monkeypatch) as own:
        run = trainer(tmp_path, steps=STEPS, eval_strategy="steps", eval_steps=1)
        seen, clean = weights_read(run.model), run.model.model.norm.weight.detach().clone()
        run.train()
        [entry] = [own.snapshot()]
    assert {phase for phase, _ in seen} == {"rollout", "actor_forward", "eval"}
    noisy, steps = None, []
    for phase, weight in seen:
        if phase != "rollout":
            clean, noisy = weight, None  # the update's forward comes after the rollout's, with the weights that it learnt from
        elif noisy is None:
            noisy = weight
            steps.append(((weight - clean) / clean).square().mean().sqrt().item())
        else:
            assert torch.equal(weight, noisy)
    assert steps == pytest.approx([0.05, 0.03, 0.01], rel=0.4)
    aqn = entry["notes"]["aqn"]
    assert (aqn["asked"], aqn["norms"], aqn["applications"], aqn["step_from"]) == (NORMS, NORMS, STEPS, "trainer")
    assert aqn["sigmas"] == pytest.approx({"first": 0.05, "last": 0.01, "highest": 0.05})
    assert aqn["outside"]["noisy"] == 0 and aqn["outside"]["forwards"] == sum(phase != "rollout" for phase, _ in seen)
    collection = evidence.merge([entry])
    assert collection["complaints"] == [] and collection["aqn"] == {"asked": NORMS, "norms": NORMS, "applications": STEPS, "processes": 1}
    logged = {line["step"]: line["faultline/aqn/sigma"] for line in run.state.log_history if "faultline/aqn/sigma" in line and "loss" in line}
    assert logged == pytest.approx({1: 0.05, 2: 0.03, 3: 0.01})


def test_noise_that_stays_on_in_the_update_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_norms.TrainerNoise, "rest", lambda self: None)
    with under_plan(tmp_path, monkeypatch), pytest.raises(faultline.EvidenceError, match="noise was still on the norms in 1 of 1 forwards of the update"):
        trainer(tmp_path, steps=STEPS).train()


def test_noise_that_never_goes_on_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_norms, "sampling", lambda model: contextlib.nullcontext())
    with under_plan(tmp_path, monkeypatch), pytest.raises(faultline.EvidenceError, match="was put on no norm here"):
        trainer(tmp_path, steps=STEPS).train()


def test_noise_of_another_strength_ends_the_run(tmp_path, monkeypatch):
    original = torch.ops.faultline.norm_noise
    monkeypatch.setattr("faultline.norms._OPS", type("Ops", (), {"__getattr__": lambda _, name: (lambda clean, *rest: (clean.clone(), *original(clean, *rest)[1:3], 0.0)) if name == "norm_noise" else getattr(torch.ops.faultline, name)})())
    with under_plan(tmp_path, monkeypatch), pytest.raises(faultline.EvidenceError, match="carried 0 to 0 of the noise"):
        trainer(tmp_path, steps=STEPS).train()


def test_what_cannot_be_meant_is_refused_before_the_first_step(tmp_path, monkeypatch):
    import datasets
    import trl

    with under_plan(tmp_path, monkeypatch):
        rows = datasets.Dataset.from_dict({"text": ["w1 w2 w3 w4"] * 4})
        grpo = trainer(tmp_path)
        sft = trl.SFTTrainer(model=str(tmp_path / "model"), args=trl.SFTConfig(output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], bf16=False), train_dataset=rows, processing_class=tokenizer())
        with pytest.raises(ValueError, match="SFTTrainer samples nothing while it trains"):
            sft.train()
        with pytest.raises(ValueError, match="laid over 3 steps, and the trainer makes 2: set FAULTLINE_TOTAL_STEPS=2"):
            grpo.train()
        grpo.args.use_transformers_continuous_batching = True
        with pytest.raises(ValueError, match="samples past generate"):
            grpo.train()
        grpo.args.use_transformers_continuous_batching, grpo.is_fsdp_enabled = False, True
        with pytest.raises(ValueError, match="FSDP and DeepSpeed cut"):
            grpo.train()


def test_a_script_is_trained_under_noise_unedited(tmp_path):
    script = write(tmp_path, "script.py", f"import pathlib\nfrom hf_trl_test import trainer\ntrainer(pathlib.Path({str(tmp_path)!r}), steps=2).train()\n")
    done = python("-m", "faultline", "--recipe", write(tmp_path, "recipe.json", recipe(aqn=AQN)), "--evidence", tmp_path / "evidence", script, cwd=tmp_path, FAULTLINE_TOTAL_STEPS="2")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert f"[AQN] Applied noise to {NORMS} RMSNorm layers" in done.stderr and f"[aqn] {NORMS} norm weights carry noise in 1 process, put on 2 times" in done.stderr
    assert faultline.collect(tmp_path / "evidence")["aqn"]["applications"] == 2
