"""Is this Hugging Face model, on this machine, healthy? The questions, the right answers and the judgement are the
library's (operators interview_*); this module only runs modules of the model, remembers how the layers were called, and
records the tensors that a probe asks for.

    verdict = faultline.diagnose(model, tokenizer)
    print(verdict)
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


class Verdict(dict):
    """What diagnose() says: a dict of the verdict's keys, which prints as text for people; `json` is it as JSON."""

    def __init__(self, json_text: str, text: str) -> None:
        """Takes the verdict as JSON and as text."""
        super().__init__(json.loads(json_text))
        self._text = text

    @property
    def json(self) -> str:
        """The verdict as JSON, as `faultline diagnose --json` writes it."""
        return json.dumps(self)

    def __str__(self) -> str:
        """The verdict as text."""
        return self._text.rstrip("\n")

    __repr__ = __str__


def _vocabulary_of(model) -> int:
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    return getattr(table, "num_embeddings", 0) or getattr(getattr(model, "config", None), "vocab_size", 0) or 0


def _tokens_of(model, tokenizer, prompt, limit, seed):
    vocabulary = _vocabulary_of(model)
    if isinstance(prompt, str) and tokenizer is None:
        raise ValueError("diagnose(): a prompt that is a text needs the model's tokenizer: diagnose(model, tokenizer, prompt=...); without one give token numbers, or no prompt")
    if prompt is None and tokenizer is None:
        if not vocabulary:
            raise ValueError("diagnose(): the model does not say how many tokens it knows; give its tokenizer, or prompt=, token numbers (1, T)")
        tokens = torch.randint(vocabulary, (1, limit), generator=torch.Generator().manual_seed(seed % 2**63))
    elif prompt is None or isinstance(prompt, str):
        tokens = torch.tensor([tokenizer(PROMPT if prompt is None else prompt)["input_ids"]], dtype=torch.long)
    else:
        tokens = torch.as_tensor(prompt)
        tokens = tokens.unsqueeze(0) if tokens.dim() == 1 else tokens
    if tokens.dim() != 2 or tokens.shape[0] != 1 or tokens.numel() == 0 or tokens.is_floating_point():
        raise ValueError(f"the prompt must be one row of at least one token number, (1, T); got {tokens.dtype} of shape {tuple(tokens.shape)}")
    tokens = tokens[:, :limit].long()
    wrong = ((tokens < 0) | (tokens >= vocabulary)).nonzero()
    if vocabulary and len(wrong):
        position = int(wrong[0, 1])
        raise ValueError(f"prompt: token {int(tokens[0, position])} at position {position} is none of this model's, which are 0 to {vocabulary - 1}; was it made by another model's tokenizer?")
    return tokens.to(next(model.parameters()).device)


def diagnose(model: torch.nn.Module, tokenizer: Any = None, *, prompt: str | torch.Tensor | list[int] | None = None, tokens: int = 32, passes: int = 1, seed: int = 0) -> Verdict:
    """The verdict of method `self` on a Hugging Face causal language model: a dict, as `faultline diagnose --json` writes it
    (schema: `faultline diagnose --schema`), that prints as text. prompt: a text, for which `tokenizer` is needed, or token numbers (1, T).
    Without a prompt a fixed English sentence is used (faultline.diagnose's PROMPT), and without a tokenizer, too, `tokens` random token
    numbers, drawn with `seed`. tokens: at most so many of the prompt; passes: repeat until an intermittent fault is caught, at most so
    often. Raises ValueError for a prompt or a number that cannot be."""
    if passes < 1 or tokens < 1 or not 0 <= seed < 2**64:
        raise ValueError(f"passes and tokens are at least 1 and seed is 0 to 2^64-1; got {passes}, {tokens} and {seed}")
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", 0) or 0
    head_size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    facts, weights = _facts(model)
    given = _tokens_of(model, tokenizer, prompt, tokens, seed)
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
    return Verdict(*verdict)
