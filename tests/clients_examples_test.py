"""The examples run as they stand, on a small model in place of SmolLM2 (vLLM's: clients_vllm_test.py)."""

import ast
import json
import re

import pytest

import tiny_folder
from clients_process import ROOT, python, with_collectives

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny_folder.make(path)
    return path


def test_a_generation(folder):
    done = python(EXAMPLES / "hf_generate.py", folder)
    assert done.returncode == 0, done.stderr
    assert "[fault npu_noise] registered 15 sites" in done.stdout and "15 sites, 180 calls" in done.stdout


def test_two_steps_of_grpo(folder, tmp_path):
    done = python(EXAMPLES / "trl_grpo.py", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "faultline/npu_noise/changed" in done.stdout and "[fault npu_noise] registered" in done.stdout
    [record] = (tmp_path / "runs/trl/faultline").glob("process-*.json")
    phases = {row["phase"] for row in json.loads(record.read_text())["report"]["rows"]}
    assert phases == {"rollout", "actor_forward", "actor_backward"}


def test_a_ray_actor():
    pytest.importorskip("ray")
    done = python(EXAMPLES / "ray_actor.py", RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_worker_niceness="0")
    assert done.returncode == 0, done.stderr
    mean, rules = (line for line in done.stdout.splitlines() if line.startswith(("256 =", "{")))
    assert float(mean.removeprefix("256 =")) != 256 and ast.literal_eval(rules)["npu_noise"]["calls"] == 1


def test_two_ranks_with_their_collectives(tmp_path):
    out = tmp_path / "out"
    done = with_collectives(out, lambda: python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "faultline", "--recipe", EXAMPLES / "noise.yaml",
                                                "--evidence", out / "evidence", "--collectives", out / "digests", EXAMPLES / "ddp.py"))
    assert done.returncode == 0, done.stderr
    # torchrun's ranks write unbuffered, the text and its end of line apart: two ranks may share a line.
    assert sorted(re.findall(r"rank (\d): loss \d", done.stdout)) == ["0", "1"]
    assert done.stderr.count("[fault npu_noise]") >= 2 and len(list((out / "evidence").glob("process-*.json"))) == 2
    compared = python("-m", "faultline.collectives", "--compare", out / "digests")
    assert compared.returncode == 0, compared.stdout + compared.stderr
