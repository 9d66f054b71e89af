"""The examples run as they stand, on a small model in place of SmolLM2."""

import os

import pytest

import tiny_folder
from clients_process import ROOT, python

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny_folder.make(path)
    return path


def test_a_generation(folder):
    done = python(ROOT / "examples" / "hf_generate.py", folder)
    assert done.returncode == 0, done.stderr
    clean, faulty, *rest = [line for line in done.stdout.splitlines() if line]
    assert "[fault npu_noise] registered 15 sites" in done.stdout and "15 sites, 180 calls" in done.stdout


def test_ray():
    pytest.importorskip("ray")
    done = python(ROOT / "examples" / "ray_actor.py", FAULTLINE_LIBRARY=os.environ.get("FAULTLINE_LIBRARY", ""))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    assert first.startswith("256 = ") and first != "256 = 256.0" and "'npu_noise': {'kind': 'relative_gaussian', 'calls': 1" in second


def test_two_ranks(tmp_path):
    done = python(*LAUNCH, "-m", "faultline", "--recipe", ROOT / "examples" / "noise.yaml", "--evidence", tmp_path / "evidence", "--collectives", tmp_path / "digests", ROOT / "examples" / "ddp.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 2 and len(list((tmp_path / "evidence").glob("process-*.json"))) == 2
