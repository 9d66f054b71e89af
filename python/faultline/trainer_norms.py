"""AQN where a Hugging Face or TRL trainer samples from the model that it trains: its norms are noisy inside generate() and clean
everywhere else. The weights as they are before a generation, learnt since the last one, are the clean ones; the noise of the trainer's
step goes onto them, and comes off with the last token. What other forwards read, those of the update and of evaluations, is looked at:
one that meets the sampler's noise ends the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from faultline import noise, norms
from faultline.complaints import EvidenceError

if TYPE_CHECKING:  # it imports us
    from faultline.environment import Armed

_OPS = torch.ops.faultline
_current: TrainerNoise | None = None


class TrainerNoise(norms.NormNoise):
    """The noise on the norms of `trainer.model`, which begins clean."""

    def __init__(self, trainer: Any, own: Armed) -> None:
        self._modules = {id(module) for module in trainer.model.modules()}  # generate() may be called on one inside a wrapper
        self._is_on = False
        self._put: list[tuple[torch.nn.Module, torch.Tensor]] = []  # what the last generation read
        self._outside = {"forwards": 0, "noisy": 0}
        super().__init__(trainer.model, os.environ["FAULTLINE_RECIPE"], own, is_resting=True)
        self._hook = self._norms[0].module.register_forward_pre_hook(self._look_outside)

    def begin_step(self, step: int) -> None:
        """The weights are clean now, and may have learnt."""
        self._step = step

    def put(self) -> None:
        super().put()
        if not self._is_resting:
            self._put = [(norm.module, norm.holds) for norm in self._norms if norm.carries_noise()]
            _OPS.weights_changed()

    def rest(self) -> None:
        super().rest()
        _OPS.weights_changed()

    def count(self) -> None:
        super().count()
        self._own.notes["aqn"] = {**self._own.notes["aqn"], "outside": dict(self._outside)}

    @contextlib.contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """Around a generation of this model; one of another model stays as it is."""
        if self._is_on or id(model) not in self._modules:
            yield
            return
        self._is_on = True
        self.remember()
        self.go_on()
        try:
            yield
        finally:
            self.rest()
            self._is_on = False

    def _look_outside(self, *_: Any) -> None:
        """Before a forward that is no generation: its norms must not be those that the last generation read."""
        if self._is_on or torch.compiler.is_compiling():
            return
        self._outside["forwards"] += 1
        if self._put and torch.stack([(module.weight == carried).all() for module, carried in self._put]).any():
            self._outside["noisy"] += 1
        self.count()
        if self._outside["noisy"] and self._own.on_missing == "raise":
            raise EvidenceError(noise.left_complaints(self._own.notes["aqn"], self._own.work), None)

    def close(self) -> None:
        """The training has ended."""
        self.count()
        self._hook.remove()
        self._own.before_snapshot.remove(self.count)
        self._own.plan.followers.remove(self.begin_step)


def sampling(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Around what model.generate does: under the noise where it is a rollout of the model that is trained."""
    is_rollout = _current is not None and _OPS.get_phase() == "rollout"
    return _current.on(model) if is_rollout else contextlib.nullcontext()


@contextlib.contextmanager
def noise_of(trainer: Any, own: Armed) -> Iterator[None]:
    """Around the run of a trainer: what its section aqn asks for. Raises ValueError where it cannot be meant. A trainer that samples with
    vLLM leaves the noise to it."""
    global _current
    uses_vllm = norms.engine_has_noise(own) or getattr(trainer.args, "use_vllm", False)
    if "aqn" not in own.notes or uses_vllm:
        yield
        return
    _refuse_what_is_not_meant(trainer)
    own_noise = _current = TrainerNoise(trainer, own)
    callback = _total_check(own)
    trainer.add_callback(callback)
    try:
        yield
    finally:
        _current = None
        trainer.remove_callback(callback)
        own_noise.close()


def _refuse_what_is_not_meant(trainer: Any) -> None:
    from transformers import Trainer

    name = type(trainer).__name__
    if not any("generate" in attribute and not hasattr(Trainer, attribute) for attribute in dir(type(trainer))):
        raise ValueError(f"aqn: {name} samples nothing while it trains: there is no rollout whose norms could carry the noise; leave the section out, or train with one that samples (GRPOTrainer, RLOOTrainer)")
    if getattr(trainer.args, "use_transformers_continuous_batching", False):
        raise ValueError("aqn: use_transformers_continuous_batching samples past generate(), where no noise would be put on: switch it off, or sample with vLLM (use_vllm)")
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        raise ValueError("aqn: FSDP and DeepSpeed cut the norms' weights into shards, which get no noise here: train with DDP or one process, or sample with vLLM (use_vllm)")


def _total_check(own: Armed) -> Any:
    from transformers import TrainerCallback

    class Total(TrainerCallback):
        """The number of steps is known when the training begins."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            total = own.plan.steps.total
            if state.max_steps != total and _OPS.aqn_changes(os.environ["FAULTLINE_RECIPE"], max(total, state.max_steps)):
                raise ValueError(f"aqn: its schedule is laid over {total} steps, and the trainer makes {state.max_steps}: set FAULTLINE_TOTAL_STEPS={state.max_steps}")

    return Total()
