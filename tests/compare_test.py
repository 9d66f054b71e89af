"""Two traces beside each other: engines that differ in attention, batching, fusing and number type are within rounding, a fault on one side is
named where it was planted, and what cannot be compared is a sentence. The large campaign is compare_campaign.py; a fixed part of it runs here."""

import json
import shutil
import subprocess
import sys

import pytest
import tiny_folder
import torch

import compare_campaign
import faultline
from program import ROOT, as_json, launch, ok, refused
from tap_models import llama, qwen2, recipe, rule, tokens

PROMPT = "Seven of twenty apples are eaten."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("compare") / "tiny", layers=3)


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def loaded(folder, dtype=torch.bfloat16, attention="sdpa"):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


def record(to, model, given, **options):
    given = {"input_ids": given} if isinstance(given, torch.Tensor) else given
    with faultline.trace(model, to, **options), torch.no_grad():
        model(**given)
    return to


@pytest.fixture(scope="module")
def ours(folder, tmp_path_factory):
    """Traces of our own model, by detail."""
    place = tmp_path_factory.mktemp("ours")
    for detail in ("digest", "sample", "full"):
        launch("compare", "--model", folder, "--prompt", PROMPT, "--a", "cpu:bf16", "--record", place / detail, "--detail", detail)
    return place


@pytest.fixture(scope="module")
def theirs(folder, tokenizer, tmp_path_factory):
    """The same of transformers."""
    place, model = tmp_path_factory.mktemp("theirs"), loaded(folder)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    for detail in ("digest", "sample", "full"):
        record(place / detail, model, ids, detail=detail, tokenizer=tokenizer)
    return place


# --- clean pairs ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("detail", ["sample", "full"])
def test_our_model_and_transformers_are_within_rounding(ours, theirs, detail):
    found = as_json("compare", "--a", theirs / detail, "--b", ours / detail)
    assert found["verdict"] == "within_rounding", found["sentence"]
    assert found["a"]["judged"] > 60 and found["b"]["judged"] > 25 and found["a"]["wrong"] == found["b"]["wrong"] == []
    assert len(found["places"]) == 2 * (3 * 7 + 1)  # inputs and outputs of every product, the fused ones in their parts
    assert all(0 <= one["difference"] < 0.05 for one in found["places"])
    assert found["tokens"]["tokens"] == found["places"][0]["rows"] - 1 or detail == "sample"
    assert found["tokens"]["largest"] < 0.05 and found["tokens"]["effective_sample_share"] > 0.999
    assert any("fused" in one for one in found["without_partner"])


def test_a_trace_beside_itself_is_equal_to_the_bit(ours, theirs):
    for place in (ours, theirs):
        found = as_json("compare", "--a", place / "digest", "--b", place / "digest")
        assert found["verdict"] == "equal_bits", found["sentence"]
        found = as_json("compare", "--a", place / "full", "--b", place / "full")
        assert found["verdict"] == "within_rounding" and all(one["share_equal"] == 1 for one in found["places"])
        assert found["tokens"]["largest"] == 0


def test_digests_alone_accuse_nobody(ours, theirs):
    done = launch("compare", "--a", theirs / "digest", "--b", ours / "digest", "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert found["verdict"] in ("differs", "equal_bits", "not_judged") and "record with --detail sample" in found["sentence"] + str(found["remarks"])


def test_a_clean_pair_of_types_of_batches_and_of_attentions_is_not_accused(tmp_path):
    ids = tokens(1, 12)
    padded = torch.cat([torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], 1), tokens(2, 17, 3)])
    mask = torch.ones_like(padded)
    mask[0, 12:] = 0
    record(tmp_path / "alone", llama(3).to(torch.bfloat16), ids)
    record(tmp_path / "wide", llama(3), ids)
    eager = llama(3).to(torch.bfloat16)
    eager.set_attn_implementation("eager")
    record(tmp_path / "padded", eager, {"input_ids": padded, "attention_mask": mask})
    for other in ("wide", "padded"):
        found = faultline.compare(tmp_path / "alone", tmp_path / other)
        assert found["verdict"] == "within_rounding", found["sentence"]
        assert found["tokens"]["tokens"] == 11 and len(found["places"]) == 44
    assert any("mixed dtypes" in one for one in faultline.compare(tmp_path / "alone", tmp_path / "wide")["remarks"])


