"""Evidence from every process that computed: each writes its own file, and whoever started them gathers the files.

    FAULTLINE_EVIDENCE=folder        one file a process, process-HOST-PID.json, replaced whole each time it is written
    FAULTLINE_RUN                    set by the first process of a run, inherited by the others: which files are of this run
    faultline.collect()              all of them, this process's included, with totals for each rule

Files and not messages, because the processes belong to somebody else: an engine core or a Ray worker may be killed at any
moment, and what it had written until then is still evidence. A file says whether its process came to an end
(`ended`), so that an account that was cut short is never taken for a whole one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import socket
import sys
import tempfile
import time
import uuid
from typing import Any, Literal

import torch

from faultline import armed, noise
from faultline.complaints import check_on_missing, complaint, sentences
from faultline.launches import of_all

_FORMAT = 2  # complaints are objects
_VERDICT_FORMAT = 1  # read by `faultline triage`: src/triage/tap_verdict.cpp
BEFORE = "before"  # folder of the evidence of runs that this one resumed
_COUNTS = ("calls", "elements", "changed")


class CollectionError(RuntimeError):
    """No process, or not the expected one, has evidence. `complaints` says why, `collection` holds what there is."""

    def __init__(self, complaints: list[dict[str, str]], collection: dict[str, Any]) -> None:
        """Takes what is missing, and what merge() made of the rest; the message is the complaints' sentences."""
        super().__init__("the evidence is missing: " + sentences(complaints))
        self.complaints = complaints
        self.collection = collection


def run_id() -> str:
    """One word for all processes of a run: children inherit it, and files of an earlier run in the same folder do not have it."""
    return os.environ.setdefault("FAULTLINE_RUN", _launcher_id() or uuid.uuid4().hex)


def _launcher_id() -> str | None:
    """Ranks that torchrun started have no common parent of ours: what it gave all of them, and on one machine its own process."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_PORT" not in os.environ:
        return None
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    return "-".join([*(os.environ.get(name, "") for name in names), *([str(os.getppid())] if is_one_machine else [])])


def folder() -> pathlib.Path | None:
    """Where the processes of this run write; None: nobody asked for it."""
    wish = os.environ.get("FAULTLINE_EVIDENCE")
    return pathlib.Path(wish) if wish else None


def snapshot(report: dict[str, Any], *, role: str, work: dict[str, int], ended: bool, notes: dict[str, dict[str, Any]] | None = None, recipe: str = "") -> dict[str, Any]:
    """A process's evidence as its file holds it: its plan's report, what it is (`role`), how often it computed by phase (`work`),
    whether it came to its end, and what else was done there (`notes`). recipe: its digest, where the process read it by itself."""
    return {"format": _FORMAT, "run": run_id(), "host": socket.gethostname(), "pid": os.getpid(), "role": role, "command": sys.argv[:1], "torch": str(torch.__version__),
            "time": time.time(), "ended": ended, "recipe": recipe, "work": work, "notes": notes or {}, "report": report}


def write(into: pathlib.Path, entry: dict[str, Any]) -> pathlib.Path:
    """Writes a snapshot() into the folder, which is made if need be, and returns its path. Whole or not at all: a reader never sees
    half a file. Raises OSError."""
    return _replace(into / f"process-{entry['host']}-{entry['pid']}.json", entry)


def write_verdict(into: pathlib.Path, complaints: list[dict[str, str]], *, whole: bool, script_error: str | None) -> pathlib.Path:
    """Writes how this process was judged at its end, or (`whole`) how its run was, beside the snapshots, and returns the path. A program
    that started the run decides by it. script_error: how the script failed by itself, if it did. Raises OSError."""
    host, pid = socket.gethostname(), os.getpid()
    verdict = {"format": _VERDICT_FORMAT, "run": run_id(), "host": host, "pid": pid, "whole": whole, "complaints": complaints, "script_error": script_error}
    return _replace(into / f"verdict-{'run-' if whole else ''}{host}-{pid}.json", verdict)


def run_verdict(source: pathlib.Path, run: str | None = None) -> dict[str, Any] | None:
    """How a run, this one unless another is given, was judged as a whole (write_verdict): the worst of what its processes say; None:
    nobody has."""
    verdicts = [json.loads(path.read_text(encoding="utf-8")) for path in source.glob("verdict-run-*.json")]
    own = [verdict for verdict in verdicts if verdict["run"] == (run or run_id())]
    return max(own, key=lambda verdict: (bool(verdict["script_error"]), len(verdict["complaints"])), default=None)


def _replace(target: pathlib.Path, entry: dict[str, Any]) -> pathlib.Path:
    into = target.parent
    into.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=into, prefix=".unfinished-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(name, target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
    return target


def read(source: pathlib.Path) -> list[dict[str, Any]]:
    """The snapshots of every evidence file in a folder. Raises ValueError for a file that is damaged or of another version."""
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


def write_parts(into: pathlib.Path, entries: list[dict[str, Any]]) -> None:
    """Snapshots of several runs, each run's in a folder of its own. Raises OSError."""
    for entry in entries:
        write(into / entry["run"], entry)


