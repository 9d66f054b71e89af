"""Traces: what every operator of a model read and gave, in a folder that `faultline compare` judges beside another
engine's (docs/compare.md). Recording is the library's (operators trace_*); here a model's forwards are entered and left,
and a model is found where nobody hands it over.

    with faultline.trace(model, "a", tokenizer=tokenizer):
        model(**batch)

    FAULTLINE_TRACE         folder; processes that import faultline record the first model they run
    FAULTLINE_TRACE_DETAIL  digest, sample (default) or full"""

from __future__ import annotations

import functools
import json
import multiprocessing.util
import os
import pathlib
import re
import sys
from typing import Any

import torch

from faultline import armed, phases
from faultline.after_import import after_import
from faultline.attach import Attachment, _attached, _has_failed, _innermost, _kind_of_forward, _named_modules, packed_weights

_OPS = torch.ops.faultline
DETAILS = ("digest", "sample", "full")
_MOST_BYTES = 4 << 30
_open: list[Trace] = []
_seen: set[int] = set()  # models that have a trace, or are inside one that has


def _engine_of(model) -> str:
    package = type(model).__module__.split(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version}" if version and package not in ("__main__", "torch") else f"torch {torch.__version__}"


def _parts(module) -> dict[str, list[int]] | None:
    """Rows of a fused weight, as vLLM's fused linears say them."""
    sizes = getattr(module, "output_partition_sizes", None)
    return list(sizes) if isinstance(sizes, (list, tuple)) and len(sizes) > 1 else None


_PART_NAMES = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def _weight_before_packing(module) -> torch.Tensor | None:
    """vLLM on a CPU: the weight as it was loaded."""
    kept = vars(module).get("faultline_weight")
    weight = getattr(module, "weight", None)
    return kept if kept is not None else weight.detach() if isinstance(weight, torch.Tensor) and weight.numel() else None


def _is_padded(module, parameter) -> bool:
    """vLLM gives a vocabulary rows that no token has, up to a multiple of 64."""
    words = getattr(module, "org_vocab_size", None)
    return bool(words) and parameter.dim() > 0 and parameter.shape[0] > words and getattr(module, "tp_size", 1) == 1


def _packed(model) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What products are given in place of a weight, and the weights."""
    pairs = [(packed, original) for _, module in _named_modules(model) for packed in packed_weights(module) if (original := _weight_before_packing(module)) is not None]
    return [packed for packed, _ in pairs], [original for _, original in pairs]


def _weights(model) -> tuple[list[str], list[torch.Tensor]]:
    """Parameters by name, fused ones by the names of their parts, packed ones as they were before."""
    names, tensors = [], []
    for path, module in _named_modules(model):
        last = path.split(".")[-1]
        sizes = _parts(module)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "weight" and not parameter.numel():
                before = _weight_before_packing(module)
                parameter = parameter if before is None else before
            if _is_padded(module, parameter):
                parameter = parameter[: module.org_vocab_size]
            around = path[: -len(last)]
            if last in _PART_NAMES and sizes and sum(sizes) == parameter.shape[0] and len(sizes) == len(_PART_NAMES[last]):
                for part, piece in zip(_PART_NAMES[last], parameter.detach().split(sizes), strict=True):
                    names.append(f"{around}{part}.{name}")
                    tensors.append(piece)
            elif parameter.numel():
                names.append(f"{path}.{name}" if path else name)
                tensors.append(parameter.detach())
    return names, tensors


def _tokenizer_digest(tokenizer) -> str:
    if tokenizer is None:
        return ""
    return _OPS.trace_tokens_digest(tokenizer(_OPS.trace_probe(), add_special_tokens=False)["input_ids"])


def _given(arguments, keywords) -> tuple[Any, Any, Any]:
    """Tokens, mask and positions of a forward, as far as it was given any."""
    tokens = keywords.get("input_ids")
    if tokens is None:
        tokens = next((value for value in arguments if isinstance(value, torch.Tensor) and not value.is_floating_point()), None)
    mask = keywords.get("attention_mask")
    positions = keywords.get("position_ids", keywords.get("positions"))
    if positions is None and isinstance(tokens, torch.Tensor) and tokens.dim() == 1:  # packed, as vLLM calls its models
        positions = next((value for value in arguments if isinstance(value, torch.Tensor) and value is not tokens and value.shape == tokens.shape), None)
    # Engines keep these in buffers that they write into again.
    return tuple(value.clone() if isinstance(value, torch.Tensor) and value.dim() <= 2 else None for value in (tokens, mask, positions))


def _rows_within(hidden, arguments) -> tuple[int, int]:
    """Which rows of the forward's result the first argument is, first and number; -1: copies of some."""
    some = next((value for value in arguments if isinstance(value, torch.Tensor)), None)
    if some is None or hidden is None or some.dim() != 2 or some.untyped_storage().data_ptr() != hidden.untyped_storage().data_ptr():
        return -1, 0
    return (some.data_ptr() - hidden.data_ptr()) // (hidden.stride(0) * hidden.element_size()), some.shape[0]


