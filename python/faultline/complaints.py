"""Why a number may not be reported, as the library has it: an object of code, rule, place and sentence. Programs decide by the
code, people read the sentence. The codes are those of src/base/complaint.h; the library tells them."""

from __future__ import annotations

import functools
import json

import torch

import faultline._library  # noqa: F401  loads the operators


@functools.cache
def codes() -> dict[str, str]:
    """Every code and what it means."""
    return {entry["code"]: entry["meaning"] for entry in json.loads(torch.ops.faultline.complaint_codes())}


def complaint(code: str, sentence: str, *, rule: str = "", place: str = "") -> dict[str, str]:
    if code not in codes():
        raise AssertionError(f"complaints have no code {code!r}")
    return {"code": code, "rule": rule, "place": place, "sentence": sentence}


def sentences(complaints: list[dict[str, str]]) -> str:
    return "; ".join(one["sentence"] for one in complaints)
