"""A plan in Ray's workers, and their evidence back at the driver.

    ray.init(runtime_env=faultline.ray_workers.runtime_env("recipe.yaml"))
    …
    print(faultline.collect([actor]))        # asks each actor's process for its ledger

Ray runs the setup hook in every worker process before anybody's code. A worker that turns out to have nothing to compute is
left alone; one in which a module has run is held to the plan."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch

from faultline.armed import armed, take_role
from faultline.environment import Armed, arm_from_environment

_HOOK = "faultline.ray_workers.arm_worker"
_PASSED_ON = ("FAULTLINE_EVIDENCE", "FAULTLINE_RUN", "FAULTLINE_ON_MISSING", "FAULTLINE_TOTAL_STEPS", "FAULTLINE_LIBRARY")


def runtime_env(recipe: str | os.PathLike[str], *, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """A Ray runtime_env whose workers arm `recipe`; `base`: a runtime_env to extend. The recipe must be readable under the
    same path on every machine; faultline must be installed there (or on PYTHONPATH, which is passed on). Raises ValueError where there is
    no such recipe, or `base` has a setup hook of its own."""
    path = pathlib.Path(recipe).resolve()
    if not path.is_file():
        raise ValueError(f"{recipe}: there is no such recipe")
    extended = dict(base or {})
    if other := extended.get("worker_process_setup_hook"):
        raise ValueError(f"this runtime_env has a worker_process_setup_hook already ({other}); call faultline.ray_workers.arm_worker() in it and leave out this function")
    package = str(pathlib.Path(__file__).resolve().parents[1])
    search = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"FAULTLINE_RECIPE": str(path), "PYTHONPATH": os.pathsep.join(dict.fromkeys(search))}
    variables.update({name: os.environ[name] for name in _PASSED_ON if name in os.environ})
    extended["env_vars"] = {**variables, **extended.get("env_vars", {})}
    extended["worker_process_setup_hook"] = _HOOK
    return extended


def arm_worker() -> None:
    """Ray's worker_process_setup_hook: arms FAULTLINE_RECIPE in this process. (Importing the package has done it already;
    what remains is to say that this process may stay idle, and to notice when it does not.)"""
    arm_from_environment()
    take_role("worker")
    if (own := armed()) is not None:
        _notice_the_first_module(own)


def _notice_the_first_module(own: Armed) -> None:
    """One hook on all modules, which removes itself when the first one has run: it costs nothing afterwards."""

    @torch.compiler.disable
    def notice(*_):
        handle.remove()
        own.work.setdefault("module", 1)

    handle = torch.nn.modules.module.register_module_forward_hook(notice)
