"""Tells the library which module is running: hooks that push and pop module paths, parameters' storages by name, and
boundaries where a rule wants a module's input or output. Modules keep their code; detach() removes every hook."""

from __future__ import annotations

import threading

import torch

from faultline._library import C

_OPS = torch.ops.faultline
_ROOT = 0  # the place of the model itself


def _first_tensor(values):
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return index
    return None


def _fault_input(arguments, keywords, place):
    index = _first_tensor(arguments)
    if index is not None:
        faulted = _OPS.boundary(arguments[index], place, "input")
        return (*arguments[:index], faulted, *arguments[index + 1 :]), keywords
    for key, value in keywords.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return arguments, {**keywords, key: _OPS.boundary(value, place, "input")}
    raise ValueError("a rule wants the input of a module that is called without a floating-point tensor")


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


# Names that wrappers put between a module and its child: a place is called the same in eager and in wrapped models.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def _named_modules(model: torch.nn.Module, *, remove_duplicate=True):
    for path, module in model.named_modules(remove_duplicate=remove_duplicate):
        yield ".".join(name for name in path.split(".") if name not in _WRAPPERS), module


class _Running(threading.local):
    """What runs on this thread: the places whose scopes are open, and the phases to go back to after forwards that have
    one of their own."""

    def __init__(self):
        self.places: list[int] = []
        self.phases: list[str] = []

    def enter(self, place, push=C.faultline_push_scope):
        push(place)
        self.places.append(place)

    def leave(self, place):
        """Closes the scope and those inside it that were left without a hook. One that was entered in compiled code,
        where hooks do nothing, is not open."""
        while place in self.places:
            C.faultline_pop_scope()
            if self.places.pop() == place:
                return

    def leave_all(self):
        while self.places:
            C.faultline_pop_scope()
            self.places.pop()
        if self.phases:
            _OPS.set_phase(self.phases[0])
            self.phases.clear()


_running = _Running()
_attached: list[Attachment] = []


class Attachment:
    """The hooks of one model. Use attach(); it is also a context manager.

    A model compiled by torch.compile: give what torch.compile returned (or the model after model.compile()). Its modules
    run without hooks, layers are then found by the weights an operator reads; of the model itself only the call as a
    whole is seen, which is what tells training from generation."""

    def __init__(self, model: torch.nn.Module, *, phase: str | None = None):
        """phase: of every forward of this model; else the process's, or what the gradient mode says as it begins."""
        self._handles: list = []
        self._phase = phase
        self._compiled_call = None
        self.model = model
        self.paths = list(dict.fromkeys(path for path, _ in _named_modules(model)))
        self.layer_count = 1 + max((_OPS.layer(path) for path in self.paths), default=-1)
        compiled = [path for path, module in _named_modules(model) if type(module).__name__ in ("AOTICompiledModel", "AOTInductorModel")]
        if compiled:
            raise ValueError(f"{compiled[0] or 'the model'} was compiled ahead of time (AOTInductor): none of its operators reach the dispatcher, so no fault could be applied")
        self._register_parameters()
        _attached.append(self)
        for path, module in _named_modules(model):
            self._hook(module, path)
        if model._compiled_call_impl is not None:
            self._watch_compiled_call()

    def _register_parameters(self):
        for path, module in _named_modules(self.model, remove_duplicate=False):
            for parameter in module.parameters(recurse=False):
                _OPS.register_parameter(parameter, path)

    def _hook(self, module, path):
        place = _OPS.place(path)
        is_root = path == ""

        def before(_module, _arguments):
            if torch.compiler.is_compiling():
                return
            if is_root:
                self._begin_forward()
            else:
                _running.enter(place)

        def after(_module, _arguments, _output):
            if torch.compiler.is_compiling():
                return
            if is_root:
                self._end_forward()
            else:
                _running.leave(place)

        self._handles.append(module.register_forward_pre_hook(before, prepend=True))
        self._handles.append(module.register_forward_hook(after, always_call=True))

    def _begin_forward(self):
        is_outermost = _ROOT not in _running.places
        if self._phase is not None:
            _running.phases.append(_OPS.get_phase())
            _OPS.set_phase(self._phase)
        _running.enter(_ROOT, C.faultline_begin_forward if is_outermost else C.faultline_push_scope)

    def _end_forward(self):
        _running.leave(_ROOT)
        if self._phase is not None and _running.phases:
            _OPS.set_phase(_running.phases.pop())

    def _watch_compiled_call(self):
        self._compiled_call = compiled_call = self.model._compiled_call_impl

        def call(*arguments, **keywords):
            self._begin_forward()
            try:
                return compiled_call(*arguments, **keywords)
            finally:
                self._end_forward()

        self.model._compiled_call_impl = call

    def add_boundaries(self):
        """Hooks for the loaded plan's module rules; a rule that matches no module is an error with the nearest names.
        Code that is compiled while they are there is compiled around them, in more and smaller graphs."""
        _OPS.check_modules(self.paths)
        places = [(place, module) for path, module in _named_modules(self.model) if (place := _OPS.place(path)) != _ROOT]
        for place, module in places:
            if _OPS.boundary_is_wanted(place, "input"):
                enter = torch.compiler.disable(lambda _m, arguments, keywords, place=place: _fault_input(arguments, keywords, place))
                self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            if _OPS.boundary_is_wanted(place, "output"):
                # First of the module's hooks: its scope is still open, and every other hook sees the faulty output.
                leave = torch.compiler.disable(lambda _m, _a, output, place=place: _fault_output(output, place))
                self._handles.append(module.register_forward_hook(leave, prepend=True))

    def detach(self):
        while self._handles:
            self._handles.pop().remove()
        if self._compiled_call is not None:
            self.model._compiled_call_impl = self._compiled_call
            self._compiled_call = None
        _running.leave_all()  # a forward may have been left by what torch shows to no hook: KeyboardInterrupt
        if self in _attached:
            _attached.remove(self)
            _OPS.forget_parameters()
            for other in _attached:
                other._register_parameters()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()


def attach(model: torch.nn.Module) -> Attachment:
    """Names every module and parameter of `model` to the library until .detach()."""
    return Attachment(model)