def read_parts(source: pathlib.Path) -> list[dict[str, Any]]:
    """What write_parts() wrote; nothing where it wrote nothing. Raises ValueError as read() does."""
    return [entry for run in sorted(source.glob("*/")) for entry in read(run)]


def cut_short(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Of a run that is over: processes that computed and were ended before they could say so."""
    killed = [entry for entry in entries if entry["work"] and not entry["ended"]]
    if not killed:
        return []
    names = ", ".join(f"{entry['pid']} on {entry['host']}" for entry in killed)
    return [complaint("other_process", f"{len(killed)} of the processes that computed were killed or left ({names}): what they did after they last wrote is in no count")]


def is_empty(report: dict[str, Any]) -> bool:
    """No rule met a call, not even one that it had a reason to pass over. A plan without rules (aqn alone) is proven by its noise."""
    return bool(report["rules"]) and not report["rows"] and not any(rule["unreached"] for rule in report["rules"])


def complaints_of_process(report: dict[str, Any], *, role: str, work: dict[str, int], notes: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The complaints of a process that need not have computed. A rule may belong to the phase of another process (rollout here, training there):
    that it never fired in this one is no complaint; that it fired nowhere is one of the whole."""
    found = noise.complaints(notes, work)
    if role == "vllm" and "worker" not in notes and any(rule["calls"] for rule in report["rules"]):
        found.append(complaint("unpredicted", "a vLLM that faultline does not know has computed here: its worker was not followed, so warm-up was counted and forwards were not"))
    if (work or report["forwards"]) and is_empty(report):
        return [complaint("idle", "it has computed, and no rule of the plan met a single call there"), *found]
    return [one for one in report["complaints"] if one["code"] != "never_fired"] + found


def _complaints_about_workers(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """An engine of several workers computes in all of them: one that left no evidence may have computed without the plan."""
    engines: dict[str, dict[int, int]] = {}
    for entry in entries:
        if (worker := entry["notes"].get("worker")) is not None:
            engines.setdefault(worker["engine"], {})[worker["rank"]] = worker["world"]
    return [complaint("other_process", f"{max(ranks.values()) - len(ranks)} of {max(ranks.values())} workers of a vLLM engine have left no evidence: they may have computed without the plan")
            for ranks in engines.values() if len(ranks) < max(ranks.values())]


def merge(entries: list[dict[str, Any]], before: list[dict[str, Any]] | tuple[()] = ()) -> dict[str, Any]:
    """Snapshots -> {processes, rules, aqn, launches, complaints}: totals of every rule over the processes, of the noise on norms and of the proof windows. A process
    complains for itself; over all of them a rule must have fired somewhere. before: of the runs that this one resumed, whose counts go on."""
    rules: dict[str, dict[str, Any]] = {}
    complaints: list[dict[str, str]] = _complaints_about_workers(entries)
    if len({entry["recipe"] for entry in entries if entry["recipe"]}) > 1:
        complaints.append(complaint("other_process", "processes of this run have armed different recipes: the file changed while they started"))
    # A part of one step looks as if nobody moved it; the parts together show that somebody did.
    is_moving = bool(before) and len({entry["report"]["steps"]["now"] for entry in [*before, *entries] if entry["work"]}) > 1
    for entry in [*before, *entries]:
        who = f"process {entry['pid']} on {entry['host']}"
        for rule in entry["report"]["rules"]:
            total = rules.setdefault(rule["name"], {"kind": rule["kind"], **dict.fromkeys(_COUNTS, 0), "processes": 0})
            for column in _COUNTS:
                total[column] += int(rule[column])
            total["processes"] += rule["calls"] > 0
        own = complaints_of_process(entry["report"], role=entry["role"], work=entry["work"], notes=entry["notes"])
        complaints += [{**one, "sentence": f"{who}: {one['sentence']}"} for one in own if not (is_moving and one["code"] == "still")]
    complaints += [complaint("never_fired", f"rule '{name}' never fired in any process", rule=name) for name, total in rules.items() if total["calls"] == 0]
    if not rules and noise.of_all(entries) is None:
        complaints.append(complaint("no_evidence", "no process has written evidence; was the plan armed (FAULTLINE_RECIPE) in the processes that compute?"))
    aqn = noise.of_all(entries)
    if aqn is not None and (earlier := noise.of_all(before)) is not None:
        aqn["applications"] += earlier["applications"]
    if aqn is not None and not aqn["processes"]:
        complaints.append(complaint("noise_missing", "the section aqn put noise on no norm in any process"))
    return {"processes": entries, "rules": rules, "aqn": aqn, "launches": of_all([entry["report"] for entry in [*before, *entries]]), "complaints": complaints}


def collect(source: str | os.PathLike[str] | list[Any] | Any | None = None, *, on_missing: Literal["raise", "warn"] = "raise") -> dict[str, Any]:
    """The evidence of all processes of a run, as {processes, rules, aqn, launches, complaints}.

    source: None: the files in FAULTLINE_EVIDENCE, and this process. A path: the files in that folder, with those of the runs that it
    resumed; processes of a failed run that were killed are complained about. vLLM's LLM: its
    workers are asked (collective_rpc). A list of Ray actors: each is asked.
    on_missing: raise (CollectionError) or warn, where a rule fired nowhere or a process complains. Raises ValueError for a source
    that cannot be read, RuntimeError where an engine does not know faultline or an actor is gone."""
    check_on_missing("on_missing", on_missing)
    collection = merge(_entries(source), _before(source))
    collection["complaints"] += _complaints_about_the_end(source, collection["processes"])
    if collection["complaints"]:
        if on_missing == "raise":
            raise CollectionError(collection["complaints"], collection)
        import warnings

        warnings.warn("faultline: " + sentences(collection["complaints"]), stacklevel=2)
    return collection


def _entries(source: Any) -> list[dict[str, Any]]:
    if source is None:
        return own_entries()
    if isinstance(source, (str, os.PathLike)):
        if not pathlib.Path(source).is_dir():
            raise ValueError(f"{source}: no such folder; processes write their evidence where FAULTLINE_EVIDENCE says")
        entries = read(pathlib.Path(source))
        if len(runs := {entry["run"] for entry in entries}) > 1:
            raise ValueError(f"{source} holds the evidence of {len(runs)} runs, which prove nothing for each other; give each run a folder of its own")
        return entries
    if hasattr(source, "collective_rpc"):
        return [entry for entry in _ask_vllm(source) if entry]
    if isinstance(source, (list, tuple)):
        return _ask_ray(list(source))
    raise ValueError(f"collect() reads a folder, a vLLM engine or a list of Ray actors; got {type(source).__name__}")


def _before(source: Any) -> list[dict[str, Any]]:
    return read_parts(pathlib.Path(source) / BEFORE) if isinstance(source, (str, os.PathLike)) else []


def _complaints_about_the_end(source: Any, entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Of a folder whose run is over and did not end well. While it goes on nobody has come to an end, and after a good one an engine may
    end its workers as it likes."""
    if not entries or not isinstance(source, (str, os.PathLike)):
        return []
    verdict = run_verdict(pathlib.Path(source), entries[0]["run"])
    return cut_short(entries) if verdict is not None and (verdict["script_error"] or verdict["complaints"]) else []


def _ask_vllm(engine: Any) -> list[dict[str, Any] | None]:
    try:
        return engine.collective_rpc("faultline_evidence")
    except Exception as error:  # of which class depends on where vLLM's workers live
        if any(entry.name == "faultline" for entry in importlib.metadata.entry_points(group="vllm.general_plugins")):
            raise
        raise RuntimeError("vLLM's workers do not know faultline: vLLM found no plug-in of that name, and has computed without the plan; "
                           "install it with pip in this environment, PYTHONPATH alone announces no plug-in") from error


def _ask_ray(actors: list[Any]) -> list[dict[str, Any]]:
    """The evidence of the processes in which these actors live. Raises RuntimeError if an actor is gone, ValueError if one has no
    plan armed."""
    import ray

    try:
        answers = ray.get([actor.__ray_call__.remote(lambda _: armed.snapshot()) for actor in actors])
    except ray.exceptions.RayActorError as error:
        raise RuntimeError(f"an actor is gone, and its evidence with it (set FAULTLINE_EVIDENCE to a folder that outlives it): {error}") from error
    missing = sum(answer is None for answer in answers)
    if missing:
        raise ValueError(f"{missing} of {len(actors)} actors have no plan armed; start them under runtime_env=faultline.ray_workers.runtime_env(recipe)")
    return list({(answer["host"], answer["pid"]): answer for answer in answers}.values())


def own_entries() -> list[dict[str, Any]]:
    """The snapshots of this run in the folder of FAULTLINE_EVIDENCE, with this process as it is now."""
    entries = [entry for entry in read(place) if entry["run"] == run_id()] if (place := folder()) is not None else []
    if (own := armed.snapshot()) is not None:
        me = (own["host"], own["pid"])
        entries = [entry for entry in entries if (entry["host"], entry["pid"]) != me] + [own]
    return entries
