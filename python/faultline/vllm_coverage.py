"""What a plan can reach in a vLLM engine, and what its compilation hides. A compiled model calls its matrix products and its attention
as operators; norms, activations and rotary embeddings dissolve into generated code, which no tap sees. The workers
note the operators of one run and hold them against the parts that the model has. (torch's profiler notes them: the
census is a mode of the dispatcher, in which compiled code would be compiled anew.)

    faultline.vllm_coverage.coverage(llm, lambda: llm.generate("Hello"))"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from typing import Any

import torch

from faultline.attach import _named_modules

_OPS = torch.ops.faultline
# The end of a module's name, and the family of operators that does its work.
_PARTS = (("_proj", "matmul"), ("norm", "norm"), ("act_fn", "activation"), ("rotary_emb", "rotary"), ("attn", "attention"))


def begin(worker: Any) -> None:
    """In a worker: note every operator from here on."""
    worker.faultline_profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    worker.faultline_profiler.start()


def _families() -> list[tuple[str, list[str]]]:
    """Those that a part of a model belongs to; all_ops and every are made of them."""
    known = json.loads(_OPS.operator_families())
    return [(entry["family"], entry["operators"]) for entry in known if entry["family"] not in ("all_ops", "every")]


def end(worker: Any) -> dict[str, Any]:
    """In a worker: the operators that ran since, by family, and the parts of the model that none of them belongs to."""
    worker.faultline_profiler.stop()
    families = _families()
    calls: dict[str, dict[str, int]] = {}
    for event in worker.faultline_profiler.key_averages():
        for family, patterns in families:
            if any(fnmatch.fnmatchcase(event.key, pattern) for pattern in patterns):
                calls.setdefault(family, {})[event.key] = event.count
                break
    model = worker.model_runner.get_model()
    parts: dict[str, list[str]] = {}
    for path, _ in _named_modules(model):
        if (family := next((family for end, family in _PARTS if path.endswith(end)), None)) is not None:
            parts.setdefault(family, []).append(path)
    hidden = {family: paths for family, paths in parts.items() if family not in calls}
    return {"compiled": int(worker.vllm_config.compilation_config.mode or 0) > 0, "operators": calls, "hidden": hidden}


def coverage(engine: Any, run: Callable[[], object]) -> dict[str, Any]:
    """-> {compiled, operators: {family: {name: calls}}, hidden: {family: modules}, sentences}. `run` lets the engine generate; a
    plan must be armed in it, whose rules need not reach anything."""
    engine.collective_rpc("faultline_coverage_begin")
    run()
    workers = engine.collective_rpc("faultline_coverage_end")
    found = workers[0]  # the others compute the same model, each a part of every layer
    how = "compiled" if found["compiled"] else "eager"
    found["sentences"] = [f"{how}: {family} runs as " + ", ".join(f"{name} ({calls} calls)" for name, calls in names.items()) for family, names in found["operators"].items()]
    why = "run in generated code" if found["compiled"] else "run as operators of no family"
    found["sentences"] += [f"{how}: {family} is hidden: {len(paths)} modules ({paths[0]}, …) {why}; a rule on it meets no call, and the run fails" +
                           ("; enforce_eager=True shows it" if found["compiled"] else "") for family, paths in found["hidden"].items()]
    return found
