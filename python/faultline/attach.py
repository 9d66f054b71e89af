"""Tells the library which module is running: hooks that push and pop module paths, parameters' storages by name, and
boundaries where a rule wants a module's input or output. Classes keep their code; detach() takes everything back."""

from __future__ import annotations

import functools
import re
import sys
import threading

import torch

from faultline._library import C
from faultline.launches import proof_window

_OPS = torch.ops.faultline
_ROOT = 0  # the place of the model itself
_KINDS = {name: C.faultline_kind_number(name.encode()) for name in ("whole", "prefill", "decode")}
_PHASES = {name: C.faultline_phase_number(name.encode()) for name in ("rollout", "actor_forward")}
_UNKNOWN = -1  # a phase that the gradient mode tells


def _first_tensor(values):
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return index
    return None


def _boundary(place, surface):
    """The function that passes a module's tensor to the plan. In code that torch.compile traces it is one node of the graph;
    what its backward needs is fixed then, which rules act is not."""
    masked, gradient = _OPS.boundary_in_backward(place, surface)

    def boundary(x):
        if torch.compiler.is_compiling():
            return _OPS.traced_boundary(x, place, surface, masked, gradient)[0]
        return _OPS.boundary(x, place, surface)

    return boundary


def _fault_input(arguments, keywords, boundary):
    index = _first_tensor(arguments)
    if index is not None:
        return (*arguments[:index], boundary(arguments[index]), *arguments[index + 1 :]), keywords
    for key, value in keywords.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return arguments, {**keywords, key: boundary(value)}
    raise ValueError("a rule wants the input of a module that is called without a floating-point tensor")


def _fault_output(output, boundary):
    if isinstance(output, torch.Tensor):
        return boundary(output)
    if isinstance(output, tuple):
        index = _first_tensor(output)
        if index is not None:
            values = (*output[:index], boundary(output[index]), *output[index + 1 :])
            return type(output)(*values) if hasattr(output, "_fields") else values
    if isinstance(output, dict):  # Hugging Face's ModelOutput
        for key, value in output.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                output[key] = boundary(value)
                return output
    raise ValueError(f"a rule wants the output of a module that returns {type(output).__name__}: no floating-point tensor in it")


def _input_hook(boundary):
    return lambda _module, arguments, keywords: _fault_input(arguments, keywords, boundary)


def _output_hook(boundary):
    return lambda _module, _arguments, output: _fault_output(output, boundary)


def _register_first(hooks, register, hook, **options):
    """Registers a hook before all others. Dynamo finds hooks by the order in which their dict was filled, which moving one
    to the front does not change, so the dict is filled again."""
    handle = register(hook, prepend=True, **options)
    ordered = list(hooks.items())
    hooks.clear()
    hooks.update(ordered)
    return handle


def _kind_of_forward(arguments, keywords) -> str:
    """A forward that fills a cache (prefill), one that adds a token to it (decode), or one without a cache of the caller's:
    they do not run the same operators, so their calls are counted and predicted apart."""
    cache = keywords.get("past_key_values")
    if cache is None:
        return "whole"
    new = next((value for value in (*arguments, keywords.get("input_ids"), keywords.get("inputs_embeds")) if isinstance(value, torch.Tensor) and value.dim() >= 2), None)
    if new is None or new.shape[1] != 1:
        return "prefill"
    length = cache.get_seq_length() if hasattr(cache, "get_seq_length") else len(cache)
    return "prefill" if isinstance(length, int) and length == 0 else "decode"


# Names that wrappers put between a module and its child: a place is called the same in eager and in wrapped models.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


_PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def _innermost(model: torch.nn.Module):
    """-> the model inside torch.compile's and DDP's wrappers, and whether there is one of the latter"""
    is_parallel = False
    while True:
        if isinstance(model, _PARALLEL):
            model, is_parallel = model.module, True
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model, is_parallel


def _named_modules(model: torch.nn.Module, *, remove_duplicate=True):
    is_parallel = _innermost(model)[1]
    for path, module in model.named_modules(remove_duplicate=remove_duplicate):
        names = [name for name in path.split(".") if name not in _WRAPPERS]
        if is_parallel and names[:1] == ["module"]:
            names = names[1:]
        yield ".".join(names), module


def packed_weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """vLLM on a CPU: a linear's weight lives in a packed tensor or behind a handle to one, which only the closure that it calls knows.
    Operators get these as arguments."""
    cells = getattr(getattr(module, "cpu_linear", None), "__closure__", None) or ()
    tensors = [getattr(cell.cell_contents, "handler_tensor", cell.cell_contents) for cell in cells]
    return [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.numel() > 0]


_WEIGHT, _NO_WEIGHT = re.compile(r"weight|proj|kernel|^[wv]\d*$"), re.compile(r"scale|zero|shape|bias|inv|idx|perm")


