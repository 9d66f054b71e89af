"""Fuzzes every parser until each target has had its share of processor time, whoever else uses the machine: turns of
`--turn` seconds, always for the target that has had least. What libFuzzer finds ends the run with 1 and the input that
did it; the account (`--json`) is added to when the run is started again.

    python tests/fuzz.py --build build-fuzz --minutes 30 --json fuzz.json
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def turn(target, corpus, seconds, artifacts):
    """One turn of one target: processor seconds, executions, exit status and the end of its log."""
    corpus.mkdir(parents=True, exist_ok=True)
    command = [target, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=300", "-rss_limit_mb=2048", "-print_final_stats=1"]
    process = subprocess.Popen([*command, f"-artifact_prefix={artifacts}/{target.name}-", corpus], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    executions = re.search(r"number_of_executed_units: *(\d+)", log)
    return usage.ru_utime + usage.ru_stime, int(executions[1]) if executions else 0, process.returncode, log[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-fuzz")
    parser.add_argument("--corpora", type=pathlib.Path, default=ROOT / "tests" / "corpus")
    parser.add_argument("--minutes", type=float, default=1, help="processor minutes of each target")
    parser.add_argument("--turn", type=int, default=30, help="seconds of a turn")
    parser.add_argument("--json", type=pathlib.Path, help="the account, continued if it exists")
    options = parser.parse_args()
    targets = {path.name: path for path in sorted(options.build.glob("*_fuzz"))}
    if not targets:
        sys.exit(f"no fuzz targets in {options.build}: run ./dev fuzz, which builds them")
    account = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for name in targets:
        account.setdefault(name, {"cpu_minutes": 0, "executions": 0, "findings": 0})
    while True:
        name = min(targets, key=lambda each: account[each]["cpu_minutes"])
        row = account[name]
        if row["cpu_minutes"] >= options.minutes:
            break
        seconds, executions, status, log = turn(targets[name], options.corpora / name, options.turn, options.build)
        row["cpu_minutes"] = round(row["cpu_minutes"] + seconds / 60, 3)
        row["executions"] += executions
        row["findings"] += status != 0
        if options.json:
            options.json.write_text(json.dumps(account, indent=1) + "\n")
        print(f"{name:18} {row['cpu_minutes']:8.2f} CPU-min  {row['executions']:12,d} executions  {row['findings']} findings", flush=True)
        if status != 0:
            sys.exit(f"{log}\n{name} ended with {status}; its input is in {options.build}")


if __name__ == "__main__":
    main()
