"""The evidence of all processes as numbers of a training step, beside verl's own, and how far the policy that sampled is from the one that
learns: both are measured on what was really computed, so faults in one of them show."""

from __future__ import annotations

import math
from typing import Any

import torch

from faultline import noise

_PERCENTILES = (1, 50, 99)


def of_evidence(entries: list[dict[str, Any]], complaints: list[dict[str, str]]) -> dict[str, float]:
    """faultline/RULE/calls, /changed and /relative_error over all processes, /PHASE/calls of it; faultline/aqn/…; complaints so far."""
    rows = [row for entry in entries for row in entry["report"]["rows"]]
    metrics: dict[str, float] = {}
    for rule in {name["name"]: None for entry in entries for name in entry["report"]["rules"]}:
        own = [row for row in rows if row["rule"] == rule]
        metrics |= _of_rows(f"faultline/{rule}", own)
        for phase in {row["phase"]: None for row in own}:
            metrics[f"faultline/{rule}/{phase}/calls"] = sum(row["ledger"]["calls"] for row in own if row["phase"] == phase)
    for entry in entries:
        metrics |= noise.metrics(entry["notes"])
    metrics["faultline/complaints"] = float(len(complaints))
    metrics["faultline/partial"] = float(sum(one["code"] == "partial" for one in complaints))
    return metrics


def _of_rows(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    ledgers = [row["ledger"] for row in rows]
    elements = sum(ledger["elements"] for ledger in ledgers)
    metrics = {f"{name}/calls": float(sum(ledger["calls"] for ledger in ledgers)), f"{name}/changed": sum(ledger["changed"] for ledger in ledgers) / elements if elements else 0.0}
    measured = [ledger for ledger in ledgers if ledger["relative_rms"] is not None]
    if total := sum(ledger["sampled"] for ledger in measured):
        metrics[f"{name}/relative_error"] = math.sqrt(sum(ledger["sampled"] * ledger["relative_rms"] ** 2 for ledger in measured) / total)
    return metrics


def of_mismatch(sampled: torch.Tensor, learning: torch.Tensor) -> dict[str, float]:
    """Log-probabilities of the sampled tokens, by the policy that sampled them and by the one that learns, one of each for every token
    that counts. Token KL of the first from the second by its two estimators (k1: mean log-ratio; k3: never negative), percentiles of
    the importance ratio, and the share of tokens that an importance-weighted mean is worth."""
    if sampled.numel() == 0:
        return {}
    log_ratio = learning.double() - sampled.double()
    ratio = log_ratio.clamp(-20, 20).exp()
    metrics = {"kl_k1": -log_ratio.mean().item(), "kl_k3": (ratio - 1 - log_ratio).mean().item(), "effective_sample_share": (ratio.sum() ** 2 / (ratio.numel() * (ratio**2).sum())).item()}
    ordered = ratio.sort().values  # torch.quantile takes no more than 16 million
    for percentile in _PERCENTILES:
        metrics[f"ratio_p{percentile}"] = ordered[round(percentile / 100 * (len(ordered) - 1))].item()
    return {f"faultline/mismatch/{name}": value for name, value in metrics.items()}
