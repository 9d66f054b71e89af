"""The plan inside vLLM's processes. faultline_vllm.register() brings us here in the main process, the engine core and every
worker, before a model is loaded. Families reach the operators that really run there; modules are named by hooks where the
model runs eagerly, and by the packed weights that an operator reads where it is compiled; a worker's evidence is fetched
with faultline.collect(llm). AQN of the recipe goes to the norm weights after the model is loaded and after every update
of its weights."""

from __future__ import annotations

import functools
import os

import torch

from faultline import environment, phases, vllm_coverage
from faultline.attach import _named_modules
from faultline.plan import phase
from faultline.vllm_norms import NormNoise

_OPS = torch.ops.faultline
_noises: dict[int, NormNoise] = {}


def register() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    environment.arm_from_environment()
    own = environment.armed()
    if own is None:
        return
    environment.take_role("vllm")
    # Importing the package may have armed the plan before vLLM's operators existed: look for them once more.
    _OPS.plan_disarm()
    _OPS.plan_arm()
    phases.after_import("vllm.v1.worker.gpu_worker", lambda module: _wrap_worker(module.Worker, own))


# --- the worker -------------------------------------------------------------------------------------------------------
def _wrap_worker(worker_class, own: environment.Armed) -> None:
    """Platforms derive their own workers; what they override is wrapped on the worker itself, once it has its model."""
    worker_class.faultline_evidence = lambda self: own.snapshot()
    worker_class.faultline_begin_step = lambda self, step: _begin_step(self, own, step)
    worker_class.faultline_coverage_begin = lambda self: vllm_coverage.begin(self)
    worker_class.faultline_coverage_end = lambda self: vllm_coverage.end(self)
    load = worker_class.load_model

    @functools.wraps(load)
    def load_model(self, *arguments, **keywords):
        result = load(self, *arguments, **keywords)
        _know(self.model_runner.get_model(), own, is_eager=self.model_config.enforce_eager)
        self.execute_model = _as_rollout(self.execute_model, own)
        self.determine_available_memory = _quietly(self.determine_available_memory)
        self.compile_or_warm_up_model = _quietly(self.compile_or_warm_up_model)
        return result

    worker_class.load_model = load_model


def _as_rollout(execute, own: environment.Armed):
    @functools.wraps(execute)
    def execute_model(scheduler_output, *arguments, **keywords):
        with phase("rollout"):
            result = execute(scheduler_output, *arguments, **keywords)
        if scheduler_output.total_num_scheduled_tokens > 0:
            own.note_work("rollout")
        return result

    return execute_model


def _quietly(method):
    """Warm-up and profiling runs are nobody's rollout: they are left clean and uncounted."""

    @functools.wraps(method)
    def call(*arguments, **keywords):
        _OPS.plan_disarm()
        try:
            return method(*arguments, **keywords)
        finally:
            _OPS.plan_arm()

    return call


def _begin_step(worker, own: environment.Armed, step: int) -> None:
    own.plan.begin_step(step)
    if (noise := _noises.get(id(worker.model_runner.get_model()))) is not None:
        noise.apply(step)


# --- the model --------------------------------------------------------------------------------------------------------
def _know(model: torch.nn.Module, own: environment.Armed, *, is_eager: bool) -> None:
    phases.know(model, is_eager=is_eager)
    _join_residuals(model)
    _register_packed(model)
    recipe = os.environ["FAULTLINE_RECIPE"]
    if _OPS.has_aqn(recipe, []):
        noise = _noises[id(model)] = NormNoise(model, recipe, own)
        noise.apply(0)
    _watch_updates(model)


def _join_residuals(model: torch.nn.Module) -> None:
    """A decoder layer of vLLM returns what is to be added and what it is to be added to. Its output is their sum: where a rule
    wants it, the sum is made before the rule acts, and nothing remains to be added."""
    for path, module in _named_modules(model):
        if _OPS.layer(path) < 0 or not path.rsplit(".", 1)[-1].isdigit():
            continue
        if _OPS.boundary_is_wanted(_OPS.place(path), "input"):
            raise ValueError(f"{path}: vLLM hands a layer its input in two parts; name the output of the layer before (module: layer_output)")
        if _OPS.boundary_is_wanted(_OPS.place(path), "output"):
            module.register_forward_hook(_joined, prepend=True)  # before the hook that acts


def _joined(_module, _arguments, output):
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, torch.Tensor) for part in output):
        return output[0] + output[1], torch.zeros_like(output[1])
    return output


def _register_packed(model: torch.nn.Module) -> int:
    """On a CPU a linear's weight lives in a packed tensor or behind a handle to one, which only the closure that vLLM calls
    knows. Operators get these as arguments, so their storages name the module. -> how many were found"""
    found = 0
    for path, module in _named_modules(model):
        call = getattr(module, "cpu_linear", None)
        for cell in getattr(call, "__closure__", None) or ():
            tensor = getattr(cell.cell_contents, "handler_tensor", cell.cell_contents)
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 0:
                _OPS.register_parameter(tensor, path)
                found += 1
    return found


def _watch_updates(model: torch.nn.Module) -> None:
    """A trainer sends new weights through load_weights: norms are clean then, and packed copies are new."""
    original = model.load_weights

    @functools.wraps(original)
    def load_weights(*arguments, **keywords):
        noise = _noises.get(id(model))
        if noise is not None:
            noise.restore()
        result = original(*arguments, **keywords)
        for path, module in _named_modules(model):
            for parameter in module.parameters(recurse=False):
                _OPS.register_parameter(parameter, path)
        _register_packed(model)
        _OPS.weights_changed()
        if noise is not None:
            noise.remember()
            noise.apply(noise.step)
        return result

    model.load_weights = load_weights
