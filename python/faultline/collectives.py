"""The collective tap for programs that know nothing of it: `python -m faultline.collectives --out DIR script.py ARGS`, or
`torchrun … -m faultline.collectives --out DIR script.py ARGS`. The script is run unedited; every process group it makes
gets its backends wrapped the moment it is registered, and a group that could not be wrapped ends the script. Digests of
every collective's inputs and results go to DIR/rank-N.jsonl; `--compare DIR` says where ranks disagree."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import pathlib
import runpy
import sys

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _library  # noqa: F401  loads the operators

EXIT_FOUND, EXIT_EVIDENCE, EXIT_USAGE = 1, 3, 64
_EQUAL_RESULTS = {"all_reduce", "all_gather", "broadcast"}  # every rank must hold the same bytes afterwards
_state: dict[str, int] = {}


def install(folder: str | os.PathLike[str], corrupt: str = "") -> None:
    """Taps every process group made from now on. Call before `init_process_group`."""
    if not dist.is_available():
        raise RuntimeError("this torch has no torch.distributed")
    if dist.is_initialized():
        raise RuntimeError("a process group exists already; the tap must be on before init_process_group")
    if _state:
        raise RuntimeError("the collective tap is on already")
    rank = int(os.environ.get("RANK", "0"))
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(folder) / f"rank-{rank}.jsonl"
    path.unlink(missing_ok=True)
    torch.ops.faultline.collective_tap_start(str(path), rank, corrupt)
    _state["groups"] = 0
    original = distributed_c10d._register_process_group

    def register(name: str, group: object) -> None:
        original(name, group)
        if torch.ops.faultline.collective_tap_wrap(name) == 0:
            raise RuntimeError(f"the process group {name!r} has no backend that could be tapped")
        _state["groups"] += 1

    distributed_c10d._register_process_group = register
    atexit.register(finish)


def finish() -> int:
    """Writes what is pending; returns how many groups were tapped."""
    groups = _state.pop("groups", -1)
    if groups >= 0:
        torch.ops.faultline.collective_tap_stop()
    return groups


def read(path: pathlib.Path) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not lines or lines[-1].get("event") != "end":
        raise ValueError(f"{path}: the record does not end; did the process die?")
    return lines[:-1]


def compare(folder: str | os.PathLike[str]) -> list[str]:
    """Sentences about collectives whose ranks disagree, in the order of calls; empty: all agree."""
    ranks: dict[int, list[dict]] = {}
    for path in sorted(pathlib.Path(folder).glob("rank-*.jsonl")):
        if lines := read(path):
            ranks[lines[0]["rank"]] = lines
    if not ranks:
        raise ValueError(f"{folder}: no record of any rank")
    calls: dict[tuple[str, int, str], dict[int, dict]] = {}
    for rank, lines in ranks.items():
        for line in lines:
            calls.setdefault((line["group"], line["call"], line["when"]), {})[rank] = line
    found = []
    for (group, call, when), by_rank in sorted(calls.items(), key=lambda item: item[0][1]):
        operations = {line["operation"] for line in by_rank.values()}
        if len(operations) > 1:
            found.append(f"group {group} call {call}: ranks call different operations: {sorted(operations)}")
            continue
        if when != "after" or operations.isdisjoint(_EQUAL_RESULTS):
            continue
        values = {rank: tuple(line["digests"]) for rank, line in by_rank.items()}
        if len(set(values.values())) == 1:
            continue
        counts = {value: list(values.values()).count(value) for value in values.values()}
        most = max(counts.values())
        odd = [rank for rank, value in values.items() if counts[value] < most]
        blame = f"rank {', '.join(map(str, odd))} differs" if odd else "no majority"
        found.append(f"group {group} call {call} ({operations.pop()}): results differ between ranks; {blame}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m faultline.collectives", description=__doc__)
    parser.add_argument("--out", default="collectives", help="folder of the records, one file a rank")
    parser.add_argument("--corrupt", default="", help="'{operation: all_reduce, call: 3, rank: 1, kind: bitflip}'")
    parser.add_argument("--compare", metavar="DIR", help="compare the records of all ranks and exit")
    parser.add_argument("script", nargs="?")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.compare:
        found = compare(options.compare)
        print("\n".join(found) if found else "all ranks agree")
        return EXIT_FOUND if found else 0
    if not options.script:
        parser.print_usage(sys.stderr)
        return EXIT_USAGE
    install(options.out, options.corrupt)
    sys.argv = [options.script, *options.rest]
    sys.path[0] = str(pathlib.Path(options.script).resolve().parent)
    runpy.run_path(options.script, run_name="__main__")
    if finish() == 0:
        print("faultline: the script made no process group: nothing was tapped", file=sys.stderr)
        return EXIT_EVIDENCE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
