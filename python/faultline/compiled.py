"""torch.compile while a plan is armed. Inductor calls matrix products as operators of torch, which taps reach, unless it is told
to write them itself: `max-autotune` has Triton, CUTLASS and C++ templates, `cpp_wrapper` calls kernels past the dispatcher. So
while a plan is armed the templates are off (max-autotune then tunes everything but the products), an autotuner's trial runs are
silenced, and cpp_wrapper is refused. What was compiled before keeps its code; the plan's evidence says what it left clean."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys

import torch

from faultline.after_import import after_import

_OPS = torch.ops.faultline
_guards = 0  # plans that are armed
_before: dict[str, object] = {}  # settings as they were
_WANTED = {"max_autotune_gemm_backends": "ATEN", "triton.native_matmul": False}  # settings under which products are operators
_HIDES = "cpp_wrapper is on: compiled code then calls kernels without the dispatcher and no fault could be applied; switch it off"


def hides_everything() -> str | None:
    """Why no operator of compiled code could be reached at all; nothing where it can."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and getattr(config, "cpp_wrapper", False):
        return "torch._inductor.config." + _HIDES
    return None


@contextlib.contextmanager
def silence(reason: str):
    """What runs inside is nobody's result: neither faulted nor counted. Graphs captured inside have the faults in them, and act later."""
    if not _OPS.plan_is_armed():
        yield
        return
    _OPS.silence(reason)
    try:
        yield
    finally:
        _OPS.end_silence()


def keep_products() -> None:
    """From now on, until release_products(), code is compiled with its products as operators."""
    global _guards
    _guards += 1
    _watch_inductor()
    if (config := sys.modules.get("torch._inductor.config")) is not None:
        _switch_templates_off(config)


def release_products() -> None:
    global _guards
    _guards -= 1
    if _guards == 0 and _before:
        config = sys.modules["torch._inductor.config"]
        for name, value in _before.items():
            _set(config, name, value)
        _before.clear()


@functools.cache
def _watch_inductor() -> None:
    after_import("torch._inductor.config", _switch_templates_off)
    after_import("torch._inductor.compile_fx", _keep_in_every_compilation)
    after_import("torch._inductor.runtime.benchmarking", _silence_trials)


def _set(config, name: str, value) -> None:
    *path, last = name.split(".")
    setattr(functools.reduce(getattr, path, config), last, value)


def _switch_templates_off(config) -> None:
    if _guards == 0:
        return
    for name, value in _WANTED.items():
        with contextlib.suppress(AttributeError):  # this torch has no such setting
            _before.setdefault(name, functools.reduce(getattr, name.split("."), config))
            _set(config, name, value)


def _keep_in_every_compilation(module) -> None:
    """A compilation may have settings of its own (torch.compile(options=…)), or somebody set them after the plan was armed."""
    original = module.compile_fx
    if hasattr(original, "faultline_original"):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_fx(*arguments, **keywords):
        if _guards == 0:
            return original(*arguments, **keywords)
        given = signature.bind(*arguments, **keywords)
        patches = given.arguments.get("config_patches") or {}
        settings = {**module.config.get_config_copy(), **patches}
        if settings["cpp_wrapper"]:
            raise ValueError(_HIDES)
        if wanted := {name: value for name, value in _WANTED.items() if settings.get(name, value) != value}:
            given.arguments["config_patches"] = {**patches, **wanted}
        return original(*given.args, **given.kwargs)

    compile_fx.faultline_original = original
    module.compile_fx = compile_fx


def _silence_trials(module) -> None:
    """Every trial run of Inductor's autotuners goes through a Benchmarker."""
    for benchmarker in {type(module.benchmarker), *type(module.benchmarker).__mro__} - {object}:
        for name in ("benchmark", "benchmark_cpu", "benchmark_gpu"):
            original = vars(benchmarker).get(name)
            if original is not None and not hasattr(original, "faultline_original"):
                setattr(benchmarker, name, _silently(original))


def _silently(original):
    @functools.wraps(original)
    def trial(*arguments, **keywords):
        with silence("autotuning"):
            return original(*arguments, **keywords)

    trial.faultline_original = original
    return trial
