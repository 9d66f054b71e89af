"""A plan in this process: load a recipe, arm it around some code, and refuse the result where the evidence is missing.

    with faultline.plan("recipe.yaml", model=model) as plan:
        model.generate(...)
    print(plan.report["log"])

Leaving the block disarms the plan, reads the ledger and raises EvidenceError if a rule never fired, a count or a
realised strength is not what it must be, or a weight changed behind the plan's back."""

from __future__ import annotations

import contextlib
import json
import os
import warnings

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import faultline._library  # noqa: F401  loads the operators
from faultline import compiled
from faultline.attach import Attachment
from faultline.complaints import complaint, sentences
from faultline.steps import CALL, Steps

_OPS = torch.ops.faultline


class EvidenceError(RuntimeError):
    """The fault behind a number is not proven. `complaints` says why (code, rule, place, sentence), `report` holds the ledger."""

    def __init__(self, complaints, report):
        super().__init__("the evidence is missing: " + sentences(complaints))
        self.complaints = complaints
        self.report = report


def _check_on_missing(name, value):
    if value not in ("raise", "warn"):
        raise ValueError(f"{name} is raise or warn; got {value!r}")


class Plan:
    def __init__(self, recipe, *, model=None, overrides=(), total_steps=1, on_missing="raise"):
        _check_on_missing("on_missing", on_missing)
        self._recipe = json.dumps(recipe) if isinstance(recipe, dict) else os.fspath(recipe)
        self._overrides, self._total_steps, self._on_missing = list(overrides), total_steps, on_missing
        self._model = model
        self._attachment: Attachment | None = None
        self._optimizer_hook = None
        self._is_armed = False
        self._process = os.getpid()
        self.steps = Steps(total_steps)
        self.followers: list = []  # functions that get each step, as noise on norms does
        self.report: dict | None = None

    # --- arming -----------------------------------------------------------------------------------------------------
    def arm(self):
        if self._is_armed:
            raise ValueError("this plan is armed already; disarm it first")
        if hidden := compiled.hides_everything():
            raise ValueError(hidden)
        attachment = Attachment(self._model) if self._model is not None else None
        try:
            _OPS.plan_load(self._recipe, self._overrides, self._total_steps, attachment.layer_count if attachment else 0)
            if attachment:
                attachment.add_boundaries()
            _OPS.plan_arm()
        except BaseException:
            if attachment:
                attachment.detach()
            raise
        self._is_armed, self._process = True, os.getpid()
        compiled.keep_products()
        self._attachment = attachment
        self._optimizer_hook = register_optimizer_step_post_hook(lambda *_: self._weights_learnt())
        return self

    def _weights_learnt(self):
        self.steps.optimizer_steps += 1
        _OPS.weights_changed()

    def disarm(self):
        """Back to the process as it was: no rule acts, hooks are gone. Wrapped kernels pass calls through."""
        if not self._is_armed:  # another plan may be
            return
        self._is_armed = False
        compiled.release_products()
        _OPS.plan_disarm()
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
            self._optimizer_hook = None
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None

    def __enter__(self):
        if _OPS.has_aqn(self._recipe, self._overrides):
            raise ValueError("this recipe's section aqn asks for noise on norms, which `faultline train` and vLLM's sampler get; in this process it would do nothing: leave it out (overrides=['~aqn'])")
        return self.arm()

    def __exit__(self, kind, *_):
        try:
            self.read(counts=self._has_census)
            if os.getpid() == self._process and not (self._is_armed and _OPS.plan_is_armed()):
                self.report["complaints"].append(complaint("unproven", "the plan was disarmed before its block ended: what ran from then on ran without it"))
        finally:
            self.disarm()
        if kind is None:
            self.require_evidence()

    # --- running ----------------------------------------------------------------------------------------------------
    def begin_step(self, step: int, *, told_by: str = CALL):
        """Strengths follow their schedules; call numbers start again, so that a resumed run draws the same numbers."""
        _OPS.begin_step(step)
        self.steps.saw(step, told_by)
        for follow in self.followers:
            follow(step)

    _has_census = False

    def dry_run(self, run) -> dict:
        """Runs `run()` once without faults and says what the armed plan will do: sites and calls per forward for each
        rule, coverage for each phase. A rule that would match nothing is an error. Later counts are held against it."""
        was_armed = _OPS.plan_is_armed()
        if was_armed:
            _OPS.plan_disarm()
        try:
            census(run, keep=True)
            prediction = json.loads(_OPS.plan_predict())
        finally:
            if was_armed:
                _OPS.plan_arm()
        self._has_census = True
        return prediction

    def verify(self, run):
        """A/A and canary: `run()` must give equal bits twice without faults, and other bits with them."""
        _OPS.plan_disarm()
        try:
            first, second = _digests(run()), _digests(run())
        finally:
            _OPS.plan_arm()
        if first != second:
            raise EvidenceError([complaint("repeats", "A/A: two runs without faults differ; the comparison would measure chance")], self.report)
        if _digests(run()) == first:
            raise EvidenceError([complaint("canary", "canary: the armed plan does not change one bit of the result")], self.report)

    # --- evidence ---------------------------------------------------------------------------------------------------
    def read(self, *, counts=False) -> dict:
        self.report = json.loads(_OPS.plan_report(counts))
        self.report["steps"] = self.steps.record()
        self.report["complaints"] += self.steps.complaints(self.report["rules"])
        if hidden := compiled.hides_everything():
            self.report["complaints"].append(complaint("hidden", hidden))
        if os.getpid() != self._process:
            self.report["complaints"].append(complaint("forked", "this process was forked from the one that armed the plan and computed without faults; the ledger is its parent's"))
        return self.report

    def require_evidence(self):
        complaints = self.report["complaints"] if self.report else [complaint("no_evidence", "nothing was read")]
        if self._model is not None and self.report and self.report["rows"] and not self.report["forwards"]:
            warnings.warn("faultline: no forward of the model was seen, so phases are told from the gradient mode alone; if the model was compiled, give plan() what torch.compile returned", stacklevel=3)
        if not complaints:
            return
        if self._on_missing == "warn":
            warnings.warn("faultline: " + sentences(complaints), stacklevel=3)
            return
        raise EvidenceError(complaints, self.report)


