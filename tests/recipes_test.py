"""Every recipe in recipes/: its comment says how to run it or what it shows and which verdict is expected, it is valid, its
dry run shows what it would do, and it is carried out at smoke scale on a random model of two layers. Experiments are carried
out by the tests of the training; here they are checked and dry-run."""

import json

import pytest
import yaml

import tiny_folder
from program import ROOT, launch

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


def name_of(path):
    return str(path.relative_to(ROOT / "recipes"))


def kind_of(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "schema_version" in content:
        return "triage"
    return next((section for section in ("experiment", "diagnose", "train") if section in content), "evaluation")


@pytest.fixture(params=RECIPES, ids=name_of)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("recipes") / "model", layers=16, context=4096)


def done(codes, *arguments):
    result = launch(*arguments)
    assert result.returncode in codes, (result.returncode, result.stdout[-3000:], result.stderr[-3000:])
    return result


def test_its_comment_says_what_is_expected(recipe):
    comment = "\n".join(line.lstrip("# ") for line in recipe.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    assert len(comment) > 60 and "Expected:" in comment, "say in a comment what the recipe shows, and `Expected: …`"


def test_it_is_valid_and_its_dry_run_shows_what_it_would_do(recipe, model):
    kind = kind_of(recipe)
    if kind == "triage":
        text = done([0], "triage", "run", "--recipe", recipe, "--dry-run").stdout
        assert all(cell["name"] in text for cell in yaml.safe_load(recipe.read_text())["cells"])
        return
    resolved = json.loads(done([0], "check", recipe, "--json").stdout)
    assert resolved
    if kind == "experiment":
        done([0], "run", recipe, "--dry-run")
    elif kind == "diagnose":
        assert "Nothing was run" in done([0], "run", recipe, f"model={model}", "--dry-run").stdout
    elif kind == "train":
        assert "Nothing was run" in done([0], "train", recipe, f"model={model}", "--dry-run").stdout
    elif kind == "evaluation":
        result = done([0, 64], "run", recipe, f"model={model}", "--dry-run")
        assert REFUSED[name_of(recipe)] in result.stderr if name_of(recipe) in REFUSED else "matched sites" in result.stdout


@pytest.mark.parametrize("recipe, command", [("race-smoke.yaml", "triage run --recipe"), ("train/default.yaml", "train")])
def test_one_of_another_command_is_refused_with_that_command(recipe, command):
    recipe = ROOT / "recipes" / recipe
    assert f"`faultline {command} {recipe}`" in done([64], "run", recipe).stderr


REFUSED = {"example.yaml": "rule 'lost_signals': its window opens at step 10"}  # an evaluation has one step; training reaches it

# What a recipe is cut down to, beyond what its kind is; and the exit codes it may then have.
SMALLER = {
    "ainic-gdr-flush-sdc.yaml": (["trials=1", "steps=2", "ranks=2", "transport=threads", "device=cpu", "workload_config.fsdp_shard_size=2000", "workload_config.model_dim=32", "+workload_config.num_heads=2",
                                  "workload_config.num_layers=4", "+workload_config.seq_len=8", "+workload_config.h2d_tensor_size=1000"], [0, 1, 2]),
    "race-smoke.yaml": (["trials=2", "steps=4"], [0, 1, 2]),
    "example.yaml": (["+evaluate={limit: 2, max_new_tokens: 4}"], [64]),
    "noise.yaml": (["evaluate.limit=2", "evaluate.max_new_tokens=4"], [0]),
}  # fmt: skip
TRAINING = ["train.sft.steps=1", "train.steps=1", "train.prompts=2", "train.n=2", "train.micro_batch=2", "train.slots=4", "train.validation_problems=2", "++train.max_new_tokens=4", "++train.sft.prompts=2"]


def test_it_is_carried_out_at_smoke_scale(recipe, model, tmp_path):
    kind = kind_of(recipe)
    changes, codes = SMALLER.get(name_of(recipe), ([], [0]))
    if kind == "experiment":
        pytest.skip("carried out by the tests of the training")
    elif kind == "triage":
        done(codes, "triage", "run", "--quiet", "--recipe", recipe, "--out", tmp_path / "out", *changes)
        assert json.loads((tmp_path / "out" / "matrix.json").read_text())["cells"]
    elif kind == "train":
        done(codes, "train", recipe, f"model={model}", *TRAINING, *changes, "--quiet", "--dtype", "fp32", "--out", tmp_path)
        assert list(tmp_path.glob("*/summary.json"))
    elif kind == "diagnose":
        # A small part of a campaign: it may stop anywhere, and what is there counts.
        done(codes, "run", recipe, f"model={model}", "diagnose.store=trials.sqlite", "diagnose.campaign=smoke", "--quiet", "--out", tmp_path, *changes)
        assert (tmp_path / "trials.sqlite").exists()
    else:
        result = done(codes, "run", recipe, f"model={model}", "--quiet", "--out", tmp_path, *changes)
        assert bool(list(tmp_path.glob("*/summary.json"))) == (result.returncode == 0)
