"""What vLLM hands from module to module in two parts. A decoder layer returns what is to be added and what it is to be added to, and a
norm is called with both and adds them itself. Where a rule wants a layer's output or a norm's input, it is their sum that the rule
acts on, as in every other engine; the rest of the model is left as it is."""

from __future__ import annotations

import functools
import inspect

import torch

from faultline.attach import _named_modules, _register_first

_OPS = torch.ops.faultline


def join(model: torch.nn.Module) -> None:
    """After the boundaries of the plan are there: what follows runs before them."""
    for path, module in _named_modules(model):
        place = _OPS.place(path)
        wants_input = _OPS.boundary_is_wanted(place, "input")
        if _OPS.role(path) == "rmsnorm" and wants_input and _takes_residual(module, path):
            _join_input(module)
        elif _OPS.role(path) == "layer":
            if wants_input:
                raise ValueError(f"{path}: vLLM hands a layer its input in two parts; name the output of the layer before (module: layer_output)")
            if _OPS.boundary_is_wanted(place, "output"):
                _register_first(module._forward_hooks, module.register_forward_hook, _joined)


def _joined(_module, _arguments, output):
    """A layer's output: the sum, and nothing that remains to be added."""
    if isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, torch.Tensor) for part in output):
        return output[0] + output[1], torch.zeros_like(output[1])
    return output


def _takes_residual(module: torch.nn.Module, path: str) -> bool:
    """By the name of the argument: another norm has a gate in its place. vLLM's own norms choose their forward at run time."""
    parameters = inspect.signature(getattr(module, "forward_native", module.forward)).parameters
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        raise ValueError(f"{path}: what this norm is called with is not known, so its input may be more than a rule would act on")
    return "residual" in parameters


def _join_input(module: torch.nn.Module) -> None:
    """The norm reads what the rule makes of the sum, and hands on the sum as it was."""
    norm = module.forward

    @functools.wraps(norm)
    def forward(x, residual=None):
        return norm(x) if residual is None else (norm(x), residual)

    module.forward = forward
    _register_first(module._forward_pre_hooks, module.register_forward_pre_hook, _summed, with_kwargs=True)


def _summed(_module, arguments, keywords):
    """(x, residual) -> (sum, sum): the boundary takes the first, in the dtype that the norm gives back."""
    residual = arguments[1] if len(arguments) > 1 else keywords.get("residual")
    if residual is None:
        return arguments, keywords
    x = arguments[0] if arguments else next(value for name, value in keywords.items() if name != "residual")
    total = x + residual
    return (total.to(x.dtype), total), {}
