"""Evidence from every process that computed: each writes its own file, and whoever started them gathers the files.

    FAULTLINE_EVIDENCE=folder        one file a process, process-HOST-PID.json, replaced whole each time it is written
    faultline.collect()              all of them, this process's included, with totals for each rule

Files and not messages, because the processes belong to somebody else: an engine core or a Ray worker may be killed at any
moment, and what it had written until then is still evidence. A file says whether its process came to an end
(`ended`), so that an account that was cut short is never taken for a whole one."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import sys
import tempfile
import time

import torch

_FORMAT = 1
_COUNTS = ("calls", "elements", "changed")
NO_NOISE = {"asked": 0, "norms": 0, "applications": 0}  # notes.aqn of a process whose recipe asks for noise on norms


class CollectionError(RuntimeError):
    """No process, or not the expected one, has evidence. `collection` holds what there is."""

    def __init__(self, complaints, collection):
        super().__init__("the evidence is missing: " + "; ".join(complaints))
        self.complaints, self.collection = complaints, collection


def folder() -> pathlib.Path | None:
    """Where the processes of this run write; nothing: nobody asked for it."""
    wish = os.environ.get("FAULTLINE_EVIDENCE")
    return pathlib.Path(wish) if wish else None


def snapshot(report: dict, *, role: str, work: dict[str, int], ended: bool, notes: dict[str, dict] | None = None) -> dict:
    return {"format": _FORMAT, "host": socket.gethostname(), "pid": os.getpid(), "role": role, "command": sys.argv[:1], "torch": str(torch.__version__),
            "time": time.time(), "ended": ended, "work": work, "notes": notes or {}, "report": report}


def write(into: pathlib.Path, entry: dict) -> pathlib.Path:
    """Whole or not at all: a reader never sees half a file."""
    into.mkdir(parents=True, exist_ok=True)
    target = into / f"process-{entry['host']}-{entry['pid']}.json"
    handle, name = tempfile.mkstemp(dir=into, prefix=".unfinished-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(name, target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    return target


def read(source: pathlib.Path) -> list[dict]:
    entries = []
    for path in sorted(source.glob("process-*.json")):
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: not an evidence file: {error}") from error
        if not isinstance(entry, dict) or entry.get("format") != _FORMAT:
            raise ValueError(f"{path}: not an evidence file of this version (format {_FORMAT})")
        entries.append(entry)
    return entries


def is_empty(report: dict) -> bool:
    """No rule met a call, not even one that it had a reason to pass over."""
    return not report["rows"] and not any(rule["unreached"] for rule in report["rules"])


def complaints_of_what_fired(report: dict) -> list[str]:
    """A rule may belong to the phase of another process (rollout here, training there): that it never fired in this one is
    no complaint; that it fired nowhere is one of the whole."""
    silent = tuple(f"rule '{rule['name']}' never fired" for rule in report["rules"] if not rule["calls"])
    return [text for text in report["complaints"] if not text.startswith(silent)] if silent else report["complaints"]


def complaints_about_noise(notes: dict, work: dict[str, int]) -> list[str]:
    """The section aqn is a promise about what generates: its norms have been given noise, and carry it."""
    aqn = notes.get("aqn")
    if aqn is None or not work.get("rollout"):
        return []
    if not aqn["applications"]:
        return ["this process has generated, and the noise that the recipe's section aqn asks for was put on no norm here; among other people's engines vLLM's sampler gets it"]
    if aqn["norms"] != aqn["asked"]:
        return [f"noise was put on {aqn['asked']} norm weights and {aqn['norms']} carry it: something wrote them past load_weights"]
    return []


def _noise_of_all(entries: list[dict]) -> dict | None:
    """The counts of the section aqn over the processes, as those of a rule; nothing where no recipe has the section."""
    noises = [entry["notes"]["aqn"] for entry in entries if "aqn" in entry["notes"]]
    if not noises:
        return None
    return {**{column: sum(noise[column] for noise in noises) for column in NO_NOISE}, "processes": sum(noise["applications"] > 0 for noise in noises)}


def merge(entries: list[dict]) -> dict:
    """-> {processes, rules, aqn, complaints}: totals of every rule over the processes, and of the noise on norms. A process
    complains for itself; over all of them a rule must have fired somewhere."""
    rules: dict[str, dict] = {}
    complaints: list[str] = []
    for entry in entries:
        who = f"process {entry['pid']} on {entry['host']}"
        for rule in entry["report"]["rules"]:
            total = rules.setdefault(rule["name"], {"kind": rule["kind"], **dict.fromkeys(_COUNTS, 0), "processes": 0})
            for column in _COUNTS:
                total[column] += int(rule[column])
            total["processes"] += rule["calls"] > 0
        if entry["work"] and is_empty(entry["report"]):
            complaints.append(f"{who} has computed, and no rule of the plan met a single call there")
        complaints += [f"{who}: {text}" for text in complaints_of_what_fired(entry["report"]) + complaints_about_noise(entry["notes"], entry["work"])]
    complaints += [f"rule '{name}' never fired in any process" for name, total in rules.items() if total["calls"] == 0]
    if not rules:
        complaints.append("no process has written evidence; was the plan armed (FAULTLINE_RECIPE) in the processes that compute?")
    aqn = _noise_of_all(entries)
    if aqn is not None and not aqn["processes"]:
        complaints.append("the section aqn put noise on no norm in any process")
    return {"processes": entries, "rules": rules, "aqn": aqn, "complaints": complaints}


def collect(source=None, *, on_missing: str = "raise") -> dict:
    """The evidence of all processes of a run, as {processes, rules, aqn, complaints}.

    source: nothing: the files in FAULTLINE_EVIDENCE, and this process. A path: the files in that folder. vLLM's LLM: its
    workers are asked (collective_rpc). A list of Ray actors: each is asked.
    on_missing: raise (CollectionError) or warn, where a rule fired nowhere or a process complains."""
    from faultline.plan import _check_on_missing

    _check_on_missing("on_missing", on_missing)
    collection = merge(_entries(source))
    if collection["complaints"]:
        if on_missing == "raise":
            raise CollectionError(collection["complaints"], collection)
        import warnings

        warnings.warn("faultline: " + "; ".join(collection["complaints"]), stacklevel=2)
    return collection


def _entries(source) -> list[dict]:
    if source is None:
        return own_entries()
    if isinstance(source, (str, os.PathLike)):
        if not pathlib.Path(source).is_dir():
            raise ValueError(f"{source}: no such folder; processes write their evidence where FAULTLINE_EVIDENCE says")
        return read(pathlib.Path(source))
    if hasattr(source, "collective_rpc"):
        return [entry for entry in _ask_vllm(source) if entry]
    if isinstance(source, (list, tuple)):
        from faultline.ray_workers import ask

        return ask(list(source))
    raise ValueError(f"collect() reads a folder, a vLLM engine or a list of Ray actors; got {type(source).__name__}")


def _ask_vllm(engine) -> list[dict | None]:
    try:
        return engine.collective_rpc("faultline_evidence")
    except Exception as error:  # of which class depends on where vLLM's workers live
        if "faultline_evidence" not in str(error):
            raise
        raise RuntimeError("vLLM's workers do not know faultline: vLLM found no plug-in of that name, and has computed without the plan; "
                           "install it with pip in this environment, PYTHONPATH alone announces no plug-in") from error


def own_entries() -> list[dict]:
    from faultline import environment

    entries = read(place) if (place := folder()) is not None else []
    if (own := environment.snapshot_now()) is not None:
        me = (own["host"], own["pid"])
        entries = [entry for entry in entries if (entry["host"], entry["pid"]) != me] + [own]
    return entries
