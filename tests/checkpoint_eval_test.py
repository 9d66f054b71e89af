"""Checkpoints as models: `faultline eval --model CHECKPOINT --strengths 0,0.05,0.1 --file FILE --limit N` on those of our own trainer, with all
weights and with adapters, and on verl's, which are read where they hold the whole model and answered with the merge otherwise; random
weights of a shape; trainings that do not fit."""

import json
import pathlib
import shutil

import pyarrow
import pyarrow.parquet
import pytest

import tiny_folder
from program import PROGRAM, ROOT, launch, refused, succeeded

TINY = ROOT / "recipes/train/tiny.yaml"
SHORT = ["train.steps=2", "train.sft.steps=1", "train.validation_problems=0", "train.save_model=true", "train.keep=3", "train.checkpoint_every=1"]
LORA = "+train.lora={rank: 2, alpha: 4, targets: [qkv_proj, down_proj]}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("The reader asks for the sum of two numbers and gets another number. " * 4)
    return file


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """In verl's schema; parquet where the module that reads it was built."""
    folder = tmp_path_factory.mktemp("questions")
    rows = [{"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"{i} + 1 = ?"}], "reward_model": {"style": "rule", "ground_truth": str(i + 1)}} for i in range(4)]
    if (PROGRAM.parent / "libfaultline_parquet.so").is_file():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "test.parquet")
        return folder / "test.parquet"
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "test.jsonl"


def perplexity(model, text):
    return succeeded(launch("eval", "--model", model, "--text", text, "--dtype", "fp32", "--json", "--quiet"))["rows"][0]["text"]


@pytest.fixture(scope="module", params=[[], [LORA]], ids=["all weights", "adapters"])
def trained(request, model, tmp_path_factory):
    done = succeeded(launch("train", TINY, f"model={model}", *SHORT, *request.param, "--json", "--quiet", "--dtype", "fp32", "--out", tmp_path_factory.mktemp("runs")))
    return pathlib.Path(done["record"])


def test_a_checkpoint_is_the_policy_of_its_step(trained, model, text):
    first, last = (perplexity(trained / f"checkpoints/step-{step:06}", text) for step in (1, 3))
    assert last == perplexity(trained / "model", text)
    assert len({json.dumps(one) for one in (first, last, perplexity(model, text))}) == 3


def test_the_command_of_the_study_runs_as_typed(trained, questions):
    done = succeeded(launch("eval", "--model", trained / "checkpoints/step-000003", "--strengths", "0,0.05,0.1", "--file", questions, "--limit", "4", "--max-new-tokens", "4", "--dtype", "fp32", "--json", "--quiet"))
    clean, *noisy = done["rows"]
    assert [row["label"] for row in noisy] == ["relative_gaussian strength=0.05", "relative_gaussian strength=0.1"]
    assert clean["task"]["questions"] == 4 and all(row["complaints"] == [] for row in noisy)


def test_what_is_not_a_policy_is_refused_with_the_way_out(trained, tmp_path):
    assert f"{trained / 'checkpoints/step-000003'} is the newest" in refused(64, "eval", "--model", str(trained))
    assert "this policy computed in fp32; give --dtype fp32" in refused(64, "eval", "--model", str(trained / "checkpoints/step-000003"), "--dtype", "bf16")
    shutil.copytree(trained / "checkpoints/step-000003", tmp_path / "alone")
    assert "give the checkpoint where the run made it" in refused(64, "eval", "--model", str(tmp_path / "alone"))


def test_a_checkpoint_of_verl_is_read_or_answered_with_the_merge(model, text, tmp_path):
    actor = tmp_path / "global_step_20/actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "model_world_size_2_rank_0.pt").write_bytes(b"a pickle")
    for folder in (actor, actor.parent):
        said = refused(64, "eval", "--model", str(folder))
        assert f"python -m verl.model_merger merge --backend fsdp --local_dir {actor} --target_dir {folder}-merged" in said
    for file in model.iterdir():
        shutil.copy(file, actor / "huggingface")
    assert perplexity(actor.parent, text) == perplexity(model, text)


def test_random_weights_of_a_shape(model, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, tmp_path)
    done = [succeeded(launch("train", ROOT / "recipes/train/lora-7b.yaml", f"model=random:{tmp_path}", "task.train=16", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.max_new_tokens=4", "--json", "--quiet", "--out", tmp_path / "runs")) for _ in range(2)]
    assert all(one["complaints"] == [] for one in done)
    assert done[0]["joined"] == done[1]["joined"], "random weights are the same each time"
    assert "did you mean 'qwen2.5-7b'" in refused(64, "eval", "--model", "random:qwen2.5-7")


def test_what_does_not_fit_is_said_before_a_weight_is_read(tmp_path):
    said = refused(64, "train", str(ROOT / "recipes/train/lora-7b.yaml"), "model=random:qwen2.5-32b", "~train.lora", "--out", str(tmp_path))
    assert "random:qwen2.5-32b: to train all of its 32" in said and "takes 720.8 GB" in said and "verl is the engine" in said and "python -m verl.trainer.main_ppo" in said
    assert list(tmp_path.iterdir()) == []
