"""A campaign of diagnosis and a race side by side for hours: memory, file descriptors and pace must be those of the beginning.

    python tests/soak.py --minutes 120 --json soak.json

Each process is looked at `--samples` times. After a warm-up (a fifth of its samples) its resident memory may grow by at most
2 per cent, from the median of the first fifth that follows to the median of the last; its open files may not be more; what it
does in a second of processor time, which other work on the machine changes little, may not be less by more than 10 per cent.
A campaign that comes to its end is begun again with another seed, as a process of its own."""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import tiny_folder
from program import PROGRAM, ROOT

GROWTH, SLOWDOWN = 0.02, 0.10
LEAST_SAMPLES = 20  # of a process that is judged


class Subject:
    """A long command, its samples, and the samples of those before it."""

    def __init__(self, name, words, folder):
        self.name, self.words, self.folder = name, words, folder
        self.number, self.finished, self.failures = 0, [], []
        self.start()

    def start(self):
        self.number += 1
        self.samples = []
        self.log = self.folder / f"{self.name}-{self.number}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([PROGRAM, *map(str, self.words(self.number))], stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"})

    def done(self):
        """How far its progress is; a line appears every ten seconds."""
        counts = re.findall(r"([\d.]+)([kMG]?)/\S+ \[", self.log.read_text(encoding="utf-8", errors="replace"))
        return round(float(counts[-1][0]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[counts[-1][1]]) if counts else 0

    def sample(self):
        if self.process.poll() is not None:
            self.finished.append(self.samples)
            if self.process.returncode != 0:
                self.failures.append(f"{self.name} exited with {self.process.returncode}: {self.log.read_text(errors='replace')[-2000:]}")
            self.start()
            return
        about = pathlib.Path(f"/proc/{self.process.pid}")
        try:
            fields = about.joinpath("stat").read_text().rsplit(")", 1)[1].split()
            resident = int(re.search(r"VmRSS:\s+(\d+)", about.joinpath("status").read_text())[1])
            files = len(list(about.joinpath("fd").iterdir()))
        except (OSError, TypeError):  # it ended at this moment
            return
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.samples.append({"kib": resident, "files": files, "cpu": cpu, "done": self.done()})

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.finished.append(self.samples)


def judge(name, samples):
    """-> a row of the account; None for too few samples."""
    if len(samples) < LEAST_SAMPLES:
        return None
    fifth = len(samples) // 5
    first, last = samples[fifth : 2 * fifth], samples[-fifth:]
    middle = samples[fifth:][len(samples[fifth:]) // 2]
    row = {"process": name, "samples": len(samples), "cpu_seconds": round(samples[-1]["cpu"], 1), "done": samples[-1]["done"]}
    for key in ("kib", "files"):
        row[f"{key}_first"], row[f"{key}_last"] = (statistics.median(sample[key] for sample in part) for part in (first, last))

    def pace(begin, end):
        return (end["done"] - begin["done"]) / max(end["cpu"] - begin["cpu"], 1e-9)

    row["pace_first"], row["pace_last"] = round(pace(first[0], middle), 2), round(pace(middle, last[-1]), 2)
    row["growth"] = row["kib_last"] / row["kib_first"] - 1
    row["flat"] = row["pace_first"] > 0 and row["growth"] <= GROWTH and row["files_last"] <= row["files_first"] and row["pace_last"] >= (1 - SLOWDOWN) * row["pace_first"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = tiny_folder.make(folder / "model")
        subjects = [
            Subject("race", lambda number: ["race", "verify_iterations=1000000000", "log_interval=10"], folder),
            Subject("campaign", lambda number: ["diagnose", "--model", model, "--campaign", "full", "--method", "self", "--seed", number, "--store", folder / f"trials-{number}.sqlite"], folder),
        ]
        begin = time.monotonic()
        try:
            for number in range(1, options.samples + 1):
                time.sleep(max(0, begin + number * 60 * options.minutes / options.samples - time.monotonic()))
                for subject in subjects:
                    subject.sample()
        finally:
            for subject in subjects:
                subject.stop()
        rows = [row for subject in subjects for samples in subject.finished if (row := judge(subject.name, samples))]
        failures = [failure for subject in subjects for failure in subject.failures]
        failures += [f"no process of {subject.name} lived long enough to be judged" for subject in subjects if not any(row["process"] == subject.name for row in rows)]
    account = {"minutes": options.minutes, "processes": rows, "failures": failures}
    if options.json:
        options.json.write_text(json.dumps(account, indent=1) + "\n")
    for row in rows:
        print(f"{row['process']:9} {row['done']:>9,d} done, {row['kib_first'] / 1024:.1f} -> {row['kib_last'] / 1024:.1f} MiB ({row['growth']:+.2%}), {row['files_first']:g} -> {row['files_last']:g} files, "
              f"{row['pace_first']} -> {row['pace_last']} a CPU-second: {'flat' if row['flat'] else 'NOT FLAT'}")
    print("\n".join(failures))
    sys.exit(1 if failures or not all(row["flat"] for row in rows) else 0)


if __name__ == "__main__":
    main()
