"""The plan inside vLLM's processes. faultline_vllm.register() brings us here in the main process, the engine core and every
worker, before a model is loaded. Families reach the operators that really run there; modules are named by hooks where the
model runs eagerly, and by the packed weights that an operator reads where it is compiled; a worker's evidence is fetched
with faultline.collect(llm). AQN of the recipe goes to the norm weights after the model is loaded and after every update
of its weights."""

from __future__ import annotations

import functools
import hashlib
import os
import sys

import torch

from faultline import armed, ascend, environment, phases, vllm_coverage, vllm_residuals, vllm_serving, vllm_updates
from faultline.after_import import after_import
from faultline.attach import _named_modules, packed_weights
from faultline.steps import CALL
from faultline.norms import NormNoise
from faultline.trace import begin as begin_trace

_OPS = torch.ops.faultline
_ASCEND_WORKERS = ("vllm_ascend.worker.worker", "vllm_ascend.worker.worker_v1")  # the latter until 0.11


def register() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    environment.arm_from_environment()
    own = armed.armed()
    if own is not None:
        _refuse_verl_without_us()
        _arm(own)
    if os.environ.get("FAULTLINE_TRACE"):  # around what the plan does there
        after_import("vllm.v1.worker.gpu_worker", lambda module: _trace_worker(module.Worker))
        keep_originals()


def _arm(own: environment.Armed) -> None:
    armed.take_role("vllm")
    # Importing the package may have armed the plan before vLLM's operators existed: look for them once more.
    _OPS.plan_disarm()
    _OPS.plan_arm()
    after_import("vllm.config.vllm", lambda module: _keep_compiled_code_apart(module.VllmConfig, own))
    after_import("vllm.v1.worker.gpu_worker", lambda module: _wrap_worker(module.Worker, own))
    for name in _ASCEND_WORKERS:
        after_import(name, lambda module: _wrap_ascend_worker(module.NPUWorker, own))


def _refuse_verl_without_us() -> None:
    """A server of verl's, in a verl that has not taken faultline_verl in: its trainer would compute clean, and nobody would judge."""
    if "verl" in sys.modules and "faultline_verl" not in sys.modules:
        raise ValueError("verl runs here and has not loaded faultline_verl, so its trainer would compute without the plan: set VERL_USE_EXTERNAL_MODULES=faultline_verl; "
                         "a verl that knows neither that variable nor the entry point verl.plugins cannot be followed (0.9.1 is the one that is)")


def _keep_compiled_code_apart(config_class, own: environment.Armed) -> None:
    """vLLM keeps compiled code from run to run, by a hash of its configuration. Code that was compiled without the plan has none of its
    boundaries, and code with them must never serve a clean run: the plan belongs to the hash."""
    original = config_class.compute_hash

    @functools.wraps(original)
    def compute_hash(self, *arguments, **keywords):
        rules = own.plan.report["rules"] if own.plan.report else own.plan.read()["rules"]
        # Products are operators in any code that is compiled under a plan; boundaries are where the recipe puts them.
        plan = own.recipe_digest if any(rule["names_modules"] for rule in rules) else "products"
        return hashlib.sha256(f"{original(self, *arguments, **keywords)} faultline {plan}".encode()).hexdigest()[:10]

    config_class.compute_hash = compute_hash


def _trace_worker(worker_class) -> None:
    """Records the worker's model (trace.py) from its first request on: what an engine tries out before belongs to nobody. New weights
    begin a new trace. What is compiled shows only the places that the dispatcher sees, and a graph that is replayed shows none."""
    load, execute = worker_class.load_model, worker_class.execute_model

    @functools.wraps(load)
    def load_model(self, *arguments, **keywords):
        result = load(self, *arguments, **keywords)
        model = self.model_runner.get_model()
        load_weights = model.load_weights

        @functools.wraps(load_weights)
        def new_weights(*arguments, **keywords):
            if getattr(self, "faultline_trace", None) is not None:
                self.faultline_trace.close()
                self.faultline_trace, self.faultline_updates = None, getattr(self, "faultline_updates", 0) + 1
            return load_weights(*arguments, **keywords)

        model.load_weights = new_weights
        return result

    @functools.wraps(execute)
    def execute_model(self, *arguments, **keywords):
        if getattr(self, "faultline_trace", None) is None:
            model = self.model_runner.get_model()
            self.faultline_trace = begin_trace(model, role="vllm", rank=self.rank, update=getattr(self, "faultline_updates", 0))
        return execute(self, *arguments, **keywords)

    worker_class.load_model, worker_class.execute_model = load_model, execute_model