def _matrices(tensors, dimensions=2) -> list[torch.Tensor]:
    return [tensor for name, tensor in tensors if tensor is not None and tensor.dim() == dimensions and _WEIGHT.search(name) and not _NO_WEIGHT.search(name)]


def _products(module: torch.nn.Module, path: str) -> int:
    """How many products with weights of its own a call of this module is, at least; by what it holds and not by its class: a
    renamed class must not make a product unexpected. Look-up tables are known by their class, a tied head and norms by their place."""
    name = path.rsplit(".", 1)[-1]
    if path == "" or ("embed" in type(module).__name__.lower() and name != "lm_head") or _OPS.role(path) == "rmsnorm":
        return 0
    if of_parameters := len(_matrices(module.named_parameters(recurse=False))):
        return of_parameters
    # Quantised layers keep buffers, or hide their weight behind a handle; experts are one stacked weight.
    is_linear = all(any(hasattr(module, name) for name in names) for names in (("in_features", "infeatures"), ("out_features", "outfeatures")))
    is_packed = is_linear and not any(_matrices(child.named_parameters(recurse=False)) for child in module.modules())
    is_stacked = "experts" in path and _matrices(module.named_parameters(recurse=False), 3)
    return int(bool(_matrices(module.named_buffers(recurse=False)) or is_packed or is_stacked))


def _biases(module: torch.nn.Module, products: int) -> int:
    return sum(parameter.dim() == 1 and name.endswith("bias") for name, parameter in module.named_parameters(recurse=False)) if products else 0


class _Running(threading.local):
    """What runs on this thread: the places whose scopes are open, and the phases to go back to after forwards that have
    one of their own."""

    def __init__(self):
        self.places: list[int] = []
        self.phases: list[str] = []
        self.generations = 0  # calls of generate() that are open

    def enter(self, place, push=C.faultline_push_scope):
        push(place)
        self.places.append(place)

    def leave(self, place, *, failed=False):
        """Closes the scope and those inside it that were left without a hook. One that was entered in compiled code,
        where hooks do nothing, is not open."""
        while place in self.places:
            is_inside = self.places.pop() != place
            (C.faultline_abandon_scope if failed or is_inside else C.faultline_pop_scope)()
            if not is_inside:
                return

    def leave_all(self):
        while self.places:
            C.faultline_abandon_scope()
            self.places.pop()
        if self.phases:
            _OPS.set_phase(self.phases[0])
            self.phases.clear()
        self.generations = 0


class _ScopedForward:
    """A module's scope, opened and closed by its forward itself: a few microseconds a call less than two hooks. Not for a module
    that torch compiles, nor for one with boundaries, which act outside of its forward."""

    def __init__(self, module, place):
        self._module, self._own = module, vars(module).get("forward")
        original, push, pop, abandon = module.forward, C.faultline_push_scope, C.faultline_pop_scope, C.faultline_abandon_scope

        @functools.wraps(original)
        def forward(*arguments, **keywords):
            push(place)
            try:
                result = original(*arguments, **keywords)
            except BaseException:
                abandon()
                raise
            pop()
            return result

        module.forward = forward

    def remove(self):
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own


class _Restored:
    """A class's attribute that was replaced, as a handle that puts it back."""

    def __init__(self, owner, name, original):
        self.remove = functools.partial(setattr, owner, name, original)


def _has_failed(output) -> bool:
    """Whether a hook that is always called is called because its module raised."""
    return output is None and sys.exc_info()[0] is not None


_running = _Running()
_attached: list[Attachment] = []