class Trace:
    """A trace that is being recorded. Use trace(); it is also a context manager. `folder` is where it lies, `calls` how many operator
    calls it holds once it is closed."""

    def __init__(self, model: torch.nn.Module, folder: str | os.PathLike, *, detail: str, tokenizer: Any, most_bytes: int, most_forwards: int, role: str = "script", rank: int = 0, world: int = 1) -> None:
        """Begins the trace, or goes on with one in that folder that was cut off."""
        if detail not in DETAILS:
            raise ValueError(f"the detail of a trace is {', '.join(DETAILS[:-1])} or {DETAILS[-1]}; got {detail!r}")
        if most_bytes < 1 or most_forwards < 0:
            raise ValueError(f"most_bytes is at least 1 and most_forwards at least 0 (all); got {most_bytes} and {most_forwards}")
        self.folder = pathlib.Path(folder)
        self.calls: int | None = None
        names, weights = _weights(model)
        device = weights[0].device.type if weights else "cpu"
        header = {"engine": _engine_of(_innermost(model)[0]), "torch": torch.__version__, "device": device, "role": role, "rank": rank, "world": world, "tokenizer": _tokenizer_digest(tokenizer)}
        options = {"detail": detail, "most_bytes": most_bytes, "most_forwards": most_forwards, "header": header}
        self._handle = _OPS.trace_open(str(self.folder), json.dumps(options), weights, names, *_packed(model))
        known = any(_innermost(other.model)[0] is _innermost(model)[0] for other in _attached)
        self._attachment = None if known else Attachment(model)
        for path, module in _named_modules(model):
            for tensor in packed_weights(module):
                _OPS.register_parameter(tensor, path)  # a head's module is not called, its weight names it
        root = _innermost(model)[0]
        self._hooks = [root.register_forward_pre_hook(self._before, with_kwargs=True), root.register_forward_hook(self._after, always_call=True)]
        self._depth, self._is_recording, self._hidden = 0, False, None
        self._logits = self._watch_logits(root)
        _seen.update(id(module) for module in model.modules())
        _open.append(self)

    def _before(self, _module, arguments, keywords):
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth == 1 and not _is_capturing():
            kind = _kind_of_forward(arguments, keywords)
            self._is_recording = _OPS.trace_enter(self._handle, kind, *_given(arguments, keywords))

    def _after(self, _module, _arguments, output):
        if torch.compiler.is_compiling():
            return
        self._hidden = output if isinstance(output, torch.Tensor) else None
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._leave(failed=_has_failed(output))

    def _leave(self, *, failed=False):
        if self._is_recording:
            self._is_recording = False
            _OPS.trace_leave(self._handle)

    def _watch_logits(self, root):
        """vLLM computes logits apart from the forward."""
        compute = getattr(root, "compute_logits", None)
        if compute is None:
            return None

        # Probabilities over words that are none would be wrong ones: they are left out.
        has_padding = any(_is_padded(module, parameter) for module in root.modules() for parameter in module.parameters(recurse=False))

        @functools.wraps(compute)
        def compute_logits(*arguments, **keywords):
            self._is_recording = not _is_capturing() and _OPS.trace_go_on(self._handle, *((-1, 0) if has_padding else _rows_within(self._hidden, arguments)))
            try:
                return compute(*arguments, **keywords)
            finally:
                self._leave()

        root.compute_logits = compute_logits
        return root

    def close(self) -> None:
        """Ends the trace, which is whole from now on; a second call does nothing."""
        if self._handle is None:
            return
        self._leave()
        for hook in self._hooks:
            hook.remove()
        if self._logits is not None:
            vars(self._logits).pop("compute_logits", None)
        if self._attachment is not None:
            self._attachment.detach()
        self.calls = _OPS.trace_close(self._handle)
        self._handle = None
        _open.remove(self)

    def __enter__(self) -> Trace:
        """Returns itself: it records since it was made."""
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        """Closes; where the block failed the trace is left as one that was cut off."""
        if kind is None:
            self.close()


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def trace(model: torch.nn.Module, folder: str | os.PathLike, *, detail: str = "sample", tokenizer: Any = None, most_bytes: int = _MOST_BYTES, most_forwards: int = 0) -> Trace:
    """Records the forwards of `model` into `folder` until .close() (it is a context manager, too), for `faultline compare --a FOLDER --b OTHER`.
    detail: digest, sample or full. tokenizer: its digest goes into the header. most_bytes: on disk; what comes later is listed
    without its numbers. most_forwards: record no more; 0: all. Raises ValueError for a folder that holds another model's trace."""
    return Trace(model, folder, detail=detail, tokenizer=tokenizer, most_bytes=most_bytes, most_forwards=most_forwards)