def plan(recipe, *, model=None, overrides=(), total_steps=1, on_missing="raise") -> Plan:
    """A plan from a recipe: a path, a YAML text or a dict. Use it as a context manager."""
    return Plan(recipe, model=model, overrides=overrides, total_steps=total_steps, on_missing=on_missing)


def ledger() -> dict:
    """The evidence so far: rules, rows (rule x operator x place x phase) and complaints."""
    return json.loads(_OPS.plan_report(False))


def weights_changed():
    """Weights were updated past autograd (p.data.copy_, a weight sync): faulted copies are made anew."""
    _OPS.weights_changed()


@contextlib.contextmanager
def phase(name: str):
    """Names what runs inside: rollout, actor_forward, ref, eval, critic or diagnose."""
    before = _OPS.get_phase()
    _OPS.set_phase(name)
    try:
        yield
    finally:
        _OPS.set_phase(before)


def census(run, *, model=None, keep=False) -> list[dict]:
    """Every operator that `run()` executes: name, phase, module, calls, FLOPs, bytes, shapes. `model` names modules."""
    with Attachment(model) if model is not None else contextlib.nullcontext():
        _OPS.census_begin()
        try:
            run()
        finally:
            entries = json.loads(_OPS.census_end(keep))
    return entries


def _digests(result):
    tensors = [result] if isinstance(result, torch.Tensor) else list(result.values()) if isinstance(result, dict) else list(result)
    return [int(_OPS.digest(tensor.detach()).item()) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def _warn_in_child():
    from faultline import environment

    if _OPS.plan_was_lost() and not environment.rearms():
        warnings.warn("faultline: a plan was armed before this process was forked; the child computes without faults until it arms its own", stacklevel=2)


os.register_at_fork(after_in_child=_warn_in_child)
