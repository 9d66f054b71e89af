"""A Hugging Face model with the shape of SmolLM2 (30 layers, tied head), under plan(): every linear is found, generation is
rollout, a training step is actor_forward and actor_backward; without a plan not one bit differs."""

import pytest
import torch

import faultline
from tap_models import calls, llama, recipe, rows, same_bits, tokens, training_step

LAYERS, LINEARS = 30, 7 * 30 + 1


@pytest.fixture(scope="module")
def model():
    return llama(LAYERS)


def generate(model):
    return model.generate(tokens(1), max_new_tokens=3, min_new_tokens=3, do_sample=False, output_logits=True, return_dict_in_generate=True)


def test_every_linear_of_a_generation_is_found_as_often_as_it_runs(model):
    clean = generate(model)
    with faultline.plan(recipe(), model=model) as plan:
        faulty = generate(model)
    found = rows(plan.report, phase="rollout")
    assert plan.report["forwards"] == {"rollout": 3} and plan.report["rows"] == found
    assert len({row["place"] for row in found}) == LINEARS and calls(plan.report) == 3 * LINEARS
    assert all(not same_bits(a, b) for a, b in zip(clean.logits, faulty.logits, strict=True))
    again = generate(model)
    assert torch.equal(clean.sequences, again.sequences) and all(same_bits(a, b) for a, b in zip(clean.logits, again.logits, strict=True))


def test_a_training_step_has_each_linear_once_forward_and_twice_backward(model):
    clean = training_step(model, tokens())
    with faultline.plan(recipe(), model=model) as plan:
        faulty = training_step(model, tokens())
    assert plan.report["forwards"] == {"actor_forward": 1}
    assert calls(plan.report, phase="actor_forward") == LINEARS and calls(plan.report, phase="actor_backward") == 2 * LINEARS
    assert len({row["place"] for row in rows(plan.report, phase="actor_backward")}) == LINEARS
    assert all(not same_bits(clean[name], faulty[name]) for name in clean if "proj" in name)
    again = training_step(model, tokens())
    assert all(same_bits(clean[name], again[name]) for name in clean)
