"""Phases and modules found from what is running, for a plan that was armed from outside: nobody calls plan(model=…) there.
Once transformers is imported, its `generate` is rollout, a Trainer's `train` is followed (trainer.py), and the first
call of any of its models names that model's modules. Nothing is imported on the plan's account."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys

import torch

from faultline.attach import Attachment, _attached
from faultline.plan import phase
from faultline.trainer import follow

_OPS = torch.ops.faultline
_known: dict[int, Attachment] = {}  # by id of every module inside; an attachment keeps its model alive


def watch(armed) -> None:
    """Wraps what transformers runs, now or as soon as it is imported. `armed`: environment.Armed."""
    after_import("transformers.generation.utils", lambda module: _wrap_generate(module.GenerationMixin, armed))
    after_import("transformers.modeling_utils", lambda module: _wrap_call(module.PreTrainedModel, armed))
    after_import("transformers.trainer", lambda module: _wrap_train(module.Trainer, armed))


def know(model: torch.nn.Module, *, is_eager: bool = False) -> Attachment | None:
    """Names the modules of `model` to the library, once. is_eager: nobody will compile it. -> its attachment where it is new"""
    if id(model) in _known or any(model is other.model for other in _attached):
        return None
    attachment = Attachment(model, is_eager=is_eager)
    is_first = not _known
    try:
        attachment.add_boundaries()
    except ValueError:
        if is_first:  # a later model may have none of the modules that a rule names: a reward model, a draft
            attachment.detach()
            raise
    _known.update((id(module), attachment) for module in model.modules())
    return attachment


def after_import(name: str, act) -> None:
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets a module be imported as always and then acts on it, once."""

    def __init__(self, name, act):
        self._name, self._act = name, act

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._act(module)

        spec.loader.exec_module = exec_module
        return spec


def _is_on(armed) -> bool:
    from faultline import environment

    return environment.armed() is armed


def _wrap_generate(mixin, armed) -> None:
    original = mixin.generate

    @functools.wraps(original)
    def generate(self, *arguments, **keywords):
        if not _is_on(armed):
            return original(self, *arguments, **keywords)
        know(self)
        is_free = _OPS.get_phase() in ("auto", "actor_forward")
        with phase("rollout") if is_free else contextlib.nullcontext():
            result = original(self, *arguments, **keywords)
        armed.note_work("rollout" if is_free else _OPS.get_phase())
        return result

    mixin.generate = generate


def _wrap_call(model_class, armed) -> None:
    original = model_class.__call__

    @functools.wraps(original)
    def call(self, *arguments, **keywords):
        if torch.compiler.is_compiling() or id(self) in _known or not _is_on(armed):
            return original(self, *arguments, **keywords)
        know(self)
        return original(self, *arguments, **keywords)

    model_class.__call__ = call


def _wrap_train(trainer_class, armed) -> None:
    original = trainer_class.train

    @functools.wraps(original)
    def train(self, *arguments, **keywords):
        if not _is_on(armed) or "log" in vars(self):  # it is followed already
            return original(self, *arguments, **keywords)
        know(self.model)
        with follow(self, armed.plan):
            return original(self, *arguments, **keywords)

    trainer_class.train = train
