"""A watch over the device that a model runs on, while it trains or serves: every so many forwards one question whose answer is
known, at most one per cent of the time, never waited for. Questions, answers and judgement are the library's (src/screen/sentinel.h);
this module counts forwards and runs the model's own linears.

    watch = faultline.sentinel(model, every=100)
    ...                                    # train, or serve
    verdict = watch.verdict()              # {"verdict": "healthy", "sentence": ..., "bound": ...}, as `faultline screen --json` gives
    watch.close()"""

from __future__ import annotations

import json
from typing import Any

import torch

from faultline.attach import _named_modules

_OPS = torch.ops.faultline


class Sentinel:
    """What sentinel() gives: step() where forwards of the model are no measure, verdict(), close(). Closes itself as a context."""

    def __init__(self, model: torch.nn.Module, every: int, share: float, seed: int) -> None:
        """See sentinel()."""
        device = next(model.parameters()).device
        self._handle = _OPS.sentinel_open(str(device), seed, share)
        self._every = every
        self._forwards = 0
        self._asking = False
        self._turn = 0
        self._linears, self._left_out = self._linears_of(model, device)
        self._hook = model.register_forward_pre_hook(self._before_forward)

    @staticmethod
    def _linears_of(model, device):
        """Those whose answer is certain: plain, without a bias, hooks that change results apart; fp32 only where no product is rounded to TF32."""
        chosen, left_out = [], 0
        for path, module in _named_modules(model):
            if type(module) is not torch.nn.Linear:
                continue
            exact = module.weight.dtype in (torch.bfloat16, torch.float16) or (module.weight.dtype == torch.float32 and device.type == "cpu")
            if module.bias is None and exact and module.weight.device == device:
                chosen.append((path, module))
            else:
                left_out += 1
        return chosen, left_out

    def _before_forward(self, _module, _arguments):
        if self._asking or torch.compiler.is_compiling():
            return
        self._forwards += 1
        if self._forwards % self._every == 0:
            self.step()

    def step(self) -> bool:
        """One question, if the share of time allows one now; whether it was asked. Does nothing while a CUDA graph is captured."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        self._asking = True
        try:
            self._turn += 1
            if self._turn % 2 == 0 and self._linears:
                return self._ask_linear()
            return bool(_OPS.sentinel_step(self._handle))
        finally:
            self._asking = False

    def _ask_linear(self) -> bool:
        path, module = self._linears[(self._turn // 2) % len(self._linears)]
        # torch.set_float32_matmul_precision("medium") makes a CPU's fp32 products those of bf16: no answer is certain then.
        if module.weight.dtype == torch.float32 and torch.backends.mkldnn.matmul.fp32_precision not in ("none", "ieee"):
            return bool(_OPS.sentinel_step(self._handle))
        question = _OPS.sentinel_question(self._handle, path, module.weight.detach())
        if question.numel() == 0:
            return False
        with torch.no_grad(), torch.autocast(question.device.type, enabled=False):
            _OPS.sentinel_answer(self._handle, module(question))
        return True

    def verdict(self) -> dict[str, Any]:
        """Everything that has been asked, judged: the record that `faultline screen` writes, with "linears" and "share". Waits for
        the device."""
        record = json.loads(_OPS.sentinel_verdict(self._handle))
        if self._left_out:
            record["not_tested"].append(f"{self._left_out} linears of the model: with a bias, on another device, or in a type that rounds")
        return record

    def close(self) -> None:
        """The model is left alone from now on."""
        self._hook.remove()
        _OPS.sentinel_close(self._handle)

    def __enter__(self) -> Sentinel:
        """The sentinel itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """close()."""
        self.close()


def sentinel(model: torch.nn.Module, *, every: int = 100, share: float = 0.01, seed: int = 0) -> Sentinel:
    """Watches the device that `model` runs on: before every `every`-th forward of it one question whose answer is known, in turn a
    product, attention, norm or reduction of the screen's own and a linear of the model, as long as they take no more than `share` of
    the time. Nothing waits: answers are judged at later steps. verdict() says healthy, faulty or inconclusive. Forwards that a CUDA
    graph replays are not seen: call step() beside them."""
    if every < 1 or not 0 < share <= 1 or not 0 <= seed < 2**63:
        raise ValueError(f"every is at least 1, share is above 0 and at most 1, seed is 0 to 2^63-1; got {every}, {share} and {seed}")
    if not isinstance(model, torch.nn.Module) or next(model.parameters(), None) is None:
        raise ValueError("sentinel(): wanted a model with parameters, whose device is to be watched")
    return Sentinel(model, every, share, seed)
