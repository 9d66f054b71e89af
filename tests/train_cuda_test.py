"""Training in two processes on GPUs: over NCCL where each has one of its own, over Gloo where they share one, to the same
weights."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from train_replicas_test import COMMON, in_two_processes, model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(model, folder, device):
    arguments = [*COMMON, "--device", device]
    ranks = in_two_processes(model, folder, arguments, arguments)
    assert [one.returncode for one in ranks] == [0, 0], [one.stderr for one in ranks]
    return json.loads(ranks[0].stdout)


@pytest.fixture(scope="module")
def sharing(model, tmp_path_factory):  # noqa: F811
    return trained(model, tmp_path_factory.mktemp("sharing"), "cuda:0")


def test_two_processes_that_share_a_gpu_use_gloo(sharing):
    assert (sharing["processes"], sharing["exchange"]) == (2, "gloo")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU a rank, and there are fewer than two")
def test_nccl_gives_the_weights_of_gloo_to_the_bit(sharing, model, tmp_path):  # noqa: F811
    apart = trained(model, tmp_path, "cuda")
    assert (apart["processes"], apart["exchange"]) == (2, "nccl")
    one, two = (load_file(pathlib.Path(done["model"]) / "model.safetensors") for done in (sharing, apart))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
