"""verl's main_ppo under a plan. faultline_verl brings us here in every process that imports verl: the one that was started, the
driver (a Ray actor with the trainer), the workers that train, the servers that generate. Each arms the recipe for itself; the driver
tells the others the phase and the step, gathers their evidence and judges it (verl_trainer.py); the process that was started ends
with the status of that judgement.

    FAULTLINE_OLD_LOG_PROBS   actor_forward (default, as in our own trainer and TRL) or ref: the phase of old log-probabilities"""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import sys
from typing import Any

from faultline import armed, environment, evidence, ray_workers, verl_trainer, verl_workers
from faultline.after_import import after_import
from faultline.complaints import complaint

EXIT_USAGE = 64
_TOO = ("VERL_USE_EXTERNAL_MODULES", "VLLM_PLUGINS")


def arm() -> None:
    """Arms FAULTLINE_RECIPE in this process of verl and waits for what it imports. Raises ValueError where that cannot be done."""
    is_engine = (own := armed.armed()) is not None and own.role == "vllm"  # which imports verl for what verl adds to its worker
    if not is_engine:
        ray_workers.arm_worker()
    own = armed.armed()
    if own is None or is_engine:
        return
    verl_workers.old_log_probs()
    after_import("verl.trainer.constants_ppo", _pass_on_to_the_cluster)
    after_import("verl.single_controller.ray.base", _pass_on_to_workers)
    after_import("verl.workers.engine_workers", verl_workers.wrap)
    after_import("verl.workers.rollout.vllm_rollout.vllm_async_server", verl_workers.wrap_server)
    after_import("verl.trainer.ppo.v1.trainer_base", verl_trainer.wrap)
    after_import("verl.trainer.ppo.ray_trainer", verl_trainer.refuse_legacy)


# --- the environment of processes that Ray starts -----------------------------------------------------------------------
def variables() -> dict[str, str]:
    """What a process must be given to arm the same plan."""
    return {name: value for name, value in os.environ.items() if name.startswith("FAULTLINE_") or name in _TOO}


def _pass_on_to_the_cluster(module: Any) -> None:
    """Called by the process that was started, before it starts Ray: the plan's variables go to every process of the run."""
    original = module.get_ppo_ray_runtime_env

    @functools.wraps(original)
    def get_ppo_ray_runtime_env(*arguments, **keywords):
        _make_paths_absolute()
        result = original(*arguments, **keywords)
        result["env_vars"] = {**variables(), **result["env_vars"]}
        if (own := armed.armed()) is not None:
            atexit.register(_leave_as_judged, own)
        return result

    module.get_ppo_ray_runtime_env = get_ppo_ray_runtime_env


def _make_paths_absolute() -> None:
    """Ray's processes may have other working directories."""
    for name in ("FAULTLINE_RECIPE", "FAULTLINE_EVIDENCE"):
        value = os.environ.get(name)
        if value and not environment.is_text(value):
            os.environ[name] = str(pathlib.Path(value).resolve())


def _pass_on_to_workers(module: Any) -> None:
    """The driver has learnt the number of steps since: workers that are created now are given it."""
    original = module.RayClassWithInitArgs.update_options

    @functools.wraps(original)
    def update_options(self, options):
        if "env_vars" in options.get("runtime_env", {}):
            runtime = options["runtime_env"]
            options = {**options, "runtime_env": {**runtime, "env_vars": {**variables(), **runtime["env_vars"]}}}
        return original(self, options)

    module.RayClassWithInitArgs.update_options = update_options


# --- the status of the process that was started -------------------------------------------------------------------------
def status_of(verdict: dict[str, Any] | None, on_missing: str) -> tuple[int, str]:
    """-> the exit status that a run's judgement asks for (0: its own), and a sentence where there is more to say."""
    if verdict is None:
        return (environment.EXIT_EVIDENCE if on_missing == "raise" else 0), "the driver of this run has judged nothing: it ended before its training did, or verl started it in a way that is not known here"
    if verdict["script_error"] == verl_trainer.Refused.__name__:
        return EXIT_USAGE, ""
    if verdict["script_error"]:  # its own status says that it failed
        return 0, ""
    return (environment.EXIT_EVIDENCE if verdict["complaints"] and on_missing == "raise" else 0), ""


def _leave_as_judged(own: environment.Armed) -> None:
    """At exit, after verl's own status: hydra makes 1 of every exception."""
    if os.getpid() != own.process:
        return
    place = evidence.folder()
    verdict = evidence.run_verdict(place) if place is not None else None
    status, sentence = status_of(verdict, own.on_missing)
    if verdict is None:  # whoever reads the folder later learns it, too
        own.write_verdict([complaint("no_evidence", sentence), *evidence.cut_short(evidence.own_entries())], whole=True)
    own.judge()
    if sentence:
        print(f"faultline: {sentence}", file=sys.stderr)
    if status:
        environment.leave(status)
