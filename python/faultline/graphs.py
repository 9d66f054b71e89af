"""CUDA graphs under a plan. A graph holds the kernels of the moment in which it was captured: one that was captured without the plan
replays clean, one of an earlier plan has faults that are off, and no tap sees either. So the first replay of such a graph runs in a window of kernel launches; products in it are a
complaint, and so is a replay that could not be recorded."""

from __future__ import annotations

import functools
import weakref

import torch

from faultline.complaints import complaint
from faultline.launches import proof_window

_OPS = torch.ops.faultline
_plans: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # graph -> the plan under which it was captured, or that has seen it
_plan = 0  # the number of the plan that is armed
_guilty: list[dict] = []
_unproven = 0  # replays


def reset() -> None:
    """Another plan is armed."""
    global _plan, _unproven
    _watch()
    _plan += 1
    _guilty.clear()
    _unproven = 0


def complaints() -> list[dict]:
    found = [complaint("unfaulted_kernels", f"a CUDA graph that was captured without the plan is replayed: its {proof['products']} product kernels run without a fault; capture it while the plan is armed") for proof in _guilty]
    if _unproven:
        found.append(complaint("hidden", f"{_unproven} replays of CUDA graphs that were captured without the plan could not be recorded, so nobody knows what they compute; capture them while the plan is armed"))
    return found


@functools.cache
def _watch() -> None:
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or torch.version.cuda is None:  # asking for devices would begin to use CUDA, and a forked engine could not
        return
    graph.capture_begin, graph.replay = _noting_plan(graph.capture_begin), _proving(graph.replay)


def _noting_plan(original):
    @functools.wraps(original)
    def capture_begin(self, *arguments, **keywords):
        _plans.pop(self, None)
        if _OPS.plan_is_armed():
            _plans[self] = _plan
        return original(self, *arguments, **keywords)

    return capture_begin


def _proving(original):
    @functools.wraps(original)
    def replay(self):
        if _plans.get(self) == _plan or not _OPS.plan_is_armed() or _OPS.is_silenced():
            return original(self)
        return _prove(self, original)

    return replay


def _prove(graph, replay) -> None:
    global _unproven
    kind = "a CUDA graph that was captured without the plan"
    with proof_window.of(kind):
        replay(graph)
    proof = proof_window.kinds.pop(kind, None)
    if proof is None or proof["absent"]:
        _unproven += 1
        return
    has_faults = proof["faulted"] == proof["products"] and graph not in _plans  # those of an earlier plan are off
    _plans[graph] = _plan
    if proof["products"] and not has_faults:
        _guilty.append(proof)
