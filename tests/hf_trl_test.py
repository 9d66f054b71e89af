"""Taps under TRL's GRPOTrainer on a CPU: rollout, log-probabilities, training and evaluation of one small run, each in its
phase, each call in its layer."""

import pytest
import torch
import transformers

import faultline
from tap_models import VOCABULARY, calls, calls_by_layer, qwen2, recipe, rows, rule, same_bits

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
LAYERS = 2


def tokenizer():
    """One token a word: w0 … w91 and four special ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(VOCABULARY - 4))]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", padding_side="left")


def trainer(folder, *, steps=2, **options):
    prompts = datasets.Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(8)]})
    settings = dict(output_dir=str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, num_generations=2, max_completion_length=4,
                    max_steps=steps, learning_rate=1e-2, use_cpu=torch.get_default_device().type == "cpu", report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=5, bf16=False,
                    gradient_checkpointing=False)
    qwen2(LAYERS, eos_token_id=2).save_pretrained(folder / "model")  # a reference model is loaded from a folder
    torch.manual_seed(5)
    return trl.GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=lambda completion_ids, **_: [float(sum(ids)) for ids in completion_ids],
        args=trl.GRPOConfig(**{**settings, **options}),
        train_dataset=prompts, eval_dataset=prompts.select(range(4)), processing_class=tokenizer())


def train(folder, a_recipe, **options):
    """-> report and trained weights of a run under a plan (None: without one)"""
    run = trainer(folder, **options)
    if a_recipe is None:
        run.train()
        return None, run.model.state_dict()
    with faultline.plan(a_recipe, model=run.model, total_steps=2) as plan, faultline.follow(run, plan):
        run.train()
    return plan.report, run.model.state_dict()


def test_a_run_has_its_rollout_and_training_in_their_phases_and_layers(tmp_path):
    report, faulty = train(tmp_path, recipe())
    assert report["complaints"] == [] and report["step"] == 1
    for phase in ("rollout", "actor_forward", "actor_backward"):
        assert {0, 1} <= calls_by_layer(report, phase=phase).keys(), phase
    forwards = report["forwards"]
    assert forwards.keys() == {"rollout", "actor_forward"} and forwards["actor_forward"] == 2
    for layer in range(LAYERS):
        assert calls(report, phase="rollout", layer=layer) == 7 * forwards["rollout"]
        assert calls(report, phase="actor_forward", layer=layer) == 7 * forwards["actor_forward"]
        assert calls(report, phase="actor_backward", layer=layer) == 14 * forwards["actor_forward"]
    assert calls(report, phase="rollout", place="lm_head") == forwards["rollout"]
    # TRL's head has a backward of its own, whose product for the weight's gradient reads no weight and runs in no module.
    assert calls(report, place="") == calls(report, place="", phase="actor_backward", operator="aten::addmm_") == 2
    _, clean = train(tmp_path, None)
    _, again = train(tmp_path, recipe())
    assert all(same_bits(faulty[name], again[name]) for name in faulty)
    assert not all(same_bits(faulty[name], clean[name]) for name in faulty)


def test_log_probabilities_and_the_reference_are_not_taken_for_a_rollout(tmp_path):
    # Two updates for each generation: old log-probabilities are needed; beta: those of a reference model, too.
    report, _ = train(tmp_path, recipe(phases={"ref": False}), beta=0.1, num_iterations=2)
    forwards = report["forwards"]
    assert forwards["ref"] == 1 and forwards["actor_forward"] == 3 and forwards["rollout"] <= 4
    assert calls(report, phase="ref") == 0
    assert report["rules"][0]["unreached"]["phase ref is off"] >= 7 * LAYERS
    for layer in range(LAYERS):
        assert calls(report, phase="rollout", layer=layer) == 7 * forwards["rollout"]
        assert calls(report, phase="actor_forward", layer=layer) == 7 * 3


def test_a_checkpointed_run_computes_every_layer_again(tmp_path):
    report, _ = train(tmp_path, recipe(), gradient_checkpointing=True)
    assert calls_by_layer(report, phase="recompute") == {layer: 2 * 6 for layer in range(LAYERS)}
    assert calls(report, phase="actor_forward", layer=0) == 2 * 7


def test_a_faulty_reference_has_its_layers(tmp_path):
    report, _ = train(tmp_path, recipe(rule(phases={"ref": True, "rollout": False, "actor_forward": False, "actor_backward": False})), beta=0.1)
    assert {row["phase"] for row in rows(report)} == {"ref"}
    for layer in range(LAYERS):
        assert calls(report, layer=layer) == 7 * report["forwards"]["ref"]


def test_an_evaluation_inside_training_stays_clean(tmp_path):
    options = dict(eval_strategy="steps", eval_steps=1, steps=1)
    report, _ = train(tmp_path, recipe(phases={"eval": "clean"}), **options)
    assert report["forwards"]["eval"] > 0 and calls(report, phase="eval") == 0
    report, _ = train(tmp_path, recipe(phases={"eval": "faulty"}), **options)
    assert calls(report, phase="eval", layer=1) == 7 * report["forwards"]["eval"]


def test_schedules_follow_the_trainers_steps(tmp_path):
    rising = rule(what={"kind": "relative_gaussian", "strength": 0.01}, schedule={"kind": "linear", "sigma_start": 0.01, "sigma_end": 0.09})
    report, _ = train(tmp_path, recipe(rising))
    assert report["step"] == 1 and {round(row["strength"], 6) for row in rows(report, phase="actor_forward")} == {0.09}


def test_following_ends_with_the_block(tmp_path):
    run = trainer(tmp_path)
    callbacks = len(run.callback_handler.callbacks)
    with pytest.raises(RuntimeError, match="planted"), faultline.follow(run):
        assert "generate" in vars(run.model) and torch.ops.faultline.get_phase() == "actor_forward"
        raise RuntimeError("planted")
    assert "generate" not in vars(run.model) and "evaluate" not in vars(run)
    assert len(run.callback_handler.callbacks) == callbacks and torch.ops.faultline.get_phase() == "auto"
