"""A plan armed from outside. `FAULTLINE_RECIPE=recipe.yaml` arms it in every process that imports faultline: a script that
says so, and the processes of vLLM, verl and Ray through their plug-in points (faultline_vllm, faultline_verl,
ray_workers).

    FAULTLINE_RECIPE       the recipe; nothing is armed without it
    FAULTLINE_EVIDENCE     folder of the processes' evidence (evidence.py)
    FAULTLINE_ON_MISSING   raise (default) or warn
    FAULTLINE_TOTAL_STEPS  for schedules; default 1
    FAULTLINE_LEDGER       report to file.PID at exit
    FAULTLINE_LAUNCHES     off: record no kernel launches, because another tool wants CUPTI

A process that imports faultline by itself is held to its plan: missing evidence ends it with status 3. A process of an engine
may have nothing to compute (a scheduler, a driver): it is held to it from the moment it has generated or trained. A forked
child arms the plan for itself, with a ledger of its own, and is held to it likewise."""

from __future__ import annotations

import atexit
import hashlib
import json
import multiprocessing.util
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from faultline import armed, evidence, noise, phases
from faultline.complaints import EvidenceError, check_on_missing, complaint, sentences
from faultline.plan import Plan

EXIT_EVIDENCE = 3
_SECONDS_BETWEEN_FILES = 2.0
_cleaning: list = []  # what atexit would still do after a judgement that ends the process


class Armed:
    """The plan of this process, what it has been used for, and how it is judged."""

    def __init__(self, recipe: str):
        self.on_missing = os.environ.get("FAULTLINE_ON_MISSING", "raise")
        check_on_missing("FAULTLINE_ON_MISSING", self.on_missing)
        steps = os.environ.get("FAULTLINE_TOTAL_STEPS", "1")
        if not steps.isdigit() or int(steps) < 1:
            raise ValueError(f"FAULTLINE_TOTAL_STEPS is a number of steps, at least 1; got {steps!r}")
        _check_plugin_list()
        self._recipe, self._steps = recipe, int(steps)
        self.recipe_digest = hashlib.sha256(recipe.encode() if is_text(recipe) else pathlib.Path(recipe).read_bytes()).hexdigest()
        self._begin("script")
        self._optimizer_steps = register_optimizer_step_post_hook(lambda *_: self.note_work("actor_forward"))

    def _begin(self, role: str) -> None:
        self.plan = Plan(self._recipe, total_steps=self._steps).arm()
        self.process, self.role = os.getpid(), role
        self.script_error: str | None = None  # how the script failed by itself, where whoever runs it knows
        self.work: dict[str, int] = {}  # pieces of work by phase: generations, optimizer steps
        # What else was done here: noise on norms, where the recipe asks for it; which of an engine's workers this is.
        self.notes: dict[str, dict] = {"aqn": dict(noise.NO_NOISE)} if torch.ops.faultline.has_aqn(self._recipe, []) else {}
        self.before_snapshot: list = []  # functions that bring the notes up to date
        self._written = 0.0

    def begin_in_child(self) -> None:
        """After a fork: this process has wrapped kernels and hooks, and neither a plan nor evidence of its own."""
        self._begin("child")

    def judge_at_exit(self) -> None:
        # multiprocessing ends its children without atexit, and forgets finalizers in a forked one.
        multiprocessing.util.Finalize(None, self.judge, exitpriority=-100)

    # --- during the run -----------------------------------------------------------------------------------------------
    def note_work(self, phase: str) -> None:
        """A piece of work in this phase has ended. Its first one must have left evidence; files are written now and then."""
        if os.getpid() != self.process:
            return
        is_first = phase not in self.work
        self.work[phase] = self.work.get(phase, 0) + 1
        if is_first:
            self._require_rows(phase)
        if is_first or time.monotonic() - self._written > _SECONDS_BETWEEN_FILES:
            self.write(ended=False)

    def _require_rows(self, phase: str) -> None:
        report = self.plan.read()
        complaints = noise.complaints(self.notes, self.work, at_end=False)
        if evidence.is_empty(report):
            names = ", ".join(f"'{rule['name']}'" for rule in report["rules"])
            complaints.append(complaint("idle", f"this process has computed ({phase}) and none of the plan's rules ({names}) met a single call; do its operators have other names here? faultline.census(run) lists them"))
        self.require(complaints, report)

    def require(self, complaints: list[dict], report: dict | None = None) -> None:
        """Complaints that need not wait for the end of the process."""
        if complaints and self.on_missing == "raise":
            raise EvidenceError(complaints, report)
        for one in complaints:
            print(f"faultline: {one['sentence']}", file=sys.stderr)

    def _complaints(self, report: dict) -> list[dict]:
        if self.role == "script":
            return report["complaints"] + noise.complaints(self.notes, self.work, alone=not report["rules"])
        return evidence.complaints_of_process(report, role=self.role, work=self.work, notes=self.notes)

    # --- evidence -----------------------------------------------------------------------------------------------------
    def snapshot(self, *, ended=False) -> dict:
        for refresh in self.before_snapshot:
            refresh()
        return evidence.snapshot(self.plan.read(), role=self.role, work=dict(self.work), notes=self.notes, ended=ended, recipe=self.recipe_digest)

    def write(self, *, ended: bool) -> None:
        self._written = time.monotonic()
        if (place := evidence.folder()) is not None:
            try:
                evidence.write(place, self.snapshot(ended=ended))
            except OSError as error:
                print(f"faultline: the evidence could not be written to {place}: {error}", file=sys.stderr)

    def write_verdict(self, complaints: list[dict], *, whole: bool) -> None:
        """The judgement itself, where evidence is kept. An exception that reached the interpreter is told apart: evidence that a script
        did not live to produce is another thing than evidence that is missing."""
        if (place := evidence.folder()) is None:
            return
        uncaught = getattr(sys, "last_value", None)
        said = [one for one in getattr(uncaught, "complaints", []) if one not in complaints]
        failed = None if uncaught is None or isinstance(uncaught, (EvidenceError, evidence.CollectionError)) else type(uncaught).__name__
        try:
            evidence.write_verdict(place, complaints + said, whole=whole, script_error=self.script_error or failed)
        except OSError as error:
            print(f"faultline: the judgement could not be written to {place}: {error}", file=sys.stderr)

    def judge(self) -> None:
        """At exit. Ends the process with status 3 where it is held to its plan and the evidence is missing."""
        if armed.armed() is not self:
            return
        armed.hold(None)
        report = self.plan.read()
        self.write(ended=True)
        self._optimizer_steps.remove()
        self.plan.disarm()
        if path := os.environ.get("FAULTLINE_LEDGER"):
            with open(f"{path}.{self.process}", "w") as file:
                json.dump(report, file)
        complaints = self._complaints(report)
        self.write_verdict(complaints, whole=False)
        if self.role == "script" or report["rows"]:
            for line in report["log"]:
                print(line, file=sys.stderr)
        if complaints:
            print("faultline: the evidence is missing: " + sentences(complaints), file=sys.stderr)
            if self.on_missing == "raise":
                leave(EXIT_EVIDENCE)


