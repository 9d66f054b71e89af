"""What a plan can reach in a vLLM engine, and what its compilation hides. A compiled model calls its matrix products and its attention
as operators; norms, activations and rotary embeddings dissolve into generated code, which no tap sees. The workers
take a census of one run and hold it against the parts that the model has.

    faultline.vllm_coverage.coverage(llm, lambda: llm.generate("Hello"))"""

from __future__ import annotations

import json

import torch

from faultline.attach import _named_modules

_OPS = torch.ops.faultline
# The end of a module's name, and the family of operators that does its work.
_PARTS = (("_proj", "matmul"), ("norm", "norm"), ("act_fn", "activation"), ("rotary_emb", "rotary"), ("attn", "attention"))


def of_worker(worker) -> dict:
    """In a worker, at the end of the census that faultline_census_begin began."""
    entries = json.loads(_OPS.census_end(False))
    model = worker.model_runner.get_model()
    parts: dict[str, list[str]] = {}
    for path, _ in _named_modules(model):
        if (family := next((family for end, family in _PARTS if path.endswith(end)), None)) is not None:
            parts.setdefault(family, []).append(path)
    calls: dict[str, dict[str, int]] = {}
    for entry in entries:
        of_family = calls.setdefault(entry["family"] or "other", {})
        of_family[entry["name"]] = of_family.get(entry["name"], 0) + int(entry["calls"])
    hidden = {family: paths for family, paths in parts.items() if family not in calls}
    return {"compiled": int(worker.vllm_config.compilation_config.mode or 0) > 0, "operators": calls, "hidden": hidden}


def coverage(engine, run) -> dict:
    """-> {compiled, operators: {family: {name: calls}}, hidden: {family: modules}, sentences}. `run` lets the engine generate; a
    plan must be armed in it, whose rules need not reach anything."""
    engine.collective_rpc("faultline_census_begin")
    run()
    workers = engine.collective_rpc("faultline_census_end")
    found = workers[0]  # the others compute the same model, each a part of every layer
    how = "compiled" if found["compiled"] else "eager"
    found["sentences"] = [f"{how}: {family} runs as " + ", ".join(f"{name} ({calls} calls)" for name, calls in names.items()) for family, names in found["operators"].items() if family != "other"]
    found["sentences"] += [f"{how}: {family} is hidden: {len(paths)} modules ({paths[0]}, …) run in generated code; a rule on it meets no call, and the run fails" +
                           ("; enforce_eager=True shows it" if found["compiled"] else "") for family, paths in found["hidden"].items()]
    return found