def keep_originals() -> None:
    """A CPU's linears pack their weight and drop it. A trace needs it as it was: before an engine loads its model."""
    after_import("vllm.model_executor.layers.linear", lambda module: _keep_original(module.UnquantizedLinearMethod))
    after_import("vllm.model_executor.layers.vocab_parallel_embedding", lambda module: _keep_original(module.UnquantizedEmbeddingMethod))


def _keep_original(method_class) -> None:
    process = method_class.process_weights_after_loading

    @functools.wraps(process)
    def process_weights_after_loading(self, layer):
        weight = getattr(layer, "weight", None)
        kept = weight.detach() if isinstance(weight, torch.Tensor) and weight.device.type == "cpu" and weight.numel() else None
        result = process(self, layer)
        if kept is not None and layer.weight.numel() == 0:
            vars(layer)["faultline_weight"] = kept
        return result

    method_class.process_weights_after_loading = process_weights_after_loading


# --- the worker -------------------------------------------------------------------------------------------------------
def _wrap_worker(worker_class, own: environment.Armed) -> None:
    """Platforms derive their own workers; what they override is wrapped on the worker itself, once it has its model."""
    worker_class.faultline_evidence = lambda self: own.snapshot()
    worker_class.faultline_begin_step = lambda self, step, told_by=CALL: own.plan.begin_step(step, told_by=told_by)
    worker_class.faultline_finish = lambda self: armed.finish()
    worker_class.faultline_coverage_begin = lambda self: vllm_coverage.begin(self)
    worker_class.faultline_coverage_end = lambda self: vllm_coverage.end(self)
    load = worker_class.load_model

    @functools.wraps(load)
    def load_model(self, *arguments, **keywords):
        result = load(self, *arguments, **keywords)
        model = self.model_runner.get_model()
        noise = _know(model, own, is_eager=self.model_config.enforce_eager)
        vllm_updates.watch(self, own, noise, functools.partial(_register_weights, model))
        vllm_serving.follow_worker(self, own, noise)
        return result

    worker_class.load_model = load_model


def _wrap_ascend_worker(worker_class, own: environment.Armed) -> None:
    """vLLM-Ascend's worker is beside vLLM's, not derived from it, and registers operators of its own when it is made: after the plan
    was armed, which is therefore armed once more before the model is loaded."""
    if hasattr(worker_class, "faultline_evidence"):  # two modules may show one class
        return
    _wrap_worker(worker_class, own)
    load = worker_class.load_model

    @functools.wraps(load)
    def load_model(self, *arguments, **keywords):
        ascend.check_engine(own.plan.recipe)
        _OPS.plan_disarm()
        _OPS.plan_arm()
        result = load(self, *arguments, **keywords)
        ascend.refuse_packed_weights(self.model_runner.get_model(), own.plan.recipe)
        return result

    worker_class.load_model = load_model


# --- the model --------------------------------------------------------------------------------------------------------
def _know(model: torch.nn.Module, own: environment.Armed, *, is_eager: bool) -> NormNoise | None:
    """-> the noise on its norms, where the recipe asks for it"""
    _refuse_kinds_of_forward(own.plan.recipe)
    phases.know(model, is_eager=is_eager, counts_forwards=False)
    vllm_residuals.join(model)
    _register_packed(model)
    recipe = os.environ["FAULTLINE_RECIPE"]
    return NormNoise(model, recipe, own) if _OPS.has_aqn(recipe, []) else None


def _refuse_kinds_of_forward(recipe: dict) -> None:
    """A batch of vLLM's holds prompts and decodings at once."""
    for rule in recipe.get("faults", []):
        if unknown := [key for key in ("forward", "decode_step") if key in rule.get("when", {})]:
            raise ValueError(f"rule '{rule['name']}': when.{unknown[0]} is not known in vLLM, whose batches hold prompts and decodings at once; choose by when.rows, or leave it out")


def _register_packed(model: torch.nn.Module) -> int:
    """Packed weights name their modules. -> how many were found"""
    found = [(tensor, path) for path, module in _named_modules(model) for tensor in packed_weights(module)]
    for tensor, path in found:
        _OPS.register_parameter(tensor, path)
    return len(found)


def _register_weights(model: torch.nn.Module) -> None:
    """New weights have come: packed copies are new, and so are copies that rules made of the old ones."""
    for path, module in _named_modules(model):
        for parameter in module.parameters(recurse=False):
            _OPS.register_parameter(parameter, path)
    _register_packed(model)
    _OPS.weights_changed()
