"""AQN on the norm weights of vLLM's sampler: applied when the model is loaded and after every update of its weights, every norm of
the model or none, and counted in the evidence of the process (`notes.aqn`)."""

from __future__ import annotations

import os
import sys

import torch

from faultline import environment
from faultline.attach import _named_modules
from faultline.plan import EvidenceError

_OPS = torch.ops.faultline
_STRENGTH_BAND = (0.5, 2.0)  # measured over expected noise on the norms; few elements each


class NormNoise:
    """The clean weights are kept; what the model reads is their noisy copy."""

    def __init__(self, model: torch.nn.Module, recipe: str, own: environment.Armed):
        self._recipe, self._own, self.step = recipe, own, 0
        self._norms = [(path, module) for path, module in _named_modules(model) if _is_norm(module, path)]
        if not self._norms:
            raise ValueError("aqn: the model has no norm with a weight; a run without noise would be reported as one with it")
        known = {path for path, _ in self._norms}
        if others := [path for path, module in _named_modules(model) if "norm" in type(module).__name__.lower() and _has_weight(module) and path not in known]:
            raise ValueError(f"aqn: {others[0]} is a norm by its class and not by its name: it would stay without noise; this model is not known to faultline")
        self._layers = 1 + max(_OPS.layer(path) for path, _ in self._norms)
        self._total = int(os.environ.get("FAULTLINE_TOTAL_STEPS", "1"))
        self.remember()

        own.before_snapshot.append(self.count)

    def remember(self) -> None:
        self._clean = [module.weight.detach().clone() for _, module in self._norms]

    def restore(self) -> None:
        for (_, module), clean in zip(self._norms, self._clean, strict=True):
            module.weight.data.copy_(clean)

    def apply(self, step: int) -> None:
        self.step = step
        expected = measured = sigma = 0.0
        self._noisy = []
        for (path, module), clean in zip(self._norms, self._clean, strict=True):
            noisy, sigma, wanted, got = _OPS.norm_noise(clean, self._recipe, path, self._layers, step, self._total)
            module.weight.data.copy_(noisy)
            if wanted:
                self._noisy.append((module, clean, noisy))
            expected, measured = expected + wanted, measured + got
        if sigma and not self._noisy:
            raise ValueError("aqn.layers names none of the model's norms; a run without noise would be reported as one with it")
        share = (measured / expected) ** 0.5 if expected else 1.0
        earlier = self._own.notes["aqn"]["applications"]
        self._own.notes["aqn"] = {"asked": len(self._noisy), "sigma": sigma, "realised": sigma * share, "step": step, "applications": earlier + 1}
        self.count()
        carriers = self._own.notes["aqn"]["norms"]
        print(f"[aqn] applied noise to {carriers} RMSNorm weights (skipped {len(self._norms) - carriers}), sigma={sigma:.4g}, realised={sigma * share:.4g}", file=sys.stderr)
        if not _STRENGTH_BAND[0] < share < _STRENGTH_BAND[1]:
            raise EvidenceError([f"aqn: step {step}: the weights carry {share:.3g} of the noise that the schedule asks for"], None)

    def count(self) -> None:
        """How many norms carry their noise now: a weight may be written past load_weights, and is clean then."""
        self._own.notes["aqn"]["norms"] = sum(torch.equal(module.weight, noisy) and not torch.equal(noisy, clean) for module, clean, noisy in self._noisy)


def _has_weight(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.nn.Parameter) and weight.dim() == 1


def _is_norm(module: torch.nn.Module, path: str) -> bool:
    return _has_weight(module) and path.rsplit(".", 1)[-1].endswith("norm")