class Comparison(dict):
    """What compare() says: a dict of the keys that `faultline compare --json` writes, which prints as its verdict."""

    def __init__(self, json_text: str) -> None:
        """Takes the comparison as JSON."""
        super().__init__(json.loads(json_text))

    def __str__(self) -> str:
        """The verdict, one sentence."""
        return self["sentence"]

    __repr__ = __str__


def compare(a: str | os.PathLike, b: str | os.PathLike) -> Comparison:
    """Two traces: which operator of which side was the first to give what rounding does not explain, as `faultline compare --a A --b B
    --json` says it. Raises ValueError for traces of other weights, tokens or formats, and for one that was cut off."""
    return Comparison(_OPS.trace_compare(str(a), str(b)))


# --- models that nobody hands over ------------------------------------------------------------------------------------
def watch_from_environment() -> None:
    """FAULTLINE_TRACE: the first forward of any model of transformers begins its trace."""
    if not os.environ.get("FAULTLINE_TRACE") or getattr(watch_from_environment, "done", False):
        return
    watch_from_environment.done = True
    detail = os.environ.get("FAULTLINE_TRACE_DETAIL", "sample")
    if detail not in DETAILS:
        raise ValueError(f"FAULTLINE_TRACE_DETAIL is {', '.join(DETAILS[:-1])} or {DETAILS[-1]}; got {detail!r}")
    after_import("transformers.modeling_utils", lambda module: _wrap_call(module.PreTrainedModel))


def _wrap_call(model_class) -> None:
    original = model_class.__call__

    @functools.wraps(original)
    def call(self, *arguments, **keywords):
        if not torch.compiler.is_compiling() and id(self) not in _seen:
            begin(self)
        return original(self, *arguments, **keywords)

    model_class.__call__ = call


def begin(model: torch.nn.Module, *, role: str = "script", rank: int | None = None, update: int = 0) -> Trace | None:
    """The trace that FAULTLINE_TRACE asks for, of this process; None: not asked for. update: how often its weights were replaced."""
    folder = os.environ.get("FAULTLINE_TRACE")
    if not folder:
        return None
    if armed.armed() is not None:
        phases.know(model)  # first: it puts the plan's boundaries in
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", "1"))
    place = pathlib.Path(folder)
    is_launched = os.environ.get("FAULTLINE_TRACE_PROCESS") == str(os.getpid())
    if not is_launched or world > 1 or role != "script":
        place = place / f"{re.sub('[^a-z0-9]+', '-', role)}-{rank}{f'-update-{update}' if update else ''}"
    if _open:
        place = place / f"model-{len(_open) + 1}"
    if not is_launched and (place / "header.json").exists():  # of another child
        place = place.with_name(f"{place.name}-{os.getpid()}")
    made = Trace(model, place, detail=os.environ.get("FAULTLINE_TRACE_DETAIL", "sample"), tokenizer=None, most_bytes=_MOST_BYTES, most_forwards=0, role=role, rank=rank, world=world)
    if not is_launched:
        multiprocessing.util.Finalize(None, made.close, exitpriority=-100)  # its children end without atexit
    return made


def close_all() -> int:
    """Ends the traces of this process. -> how many there were"""
    made = list(_open)
    for one in made:
        one.close()
    return len(made)