class Attachment:
    """The hooks of one model. Use attach(); it is also a context manager.

    A model compiled by torch.compile: give what torch.compile returned (or the model after model.compile()). Its modules
    run without hooks, layers are then found by the weights an operator reads; of the model itself only the call as a
    whole is seen, which is what tells training from generation.

    `model` is the model, `paths` are the names of its modules, `layer_count` says how many layers they show."""

    def __init__(self, model: torch.nn.Module, *, phase: str | None = None, is_eager: bool = False, counts_forwards: bool = True) -> None:
        """Hooks the model. Raises ValueError for one that was compiled ahead of time. phase: of every forward of this model; else the process's, or what the gradient mode says as it begins.
        is_eager: nobody will compile it. counts_forwards: False where the caller counts them, replays of graphs among them."""
        self._counts_forwards = counts_forwards
        self._handles: list = []
        self._phase = phase
        self._is_eager = is_eager
        self._is_in_window = False  # of kernel launches, around the forward that runs
        self._compiled_calls: list[tuple[torch.nn.Module, object]] = []
        self._generate = None
        self.model: torch.nn.Module = model
        self.paths: list[str] = list(dict.fromkeys(path for path, _ in _named_modules(model)))
        self.layer_count: int = 1 + max((_OPS.layer(path) for path in self.paths), default=-1)
        ahead_of_time = ("AOTICompiledModel", "AOTInductorModel")
        compiled = [path for path, module in _named_modules(model) if any(type(value).__name__ in ahead_of_time for value in (module, *vars(module).values()))]
        if compiled:
            raise ValueError(f"{compiled[0] or 'the model'} was compiled ahead of time (AOTInductor): none of its operators reach the dispatcher, so no fault could be applied")
        self._register_parameters()
        _attached.append(self)
        for path, module in _named_modules(model):
            if path == "":
                self._hook_root(module)
            else:
                self._hook(module, path)
        if model._compiled_call_impl is not None:
            self._watch_compiled_call(model, self._begin_forward, self._end_forward)
        self._watch_generation()

    def _register_parameters(self):
        for path, module in _named_modules(self.model, remove_duplicate=False):
            for parameter in module.parameters(recurse=False):
                _OPS.register_parameter(parameter, path)
        compiled = [path for path, module in _named_modules(self.model) if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None]
        self._is_compiled = bool(compiled)
        for path, module in _named_modules(self.model):
            if path != "":
                is_compiled = any(around in ("", path) or path.startswith(around + ".") for around in compiled)
                is_trained = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
                _OPS.know_module(_OPS.place(path), products := _products(module, path), is_compiled, is_trained, _biases(module, products))

    def _hook(self, module, path):
        place = _OPS.place(path)
        if self._is_eager and not any(_OPS.boundary_is_wanted(place, surface) for surface in ("input", "output")):
            self._handles.append(_ScopedForward(module, place))
        else:
            self._hook_scope(module, place)
        self._watch_routing(module, path)

    def _hook_scope(self, module, place):
        def before(_module, _arguments):
            if not torch.compiler.is_compiling():
                _running.enter(place)

        def after(_module, _arguments, output):
            if not torch.compiler.is_compiling():
                _running.leave(place, failed=_has_failed(output))

        self._handles.append(_register_first(module._forward_pre_hooks, module.register_forward_pre_hook, before))
        self._handles.append(module.register_forward_hook(after, always_call=True))
        if module._compiled_call_impl is not None:  # compiled in place: its own hooks are in that code, and do nothing
            self._watch_compiled_call(module, lambda *_: _running.enter(place), lambda **how: _running.leave(place, **how))

    def _watch_routing(self, module, path):
        """Tells which experts run. One module for all of them is called with the router's choice; where each expert is a
        module, its call is the choice."""
        if any(other.model is self.model for other in _attached if other is not self):
            return  # told already
        if path.split(".")[-1] == "experts":
            place = _OPS.place(path)

            def choice(_module, arguments, keywords):
                if torch.compiler.is_compiling() or not _OPS.routing_is_wanted():
                    return
                for value in (*arguments, *keywords.values()):
                    if isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dim() >= 1:
                        _OPS.note_routing(place, value, getattr(module, "num_experts", 1 << 20))
                        return

            self._handles.append(module.register_forward_pre_hook(choice, with_kwargs=True))
        elif found := re.fullmatch(r"((?:.*\.)?experts)\.(\d+)", path):
            place, number = _OPS.place(found[1]), torch.tensor([int(found[2])])

            def call(_module, _arguments):
                if not torch.compiler.is_compiling():
                    _OPS.note_routing(place, number, 1 << 20)

            self._handles.append(module.register_forward_pre_hook(call))

    def _hook_root(self, module):
        def before(_module, arguments, keywords):
            if not torch.compiler.is_compiling():
                self._begin_forward(arguments, keywords)

        def after(_module, _arguments, output):
            if not torch.compiler.is_compiling():
                self._end_forward(failed=_has_failed(output))

        self._handles.append(_register_first(module._forward_pre_hooks, module.register_forward_pre_hook, before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, always_call=True))

    def _begin_forward(self, arguments, keywords):
        if self._phase is not None:
            _running.phases.append(_OPS.get_phase())
            _OPS.set_phase(self._phase)
        if _ROOT in _running.places:  # inside a wrapper's forward, which is the one that counts
            _running.enter(_ROOT)
            return
        if not self._counts_forwards:
            _running.enter(_ROOT)
            return
        kind = _kind_of_forward(arguments, keywords)
        phase = _PHASES["rollout"] if _running.generations else _PHASES["actor_forward"] if self.model.training else _UNKNOWN
        self._is_in_window = proof_window.begin(f"{_OPS.get_phase()} {kind}".removeprefix("auto "), is_compiled=self._is_compiled)
        _running.enter(_ROOT, lambda place: C.faultline_begin_forward(place, _KINDS[kind], phase))

    def _end_forward(self, *, failed=False):
        _running.leave(_ROOT, failed=failed)
        if self._is_in_window and _ROOT not in _running.places:
            self._is_in_window = False
            proof_window.end(failed=failed)
        if self._phase is not None and _running.phases:
            _OPS.set_phase(_running.phases.pop())

    def _watch_compiled_call(self, module, begin, end):
        compiled_call = module._compiled_call_impl
        self._compiled_calls.append((module, compiled_call))

        def call(*arguments, **keywords):
            if torch.compiler.is_compiling():  # as a part of something larger
                return compiled_call(*arguments, **keywords)
            begin(arguments, keywords)
            try:
                result = compiled_call(*arguments, **keywords)
            except BaseException:
                end(failed=True)
                raise
            end()
            return result

        module._compiled_call_impl = call

    def _watch_generation(self):
        """What the model runs inside generate() is a rollout, whatever mode it is in."""
        model = _innermost(self.model)[0]
        generate = getattr(model, "generate", None)
        if generate is None or "generate" in vars(model):
            return

        @functools.wraps(generate)
        def watched(*arguments, **keywords):
            _running.generations += 1
            try:
                return generate(*arguments, **keywords)
            finally:
                _running.generations = max(0, _running.generations - 1)

        model.generate = self._generate = watched

    def add_boundaries(self) -> None:
        """Hooks for the loaded plan's module rules; a rule that matches no module raises ValueError with the nearest names.
        Code that is compiled while they are there has them in its graphs; code compiled before runs without them."""
        caches = self._caches()
        _OPS.check_modules([*self.paths, *(path for pair in caches.values() for path in pair)])
        self._watch_cache({index: tuple(_OPS.place(path) for path in pair) for index, pair in caches.items()})
        places = [(place, module) for path, module in _named_modules(self.model) if (place := _OPS.place(path)) != _ROOT]
        for place, module in places:
            if _OPS.boundary_is_wanted(place, "input"):
                self._handles.append(module.register_forward_pre_hook(_input_hook(_boundary(place, "input")), with_kwargs=True))
            if _OPS.boundary_is_wanted(place, "output"):
                # First of the module's hooks: its scope is still open, and every other hook sees the faulty output.
                self._handles.append(_register_first(module._forward_hooks, module.register_forward_hook, _output_hook(_boundary(place, "output"))))

    def _caches(self) -> dict[int, tuple[str, str]]:
        """The places of what transformers' layers write into a cache, keys and values, by the layer's index there."""
        transformers = sys.modules.get("transformers")
        if transformers is None or not any(isinstance(module, transformers.PreTrainedModel) for module in self.model.modules()):
            return {}
        owners = {module.layer_idx: path for path, module in _named_modules(self.model) if isinstance(getattr(module, "layer_idx", None), int) and _OPS.role(path) == "attention"}
        return {index: (f"{path}.k_cache", f"{path}.v_cache") for index, path in owners.items()}

    def _watch_cache(self, places):
        """What a layer of transformers gives to its cache passes the plan first: the cache keeps it, and the layer attends to it."""
        wanted = {index: [_boundary(place, "input") for place in pair] for index, pair in places.items() if any(_OPS.boundary_is_wanted(place, "input") for place in pair)}
        if not wanted:
            return
        cache = sys.modules["transformers"].Cache
        update = cache.update

        @functools.wraps(update)
        def watched(itself, key_states, value_states, layer_idx, *arguments, **keywords):
            if layer_idx in wanted:
                key, value = wanted[layer_idx]
                key_states, value_states = key(key_states), value(value_states)
            return update(itself, key_states, value_states, layer_idx, *arguments, **keywords)

        cache.update = watched
        self._handles.append(_Restored(cache, "update", update))

    def detach(self) -> None:
        """Takes every hook back and forgets the parameters' names; a second call does nothing."""
        while self._handles:
            self._handles.pop().remove()
        while self._compiled_calls:
            module, compiled_call = self._compiled_calls.pop()
            module._compiled_call_impl = compiled_call
        model = _innermost(self.model)[0]
        if self._generate is not None and vars(model).get("generate") is self._generate:
            del model.generate
        self._generate = None
        _running.leave_all()  # a forward may have been left by what torch shows to no hook: KeyboardInterrupt
        if self in _attached:
            _attached.remove(self)
            _OPS.forget_parameters()
            for other in _attached:
                other._register_parameters()

    def __enter__(self) -> Attachment:
        """Returns itself: the hooks are there since it was made."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detaches."""
        self.detach()


def attach(model: torch.nn.Module) -> Attachment:
    """Names every module and parameter of `model` to the library until .detach(), so that evidence and censuses name modules and
    layers. Returns the hooks, which are a context manager too. plan(model=) does it by itself."""
    return Attachment(model)
