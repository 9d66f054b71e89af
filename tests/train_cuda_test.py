"""Training in two processes on GPUs: over NCCL where each has one of its own, over Gloo where they share one, to the same
weights. Where there is one GPU NCCL is told that the processes are on two machines; it then takes both, over sockets."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file

from train_replicas_test import COMMON, in_two_processes, model, survivor  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def on_the_same_gpu(number):
    return {"LOCAL_RANK": 0}


def on_two_machines(number):
    return {"LOCAL_RANK": 0, "NCCL_HOSTID": f"machine-{number}"}


def trained(model, folder, device, **changes):
    arguments = [*COMMON, "--device", device]
    ranks = in_two_processes(model, folder, arguments, arguments, **changes)
    assert [one.returncode for one in ranks] == [0, 0], [one.stderr for one in ranks]
    assert "destroy_process_group" not in ranks[0].stderr + ranks[1].stderr
    return json.loads(ranks[0].stdout)


def equal_weights(one, two):
    one, two = (load_file(pathlib.Path(done["model"]) / "model.safetensors") for done in (one, two))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def sharing(model, tmp_path_factory):  # noqa: F811
    return trained(model, tmp_path_factory.mktemp("sharing"), "cuda:0")


def test_two_processes_that_share_a_gpu_use_gloo(sharing, model, tmp_path):  # noqa: F811
    assert (sharing["processes"], sharing["exchange"], sharing["why_gloo"]) == (2, "gloo", "--device cuda:0")
    unknowing = trained(model, tmp_path, "cuda", own=on_the_same_gpu)
    assert (unknowing["exchange"], unknowing["why_gloo"]) == ("gloo", "processes share a GPU")
    assert equal_weights(sharing, unknowing)


def test_nccl_gives_the_weights_of_gloo_to_the_bit(sharing, model, tmp_path):  # noqa: F811
    apart = trained(model, tmp_path, "cuda", own=on_two_machines)
    assert (apart["processes"], apart["exchange"], apart["why_gloo"]) == (2, "nccl", None)
    assert equal_weights(sharing, apart)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are fewer than two GPUs")
def test_nccl_between_two_gpus_gives_the_weights_of_gloo_to_the_bit(sharing, model, tmp_path):  # noqa: F811
    apart = trained(model, tmp_path, "cuda")
    assert (apart["processes"], apart["exchange"], apart["why_gloo"]) == (2, "nccl", None)
    assert equal_weights(sharing, apart)


def test_a_process_whose_partner_is_killed_under_nccl_ends_with_an_error(model, tmp_path):  # noqa: F811
    code, said = survivor(model, tmp_path, "--device", "cuda", own=on_two_machines)
    assert code == 2 and "error: the exchange with the other processes failed" in said, (code, said)
