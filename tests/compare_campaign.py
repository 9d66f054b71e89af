"""Pairs of traces of small random models: clean ones, which nobody may be accused in, and ones with a fault planted in an operator or a module
of one side, which must be named first. Sides are run in ways that differ as engines do: attention (sdpa,
eager), batches (alone, padded beside longer ones), number types. With --engines also traces of our own program and of vLLM (compare_engines.py), each
beside transformers and beside one another. Writes a line a pair to pairs.jsonl of the folder and goes on there; `--summary` writes what the page says.

    python tests/compare_campaign.py FOLDER --seed 2 --clean 800 --faulty 1000 [--engines TRACES] [--seconds 600] [--summary compare.json]
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import pathlib
import random
import shutil
import tempfile
import time

import torch

import compare_engines
import faultline
from tap_models import llama, qwen2, recipe, rule, tokens

MODELS = {"llama": llama, "qwen2": qwen2}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
LAYERS, PROMPTS = 2, 60
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIGN = "its highest bit"
# What is planted: strong enough to leave the rounding of the type, each kind where it can show.
KINDS = {
    "gain": [{"kind": "gain", "strength": 0.05}, {"kind": "gain", "strength": 0.2}],
    "deadzone": [{"kind": "deadzone", "threshold": 0.05}, {"kind": "deadzone", "threshold": 0.3}],
    "offset": [{"kind": "offset", "strength": 0.2}],
    "noise": [{"kind": "relative_gaussian", "strength": 0.1}],
    "stuck_at": [{"kind": "stuck_at", "bit": SIGN, "value": 1}],
    "saturate": [{"kind": "saturate", "margin": 0.5}],
    "mxfp4": [{"kind": "quantize", "format": "mxfp4"}],
}
PLACES = [("module", name) for name in PRODUCTS] + [("module", name) for name in ("*input_layernorm", "*post_attention_layernorm", "act_fn", "layer_output")] + [("operator", name) for name in ("matmul", "attention")]
_models: dict = {}


def model_of(name, dtype, attention):
    key = (name, dtype, attention)
    if key not in _models:
        made = MODELS[name](LAYERS).to(torch.bfloat16)  # a checkpoint's values are the same in every type
        made.set_attn_implementation(attention)
        _models[key] = made.to(DTYPES[dtype])
    return _models[key]


def batch_of(way, prompt):
    """The prompt, alone or with others."""
    length, draw = 4 + prompt % 17, random.Random(f"{way} {prompt}")
    first = tokens(1, length, prompt)
    if way == "alone":
        return {"input_ids": first}
    others = 1 + draw.randrange(3)
    if way == "equal":
        return {"input_ids": torch.cat([first, tokens(others, length, 1000 + prompt)])}
    longer = length + 1 + draw.randrange(6)
    ids = torch.cat([torch.cat([first, torch.zeros(1, longer - length, dtype=torch.long)], 1), tokens(others, longer, 2000 + prompt)])
    mask = torch.ones_like(ids)
    mask[0, length:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def record(folder, model, batch, detail):
    with faultline.trace(model, folder, detail=detail), torch.no_grad():
        model(**batch)


def chosen(draw, index):
    """How the two sides of a pair are run."""
    name = draw.choice(sorted(MODELS))
    sides = [{"dtype": draw.choice(["bf16", "bf16", "fp32", "fp16"]), "attention": draw.choice(["sdpa", "eager"]), "batch": draw.choice(["alone", "equal", "padded"])} for _ in range(2)]
    types = {side["dtype"] for side in sides}
    if draw.random() < 0.7 or ("fp16" in types and len(types) > 1):
        sides[1]["dtype"] = sides[0]["dtype"]
    return {"index": index, "model": name, "detail": draw.choice(["sample", "full"]), "prompt": draw.randrange(PROMPTS), "sides": sides}


def planted(draw, index, sides, detail, wrong):
    """A fault for the side, and where it must be named."""
    how, name = PLACES[index % len(PLACES)]
    kind = sorted(KINDS)[(index // len(PLACES)) % len(KINDS)]
    what, layer = dict(draw.choice(KINDS[kind])), draw.randrange(LAYERS)
    if what.get("bit") == SIGN:
        what["bit"] = 31 if sides[wrong]["dtype"] == "fp32" else 15
    where = {"module": name, "surface": "output", "layer": layer} if how == "module" and name != "layer_output" else {how: name, "layer": layer}
    # A sample keeps some rows and heads: what touches a few channels of the others is not in it.
    extent = {"fraction": 0.2, "structure": "channel"} if detail == "full" and draw.random() < 0.5 else None
    return {"kind": kind, "where": where, "what": what, "extent": extent, "layer": layer, "name": name.strip("*"), "side": "ab"[wrong]}


FAMILIES = {  # the first operators of a layer's family, by the engines' names
    "norm": ("input_layernorm", "post_attention_layernorm"),
    "activation": ("act_fn",),
}


def is_right(fault, first):
    """Side, layer and operator: the module that was faulted, or one of the operators that the family has there."""
    if len(first) != 1 or first[0]["side"] != fault["side"] or first[0]["layer"] != fault["layer"]:
        return False
    place, name = first[0]["place"], fault["name"]
    if name == "layer_output":
        return place == f"model.layers.{fault['layer']}" and first[0]["operator"] == "boundary"
    if name == "matmul":  # the first product of the layer
        return place.endswith(("q_proj", "qkv_proj"))
    if name in FAMILIES:
        return place.endswith(FAMILIES[name])
    if name == "attention":
        return place.endswith(("self_attn", "self_attn.attn")) and ("attention" in first[0]["operator"] or "bmm" in first[0]["operator"])
    return place.endswith(name)


def clean_side(pair, side, folder):
    """Recorded once for all pairs that have it."""
    made = folder / "-".join([pair["model"], pair["detail"], side["dtype"], side["attention"], side["batch"], str(pair["prompt"])])
    if not made.exists():
        record(made, model_of(pair["model"], side["dtype"], side["attention"]), batch_of(side["batch"], pair["prompt"]), pair["detail"])
    return made


def faulty_side(pair, side, fault, folder):
    """-> its trace, and how many numbers the fault changed"""
    shutil.rmtree(folder / "faulty", ignore_errors=True)
    model, others = model_of(pair["model"], side["dtype"], side["attention"]), {"extent": fault["extent"]} if fault["extent"] else {}
    rules = recipe(rule(where=fault["where"], what=fault["what"], **others), phases={"rollout": True})
    with faultline.plan(rules, model=model, on_missing="warn") as plan:
        record(folder / "faulty", model, batch_of(side["batch"], pair["prompt"]), pair["detail"])
    return folder / "faulty", plan.report["rules"][0]["changed"]


def run_pair(pair, fault, folder):
    changed, traces = 0, []
    for number, side in enumerate(pair["sides"]):
        if fault is not None and fault["side"] == "ab"[number]:
            trace, changed = faulty_side(pair, side, fault, folder)
        else:
            trace = clean_side(pair, side, folder)
        traces.append(trace)
    return row_of(pair, fault, changed, faultline.compare(*traces))


def row_of(pair, fault, changed, found):
    row = {**pair, "fault": fault, "changed": changed, "verdict": found["verdict"], "judged": found["a"]["judged"] + found["b"]["judged"], "places": len(found["places"]), "tokens": found["tokens"]["tokens"], "first": [{key: one[key] for key in ("side", "layer", "place", "operator", "kind", "ratio", "violations")} for one in found["first"]]}
    row["right"] = not found["first"] if fault is None else is_right(fault, found["first"])
    row["share_judged"] = min(found[side]["share_judged"] for side in "ab")
    return row


def engine_jobs(folder):
    """What compare_engines.py recorded: (engine, job, trace)."""
    for store in sorted(folder.glob("*/jobs.jsonl")):
        for line in store.read_text().splitlines():
            job = json.loads(line)
            engine, _, dtype = store.parent.name.partition("-")
            yield engine, {**job, "dtype": {"bfloat16": "bf16", "float32": "fp32"}.get(dtype, job["dtype"])}, store.parent / job["name"]


def engine_pairs(folder, seed):
    """Each trace beside transformers; a clean one of vLLM also beside one of ours with the same prompt."""
    jobs = list(engine_jobs(folder))
    ours = {(job["prompt"], job["detail"]): (job, trace) for engine, job, trace in jobs if engine == "ours" and not job["fault"]}
    for engine, job, trace in jobs:
        draw = random.Random(f"{seed} {engine} {job['name']} {job['dtype']}")
        pair = {"index": f"{engine} {job['dtype']} {job['name']}", "model": "engines", "detail": job["detail"], "prompt": job["prompt"]}
        other = {"engine": "transformers", "dtype": job["dtype"] if draw.random() < 0.7 else draw.choice(["bf16", "fp32"]), "attention": draw.choice(["sdpa", "eager"])}
        sides = [other, {"engine": engine, "dtype": job["dtype"], "trace": trace}]
        swapped = draw.random() < 0.5
        fault = {**job["fault"], "side": "ab"[not swapped]} if job["fault"] else None
        if fault is None or job["changed"]:
            yield {**pair, "sides": sides[::-1] if swapped else sides}, fault
        partner = ours.get((job["prompt"], job["detail"]))
        if engine == "vllm" and fault is None and partner:
            yield {**pair, "index": pair["index"] + " ours", "sides": [sides[1], {"engine": "ours", "dtype": partner[0]["dtype"], "trace": partner[1]}]}, None


def engine_side(pair, side, engines, folder):
    if "trace" in side:
        return side["trace"]
    from transformers import AutoModelForCausalLM

    made = folder / "-".join(["engines", pair["detail"], side["dtype"], side["attention"], str(pair["prompt"])])
    if not made.exists():
        key = ("engines", side["dtype"], side["attention"])
        if key not in _models:
            _models[key] = AutoModelForCausalLM.from_pretrained(engines / "model", dtype=DTYPES[side["dtype"]], attn_implementation=side["attention"]).eval()
        record(made, _models[key], {"input_ids": torch.tensor([compare_engines.ids_of(engines / "model", pair["prompt"])])}, pair["detail"])
    return made


def run_engine_pair(pair, fault, engines, folder):
    found = faultline.compare(*(engine_side(pair, side, engines, folder) for side in pair["sides"]))
    pair = {**pair, "sides": [{key: value for key, value in side.items() if key != "trace"} for side in pair["sides"]]}
    return row_of(pair, fault, 1 if fault else 0, found)


def pairs_to_run(seed, clean, faulty):
    """Clean and faulty in turn, so that a campaign that is stopped is a balanced sample."""
    for index in itertools.count():
        if index >= max(clean, faulty):
            return
        if index < clean:
            yield chosen(random.Random(f"{seed} clean {index}"), index), None
        if index < faulty:
            draw = random.Random(f"{seed} faulty {index}")
            pair = chosen(draw, index)
            wrong = draw.randrange(2)
            fault = planted(draw, index, pair["sides"], pair["detail"], wrong)
            if fault["name"] == "attention":
                pair["sides"][wrong]["attention"] = "sdpa"  # an operator of its own
            yield pair, fault


def rows_of(folder):
    return [json.loads(line) for store in sorted(folder.glob("pairs*.jsonl")) for line in store.read_text().splitlines()]


def run(folder, clean, faulty, seconds=float("inf"), shard=(0, 1), seed=1, engines=None):
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"pairs-{shard[0]}.jsonl"
    rows = rows_of(folder)
    done = {(row["fault"] is not None, row["index"]) for row in rows}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as work, store.open("a") as lines:
        for number, (pair, fault) in enumerate(itertools.chain(engine_pairs(engines, seed) if engines else (), pairs_to_run(seed, clean, faulty))):
            if time.monotonic() > end:
                break
            if (fault is not None, pair["index"]) in done or number % shard[1] != shard[0]:
                continue
            work = pathlib.Path(work)
            row = run_engine_pair(pair, fault, engines, work) if pair["model"] == "engines" else run_pair(pair, fault, work)
            rows.append(row)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
    return rows


def engine_of(row):
    """Of the faulty side."""
    return row["sides"]["ab".index(row["fault"]["side"])].get("engine", "transformers")


def engines_of(row):
    return " and ".join(sorted(side.get("engine", "transformers") for side in row["sides"]))


def summary(rows):
    """What the page says. A fault that changed no number is no trial."""
    clean = [row for row in rows if row["fault"] is None]
    faulty = [row for row in rows if row["fault"] is not None and row["changed"] > 0]
    by = {}
    for row in faulty:
        for key in (f"kind {row['fault']['kind']}", f"place {row['fault']['name'].strip('*')}", f"engine {engine_of(row)}"):
            one = by.setdefault(key, {"pairs": 0, "right": 0})
            one["pairs"] += 1
            one["right"] += row["right"]
    return {
        "clean": {"pairs": len(clean), "accused": sum(not row["right"] for row in clean), "calls": sum(row["judged"] for row in clean), "whole": sum(row["verdict"] == "within_rounding" for row in clean), "engines": dict(sorted(collections.Counter(map(engines_of, clean)).items())), "one_type": sum(row["sides"][0]["dtype"] == row["sides"][1]["dtype"] for row in clean)},
        "faulty": {"pairs": len(faulty), "right": sum(row["right"] for row in faulty), "side": sum(len(row["first"]) == 1 and row["first"][0]["side"] == row["fault"]["side"] for row in faulty), "unchanged": sum(row["fault"] is not None and row["changed"] == 0 for row in rows)},
        "by": dict(sorted(by.items())),
        "missed": [row for row in faulty if not row["right"]][:40],
        "accused": [row for row in clean if not row["right"]][:40],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engines", type=pathlib.Path, help="traces of compare_engines.py")
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--faulty", type=int, default=1200)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--shard", default="0/1", help="which part of the pairs, for several processes: 0/2")
    parser.add_argument("--summary", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = summary(run(options.folder, options.clean, options.faulty, options.seconds, tuple(map(int, options.shard.split("/"))), options.seed, options.engines))
    print(json.dumps({key: made[key] for key in ("clean", "faulty", "by")}, indent=1))
    if options.summary:
        options.summary.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
