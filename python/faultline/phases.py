"""Phases and modules found from what is running, for a plan that was armed from outside: nobody calls plan(model=…) there.
Once transformers is imported, its `generate` is rollout, a Trainer's `train` is followed (trainer.py), and the first
call of any of its models names that model's modules. Nothing is imported on the plan's account."""

from __future__ import annotations

import contextlib
import functools

import torch

from faultline import armed, trainer_norms
from faultline.after_import import after_import
from faultline.attach import Attachment, _attached
from faultline.plan import phase
from faultline.trainer import follow

_OPS = torch.ops.faultline
_known: dict[int, Attachment] = {}  # by id of every module inside; an attachment keeps its model alive


def watch(own) -> None:
    """Wraps what transformers runs, now or as soon as it is imported. `own`: environment.Armed."""
    after_import("transformers.generation.utils", lambda module: _wrap_generate(module.GenerationMixin, own))
    after_import("transformers.modeling_utils", lambda module: _wrap_call(module.PreTrainedModel, own))
    after_import("transformers.trainer", lambda module: _wrap_train(module.Trainer, own))


def know(model: torch.nn.Module, **options) -> Attachment | None:
    """Names the modules of `model` to the library, once; options: as Attachment has them. -> its attachment where it is new"""
    if id(model) in _known or any(model is other.model for other in _attached):
        return None
    attachment = Attachment(model, **options)
    is_first = not _known
    try:
        attachment.add_boundaries()
    except ValueError:
        if is_first:  # a later model may have none of the modules that a rule names: a reward model, a draft
            attachment.detach()
            raise
    _known.update((id(module), attachment) for module in model.modules())
    return attachment


def _is_on(own) -> bool:
    return armed.armed() is own


def _wrap_generate(mixin, own) -> None:
    original = mixin.generate

    @functools.wraps(original)
    def generate(self, *arguments, **keywords):
        if not _is_on(own):
            return original(self, *arguments, **keywords)
        know(self)
        is_free = _OPS.get_phase() in ("auto", "actor_forward")
        with phase("rollout") if is_free else contextlib.nullcontext(), trainer_norms.sampling(self):
            result = original(self, *arguments, **keywords)
            own.note_work(_OPS.get_phase())
        return result

    mixin.generate = generate


def _wrap_call(model_class, own) -> None:
    original = model_class.__call__

    @functools.wraps(original)
    def call(self, *arguments, **keywords):
        if torch.compiler.is_compiling() or id(self) in _known or not _is_on(own):
            return original(self, *arguments, **keywords)
        know(self)
        return original(self, *arguments, **keywords)

    model_class.__call__ = call


def _wrap_train(trainer_class, own) -> None:
    original = trainer_class.train

    @functools.wraps(original)
    def train(self, *arguments, **keywords):
        if not _is_on(own) or "log" in vars(self):  # it is followed already
            return original(self, *arguments, **keywords)
        know(self.model)
        with follow(self, own.plan):
            return original(self, *arguments, **keywords)

    trainer_class.train = train
