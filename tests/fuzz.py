"""Fuzzes every parser until each target has had its share of processor time, whoever else uses the machine: turns of
`--turn` seconds, always for the target that has had least. What libFuzzer finds ends the run with 1 and the input that
did it; the account (`--json`) is added to when the run is started again, for as long as the target is the same program: one
that was built anew from other sources begins at zero. New inputs stay in the build folder and are
begun with the next time; `--keep` takes as few of them as reach every edge they reach into tests/corpus.

    python tests/fuzz.py --minutes 30 --json fuzz.json
    python tests/fuzz.py --build build-fuzz --only gguf_fuzz --only parquet_fuzz
    python tests/fuzz.py --keep
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDS = [ROOT / "build-fuzz", ROOT / "build-fuzz-recipe"]
LOADED = {"parquet_fuzz": "libfaultline_parquet.so", "recipe_fuzz": "libfaultline.so"}  # by a target, from beside itself


def turn(target, found, corpus, seconds):
    """One turn of one target: processor seconds, executions, exit status and the end of its log. New inputs go to `found`."""
    command = [target, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=300", "-rss_limit_mb=2048", "-print_final_stats=1"]
    process = subprocess.Popen([*command, f"-artifact_prefix={target}-", found, corpus], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    executions = re.search(r"number_of_executed_units: *(\d+)", log)
    return usage.ru_utime + usage.ru_stime, int(executions[1]) if executions else 0, process.returncode, log[-4000:]


def chosen_targets(builds, only):
    targets = {path.name: path for path in sorted(path for build in builds for path in build.glob("*_fuzz"))}
    if not targets:
        sys.exit(f"no fuzz targets in {', '.join(map(str, builds))}: run ./dev fuzz, which builds them")
    if unknown := set(only) - set(targets):
        sys.exit(f"no target {', '.join(sorted(unknown))}: there are {', '.join(targets)}")
    if "parquet_fuzz" in targets and not (build := targets["parquet_fuzz"].parent).joinpath(LOADED["parquet_fuzz"]).exists():
        sys.exit(f"{build} has no libfaultline_parquet.so: parquet files would be refused before they are read; run ./dev fuzz, which builds it")
    return {name: path for name, path in targets.items() if not only or name in only}


def program_hash(target):
    """Of the program and what it loads from beside itself."""
    digest = hashlib.sha256(target.read_bytes())
    module = target.parent / LOADED.get(target.name, "")
    if module.is_file():
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


def continued(account, targets):
    """-> the account with a row for each target: its own if it is of this very program, and one of zeros if not."""
    rows = dict(account)
    for name, target in targets.items():
        program = program_hash(target)
        if rows.get(name, {}).get("program") != program:
            rows[name] = {"program": program, "cpu_minutes": 0, "executions": 0, "findings": 0}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, action="append", metavar="FOLDER", help="with targets; may be repeated")
    parser.add_argument("--corpora", type=pathlib.Path, default=ROOT / "tests" / "corpus")
    parser.add_argument("--minutes", type=float, default=1, help="processor minutes of each target")
    parser.add_argument("--turn", type=int, default=30, help="seconds of a turn")
    parser.add_argument("--json", type=pathlib.Path, help="the account, continued if it exists")
    parser.add_argument("--only", action="append", default=[], metavar="TARGET", help="of all targets these")
    parser.add_argument("--keep", action="store_true", help="fuzz nothing: take what earlier runs found into the corpora")
    options = parser.parse_args()
    targets = chosen_targets(options.build or BUILDS, options.only)
    found = {name: target.parent / "corpus" / name for name, target in targets.items()}
    corpora = {name: options.corpora / name for name in targets}
    for folder in (*found.values(), *corpora.values()):
        folder.mkdir(parents=True, exist_ok=True)
    if options.keep:
        for name, target in targets.items():
            subprocess.run([target, "-set_cover_merge=1", "-use_counters=0", corpora[name], found[name]], check=True, stderr=subprocess.DEVNULL)
        return
    account = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    account = continued(account, targets)
    for name in targets:
        if account[name]["cpu_minutes"] >= options.minutes:
            print(f"{name:18} {account[name]['cpu_minutes']:8.2f} CPU-min already, of this very program", flush=True)
    while True:
        name = min(targets, key=lambda each: account[each]["cpu_minutes"])
        row = account[name]
        if row["cpu_minutes"] >= options.minutes:
            break
        due = min(options.turn, math.ceil(60 * (options.minutes - row["cpu_minutes"])))
        seconds, executions, status, log = turn(targets[name], found[name], corpora[name], due)
        row["cpu_minutes"] = round(row["cpu_minutes"] + seconds / 60, 3)
        row["executions"] += executions
        row["findings"] += status != 0
        if options.json:
            options.json.write_text(json.dumps(account, indent=1) + "\n")
        print(f"{name:18} {row['cpu_minutes']:8.2f} CPU-min  {row['executions']:12,d} executions  {row['findings']} findings", flush=True)
        if status != 0:
            sys.exit(f"{log}\n{name} ended with {status}; its input is in {targets[name].parent}")


if __name__ == "__main__":
    main()
