"""Why a number may not be reported, as the library has it: an object of code, rule, place and sentence. Programs decide by the
code, people read the sentence. The codes are those of src/base/complaint.h; the library tells them."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

import faultline._library  # noqa: F401  loads the operators


@functools.cache
def codes() -> dict[str, str]:
    """Every code and what it means."""
    return {entry["code"]: entry["meaning"] for entry in json.loads(torch.ops.faultline.complaint_codes())}


def complaint(code: str, sentence: str, *, rule: str = "", place: str = "") -> dict[str, str]:
    """One complaint as reports hold it. Raises AssertionError for a code that the library does not have."""
    if code not in codes():
        raise AssertionError(f"complaints have no code {code!r}")
    return {"code": code, "rule": rule, "place": place, "sentence": sentence}


def sentences(complaints: list[dict[str, str]]) -> str:
    """The sentences of several complaints in one line."""
    return "; ".join(one["sentence"] for one in complaints)


class EvidenceError(RuntimeError):
    """The fault behind a number is not proven. `complaints` says why (code, rule, place, sentence), `report` holds the ledger, or
    None where nothing was read."""

    def __init__(self, complaints: list[dict[str, str]], report: dict[str, Any] | None) -> None:
        """Takes what a report complains about, and the report; the message is the complaints' sentences."""
        super().__init__("the evidence is missing: " + sentences(complaints))
        self.complaints = complaints
        self.report = report


def check_on_missing(name: str, value: str) -> None:
    """Raises ValueError where `value`, given as `name`, is no answer to missing evidence."""
    if value not in ("raise", "warn"):
        raise ValueError(f"{name} is raise or warn; got {value!r}")
