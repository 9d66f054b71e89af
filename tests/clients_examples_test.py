"""The example for Hugging Face runs as it stands, on a small model in place of SmolLM2."""

import pytest

import tiny_folder
from clients_process import ROOT, python


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny_folder.make(path)
    return path


def test_a_generation(folder):
    done = python(ROOT / "examples" / "hf_generate.py", folder)
    assert done.returncode == 0, done.stderr
    assert "[fault npu_noise] registered 15 sites" in done.stdout and "15 sites, 180 calls" in done.stdout
