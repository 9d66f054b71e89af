"""A step of verl's own trainer on a CPU, in an environment of its own (`./dev test-clients`; skipped elsewhere): verl imports
faultline_verl, whose plan acts in its FSDP2 engine. The loss is another with the plan and the same without it, and every
linear is found in forward and backward."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is tested in an environment of its own: ./dev test-clients")

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "libfaultline.so"
LAYERS, ROWS = 2, 4
LINEARS = 7 * LAYERS + 1
NOISE = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import pandas
    import tiny_folder

    folder = tmp_path_factory.mktemp("verl")
    tiny_folder.make(folder / "tiny", layers=LAYERS)
    rows = [[{"role": "user", "content": f"{number} + 1 ="}, {"role": "assistant", "content": str(number + 1)}] for number in range(ROWS)]
    pandas.DataFrame({"messages": rows}).to_parquet(folder / "train.parquet")
    return folder


def step(files, place, *, modules="verl_on_cpu,faultline_verl", recipe=NOISE):
    """One step of ROWS conversations. -> the finished process"""
    place.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FAULTLINE_")}
    variables |= {"VERL_USE_EXTERNAL_MODULES": modules, "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "FAULTLINE_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1",
                  "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")]), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if recipe is not None:
        (place / "recipe.json").write_text(json.dumps(recipe))
        variables |= {"FAULTLINE_RECIPE": str(place / "recipe.json"), "FAULTLINE_EVIDENCE": str(place / "evidence")}
    settings = [f"data.train_files={files / 'train.parquet'}", f"data.train_batch_size={ROWS}", f"data.micro_batch_size_per_gpu={ROWS}", "data.use_dynamic_bsz=False", "data.num_workers=0", "data.max_length=128",
                "data.pad_mode=no_padding", f"model.path={files / 'tiny'}", "model.use_remove_padding=False", "model.enable_gradient_checkpointing=False", "+model.override_config.attn_implementation=sdpa", "engine.strategy=fsdp2", "engine.use_torch_compile=False",
                "+engine.mixed_precision.param_dtype=fp32", "trainer.device=cpu", "trainer.total_epochs=1", "trainer.total_training_steps=1", "trainer.logger=[console]", "trainer.resume_mode=disable", "trainer.save_freq=-1",
                f"trainer.default_local_dir={place / 'checkpoints'}"]
    return subprocess.run([sys.executable, ROOT / "tests/verl_on_cpu.py", *settings], cwd=place, env=variables, capture_output=True, text=True)


def loss_of(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    [loss] = re.findall(r"train/loss:([-\d.e]+)", done.stdout)
    return loss


def test_a_step_of_verl_is_faulty_under_the_plan_and_the_same_without_it(files, tmp_path):
    clean, ours = loss_of(step(files, tmp_path / "clean", modules="verl_on_cpu", recipe=None)), loss_of(step(files, tmp_path / "ours", recipe=None))
    faulty = loss_of(step(files, tmp_path / "faulty"))
    assert clean == ours != faulty
    [file] = (tmp_path / "faulty/evidence").glob("process-*.json")
    entry = json.loads(file.read_text())
    # These transformers multiply matrices in the rotary embedding, too.
    rows = [row for row in entry["report"]["rows"] if row["place"] != "model.rotary_emb"]
    calls = {phase: sum(row["ledger"]["calls"] for row in rows if row["phase"] == phase) for phase in ("actor_forward", "actor_backward")}
    assert calls == {"actor_forward": LINEARS, "actor_backward": 2 * LINEARS} and len({row["place"] for row in rows}) == LINEARS
    assert {row["layer"] for row in rows} == {-1, *range(LAYERS)} and entry["role"] == "worker" and entry["work"]["actor_forward"] == 1
    assert entry["ended"] and entry["report"]["complaints"] == []


def test_a_plan_that_meets_nothing_or_cannot_be_armed_ends_verl(files, tmp_path):
    gelu = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "aten::gelu"}, "what": {"kind": "gain", "strength": 0.1}}]}
    silent = step(files, tmp_path / "silent", recipe=gelu)
    assert silent.returncode != 0 and "none of the plan's rules ('noise') met a single call" in silent.stderr
    wrong = step(files, tmp_path / "wrong", recipe={**NOISE, "sed": 1})
    assert wrong.returncode == 64 and "verl would have gone on without it" in wrong.stderr
