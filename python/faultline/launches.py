"""Kernel launches below the dispatcher: every kernel that this process ran on a GPU between two points, by family and name, and
whether our fault ran with it (docs/tap.md). The library records (CUPTI), classifies and joins; here is the window's two ends and the
table for people. Where launches cannot be recorded the answer says why, and nothing fails: one proof is absent, others stand."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from faultline import _library  # noqa: F401  the operators
from faultline.complaints import complaint

_NAMES_SHOWN = 8


def _absent(reason: str, why: str) -> dict[str, Any]:
    return {"available": False, "reason": reason, "why": why, "launches": 0, "in_graphs": 0, "families": {}, "cost": None}


def begin_launches(*, scopes: bool = True) -> dict[str, Any] | None:
    """Opens the window; None, or the answer that says why there is none. scopes: note which wrapped operator launched a kernel; eager
    code under a plan needs it, graphs and generated code have no use for it."""
    if torch.version.cuda is None:
        return _absent("no_device", f"kernel launches cannot be recorded: torch {torch.__version__} is built without CUDA")
    if torch.cuda.device_count() == 0:  # asks NVML: CUDA stays as it is, so that a later fork can use it
        return _absent("no_device", "kernel launches cannot be recorded: this process sees no GPU")
    answer = torch.ops.faultline.launches_begin(scopes)
    return _absent(**json.loads(answer)) if answer else None


def end_launches(*, listed: bool = False) -> dict[str, Any]:
    """Waits for the GPU, closes the window and gives its answer; listed: with every launch, in the order of streams and times."""
    return json.loads(torch.ops.faultline.launches_end(listed))


def launches(run: Callable[[], object], *, scopes: bool = True, listed: bool = False) -> dict[str, Any]:
    """Runs `run()` in a window: {"available", "reason", "why", "launches", "in_graphs", "families": {"product": {"launches", "faulted",
    "left_out", "parts", "kernels": {name: {"launches", "faulted"}}}, …}, "cost"}. available False: `run` ran, `why` says why it was not recorded.
    scopes and listed: as of begin_launches() and end_launches()."""
    absent = begin_launches(scopes=scopes)
    try:
        run()
    finally:
        answer = absent or end_launches(listed=listed)
    return answer


def unfaulted(answer: dict[str, Any], family: str) -> dict[str, int]:
    """Of a launches() answer, the kernels of a family that ran without a fault, and how often: {"triton_mm_31": 1}."""
    kernels = answer["families"].get(family, {"kernels": {}})["kernels"]
    missing = {name: count["launches"] - count["faulted"] for name, count in kernels.items()}
    return {name: count for name, count in missing.items() if count > 0}


def _counted(kernels: dict[str, int]) -> str:
    ordered = sorted(kernels.items(), key=lambda kernel: (-kernel[1], kernel[0]))
    shown = [f"{count} {name}" for name, count in ordered[:_NAMES_SHOWN]]
    return ", ".join(shown) + (f" and {len(ordered) - _NAMES_SHOWN} other kernels" if len(ordered) > _NAMES_SHOWN else "")


def launches_table(answer: dict[str, Any]) -> list[str]:
    """A launches() answer for people: the lines that `python -m faultline --launches` prints."""
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


# --- the proof window -------------------------------------------------------------------------------------------------
_FIRST_COMPILED = 4  # compiled code compiles, warms up and records a graph before it runs as it will


class ProofWindow:
    """The kernels of the first forward of each kind under a plan: how many products ran on the GPU, and which of them without a
    fault. One window a kind, closed with its forward, so that nothing is recorded afterwards. `FAULTLINE_LAUNCHES=off` leaves
    CUPTI to another tool; the report then says that this proof is absent. `kinds` holds a proof for each kind of forward, `taken`
    why CUPTI could not be had when it was wanted last."""

    def __init__(self) -> None:
        """Begins with nothing proven."""
        self.reset()

    def reset(self) -> None:
        """Another plan: nothing is proven of it yet."""
        self.kinds: dict[str, dict[str, Any]] = {}
        self.taken: str | None = None  # why CUPTI could not be had, when it was wanted last
        self._forwards: dict[str, int] = {}
        self._open: tuple[str, int] | None = None  # which kind, on which thread

    def begin(self, kind: str, *, is_compiled: bool = False) -> bool:
        """-> whether a window was opened, which the caller then ends"""
        if kind in self.kinds or self._open is not None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return False
        if not torch.ops.faultline.plan_is_armed() or torch.ops.faultline.is_silenced():
            return False
        self._forwards[kind] = self._forwards.get(kind, 0) + 1
        if is_compiled and self._forwards[kind] < _FIRST_COMPILED:
            return False
        if os.environ.get("FAULTLINE_LAUNCHES") == "off":
            self.kinds[kind] = _proof(_absent("off", "kernel launches are not recorded: FAULTLINE_LAUNCHES=off"))
        elif (absent := begin_launches()) is None:
            self._open = kind, threading.get_ident()
        elif absent["reason"] != "taken":  # else another tool has CUPTI at this moment: a later forward may do
            self.kinds[kind] = _proof(absent)
        else:
            self.taken = absent["why"]
        return self._open is not None

    def end(self, *, failed: bool = False) -> None:
        """Closes the window that this thread opened and keeps its proof; failed: the forward raised, and proves nothing."""
        if self._open is None or self._open[1] != threading.get_ident():
            return
        kind, self._open = self._open[0], None
        answer = end_launches()
        if not failed:
            self.kinds[kind] = _proof(answer)

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """A context manager: a window around what runs inside, where begin() would open one."""
        if not self.begin(kind):
            yield
            return
        try:
            yield
        except BaseException:
            self.end(failed=True)
            raise
        self.end()

    def complaints(self, report: dict[str, Any]) -> list[dict[str, str]]:
        """A rule that leaves out no product is held to it. A forward without any fault is judged by its counts: the rule may not
        act in its phase."""
        rules = [rule["name"] for rule in report["rules"] if rule["every_product"]]
        if not rules or report["allowed_partial"]:
            return []
        found = {kind: f"{proof['products'] - proof['faulted']} of {proof['products']} product kernels ran without a fault on the GPU: {_counted(proof['clean'])}"
                 for kind, proof in self.kinds.items() if 0 < proof["faulted"] < proof["products"]}
        return [complaint("unfaulted_kernels", sentence, rule=rules[0]) for sentence in _by_sentence(found)]

    def record(self) -> dict[str, dict[str, Any]]:
        """By kind of forward; a proof that is absent says why."""
        return self.kinds if self.kinds or not self.taken else {"first forward": _proof(_absent("taken", self.taken))}

    def lines(self) -> list[str]:
        """The proofs for people; kinds of which the same is to be said share a line."""
        return ["[launches] " + line for line in _by_sentence({kind: _sentence(proof) for kind, proof in self.record().items()})]


def _sentence(proof: dict[str, Any]) -> str:
    if proof["absent"]:
        return f"no proof by kernel launches: {proof['absent']}"
    missing = f"; not: {_counted(proof['clean'])}" if proof["clean"] else ""
    left_out = f", {proof['left_out']} of routers or adapters left out" if proof["left_out"] else ""
    return f"{proof['faulted']} of {proof['products']} product kernels were faulted{missing}{left_out}"


def _by_sentence(sentences: dict[str, str]) -> list[str]:
    """{kind: sentence} -> "prefill, decode and 5 more: sentence" """
    kinds: dict[str, list[str]] = {}
    for kind, sentence in sentences.items():
        kinds.setdefault(sentence, []).append(kind)
    return [", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "") + f": {sentence}" for sentence, names in kinds.items()]


def _proof(answer: dict[str, Any]) -> dict[str, Any]:
    products = answer["families"].get("product", {"launches": 0, "faulted": 0, "left_out": 0})
    return {"products": products["launches"], "faulted": products["faulted"], "left_out": products["left_out"], "clean": unfaulted(answer, "product"), "launches": answer["launches"],
            "in_graphs": answer["in_graphs"], "absent": answer["why"], "cost": answer["cost"]}


def of_all(reports: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the proof windows of several processes say together, from their reports; None where no process has opened one."""
    proofs = [proof for report in reports for proof in report.get("launches", {}).values()]
    if not proofs:
        return None
    return {"kinds": sum(not proof["absent"] for proof in proofs), "products": sum(proof["products"] for proof in proofs), "faulted": sum(proof["faulted"] for proof in proofs),
            "absent": sorted({proof["absent"] for proof in proofs if proof["absent"]})}


proof_window = ProofWindow()  # of the plan that is armed in this process


def write_launches(answer: dict[str, Any], path: str | pathlib.Path) -> None:
    """Writes a launches() answer as JSON. Raises OSError."""
    pathlib.Path(path).write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