def leave(status: int) -> NoReturn:
    """Ends the process in an exit handler, where an exception would only be printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    for clean in _cleaning:
        clean()
    os._exit(status)


def is_text(recipe: str) -> bool:
    """The recipe itself, and not a file's name."""
    return "\n" in recipe or "{" in recipe


def _check_plugin_list() -> None:
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "faultline" not in allowed.split(","):
        raise ValueError(f"VLLM_PLUGINS={allowed!r} leaves out 'faultline': vLLM's processes would compute without the plan; add faultline to the list or unset it")


def _shared_folder() -> None:
    """Children inherit the folder; one that nobody asked for goes away with the process that made it."""
    if os.environ.get("FAULTLINE_EVIDENCE"):
        return
    place = tempfile.mkdtemp(prefix="faultline-evidence-")
    os.environ["FAULTLINE_EVIDENCE"] = place
    maker = os.getpid()

    def remove():
        if os.getpid() == maker:
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    _cleaning.append(remove)


def arm_from_environment() -> Plan | None:
    """Arms FAULTLINE_RECIPE in this process, once. A mistake in it stops the import. -> the plan, if there is one"""
    recipe = os.environ.get("FAULTLINE_RECIPE")
    if (own := armed.armed()) is not None:
        return own.plan
    if not recipe:
        return None
    if not is_text(recipe) and not pathlib.Path(recipe).is_file():
        raise ValueError(f"FAULTLINE_RECIPE={recipe}: there is no such file here ({pathlib.Path.cwd()}); give an absolute path, readable in every process")
    evidence.run_id()  # before any child inherits the environment
    own = Armed(recipe)
    armed.hold(own)
    _shared_folder()
    atexit.register(own.judge)  # before the folder goes: handlers run from the last to the first
    own.judge_at_exit()
    multiprocessing.util.register_after_fork(own, Armed.judge_at_exit)
    os.register_at_fork(after_in_child=_begin_in_child)
    phases.watch(own)
    return own.plan


def _begin_in_child() -> None:
    if (parent := armed.held()) is not None:
        parent.begin_in_child()
