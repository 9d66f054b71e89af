"""Follows a Hugging Face or TRL trainer: tells the library which phase runs and which step it is.

    with faultline.plan(recipe, model=trainer.model, total_steps=100) as plan, faultline.follow(trainer, plan):
        trainer.train()

The gradient mode alone cannot say it: a trainer computes old and reference log-probabilities without gradients, which
looks like a rollout. Nothing of transformers or TRL is changed, only this trainer and its model get attributes of their
own (`evaluate`, `generate`, `log`) and hooks, which are gone when the block ends. What the trainer logs, to the console,
TensorBoard or Weights & Biases, holds the ledger's totals as faultline/RULE/…, and the evidence stays beside the
checkpoints, in OUTPUT_DIR/faultline (read it with faultline.collect(folder))."""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from faultline import armed, evidence, noise, trainer_norms
from faultline.attach import Attachment
from faultline.plan import Plan, phase
from faultline.steps import TRAINER

if TYPE_CHECKING:  # it imports us
    from faultline.environment import Armed

_OPS = torch.ops.faultline


@contextlib.contextmanager
def follow(trainer: Any, plan: Plan | None = None) -> Iterator[None]:
    """A context manager around the run of a Hugging Face or TRL trainer. Inside, phases are: `rollout` in model.generate, `eval` in trainer.evaluate (generation included), `ref` in the
    forward of trainer.ref_model, `critic` in that of a reward model, `actor_forward` in everything else that goes forward,
    log-probabilities of the actor among it. Backward and recomputation are told by autograd as always. Each step of the
    trainer begins a step of `plan`, so that schedules move.

    Not told apart: a reference that is the actor itself with its adapters switched off (TRL with PEFT) counts as
    actor_forward; an engine outside of this process (vLLM server) has to arm a plan of its own."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(phase("actor_forward"))
        stack.enter_context(_inside(trainer, "evaluate", "eval"))
        stack.enter_context(_inside(trainer.model, "generate", "rollout"))
        for model, name in _other_models(trainer):
            stack.enter_context(Attachment(model, phase=name))
        if plan is not None:
            stack.enter_context(_steps_of(trainer, plan))
            stack.enter_context(_logs_of(trainer, plan))
            if (own := _process_of(plan)) is not None:
                stack.enter_context(trainer_norms.noise_of(trainer, own))
        yield


def _process_of(plan: Plan) -> Armed | None:
    """The process's own plan, if it is this one."""
    own = armed.armed()
    return own if own is not None and own.plan is plan else None


def numbers(report: dict[str, Any]) -> dict[str, float]:
    """A report as metrics: for each rule its calls, the share of elements that it changed and, where the kind has one, the
    relative error that it really had (root mean square over the ledger's sample)."""
    metrics: dict[str, float] = {}
    for rule in report["rules"]:
        name = f"faultline/{rule['name']}"
        metrics[f"{name}/calls"] = float(rule["calls"])
        metrics[f"{name}/changed"] = rule["changed"] / rule["elements"] if rule["elements"] else 0.0
        samples = [row["ledger"] for row in report["rows"] if row["rule"] == rule["name"] and row["ledger"]["relative_rms"] is not None]
        if total := sum(ledger["sampled"] for ledger in samples):
            metrics[f"{name}/relative_error"] = math.sqrt(sum(ledger["sampled"] * ledger["relative_rms"] ** 2 for ledger in samples) / total)
    return metrics


def _other_models(trainer):
    reference = getattr(trainer, "ref_model", None)
    if reference is not None and reference is not trainer.model:
        yield reference, "ref"
    for reward in getattr(trainer, "reward_funcs", ()):
        if isinstance(reward, torch.nn.Module):
            yield reward, "critic"


@contextlib.contextmanager
def _attribute(owner, name: str, value):
    """`owner.name` is `value` inside: an attribute of this object, whatever its class has."""
    had_its_own, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had_its_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def _inside(owner, method: str, name: str):
    """What `owner.method` runs has this phase, except inside another one (generation in an evaluation is eval)."""
    if not hasattr(owner, method):
        yield
        return
    original = getattr(owner, method)

    def call(*arguments, **keywords):
        with phase(name) if _OPS.get_phase() == "actor_forward" else contextlib.nullcontext():
            return original(*arguments, **keywords)

    with _attribute(owner, method, call):
        yield


@contextlib.contextmanager
def _logs_of(trainer, plan: Plan):
    """The ledger in what the trainer logs, and the evidence as a file when it has ended, well or not."""
    original, own = trainer.log, _process_of(plan)

    def log(logs, *arguments, **keywords):
        return original({**logs, **numbers(plan.read()), **noise.metrics(own.notes if own else {})}, *arguments, **keywords)

    with _attribute(trainer, "log", log):
        try:
            yield
        finally:
            whole = own.snapshot() if own else {"work": {}, "notes": {}}  # the process may have sampled, under noise
            work = {**whole["work"], "actor_forward": int(trainer.state.global_step)}
            entry = evidence.snapshot(plan.read(), role="trainer", work=work, notes=whole["notes"], ended=True)
            evidence.write(pathlib.Path(trainer.args.output_dir) / "faultline", entry)


@contextlib.contextmanager
def _steps_of(trainer, plan: Plan):
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            plan.begin_step(state.global_step, told_by=TRAINER)

    steps = Steps()
    trainer.add_callback(steps)
    try:
        yield
    finally:
        trainer.remove_callback(steps)
