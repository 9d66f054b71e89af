"""The processes of verl that compute. A worker that trains (ActorRolloutRefWorker) says by its methods in which phase it is: update_actor
is actor_forward and, told by autograd, actor_backward; compute_ref_log_prob is ref; compute_log_prob, the old log-probabilities, is the
actor's forward or ref, as the user wants, and never a rollout. A server that generates (vLLMHttpServer) passes questions on to
vLLM's workers, in which vllm_plugin.py lives. What the driver calls is registered with verl as its own methods are."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from faultline import armed
from faultline.plan import phase
from faultline.steps import TRAINER

OLD_LOG_PROBS = ("actor_forward", "ref")


def old_log_probs() -> str:
    """The phase of old log-probabilities. Raises ValueError for another word in FAULTLINE_OLD_LOG_PROBS."""
    chosen = os.environ.get("FAULTLINE_OLD_LOG_PROBS", OLD_LOG_PROBS[0])
    if chosen not in OLD_LOG_PROBS:
        raise ValueError(f"FAULTLINE_OLD_LOG_PROBS is {' or '.join(OLD_LOG_PROBS)}; got {chosen!r}")
    return chosen


# --- workers that train -------------------------------------------------------------------------------------------------
def wrap(module: Any) -> None:
    """verl.workers.engine_workers, as soon as it is imported."""
    worker = module.ActorRolloutRefWorker
    worker.compute_log_prob = _working(worker.compute_log_prob, _of_log_probs)
    worker.compute_ref_log_prob = _working(worker.compute_ref_log_prob, lambda _: ("ref", "ref"))
    worker.update_actor = _working(worker.update_actor, lambda _: ("actor_forward", "update_actor"))
    for method in (faultline_begin_step, faultline_evidence, faultline_finish):
        setattr(worker, method.__name__, module.register(dispatch_mode=module.Dispatch.ONE_TO_ALL)(method))


def _of_log_probs(data: Any) -> tuple[str, str]:
    """-> phase and name of the work. With adapters the reference is the actor without them."""
    settings = data.extra_info if hasattr(data, "extra_info") else data
    is_reference = "no_lora_adapter" in settings.keys() and bool(settings["no_lora_adapter"])
    return ("ref", "ref") if is_reference else (old_log_probs(), "old_log_prob")


def _working(original: Any, what: Any) -> Any:
    """The method in its phase; its end is a piece of work. Attributes that verl hung on it stay."""

    @functools.wraps(original)
    def method(self, data, *arguments, **keywords):
        own = armed.armed()
        if own is None:
            return original(self, data, *arguments, **keywords)
        name, work = what(data)
        with phase(name):
            result = original(self, data, *arguments, **keywords)
        is_first = work not in own.work
        own.note_work(work)
        if is_first:
            say(own.plan.read(), name)
        return result

    return method


def say(report: dict[str, Any], during: str) -> None:
    """The lines that the noise study's fork wrote: what is registered, the first injection."""
    sites: dict[str, int] = {}
    for row in report["rows"]:
        if row["phase"] == during:
            sites[row["rule"]] = sites.get(row["rule"], 0) + 1
    for rule, count in sites.items():
        print(f"[HW Error] Registered {count} sites of '{rule}' in {during}", file=sys.stderr)
    for line in report["log"]:
        if "first injection" in line and f" {during}:" in line:
            print(line.replace("[fault", "[HW Error] [fault", 1), file=sys.stderr, flush=True)


def faultline_begin_step(self: Any, step: int) -> None:
    """The driver's step is this process's."""
    if (own := armed.armed()) is not None:
        own.plan.begin_step(step, told_by=TRAINER)


def faultline_evidence(self: Any) -> dict[str, Any] | None:
    """The evidence of this process as it is now; None: it has no plan."""
    return armed.snapshot()


def faultline_finish(self: Any) -> dict[str, Any] | None:
    """The evidence of this process, which has done its work: Ray and verl end it without letting it say so."""
    return armed.finish()


# --- servers that generate ----------------------------------------------------------------------------------------------
def wrap_server(module: Any) -> None:
    """verl.workers.rollout.vllm_rollout.vllm_async_server, as soon as it is imported."""

    async def faultline_ask(self: Any, method: str, *arguments: Any) -> list[Any]:
        """What vLLM's workers answer; verl's own collective_rpc keeps it to itself."""
        return list(await self.engine.collective_rpc(method=method, args=arguments))

    module.vLLMHttpServer.faultline_ask = faultline_ask
