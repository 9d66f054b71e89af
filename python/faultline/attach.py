"""Tells the library which module is running: hooks that push and pop module paths, parameters' storages by name, and
boundaries where a rule wants a module's input or output. Modules keep their code; detach() removes every hook."""

from __future__ import annotations

import torch

from faultline._library import C

_OPS = torch.ops.faultline


def _first_tensor(values):
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return index
    return None


def _fault_output(output, place):
    if isinstance(output, torch.Tensor):
        return _OPS.boundary(output, place, "output")
    if isinstance(output, tuple):
        index = _first_tensor(output)
        if index is not None:
            faulted = _OPS.boundary(output[index], place, "output")
            values = (*output[:index], faulted, *output[index + 1 :])
            return type(output)(*values) if hasattr(output, "_fields") else values
    if isinstance(output, dict):  # Hugging Face's ModelOutput
        for key, value in output.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                output[key] = _OPS.boundary(value, place, "output")
                return output
    raise ValueError(f"a rule wants the output of a module that returns {type(output).__name__}: no floating-point tensor in it")


class Attachment:
    """The hooks of one model. Use attach(); it is also a context manager."""

    def __init__(self, model: torch.nn.Module):
        self._handles: list = []
        self.model = model
        self.paths = [path for path, _ in model.named_modules()]
        self.layer_count = 1 + max((_layer(path) for path in self.paths), default=-1)
        compiled = [path for path, module in model.named_modules() if type(module).__name__ in ("AOTICompiledModel", "AOTInductorModel")]
        if compiled:
            raise ValueError(f"{compiled[0] or 'the model'} was compiled ahead of time (AOTInductor): none of its operators reach the dispatcher, so no fault could be applied")
        for path, module in model.named_modules(remove_duplicate=False):
            for parameter in module.parameters(recurse=False):
                _OPS.register_parameter(parameter, path)
        for path, module in model.named_modules():
            self._hook(module, path)

    def _hook(self, module, path):
        place = _OPS.place(path)
        enter = C.faultline_begin_forward if path == "" else C.faultline_push_scope
        leave = C.faultline_pop_scope

        def before(_module, _arguments):
            if not torch.compiler.is_compiling():
                enter(place)

        def after(_module, _arguments, _output):
            if not torch.compiler.is_compiling():
                leave()

        self._handles.append(module.register_forward_pre_hook(before, prepend=True))
        self._handles.append(module.register_forward_hook(after, always_call=True))

    def add_boundaries(self):
        """Hooks for the loaded plan's module rules; a rule that matches no module is an error with the nearest names."""
        _OPS.check_modules(self.paths)
        for path, module in self.model.named_modules():
            place = _OPS.place(path)
            if place and _OPS.boundary_is_wanted(place, "input"):

                def enter(_module, arguments, keywords, place=place):
                    index = _first_tensor(arguments)
                    if index is not None:
                        faulted = _OPS.boundary(arguments[index], place, "input")
                        return (*arguments[:index], faulted, *arguments[index + 1 :]), keywords
                    for key, value in keywords.items():
                        if isinstance(value, torch.Tensor) and value.is_floating_point():
                            return arguments, {**keywords, key: _OPS.boundary(value, place, "input")}
                    raise ValueError("a rule wants the input of a module that is called without a floating-point tensor")

                self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            if place and _OPS.boundary_is_wanted(place, "output"):
                self._handles.append(module.register_forward_hook(lambda _m, _a, output, place=place: _fault_output(output, place)))

    def detach(self):
        while self._handles:
            self._handles.pop().remove()
        _OPS.forget_parameters()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()


def _layer(path: str) -> int:
    names = path.split(".")
    for before, name in zip(names, names[1:]):
        if before in ("layers", "h", "blocks", "block", "layer") and name.isdigit():
            return int(name)
    return -1


def attach(model: torch.nn.Module) -> Attachment:
    """Names every module and parameter of `model` to the library until .detach()."""
    return Attachment(model)
