"""Kernel launches below the dispatcher: every kernel that this process ran on a GPU between two points, by family and name, and
whether our fault ran with it (docs/tap.md). The library records (CUPTI), classifies and joins; here is the window's two ends and the
table for people. Where launches cannot be recorded the answer says why, and nothing fails: one proof is absent, others stand."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import torch

from faultline import _library  # noqa: F401  the operators

_NAMES_SHOWN = 8


def _absent(reason: str, why: str) -> dict:
    return {"available": False, "reason": reason, "why": why, "launches": 0, "in_graphs": 0, "families": {}, "cost": None}


def begin_launches(*, scopes: bool = True) -> dict | None:
    """Opens the window; None, or the answer that says why there is none. scopes: note which wrapped operator launched a kernel; eager
    code under a plan needs it, graphs and generated code have no use for it."""
    if torch.version.cuda is None:
        return _absent("no_device", f"kernel launches cannot be recorded: torch {torch.__version__} is built without CUDA")
    if torch.cuda.device_count() == 0:  # asks NVML: CUDA stays as it is, so that a later fork can use it
        return _absent("no_device", "kernel launches cannot be recorded: this process sees no GPU")
    answer = torch.ops.faultline.launches_begin(scopes)
    return _absent(**json.loads(answer)) if answer else None


def end_launches(*, listed: bool = False) -> dict:
    """Waits for the GPU, closes the window and gives its answer; listed: with every launch, in the order of streams and times."""
    return json.loads(torch.ops.faultline.launches_end(listed))


def launches(run: Callable[[], object], *, scopes: bool = True, listed: bool = False) -> dict:
    """Runs `run()` in a window: {"available", "reason", "why", "launches", "in_graphs", "families": {"product": {"launches", "faulted",
    "parts", "kernels": {name: {"launches", "faulted"}}}, …}, "cost"}. available False: `run` ran, `why` says why it was not recorded."""
    absent = begin_launches(scopes=scopes)
    try:
        run()
    finally:
        answer = absent or end_launches(listed=listed)
    return answer


def unfaulted(answer: dict, family: str) -> dict[str, int]:
    """Kernels of a family that ran without a fault, and how often: {"triton_mm_31": 1}."""
    kernels = answer["families"].get(family, {"kernels": {}})["kernels"]
    missing = {name: count["launches"] - count["faulted"] for name, count in kernels.items()}
    return {name: count for name, count in missing.items() if count > 0}


def _counted(kernels: dict[str, int]) -> str:
    ordered = sorted(kernels.items(), key=lambda kernel: (-kernel[1], kernel[0]))
    shown = [f"{count} {name}" for name, count in ordered[:_NAMES_SHOWN]]
    return ", ".join(shown) + (f" and {len(ordered) - _NAMES_SHOWN} other kernels" if len(ordered) > _NAMES_SHOWN else "")


def launches_table(answer: dict) -> list[str]:
    """The lines that `python -m faultline --launches` prints."""
    if not answer["available"]:
        return [f"[launches] no proof by kernel launches: {answer['why']}"]
    lines = [f"[launches] {answer['launches']} kernel launches in this process, {answer['in_graphs']} of them by replayed graphs"]
    if left_out := answer["cost"]["left_out"]:
        lines.append(f"[launches] {left_out} more were not kept: what follows is of the first ones")
    any_fault = "fault" in answer["families"]
    for family, counts in answer["families"].items():
        if counts["launches"] == 0:
            continue
        line = f"[launches] {family}: {counts['launches']}"
        if family != "fault" and any_fault:
            line += f", {counts['faulted']} of them faulted"
        if counts["faulted"] == 0:
            line += ": " + _counted({name: count["launches"] for name, count in counts["kernels"].items()})
        elif missing := unfaulted(answer, family):
            line += "; not: " + _counted(missing)
        lines.append(line)
    return lines


def write_launches(answer: dict, path: str | pathlib.Path) -> None:
    pathlib.Path(path).write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
