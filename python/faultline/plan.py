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
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import faultline._library  # noqa: F401  loads the operators
from faultline import armed, ascend, compiled, graphs
from faultline.attach import Attachment
from faultline.complaints import EvidenceError, check_on_missing, complaint, sentences
from faultline.launches import proof_window
from faultline.steps import CALL, Steps

_OPS = torch.ops.faultline


class Plan:
    """A recipe in this process; make one with plan(), and use it as a context manager: the block runs under its faults, and leaving
    it without an exception raises EvidenceError where the evidence is missing.

    `recipe` is the resolved recipe (None before the plan is armed). `report` is what was read last (None before the first read). `steps` says which steps were seen and who told them.
    `followers` are functions that begin_step() calls with each step."""

    def __init__(
        self,
        recipe: str | os.PathLike[str] | dict[str, Any],
        *,
        model: torch.nn.Module | None = None,
        overrides: Iterable[str] = (),
        total_steps: int = 1,
        on_missing: Literal["raise", "warn"] = "raise",
    ) -> None:
        """Takes what plan() takes. The recipe is checked at once and read when the plan is armed. Raises ValueError for a mistake in
        the recipe and for another on_missing."""
        check_on_missing("on_missing", on_missing)
        self._recipe = json.dumps(recipe) if isinstance(recipe, dict) else os.fspath(recipe)
        self._overrides, self._total_steps, self._on_missing = list(overrides), total_steps, on_missing
        _OPS.check_recipe(self._recipe, self._overrides)
        self._model = model
        self._attachment: Attachment | None = None
        self._optimizer_hook = None
        self._is_armed = False
        self._process = os.getpid()
        self.steps: Steps = Steps(total_steps)
        self.followers: list[Callable[[int], object]] = []  # functions that get each step, as noise on norms does
        self.report: dict[str, Any] | None = None
        self.recipe: dict[str, Any] | None = None

    # --- arming -----------------------------------------------------------------------------------------------------
    def arm(self) -> Plan:
        """Loads the recipe, hooks the model and makes the rules act; returns the plan itself. Raises ValueError if it is armed
        already, for a mistake in the recipe, or where the process hides its operators; then nothing stays changed."""
        if self._is_armed:
            raise ValueError("this plan is armed already; disarm it first")
        if hidden := compiled.hides_everything():
            raise ValueError(hidden)
        attachment = Attachment(self._model) if self._model is not None else None
        try:
            _OPS.plan_load(self._recipe, self._overrides, self._total_steps, attachment.layer_count if attachment else 0)
            recipe = json.loads(_OPS.plan_recipe())
            if attachment:
                ascend.refuse_packed_weights(self._model, recipe)
                attachment.add_boundaries()
            _OPS.plan_arm()
        except BaseException:
            if attachment:
                attachment.detach()
            raise
        self._is_armed, self._process = True, os.getpid()
        self.recipe = recipe
        compiled.keep_products()
        proof_window.reset()
        graphs.reset()
        self._attachment = attachment
        self._optimizer_hook = register_optimizer_step_post_hook(lambda *_: self._weights_learnt())
        return self

    def _weights_learnt(self) -> None:
        self.steps.optimizer_steps += 1
        _OPS.weights_changed()

    def disarm(self) -> None:
        """Back to the process as it was: no rule acts, hooks are gone. Wrapped kernels pass calls through. A plan that is not armed
        stays as it is."""
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

    def __enter__(self) -> Plan:
        """Arms the plan. Raises ValueError as arm() does, and for a recipe with a section aqn, which would do nothing here."""
        if _OPS.has_aqn(self._recipe, self._overrides):
            raise ValueError("this recipe's section aqn asks for noise on norms, which `faultline train`, vLLM's sampler and trainers under FAULTLINE_RECIPE get (python -m faultline --recipe RECIPE SCRIPT); in this block it would do nothing: leave it out (overrides=['~aqn'])")
        return self.arm()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Reads the evidence and disarms. Raises EvidenceError where it is missing, unless the block ended with an exception."""
        try:
            self.read(counts=self._has_census)
            if os.getpid() == self._process and not (self._is_armed and _OPS.plan_is_armed()):
                self.report["complaints"].append(complaint("unproven", "the plan was disarmed before its block ended: what ran from then on ran without it"))
        finally:
            self.disarm()
        if kind is None:
            self.require_evidence()

    # --- running ----------------------------------------------------------------------------------------------------
    def begin_step(self, step: int, *, told_by: str = CALL) -> None:
        """Strengths follow their schedules; call numbers start again, so that a resumed run draws the same numbers. `told_by` goes
        into the report: who knew the step."""
        _OPS.begin_step(step)
        self.steps.saw(step, told_by)
        for follow in self.followers:
            follow(step)

    @contextlib.contextmanager
    def _away(self, asked: str) -> Iterator[None]:
        """No fault acts inside. Of a plan that is not armed the library would answer for another one."""
        if not self._is_armed:
            raise ValueError(f"{asked}() asks a plan that is armed, and this one is not; use it as a context manager, or call arm() first")
        _OPS.plan_disarm()
        try:
            yield
        finally:
            _OPS.plan_arm()

    _has_census = False

    def dry_run(self, run: Callable[[], object]) -> dict[str, Any]:
        """Runs `run()` once without faults and returns what the armed plan will do: {"rules": sites and calls per forward,
        "coverage": by phase}. Raises ValueError for a rule that would match nothing. Later counts are held against it."""
        with self._away("dry_run"):
            census(run, keep=True)
            prediction = json.loads(_OPS.plan_predict())
        self._has_census = True
        return prediction

    def verify(self, run: Callable[[], torch.Tensor | dict[Any, Any] | Iterable[Any]]) -> None:
        """A/A and canary: `run()`, which returns a tensor or several, must give equal bits twice without faults, and other bits
        with them. Raises EvidenceError where it does not."""
        with self._away("verify"):
            first, second = _digests(run()), _digests(run())
        if first != second:
            raise EvidenceError([complaint("repeats", "A/A: two runs without faults differ; the comparison would measure chance")], self.report)
        if _digests(run()) == first:
            raise EvidenceError([complaint("canary", "canary: the armed plan does not change one bit of the result")], self.report)

    # --- evidence ---------------------------------------------------------------------------------------------------
    def read(self, *, counts: bool = False) -> dict[str, Any]:
        """Returns the evidence so far, and keeps it as `report`. counts: hold the calls against the dry run, which only the end of
        a run allows."""
        self.report = json.loads(_OPS.plan_report(counts))
        self.report["steps"] = self.steps.record()
        self.report["complaints"] += self.steps.complaints(self.report["rules"])
        if hidden := compiled.hides_everything():
            self.report["complaints"].append(complaint("hidden", hidden))
        self.report["launches"] = proof_window.record()
        self.report["log"] += proof_window.lines()
        self.report["complaints"] += proof_window.complaints(self.report) + graphs.complaints()
        if os.getpid() != self._process:
            self.report["complaints"].append(complaint("forked", "this process was forked from the one that armed the plan and computed without faults; the ledger is its parent's"))
        return self.report

    def write_record(self, root: str | os.PathLike[str] = "runs", *, name: str = "plan", numbers: dict[str, Any] | None = None) -> pathlib.Path:
        """Writes what was read last as a record below `root`, for `faultline report`, and returns its folder. `numbers` is what was
        measured under the plan, as {"accuracy": 0.71}; the record holds it beside the evidence, and beside the complaints that
        speak against it. Raises ValueError if nothing was read."""
        if self.report is None or self.recipe is None:
            raise ValueError("write_record() writes what read() has read, and nothing was; leave the block of the plan first, or call read()")
        texts = [json.dumps(part) for part in (self.recipe, self.report, numbers or {})]
        return pathlib.Path(_OPS.plan_record(os.fspath(root), name, *texts, sys.argv))

    def require_evidence(self) -> None:
        """Raises EvidenceError if the report that was read last has complaints, or if none was read; with on_missing="warn" it
        warns."""
        complaints = self.report["complaints"] if self.report else [complaint("no_evidence", "nothing was read")]
        if self._model is not None and self.report and self.report["rows"] and not self.report["forwards"]:
            warnings.warn("faultline: no forward of the model was seen, so phases are told from the gradient mode alone; if the model was compiled, give plan() what torch.compile returned", stacklevel=3)
        if not complaints:
            return
        if self._on_missing == "warn":
            warnings.warn("faultline: " + sentences(complaints), stacklevel=3)
            return
        raise EvidenceError(complaints, self.report)


def plan(
    recipe: str | os.PathLike[str] | dict[str, Any],
    *,
    model: torch.nn.Module | None = None,
    overrides: Iterable[str] = (),
    total_steps: int = 1,
    on_missing: Literal["raise", "warn"] = "raise",
) -> Plan:
    """A plan from a recipe: a path, a YAML text or a dict. Use it as a context manager.

    model: whose modules and layers rules may name. overrides: changes of the recipe, `a.b=v`, `+a.b=v`, `~a.b`.
    total_steps: how many steps schedules have. on_missing: whether missing evidence raises EvidenceError or warns; another
    word raises ValueError, and so does a mistake in the recipe."""
    return Plan(recipe, model=model, overrides=overrides, total_steps=total_steps, on_missing=on_missing)


def ledger() -> dict[str, Any]:
    """The evidence so far of the plan that is armed in this process: rules, rows (rule x operator x place x phase) and complaints."""
    return json.loads(_OPS.plan_report(False))


def weights_changed() -> None:
    """Call it after weights were updated past autograd (p.data.copy_, a weight sync): faulted copies are made anew."""
    _OPS.weights_changed()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A context manager that names what runs inside: rollout, actor_forward, ref, eval, critic or diagnose; auto: what the gradient
    mode says. Another name raises ValueError."""
    before = _OPS.get_phase()
    _OPS.set_phase(name)
    try:
        yield
    finally:
        _OPS.set_phase(before)


def census(run: Callable[[], object], *, model: torch.nn.Module | None = None, keep: bool = False) -> list[dict[str, Any]]:
    """Runs `run()` and returns every operator that it executes: name, phase, module, calls, FLOPs, bytes, shapes. `model` names
    modules. keep: a plan that is loaded holds its later counts against this census."""
    with Attachment(model) if model is not None else contextlib.nullcontext():
        _OPS.census_begin()
        try:
            run()
        finally:
            entries = json.loads(_OPS.census_end(keep))
    return entries


def _digests(result: torch.Tensor | dict[Any, Any] | Iterable[Any]) -> list[int]:
    tensors = [result] if isinstance(result, torch.Tensor) else list(result.values()) if isinstance(result, dict) else list(result)
    return [int(_OPS.digest(tensor.detach()).item()) for tensor in tensors if isinstance(tensor, torch.Tensor)]


def _warn_in_child() -> None:
    if _OPS.plan_was_lost() and armed.held() is None:
        warnings.warn("faultline: a plan was armed before this process was forked; the child computes without faults until it arms its own", stacklevel=2)


os.register_at_fork(after_in_child=_warn_in_child)
