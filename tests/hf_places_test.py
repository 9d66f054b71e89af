"""Single places of somebody else's model: the keys and values that go into its cache, biases, rows of the embedding, and calls
chosen by `when:`. Each acts where it is asked to and nowhere else, repeats with its seed, and is counted."""

import pytest
import torch

import faultline
from tap_models import calls, llama, logits, qwen2, recipe, rule, tokens

GAIN = {"kind": "gain", "strength": 1.0}


@pytest.fixture(scope="module")
def model():
    return qwen2(2)


def filled(model, ids, **plan):
    """-> the cache that one prefill leaves, and the report"""
    with torch.no_grad():
        if not plan:
            return model(ids, use_cache=True).past_key_values, None
        with faultline.plan(recipe(rule(**plan)), model=model) as armed:
            cache = model(ids, use_cache=True).past_key_values
        return cache, armed.report


def pair(cache, layer):
    return cache.layers[layer].keys, cache.layers[layer].values


# --- the cache --------------------------------------------------------------------------------------------------------
def test_a_cache_keeps_the_faulty_keys_of_the_row_that_is_meant_and_nothing_else(model):
    ids = tokens(1, 6)
    clean, _ = filled(model, ids)
    faulty, report = filled(model, ids, what=GAIN, where={"module": "k_cache", "layer": 1}, extent={"rows": 4})  # head 0, token 4
    again, _ = filled(model, ids, what=GAIN, where={"module": "k_cache", "layer": 1}, extent={"rows": 4})
    assert all(torch.equal(a, b) for a, b in zip(pair(clean, 0), pair(faulty, 0)))
    assert torch.equal(pair(faulty, 1)[1], pair(clean, 1)[1])
    wanted = pair(clean, 1)[0].clone()
    wanted[0, 0, 4] *= 2
    assert torch.equal(pair(faulty, 1)[0], wanted) and torch.equal(pair(again, 1)[0], wanted)
    assert calls(report, rule="fault") == 1 and report["rows"][0]["place"].endswith("layers.1.self_attn.k_cache")


def test_a_generation_counts_what_goes_into_its_cache(model):
    plan = faultline.plan(recipe(rule(what=GAIN, where={"module": "kv_cache"})), model=model)
    ids = tokens(1, 5)

    def run(new):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)

    with plan:
        plan.dry_run(lambda: run(3))
        run(5)
    assert calls(plan.report, rule="fault") == 5 * 2 * 2 and plan.report["complaints"] == []
    from transformers import Cache

    assert Cache.update.__qualname__ == "Cache.update" and not hasattr(Cache.update, "__wrapped__"), "taken back"


def test_a_model_without_such_a_cache_is_told_what_to_name():
    with pytest.raises(ValueError, match="name the operator that writes it"):
        faultline.plan(recipe(rule(what=GAIN, where={"module": "kv_cache"})), model=torch.nn.Sequential(torch.nn.Linear(4, 4))).arm()


# --- biases and rows of the embedding ---------------------------------------------------------------------------------
def test_a_bias_is_faulted_alone(model):
    ids = tokens()
    with torch.no_grad():
        clean = logits(model, ids)
        with faultline.plan(recipe(rule(what=GAIN, where={"operator": "matmul", "surface": "bias", "layer": 0})), model=model) as plan:
            faulty = logits(model, ids)
        biases = [parameter for name, parameter in model.named_parameters() if "layers.0." in name and name.endswith("bias")]
        kept = [bias.clone() for bias in biases]
        for bias in biases:
            bias *= 2
        by_hand = logits(model, ids)
        for bias, before in zip(biases, kept):
            bias.copy_(before)
    assert len(biases) == 3 and not torch.equal(clean, faulty) and torch.equal(faulty, by_hand)
    assert {row["place"].rsplit(".", 1)[-1] for row in plan.report["rows"]} == {"q_proj", "k_proj", "v_proj"}
    assert torch.equal(logits(model, ids), clean)


def test_biases_that_nobody_has_are_refused():
    with pytest.raises(ValueError, match="adds a bias; this model has none"):
        faultline.plan(recipe(rule(what=GAIN, where={"operator": "matmul", "surface": "bias"})), model=llama(2)).arm()


def test_a_row_of_the_embedding_is_that_tokens_alone(model):
    with_it, without = torch.tensor([[3, 7, 9]]), torch.tensor([[3, 8, 9]])
    with torch.no_grad():
        clean = logits(model, with_it), logits(model, without)
        with faultline.plan(recipe(rule(what={"kind": "zero"}, where={"operator": "embedding", "surface": "weight"}, extent={"rows": 7})), model=model):
            faulty = logits(model, with_it), logits(model, without)
    assert torch.equal(clean[1], faulty[1]) and torch.equal(clean[0][:, 0], faulty[0][:, 0]) and not torch.equal(clean[0][:, 1], faulty[0][:, 1])


# --- when -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("when, active", [({"forward": "prefill"}, 1), ({"forward": "decode"}, 3), ({"decode_step": "1-2"}, 2), ({"rows": ">4"}, 1), ({"rows": 1}, 3)])
def test_a_condition_chooses_among_the_calls_and_all_are_counted(model, when, active):
    ids = tokens(1, 5)
    plan = faultline.plan(recipe(rule(what=GAIN, where={"module": "down_proj", "layer": 0, "surface": "output"}, when=when)), model=model)

    def run():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, min_new_tokens=4, do_sample=False)

    with plan:
        plan.dry_run(run)
        run()
    (row,) = plan.report["rows"]
    assert (row["ledger"]["calls"], row["ledger"]["active_calls"]) == (4, active) and plan.report["complaints"] == []


def test_a_condition_that_never_held_fails_the_run(model):
    with pytest.raises(faultline.EvidenceError) as caught:
        with faultline.plan(recipe(rule(what=GAIN, when={"forward": "decode"})), model=model):
            logits(model, tokens())
    assert {complaint["code"] for complaint in caught.value.complaints} == {"asleep"}
