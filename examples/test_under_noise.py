"""A project's own test, under faults: how many decisions of a small classifier survive 5 % noise on its matrix products.

    pytest examples/test_under_noise.py"""

import pathlib

import torch

RECIPE = pathlib.Path(__file__).with_name("noise.yaml")


def test_most_decisions_survive_five_per_cent_of_noise(faultline_plan):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.SiLU(), torch.nn.Linear(64, 8))
    x = torch.randn(256, 64)
    with torch.no_grad():
        clean = model(x).argmax(dim=-1)
        plan = faultline_plan(RECIPE, model=model)
        noisy = model(x).argmax(dim=-1)
    assert (clean == noisy).float().mean() > 0.9
    assert plan.read()["rules"][0]["calls"] == 2
