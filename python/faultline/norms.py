"""AQN on the norm weights of somebody else's sampler, vLLM's or (trainer_norms.py) a trainer's own model: the norms that our own trainer
would choose, given noise when the model is loaded, at every step and after every update of their weights, and counted in the evidence
of the process (`notes.aqn`). The clean weight of each is kept; what the model reads is its noisy copy, in the memory that compiled
code and captured graphs read."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import torch

from faultline import noise
from faultline.attach import _named_modules
from faultline.complaints import EvidenceError

if TYPE_CHECKING:  # it imports us
    from faultline.environment import Armed

_OPS = torch.ops.faultline
_noises: list[NormNoise] = []  # of the samplers in this process


@dataclasses.dataclass
class _Norm:
    path: str
    module: torch.nn.Module
    clean: torch.Tensor
    holds: torch.Tensor  # what its weight is until we or a trainer write it
    is_due: bool = True  # the noise of this step is not on it yet
    is_meant: bool = False  # it has noise at this step
    checks: int = 0

    def take(self) -> None:
        """The weight as it is now is the clean one."""
        self.clean = self.holds = self.module.weight.detach().clone()
        self.is_due = True

    def carries_noise(self) -> bool:
        return self.is_meant and not self.is_due


class NormNoise:
    def __init__(self, model: torch.nn.Module, recipe: str, own: Armed, *, is_resting: bool = False):
        """is_resting: the weights stay clean until go_on()."""
        self._recipe, self._own, self._steps = recipe, own, own.plan.steps
        modules = dict(_named_modules(model))
        chosen = _OPS.aqn_norms(recipe, list(modules), self._steps.total)
        if others := [path for path, module in modules.items() if "norm" in type(module).__name__.lower() and _has_weight(module) and _OPS.role(path) != "rmsnorm"]:
            raise ValueError(f"aqn: {others[0]} is a norm by its class and not by its name: it would stay without noise; this model is not known to faultline")
        weights = {path: modules[path].weight.detach().clone() for path in chosen if _has_weight(modules[path])}  # the others are another pipeline stage's
        if not weights:
            raise ValueError("aqn: not one of the norms that are meant has a weight here; a run without noise would be reported as one with it")
        self._norms = [_Norm(path, modules[path], clean, clean) for path, clean in weights.items()]
        self._layers = 1 + max(_OPS.layer(path) for path in modules)
        self._step, self._sigma, self._share = self._steps.now, 0.0, 1.0
        self._sigmas: list[float] = []  # of what was generated: first, last, highest
        self._shares: list[float] = []  # of noise measured in noise asked for: lowest, highest
        self._overwritten: dict[str, None] = {}
        self._applications = self._work_before = 0
        self._is_asleep, self._is_resting = False, is_resting
        self.account = dict(noise.NO_NOISE)
        self._check_strength(self._norms)
        _noises.append(self)
        self.put()
        own.before_snapshot.append(self.count)
        own.plan.followers.append(self.begin_step)

    # --- steps and updates --------------------------------------------------------------------------------------------
    def begin_step(self, step: int) -> None:
        self.look()
        self._close_account()
        self._step = step
        for norm in self._norms:
            norm.is_due = True
        self.put()

    def look(self) -> None:
        """What was written past load_weights since we looked last is the model's new weight, and was without noise meanwhile."""
        for norm in self._written():
            self._overwritten[norm.path] = None
            norm.take()

    def remember(self) -> None:
        """A trainer's weights have come: those that differ from what we left are the new clean ones."""
        written = self._written()
        for norm in written:
            norm.take()
        self._check_strength(written)

    def put(self) -> None:
        """The noise of this step, on every norm that lacks it and is here: while vLLM loads layer by layer some are nowhere."""
        due = [norm for norm in self._norms if norm.is_due and not self._is_asleep and not norm.module.weight.is_meta]
        if not due or self._is_resting:
            return
        self._close_account()
        expected = measured = 0.0
        for norm in due:
            norm.holds, self._sigma, wanted, got = _OPS.norm_noise(norm.clean, self._recipe, norm.path, self._layers, self._step, self._steps.total)
            norm.module.weight.data.copy_(norm.holds)
            norm.is_due, norm.is_meant = False, wanted > 0
            expected, measured = expected + wanted, measured + got
        self._applications += 1
        self._share = (measured / expected) ** 0.5 if expected else 1.0
        self._shares = [min(self._share, *self._shares), max(self._share, *self._shares)] if self._shares else [self._share, self._share]
        self.count()
        if len(due) == len(self._norms):
            carriers = self.account["norms"]
            print(f"[AQN] Applied noise to {carriers} RMSNorm layers (skipped {len(due) - carriers}), sigma={self._sigma:.4g}, realised={self._sigma * self._share:.4g}", file=sys.stderr)
        if self._own.on_missing == "raise" and (weak := noise.strength_complaints(self.account)):
            raise EvidenceError(weak, None)

    def sleep(self) -> None:
        """The weights' memory goes away; what it holds when it comes back may be anything."""
        self.look()
        self._is_asleep = True

    def wake(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            for norm in self._norms:
                norm.is_due = True
            self.put()

    def rest(self) -> None:
        """The clean weights, until go_on(): what is generated meanwhile explores nothing."""
        self.count()
        self._is_resting = True
        for norm in self._norms:
            if not norm.module.weight.is_meta:
                norm.module.weight.data.copy_(norm.clean)
                norm.holds, norm.is_due = norm.clean, True

    def go_on(self) -> None:
        if self._is_resting:
            self._is_resting = False
            self._work_before = self._own.work.get("rollout", 0)  # what a validation generated had none
            self.put()

    def _written(self) -> list[_Norm]:
        """Norms whose weights are not what we left."""
        present = [] if self._is_asleep else [norm for norm in self._norms if not norm.module.weight.is_meta]
        if not present:
            return []
        are_equal = torch.stack([(norm.module.weight == norm.holds).all() for norm in present]).tolist()
        return [norm for norm, is_equal in zip(present, are_equal, strict=True) if not is_equal]

    def _check_strength(self, norms: list[_Norm]) -> None:
        """Before hours of training: the noise of every step must show in the weight's dtype. The first weights of a trainer
        are checked too, because an engine may have begun with dummies."""
        for norm in norms:
            if norm.checks < 2:
                _OPS.check_norm_noise(norm.clean, self._recipe, norm.path, self._layers, self._steps.total)
                norm.checks += 1

    # --- evidence -----------------------------------------------------------------------------------------------------
    def _close_account(self) -> None:
        """What was generated since the noise changed last had this sigma."""
        work = self._own.work.get("rollout", 0)
        if work > self._work_before:
            sigma = self._sigma if any(norm.is_meant for norm in self._norms) else 0.0
            self._sigmas = [self._sigmas[0], sigma, max(sigma, self._sigmas[2])] if self._sigmas else [sigma] * 3
        self._work_before = work

    def count(self) -> None:
        """How many norms carry their noise at this moment, and how it was until now."""
        if self._is_resting:
            return
        self._close_account()
        self.look()
        changes = _OPS.aqn_changes(self._recipe, max(self._steps.total, self._steps.now + 1))
        self.account = {
            "asked": sum(norm.is_meant for norm in self._norms), "norms": sum(norm.carries_noise() for norm in self._norms), "applications": self._applications,
            "sigma": self._sigma, "realised": self._sigma * self._share, "shares": self._shares, "step": self._step, "step_from": self._steps.told_by, "steps": self._steps.record()["seen"],
            "sigmas": dict(zip(("first", "last", "highest"), self._sigmas, strict=True)) if self._sigmas else None,
            "overwritten": list(self._overwritten), "still": self._steps.why_still(must_be_told=True) if changes else "",
        }
        others = [other.account for other in _noises if other is not self and other._own is self._own]
        self._own.notes["aqn"] = {**self.account, "others": others} if others else self.account


def engine_has_noise(own: Armed) -> bool:
    """Whether an engine in this process carries the noise of this plan."""
    return any(type(noise) is NormNoise and noise._own is own for noise in _noises)


def _has_weight(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.nn.Parameter) and weight.dim() == 1