def test_decoding_with_a_cache_stands_beside_one_forward(tmp_path):
    model = qwen2(2).to(torch.bfloat16)
    with faultline.trace(model, tmp_path / "steps", detail="full"), torch.no_grad():
        made = model.generate(tokens(1, 6), max_new_tokens=5, do_sample=False)
    record(tmp_path / "whole", model, made, detail="full")
    found = faultline.compare(tmp_path / "steps", tmp_path / "whole")
    assert found["verdict"] == "within_rounding", found["sentence"]
    assert {one["rows"] for one in found["places"] if one["place"].endswith("q_proj")} == {made.shape[1] - 1}


# --- faulty pairs -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "where, what, place",
    [
        ({"module": "down_proj", "surface": "output", "layer": 1}, {"kind": "gain", "strength": 0.05}, "model.layers.1.mlp.down_proj"),
        ({"module": "*input_layernorm", "surface": "output", "layer": 2}, {"kind": "offset", "strength": 0.2}, "model.layers.2.input_layernorm"),
        ({"operator": "matmul", "layer": 0}, {"kind": "relative_gaussian", "strength": 0.1}, "model.layers.0.self_attn.q_proj"),
        ({"operator": "attention", "layer": 2}, {"kind": "gain", "strength": 0.1}, "model.layers.2.self_attn"),
        ({"module": "act_fn", "surface": "output", "layer": 0}, {"kind": "deadzone", "threshold": 0.2}, "model.layers.0.mlp.act_fn"),
        ({"module": "layer_output", "layer": 1}, {"kind": "gain", "strength": 0.05}, "model.layers.1"),
    ],
)
def test_a_fault_on_one_side_is_named_once_and_on_that_side(tmp_path, where, what, place):
    model = llama(3).to(torch.bfloat16)
    record(tmp_path / "a", model, tokens(1, 16))
    with faultline.plan(recipe(rule(where=where, what=what), phases={"rollout": True}), model=model, on_missing="warn") as plan:
        record(tmp_path / "b", model, tokens(1, 16))
    assert plan.report["rules"][0]["changed"] > 0
    for first, second, side in (("a", "b", "b"), ("b", "a", "a")):
        found = faultline.compare(tmp_path / first, tmp_path / second)
        assert found["verdict"] == "wrong" and [(one["side"], one["place"]) for one in found["first"]] == [(side, place)], found["sentence"]
        assert {one["layer"] for one in found[side]["wrong"]} == {found["first"][0]["layer"]}, "what follows a fault is not wrong"
    assert place in str(found) and launch("compare", "--a", tmp_path / "a", "--b", tmp_path / "b").returncode == 1


