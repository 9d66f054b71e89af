"""Faultline from Python: finds and loads libfaultline.so and names its operators. There is no arithmetic here; every
number comes from the one implementation in the library, so a fault drawn from Python, from C++ or on a GPU has equal
bits. A fault is written in the short form of the command line, `relative_gaussian(strength=0.05)`, or as a flow map."""

from __future__ import annotations

import importlib.metadata
import math
import sys
import warnings

import torch

from faultline._library import library_path
from faultline.arithmetic import selftest
from faultline.attach import Attachment, attach
from faultline.diagnose import Verdict, diagnose
from faultline.environment import arm_from_environment
from faultline.evidence import CollectionError, collect
from faultline.launches import launches
from faultline.plan import EvidenceError, Plan, census, ledger, phase, plan, weights_changed
from faultline.sentinel import Sentinel, sentinel
from faultline.trace import Comparison, Trace, compare, trace, watch_from_environment
from faultline.trainer import follow
from faultline import ray_workers

if any(importlib.metadata.distributions(name="faultline")):
    warnings.warn("PyPI's distribution `faultline` is installed, which is another program with a package of the same name; pip uninstall faultline faultline-lab, then install faultline-lab again", stacklevel=2)

__version__ = "0.1.0"
__all__ = [
    "LEDGER_COLUMNS",
    "Attachment",
    "CollectionError",
    "Comparison",
    "EvidenceError",
    "Plan",
    "Sentinel",
    "Trace",
    "Verdict",
    "apply",
    "apply_",
    "attach",
    "census",
    "checksum",
    "collect",
    "compare",
    "diagnose",
    "digest",
    "follow",
    "launches",
    "ledger",
    "library_path",
    "new_ledger",
    "phase",
    "plan",
    "quantize",
    "read_ledger",
    "selftest",
    "sentinel",
    "trace",
    "weights_changed",
]

# One name for each column of src/numeric/ledger.h, in its order.
LEDGER_COLUMNS = (
    "calls",
    "active_calls",
    "elements",
    "selected",
    "changed",
    "nonzero",
    "zeroed",
    "nonfinite",
    "saturated",
    "sum_abs_error",
    "sum_squared_error",
    "sum_squared_value",
    "max_abs_error",
    "sampled",
    "sum_squared_relative",
    "struck",
)
"""The names of a ledger row's columns, in their order: what read_ledger() gives, without what follows from them."""
_SUMS = ("sum_abs_error", "sum_squared_error", "sum_squared_value", "max_abs_error", "sum_squared_relative")


def apply(
    x: torch.Tensor,
    fault: str,
    *,
    seed: int = 0,
    site: str = "",
    step: int = 0,
    call: int = 0,
    ledger: torch.Tensor | None = None,
    row_keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """A faulty copy of x; x itself stays as it is. The draw is a pure function of (seed, rule, site, step, call, element).

    ledger: a row of new_ledger(x.device) that this call adds its evidence to.
    row_keys: one int64 a row, for rules with `rule.keyed_by=row`: rows with equal keys meet equal noise in any batch.
    Raises ValueError for a fault that does not exist, or that x's dtype could not show.
    """
    return torch.ops.faultline.apply(x, fault, seed=seed, site=site, step=step, call=call, ledger=ledger, row_keys=row_keys)


def apply_(
    x: torch.Tensor,
    fault: str,
    *,
    seed: int = 0,
    site: str = "",
    step: int = 0,
    call: int = 0,
    ledger: torch.Tensor | None = None,
    row_keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """apply() in place: x gets the fault and is returned. Parameters are those of apply()."""
    return torch.ops.faultline.apply_(x, fault, seed=seed, site=site, step=step, call=call, ledger=ledger, row_keys=row_keys)


def quantize(x: torch.Tensor, format: str) -> torch.Tensor:
    """x through a number format and back, `mxfp4`, `nvfp4`, …; gradients pass straight through. Raises ValueError for another format."""
    return torch.ops.faultline.quantize(x, format)


def digest(x: torch.Tensor) -> int:
    """The order-aware fingerprint of x's bytes, below 2^61 (docs/formats.md says what it can miss)."""
    return int(torch.ops.faultline.digest(x).item())


def checksum(x: torch.Tensor) -> int:
    """The plain integer sum of x's elements as bits, modulo 2^64: blind to exchanged elements; kept for comparison. Returned as
    a signed number, -2^63 to 2^63 - 1."""
    return int(torch.ops.faultline.checksum(x).item())


def new_ledger(device: torch.device | str = "cpu") -> torch.Tensor:
    """An empty ledger row for tensors on `device`."""
    return torch.ops.faultline.ledger(device=torch.device(device))


def read_ledger(ledger: torch.Tensor) -> dict[str, int | float | None]:
    """The ledger's columns by name, and what follows from them: relative_rms (the realised strength over the sample),
    sqnr_db (None where nothing changed) and survival (share of non-zero elements that stayed non-zero)."""
    row = dict(zip(LEDGER_COLUMNS, torch.ops.faultline.ledger_columns(ledger).tolist(), strict=True))
    numbers: dict[str, int | float | None] = {name: value if name in _SUMS else int(value) for name, value in row.items()}
    numbers["relative_rms"] = math.sqrt(row["sum_squared_relative"] / row["sampled"]) if row["sampled"] > 0 else None
    noise, signal = row["sum_squared_error"], row["sum_squared_value"]
    ratio = signal / noise if noise > 0 else None
    numbers["sqnr_db"] = None if ratio is None else 10 * math.log10(ratio) if ratio > 0 else -math.inf
    numbers["survival"] = (row["nonzero"] - row["zeroed"]) / row["nonzero"] if row["nonzero"] > 0 else 1.0
    return numbers


def _is_launcher() -> bool:
    """`python -m faultline` imports this package before its own main, which arms the plan and says a mistake in a sentence."""
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in words and words[words.index("-m") + 1 :][:1] == ["faultline"]


if not _is_launcher():
    arm_from_environment()
    watch_from_environment()
