"""Is this Hugging Face model, on this machine, healthy? The questions, the right answers and the judgement are the
library's (operators interview_*); this module only runs modules of the model, remembers how the layers were called, and
records the tensors that a probe asks for.

    verdict = faultline.diagnose(model, tokenizer)
    verdict["verdict"], verdict["candidates"]

A plan that is armed (faultline.plan(..., model=model)) stays armed: the broken machine is what is diagnosed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch

from faultline.attach import _named_modules
from faultline.plan import phase

_OPS = torch.ops.faultline
PROMPT = "A train leaves the station at nine and covers sixty miles an hour. How far has it gone at noon?"


def _epsilon(module):
    for name in ("variance_epsilon", "eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def _type_of(module) -> tuple[str, float]:
    """What the library may expect of the module: only where its formula is certain."""
    name = type(module).__name__
    if type(module) is torch.nn.Linear:
        return "linear", 0.0
    if type(module) is torch.nn.Embedding:
        return "embedding", 0.0
    if name in ("SiLU", "SiLUActivation"):
        return "silu", 0.0
    # Gemma's norms multiply by 1 + weight; others are named after the formula they follow.
    if name.endswith("RMSNorm") and "Gemma" not in name and _epsilon(module) is not None:
        return "rms_norm", _epsilon(module)
    return "other", 0.0


def _facts(model) -> tuple[list[dict], list[torch.Tensor]]:
    facts, tensors = [], []

    def index(tensor):
        if tensor is None:
            return -1
        tensors.append(tensor.detach())
        return len(tensors) - 1

    for path, module in _named_modules(model):
        kind, epsilon = _type_of(module)
        own = dict(module.named_parameters(recurse=False))
        weight = own.get("weight")
        if weight is None and own:  # parameters of other names: known to be there, not what they mean
            weight = next(iter(own.values()))
        facts.append({"path": path, "type": kind, "class": type(module).__name__, "epsilon": epsilon, "weight": index(weight), "bias": index(own.get("bias"))})
    return facts, tensors


def _first(values):
    if isinstance(values, torch.Tensor):
        return values
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise ValueError("a module gave no floating-point tensor")


class _Runner:
    """Runs probes. Calls of layers and attentions are remembered in the first forward and made again with another
    first tensor, so that masks and positions are the model's own."""

    def __init__(self, model):
        self.model = model
        self.modules = dict(_named_modules(model))
        self.calls: dict[str, tuple] = {}

    def run(self, probe: dict, given: torch.Tensor) -> list[torch.Tensor]:
        answers = []
        for _ in range(probe["times"]):
            with self._recording(probe["records"]) as recorded:
                result = self._call(probe, given)
            answers += [_first(result), *(recorded[tuple(key)] for key in probe["records"])]
        return answers

    def _call(self, probe, given):
        if probe["call"] == "model":
            with self._remembering():
                return self.model(input_ids=given, use_cache=False).logits
        module = self.modules[probe["module"]]
        if probe["call"] == "plain":
            return module(given)
        arguments, keywords = self.calls[probe["module"]]
        if arguments:
            return module(given, *arguments[1:], **keywords)
        name = next(key for key, value in keywords.items() if isinstance(value, torch.Tensor) and value.is_floating_point())
        return module(**{**keywords, name: given})

    @contextlib.contextmanager
    def _remembering(self):
        def remember(path):
            def hook(_module, arguments, keywords):
                self.calls[path] = (arguments, dict(keywords))

            return hook

        wanted = [path for path, module in self.modules.items() if _OPS.layer(path) >= 0 and list(module.children())]
        handles = [self.modules[path].register_forward_pre_hook(remember(path), with_kwargs=True) for path in wanted]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _recording(self, records):
        recorded, handles = {}, []
        for path, surface in records:
            key = (path, surface)
            if surface == "output":
                # After the boundaries of an armed plan: what the next module gets is what is judged.
                handles.append(self.modules[path].register_forward_hook(lambda _m, _a, output, key=key: recorded.__setitem__(key, _first(output).detach())))
            else:

                def before(_module, arguments, keywords, key=key):
                    recorded[key] = _first([*arguments, *keywords.values()]).detach()

                handles.append(self.modules[path].register_forward_pre_hook(before, with_kwargs=True))
        try:
            yield recorded
        finally:
            for handle in handles:
                handle.remove()


def _tokens_of(model, tokenizer, prompt, limit):
    if isinstance(prompt, torch.Tensor):
        tokens = prompt
    elif tokenizer is None:
        raise ValueError("diagnose(model, tokenizer): without a tokenizer give prompt=, a tensor of token numbers (1, T)")
    else:
        tokens = torch.tensor([tokenizer(prompt or PROMPT)["input_ids"]])
    if tokens.dim() != 2 or tokens.shape[0] != 1 or tokens.numel() == 0:
        raise ValueError(f"the prompt must be one row of at least one token, (1, T); got {tuple(tokens.shape)}")
    return tokens[:, :limit].to(next(model.parameters()).device)


def diagnose(model: torch.nn.Module, tokenizer: Any = None, *, prompt: str | torch.Tensor | None = None, tokens: int = 32, passes: int = 1, seed: int = 0) -> dict[str, Any]:
    """The verdict of method `self` on a Hugging Face causal language model, as `faultline diagnose --json` writes it
    (schema: `faultline diagnose --schema`). prompt: a text, or token numbers (1, T); tokens: at most so many of it;
    passes: repeat until an intermittent fault is caught, at most so often. Raises ValueError for a prompt or a number that cannot be."""
    if passes < 1 or tokens < 1 or not 0 <= seed < 2**64:
        raise ValueError(f"passes and tokens are at least 1 and seed is 0 to 2^64-1; got {passes}, {tokens} and {seed}")
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", 0) or 0
    head_size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    facts, weights = _facts(model)
    given = _tokens_of(model, tokenizer, prompt, tokens)
    interview = _OPS.interview_open(json.dumps(facts), weights, given, json.dumps({"head_size": head_size, "seed": seed, "passes": passes}))
    runner, was_training = _Runner(model), model.training
    model.eval()
    try:
        with torch.no_grad(), phase("diagnose"):
            while True:
                text, tensor = _OPS.interview_next(interview)
                if not text:
                    break
                try:
                    answers = runner.run(json.loads(text), tensor)
                except RuntimeError as error:  # the machine, not a mistake of ours
                    _OPS.interview_fail(interview, str(error).splitlines()[0])
                    break
                _OPS.interview_answer(interview, answers)
    finally:
        model.train(was_training)
        verdict = _OPS.interview_close(interview)
    return json.loads(verdict)