def test_our_own_model_is_recorded_with_a_fault(ours, theirs, folder, tmp_path):
    done = launch("compare", "--model", folder, "--prompt", PROMPT, "--a", "cpu:bf16", "--record", tmp_path / "b", "--detail", "full", "--fault", "gain(strength=0.1) @ operator=attention,layer=1", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["complaints"] == [], done.stdout
    for clean in (ours, theirs):
        found = faultline.compare(clean / "full", tmp_path / "b")
        assert [(one["side"], one["place"]) for one in found["first"]] == [("b", "model.layers.1.self_attn")], found["sentence"]
    refused(64, "compare", "--a", ours / "full", "--b", theirs / "full", "--fault", "gain(strength=0.1) @ operator=matmul", says="--fault")


def test_a_sequence_keeps_the_same_rows_alone_and_among_many(tmp_path):
    model, ids = llama(2).to(torch.bfloat16), tokens(40, 12)
    record(tmp_path / "alone", model, ids[7:8])
    record(tmp_path / "many", model, ids)
    found = faultline.compare(tmp_path / "alone", tmp_path / "many")
    assert found["verdict"] == "within_rounding" and len(found["places"]) == 2 * (2 * 7 + 1), found["sentence"]
    for side in "ab":  # but the copy of keys and values into an empty cache
        assert found[side]["blind"] == 0 and found[side]["share_judged"] > 0.95 and set(found[side]["not_judged"]) == {"aten::cat: not kept"}, found[side]["not_judged"]


def test_the_difference_that_came_in_and_the_own_one_stand_apart(tmp_path):
    model = llama(3).to(torch.bfloat16)
    record(tmp_path / "a", model, tokens(1, 16), detail="full")
    gain = recipe(rule(where={"module": "down_proj", "surface": "output", "layer": 0}, what={"kind": "gain", "strength": 0.2}), phases={"rollout": True})
    with faultline.plan(gain, model=model, on_missing="warn"):
        record(tmp_path / "b", model, tokens(1, 16), detail="full")
    places = {(one["place"], one["surface"]): one for one in faultline.compare(tmp_path / "a", tmp_path / "b")["places"]}
    before, after = places["model.layers.0.mlp.up_proj", "output"], places["model.layers.1.self_attn.q_proj", "output"]
    assert before["difference"] == 0 and after["difference"] > 0.005
    assert 0 < after["own_b"] < after["allowed"] < 0.05, "its own part is rounding"


def test_nan_on_one_side_is_said_with_where_it_began(tmp_path):
    model = llama(2).to(torch.bfloat16)
    record(tmp_path / "a", model, tokens(1, 8))
    poison = recipe(rule(where={"operator": "matmul", "layer": 1}, what={"kind": "nan"}, extent={"fraction": 0.1, "structure": "channel"}), phases={"rollout": True})
    with faultline.plan(poison, model=model, on_missing="warn"):
        record(tmp_path / "b", model, tokens(1, 8))
    found = faultline.compare(tmp_path / "a", tmp_path / "b")
    assert found["verdict"] == "wrong" and found["first"][0]["place"] == "model.layers.1.self_attn.q_proj"
    assert any(one.startswith("NaN on one side: b from model.layers.1.self_attn.q_proj") for one in found["remarks"]), found["remarks"]


def test_profiles_and_a_recipe_make_the_mismatch_again(tmp_path, folder):
    model = loaded(folder)
    record(tmp_path / "a", model, tokens(1, 16), detail="full")
    noise = recipe(rule(where={"module": "up_proj", "surface": "output", "layer": 1}, what={"kind": "relative_gaussian", "strength": 0.1}), phases={"rollout": True})
    with faultline.plan(noise, model=model, on_missing="warn"):
        record(tmp_path / "b", model, tokens(1, 16), detail="full")
    done = launch("compare", "--a", tmp_path / "a", "--b", tmp_path / "b", "--out", tmp_path / "out", "--json")
    assert done.returncode == 1, done.stderr
    ok("check", tmp_path / "out/recipe.yaml")
    with faultline.plan(str(tmp_path / "out/recipe.yaml"), model=model, on_missing="warn") as plan:
        record(tmp_path / "again", model, tokens(1, 16), detail="full")
    assert plan.report["rules"][0]["changed"] > 0
    again = faultline.compare(tmp_path / "a", tmp_path / "again")
    assert [one["place"] for one in again["first"]] == ["model.layers.1.mlp.up_proj"]
    size = {name: next(one["rms"] for one in found["profiles"] if one["place"]) for name, found in (("was", json.loads(done.stdout)), ("is", again))}
    assert 0.7 < size["is"] / size["was"] < 1.4, size
    page = tmp_path / "page.html"
    ok("report", tmp_path / "out/comparison.json", "-o", page)
    assert "model.layers.1.mlp.up_proj" in page.read_text() and "Growth of the difference" in page.read_text()


def test_a_fixed_sample_of_the_campaign(tmp_path):
    rows = compare_campaign.run(tmp_path, clean=24, faulty=48)
    found = compare_campaign.summary(rows)
    assert found["clean"] == {**found["clean"], "pairs": 24, "accused": 0}, found["accused"]
    assert found["faulty"]["pairs"] >= 44 and found["faulty"]["right"] == found["faulty"]["pairs"], found["missed"]
    assert len(compare_campaign.run(tmp_path, clean=24, faulty=48)) == len(rows), "it goes on where it was"


# --- recording --------------------------------------------------------------------------------------------------------
SCRIPT = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
with torch.no_grad():
    print(model(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits.shape)
"""


def run_script(tmp_path, *arguments):
    (tmp_path / "script.py").write_text(SCRIPT)
    return subprocess.run([sys.executable, "-m", "faultline", *map(str, arguments[:-1]), str(tmp_path / "script.py"), str(arguments[-1])], capture_output=True, text=True, cwd=ROOT / "python")


def test_a_script_is_recorded_unedited_with_a_recipe_and_without(tmp_path, folder):
    done = run_script(tmp_path, "--trace", tmp_path / "a", folder)
    assert done.returncode == 0 and "torch.Size([1, 5" in done.stdout, done.stderr
    gain = tmp_path / "gain.json"
    gain.write_text(json.dumps(recipe(rule(where={"module": "o_proj", "surface": "output", "layer": 2}, what={"kind": "gain", "strength": 0.1}))))
    done = run_script(tmp_path, "--trace", tmp_path / "b", "--detail", "full", "--recipe", gain, folder)
    assert done.returncode == 0, done.stderr
    found = faultline.compare(tmp_path / "a", tmp_path / "b")
    assert [one["place"] for one in found["first"]] == ["model.layers.2.self_attn.o_proj"], found["sentence"]
    assert run_script(tmp_path, "--detail", "full", "--recipe", gain, folder).returncode == 64
    again = run_script(tmp_path, "--trace", tmp_path / "a", folder)
    assert again.returncode == 64 and "holds a whole trace" in again.stderr


def test_a_script_without_a_model_has_no_trace_and_says_so(tmp_path):
    (tmp_path / "none.py").write_text("print(1)\n")
    done = subprocess.run([sys.executable, "-m", "faultline", "--trace", str(tmp_path / "t"), str(tmp_path / "none.py")], capture_output=True, text=True, cwd=ROOT / "python")
    assert done.returncode == 3 and "no model of transformers" in done.stderr


def test_recording_changes_no_bit_and_leaves_nothing_behind(tmp_path):
    model = llama(2).to(torch.bfloat16)
    with torch.no_grad():
        plain = model(input_ids=tokens(2, 9)).logits
        with faultline.trace(model, tmp_path / "t", detail="full") as trace:
            recorded = model(input_ids=tokens(2, 9)).logits
        after = model(input_ids=tokens(2, 9)).logits
    assert torch.equal(plain, recorded) and torch.equal(plain, after) and trace.calls > 50
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_training_step_is_recorded_and_its_gradients_are_the_same(tmp_path):
    model = llama(2)
    model.train()
    gradients = []
    for name in (None, "t"):
        model.zero_grad()
        trace = faultline.trace(model, tmp_path / name) if name else None
        model(input_ids=tokens(1, 8), labels=tokens(1, 8)).loss.backward()
        if trace:
            trace.close()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))
    assert faultline.compare(tmp_path / "t", tmp_path / "t")["verdict"] == "within_rounding"


def test_a_trace_is_bounded_on_disk_and_says_so(tmp_path):
    model = llama(2)
    record(tmp_path / "whole", model, tokens(1, 40), detail="full")
    record(tmp_path / "small", model, tokens(1, 40), detail="full", most_bytes=100_000)
    size = {name: sum(path.stat().st_size for path in (tmp_path / name).glob("*.safetensors")) for name in ("whole", "small")}
    assert size["small"] < 150_000 < size["whole"]
    found = faultline.compare(tmp_path / "whole", tmp_path / "small")
    assert any("reached its limit" in one for one in found["remarks"]) and found["b"]["judged"] < found["a"]["judged"]
    assert found["verdict"] == "partly_judged" and found["b"]["blind"] > 0, "what was left out may hide a fault"


def test_a_trace_that_was_cut_off_goes_on(tmp_path):
    model = llama(2)
    trace = faultline.trace(model, tmp_path / "t", detail="full")
    with torch.no_grad():
        for _ in range(6):
            model(input_ids=tokens(8, 60))
    assert list((tmp_path / "t").glob("part-*.jsonl"))  # appear while it is recorded
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    trace.close()
    with pytest.raises(ValueError, match="was cut off after"):
        faultline.compare(tmp_path / "copy", tmp_path / "t")
    record(tmp_path / "copy", model, tokens(1, 10), detail="full")
    assert faultline.compare(tmp_path / "copy", tmp_path / "copy")["verdict"] == "within_rounding"
    with pytest.raises(ValueError, match="holds a whole trace"):
        record(tmp_path / "copy", model, tokens(1, 10), detail="full")


# --- what cannot be compared ------------------------------------------------------------------------------------------
def test_what_cannot_be_compared_is_a_sentence(tmp_path, folder, ours, tokenizer):
    other = tiny_folder.make(tmp_path / "other", seed=5, layers=3)
    deeper = tiny_folder.make(tmp_path / "wider", layers=3, learned_from=["one two three four"] * 9)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    record(tmp_path / "weights", loaded(other), ids)
    record(tmp_path / "prompt", loaded(folder), ids + 1)
    launch("compare", "--model", deeper, "--prompt", PROMPT, "--record", tmp_path / "tokenizer", "--detail", "sample")
    (tmp_path / "dump").mkdir()
    torch.save({"layer0": ids}, tmp_path / "dump/activations.pt")
    (tmp_path / "nearly").mkdir()
    (tmp_path / "nearly/header.json").write_text(json.dumps({"format": "nnsight-1"}))
    cut = shutil.copytree(ours / "sample", tmp_path / "cut")
    (cut / "end.json").unlink()
    short = shutil.copytree(ours / "sample", tmp_path / "short")
    next(iter(sorted(short.glob("part-*.jsonl"), reverse=True))).unlink()
    for name, says in [
        ("weights", "different weights: model.embed_tokens.weight"),
        ("prompt", "different prompts"),
        ("tokenizer", "different tokenizers"),
        ("dump", "another library's dump"),
        ("nearly", "another library's dump"),
        ("dump/activations.pt", "is no trace but a file"),
        ("cut", "was cut off after"),
        ("short", "parts are missing"),
        ("nowhere/at", "there is no such trace"),
    ]:
        refused(64, "compare", "--a", ours / "sample", "--b", tmp_path / name, says=says)
    refused(64, "compare", "--a", "cpu", "--b", ours / "sample", says="--b")
    refused(64, "compare", "--model", folder, "--record", tmp_path / "x", "--detail", "much", says="digest, sample or full")
    shutil.copytree(ours / "sample", tmp_path / "several/vllm-0")
    refused(64, "compare", "--a", tmp_path / "several", "--b", ours / "sample", says="traces of several processes")
    with pytest.raises(ValueError, match="digest, sample or full"):
        faultline.trace(llama(1), tmp_path / "y", detail="much")


def rewritten(trace, to, change):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(trace, to)
    part = to / "part-000000.jsonl"
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    change(next(line for line in lines if line.get("family") == "matmul"))
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_strangers_trace_is_only_data(ours, tmp_path):
    """Damaged lines are sentences; an operator that is named in a trace is looked up and never run because of that."""
    trace, other, witness = ours / "full", tmp_path / "other", tmp_path / "witness"
    for change, says in [
        (lambda call: call["arguments"].append(7), "does not fit"),
        (lambda call: call["results"][0].update(tensor="t999999"), "not there"),
        (lambda call: call.pop("place"), "malformed"),
        (lambda call: call.update(forward=7), "not there"),
        (lambda call: call["results"][0].update(dtype="int3"), "not known"),
    ]:
        rewritten(trace, other, change)
        refused(2, "compare", "--a", other, "--b", "cpu", says=says)
    rewritten(trace, other, lambda call: call.update(operator="aten::from_file", overload="", arguments=[{"text": str(witness)}, True, 8, 6, None, None, None]))
    launch("compare", "--a", other, "--b", "cpu")
    launch("compare", "--a", other, "--b", trace)
    assert not witness.exists()
    part = sorted(other.glob("part-*.safetensors"))[0]
    part.write_bytes(part.read_bytes()[:-100])
    refused(2, "compare", "--a", other, "--b", "cpu")


def test_a_trace_is_made_again_on_another_machine(ours):
    for detail in ("sample", "full"):
        same = as_json("compare", "--a", ours / detail, "--b", "cpu:bf16")
        assert len(same["operators"]) > 3 and (detail == "sample" or all(one["share_equal"] == 1 for one in same["operators"]))
        wider = as_json("compare", "--a", ours / detail, "--b", "cpu:fp32")
        assert any(one["share_equal"] < 1 for one in wider["operators"])
    refused(64, "compare", "--a", ours / "digest", "--b", "cpu", says="digests only")
