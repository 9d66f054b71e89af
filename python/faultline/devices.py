"""Two machines, operator by operator, where the second one is reached from Python only (an NPU, an XPU, any backend of torch): a forward is
recorded on the first as a trace (docs/compare.md), carried over, and each of its calls is made again on the second with the same inputs. What differs
becomes profiles and a recipe that makes the first machine err like the second (docs/hardware.md, "NPU beside GPU").

    python -m faultline.devices --model DIR --a cuda --record gpu-trace
    python -m faultline.devices --a gpu-trace --b npu:0 --import torch_npu --out npu-profiles"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from faultline.attach import Attachment
from faultline.backends import EXIT_RUNTIME, EXIT_USAGE, add_import_option, device_named, import_backends
from faultline.trace import _weights

_OPS = torch.ops.faultline
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_MOST_BYTES = 1 << 36
PROMPT = "How many apples are left if seven of twenty are eaten?"


def record(run: Callable[[], object], folder: str | os.PathLike[str], *, model: torch.nn.Module | None = None) -> int:
    """Runs `run()` without gradients and records it as one forward of a whole trace (faultline.trace, detail="full"), also where no model
    is called. `model` names modules and weights. Returns how many calls were written. Where run() fails, the trace is one that was cut off."""
    names, weights = _weights(model) if model is not None else ([], [])
    device = weights[0].device.type if weights else "cpu"
    header = {"engine": f"torch {torch.__version__}", "torch": torch.__version__, "device": device, "role": "script", "rank": 0, "world": 1, "tokenizer": ""}
    options = {"detail": "full", "most_bytes": _MOST_BYTES, "most_forwards": 0, "header": header}
    handle = _OPS.trace_open(os.fspath(folder), json.dumps(options), weights, names, [], [])
    with torch.no_grad(), Attachment(model) if model is not None else contextlib.nullcontext():
        if not _OPS.trace_enter(handle, "whole", None, None, None):
            raise RuntimeError("another recording is under way on this thread; end it first")
        try:
            run()
        finally:
            _OPS.trace_leave(handle)
    count: int = _OPS.trace_close(handle)
    return count


def compare(trace: str | os.PathLike[str], second: torch.device | str, *, dtype: torch.dtype | None = None, out: str | os.PathLike[str] = "", model: str = "") -> dict[str, Any]:
    """Makes each call of a trace again on a device. `out`: a folder for one profile an operator and a recipe.yaml, `model` its model.
    Returns `operators` and `layers`, the largest difference first, and `not_compared`. Two traces: faultline.compare()."""
    if os.path.isdir(str(second)):
        raise ValueError(f"{second} is a trace: two traces are compared as they are by faultline.compare(a, b) or `faultline compare --a A --b B`; give a device here")
    return json.loads(_OPS.compare_trace(os.fspath(trace), device_named(str(second)), dtype, os.fspath(out), model))


def _record(options) -> int:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device, _, name = options.a.rpartition(":") if options.a.rpartition(":")[2] in _DTYPES else (options.a, "", "bf16")
    place = device_named(device)
    # Attention in its parts: every backend has products and softmax, fused attention has a name of its own on each.
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=_DTYPES[name], attn_implementation="eager").to(place).eval()
    tokens = AutoTokenizer.from_pretrained(options.model)(options.prompt, return_tensors="pt").input_ids.to(place)
    return record(lambda: model(input_ids=tokens, use_cache=False), options.record, model=model)


def _print(answer) -> None:
    print(f"{'operator':<24} {'calls':>6} {'equal':>9} {'noise to signal':>16} {'worst':>10}")
    for row in answer["operators"]:
        print(f"{row['operator']:<24} {row['calls']:>6} {100 * row['share_equal']:>7.2f} % {row['noise_to_signal']:>16.3g} {row['worst']:>10.3g}")
    for sentence in answer["not_compared"]:
        print(f"not compared: {sentence}")


def main() -> int:
    """`python -m faultline.devices`: records a forward, or compares a record with a device or another record."""
    parser = argparse.ArgumentParser(prog="python -m faultline.devices", description="Two machines, operator by operator, from Python: for devices that only a backend of torch knows.")
    parser.add_argument("--a", default="cpu", metavar="SIDE", help="with --record: where the model runs, DEVICE or DEVICE:TYPE (bf16, fp16, fp32); else a trace of the first machine")
    parser.add_argument("--b", metavar="SIDE", help="where each call is made again, DEVICE or DEVICE:TYPE")
    parser.add_argument("--model", default="", metavar="DIR", help="a Hugging Face model: to record, or for the recipe")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="the text that is run")
    parser.add_argument("--record", metavar="TRACE", help="write the calls of --a as a trace into this folder")
    parser.add_argument("--out", default="", metavar="DIR", help="write profiles and a recipe that re-creates them into this folder")
    add_import_option(parser, "a backend to import first")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    options = parser.parse_args()
    try:
        import_backends(options)
        if options.record:
            if not options.model:
                raise ValueError("--record TRACE wants --model DIR")
            count = _record(options)
            print(json.dumps({"recorded": count, "trace": options.record}) if options.json else f"{count} calls recorded; on the other machine: python -m faultline.devices --a {options.record} --b DEVICE")
            return 0
        if not options.b or not (os.sep in options.a or os.path.exists(options.a)):
            raise ValueError("--a TRACE --b DEVICE compares; --model DIR --a DEVICE --record TRACE records first")
        device, _, name = options.b.rpartition(":")
        typed = name in _DTYPES
        answer = compare(options.a, device if typed else options.b, dtype=_DTYPES[name] if typed else None, out=options.out, model=options.model)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"faultline: {str(error).splitlines()[0]}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ValueError) else EXIT_RUNTIME
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        _print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
