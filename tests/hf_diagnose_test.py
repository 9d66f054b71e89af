"""`faultline.diagnose` on Hugging Face models: a clean model is not accused, a planted fault is named where it was
planted, what could not be asked is said, and a machine that fails in the middle is never healthy."""

import json

import jsonschema
import pytest
import torch

import faultline
from program import launch
from tap_models import llama, qwen2, recipe, rule, tokens

PROMPT = tokens(1, 16)


@pytest.fixture(scope="module")
def schema():
    return json.loads(launch("diagnose", "--schema").stdout)


@pytest.fixture(scope="module")
def model():
    return llama(3).to(torch.bfloat16)


def broken(model, where, what, **options):
    with faultline.plan(recipe(rule(where=where, what=what), phases={"diagnose": True}), model=model, on_missing="warn") as plan:
        verdict = faultline.diagnose(model, prompt=PROMPT, **options)
    assert plan.report["rules"][0]["changed"] > 0
    return verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_clean_llama_is_not_accused(schema, dtype):
    model = llama(3).to(dtype)
    for seed in range(3):
        verdict = faultline.diagnose(model, prompt=tokens(1, 5 + 9 * seed, seed), seed=seed)
        jsonschema.validate(verdict, schema)
        assert verdict["candidates"] == [] and verdict["relations"] > 40
        assert verdict["verdict"] == ("healthy_where_tested" if dtype == torch.float16 else "healthy")


def test_a_clean_qwen2_says_that_its_biases_limit_it(schema):
    verdict = faultline.diagnose(qwen2(2).to(torch.bfloat16), prompt=PROMPT)
    jsonschema.validate(verdict, schema)
    assert verdict["verdict"] == "healthy_where_tested" and "biases" in verdict["not_tested"][0]


@pytest.mark.parametrize(
    "where, what, place, kind",
    [
        ({"module": "layer_output", "layer": 1}, {"kind": "gain", "strength": 0.05}, "model.layers.1", "gain"),
        ({"module": "down_proj", "surface": "output", "layer": 2}, {"kind": "deadzone", "threshold": 0.05}, "model.layers.2.mlp.down_proj", "deadzone"),
        ({"module": "q_proj", "surface": "output", "layer": 0}, {"kind": "gain", "strength": 0.01}, "model.layers.0.self_attn.q_proj", "gain"),
        ({"module": "*input_layernorm", "surface": "output", "layer": 1}, {"kind": "offset", "strength": 0.1}, "model.layers.1.input_layernorm", "offset"),
        ({"operator": "attention", "layer": 2}, {"kind": "gain", "strength": 0.05}, "model.layers.2.self_attn", "gain"),
        ({"module": "act_fn", "surface": "output", "layer": 0}, {"kind": "stuck_at", "bit": 3, "value": 1}, "model.layers.0.mlp.act_fn", "stuck_at"),
    ],
)
def test_a_planted_fault_is_named(model, schema, where, what, place, kind):
    verdict = broken(model, where, what)
    jsonschema.validate(verdict, schema)
    assert verdict["verdict"] == "fault"
    first = verdict["candidates"][0]
    assert (first["place"], first["kind"]) == (place, kind), verdict["candidates"]
    assert {candidate["layer"] for candidate in verdict["candidates"]} == {first["layer"]}


def test_an_intermittent_fault_is_waited_for(model):
    what = {"kind": "gain", "strength": 0.05}
    rules = recipe(rule(where={"module": "layer_output", "layer": 1}, what=what, lifetime={"kind": "transient", "probability": 0.1}), phases={"diagnose": True})
    with faultline.plan(rules, model=model, on_missing="warn"):
        verdict = faultline.diagnose(model, prompt=PROMPT, passes=64)
    assert [candidate["layer"] for candidate in verdict["candidates"]] == [1]


def test_a_machine_that_fails_in_the_middle_is_not_healthy(model, schema):
    def fail(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    handle = model.model.layers[1].mlp.down_proj.register_forward_hook(fail)
    try:
        verdict = faultline.diagnose(model, prompt=PROMPT)
    finally:
        handle.remove()
    jsonschema.validate(verdict, schema)
    assert verdict["verdict"] == "not_tested" and "illegal memory access" in verdict["not_tested"][-1]


def test_weights_that_are_not_finite_are_said():
    model = llama(2).to(torch.bfloat16)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    verdict = faultline.diagnose(model, prompt=PROMPT)
    assert verdict["verdict"] != "healthy" and any("not finite" in sentence for sentence in verdict["not_tested"])


def test_classes_without_known_answers_are_said(model):
    class Mine(torch.nn.Linear):
        pass

    strange = llama(2).to(torch.bfloat16)
    strange.model.layers[0].mlp.up_proj.__class__ = Mine
    verdict = faultline.diagnose(strange, prompt=PROMPT)
    assert verdict["verdict"] == "healthy_where_tested" and any("Mine" in sentence for sentence in verdict["not_tested"])


def test_the_model_is_left_as_it_was(model):
    model.train()
    before = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    faultline.diagnose(model, prompt=PROMPT)
    assert model.training and before == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    model.eval()


class Words:
    """A tokenizer that knows numbers, some of which the model does not."""

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()] if text[0].isdigit() else [7] * 20}


@pytest.mark.parametrize("options, says", [
    ({"passes": 0}, "at least 1"),
    ({"prompt": torch.zeros(2, 3, dtype=torch.long)}, "one row"),
    ({"prompt": torch.zeros(1, 3)}, "token number, .*float32"),
    ({"prompt": [3, 96]}, "token 96 at position 1 is none of this model's, which are 0 to 95; was it made by another model's tokenizer"),
    ({"prompt": [3, -1]}, "token -1 at position 1"),
    ({"prompt": "1 2 96", "tokenizer": Words()}, "token 96 at position 2"),
    ({"prompt": "a text"}, "a prompt that is a text needs the model's tokenizer"),
])  # fmt: skip
def test_mistakes_are_refused(model, options, says):
    with pytest.raises(ValueError, match=says):
        faultline.diagnose(model, **{"prompt": PROMPT, **options})


def test_a_prompt_may_be_left_out(model):
    """A fixed sentence where there is a tokenizer; else token numbers drawn with the seed."""
    seen = []
    handle = model.register_forward_pre_hook(lambda _module, _given, options: seen.append(options["input_ids"].tolist()), with_kwargs=True)
    try:
        for options in ({"tokenizer": Words()}, {}, {}, {"seed": 1}, {"prompt": [7, 8, 9], "tokens": 2}):
            assert faultline.diagnose(model, **options)["verdict"] == "healthy"
    finally:
        handle.remove()
    sentence, drawn, again, other, given = seen
    assert sentence == [[7] * 20] and drawn == again != other and len(drawn[0]) == 32 and given == [[7, 8]]


def test_a_verdict_is_a_dict_that_people_can_read(model):
    healthy = faultline.diagnose(model, prompt=PROMPT)
    assert str(healthy).startswith("self: healthy  (") and json.loads(healthy.json) == healthy == dict(healthy)
    verdict = broken(model, {"module": "layer_output", "layer": 1}, {"kind": "gain", "strength": 0.05})
    text = str(verdict)
    assert text.splitlines()[0].startswith("self: a fault  (") and "  model.layers.1  layer_output  gain (times 1.05)  [exact]" in text
    assert repr(verdict) == text and "{" not in text
