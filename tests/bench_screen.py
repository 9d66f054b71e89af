"""The figures of docs/results/screen.md on one machine. `python tests/bench_screen.py OUT [--device cuda:0] [--build build]
[--parts rates,bound,drill] [--small]`: each part writes OUT/DEVICE-PART.json and is passed over where that file is there, so the
same command goes on where it was ended. On an H200 all parts together are meant to take less than 200 s.

rates: what a product and a copy reach while every result is judged, beside the same batches unjudged, in turn.
bound: an unhurried screen of --bound-seconds; what five minutes would give is its count times 300 over its seconds, and is called
extrapolated. With --bound-seconds 300 it is measured.
drill: faults planted by taps and by another thread, and healthy screens with inputs of their own (`faultline screen --selftest`)."""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def at_most_one_in(tested):
    """With no wrong launch among them: 1 / (1 - 0.05^(1/n))."""
    return int(-1 / (0.05 ** (1 / tested) - 1)) if tested else 0


class Bench:
    def __init__(self, options):
        self.options = options
        self.program = options.build.resolve() / "faultline"
        self.device = options.device

    def run(self, *arguments, timeout):
        started = time.monotonic()
        done = subprocess.run([str(self.program), "screen", "--device", self.device, "--json", "--quiet", *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False)
        seconds = time.monotonic() - started
        if not done.stdout.strip():
            raise SystemExit(f"faultline screen {arguments}: exit {done.returncode}\n{done.stderr[-4000:]}")
        return {"exit_code": done.returncode, "wall_seconds": round(seconds, 2), "answer": json.loads(done.stdout)}

    def screen(self, seconds, *arguments):
        result = self.run("--seconds", seconds, *arguments, timeout=seconds * 2 + 240)
        return {**result, "answer": result["answer"]["devices"][0]}

    def rates(self):
        found = self.screen(self.options.rates_seconds, "--rates", "--memory-share", "0.1")
        return {**found, "rates": found["answer"].get("rates", {})}

    def bound(self):
        found = self.screen(self.options.bound_seconds)
        record = found["answer"]
        counts = {"launches": record["bound"]["launches"]["tested"], "products": record["bound"]["products"]["tested"], "product_launches": record["groups"].get("product", {}).get("launches", 0)}
        seconds = record["seconds"] - record.get("preparation_seconds", 0)
        five = {name: int(count * 300 / seconds) for name, count in counts.items()}
        return {
            **found,
            "measured": {"seconds": seconds, **counts, **{f"{name}_at_most_one_in": at_most_one_in(count) for name, count in counts.items()}},
            "extrapolated_to_300_s": {**five, **{f"{name}_at_most_one_in": at_most_one_in(count) for name, count in five.items()}},
        }

    def drill(self):
        small = self.options.small
        trials, healthy = (24, 6) if small else (self.options.trials, self.options.healthy)
        return self.run("--selftest", "--trials", trials, "--healthy", healthy, "--trial-seconds", self.options.trial_seconds, timeout=7200)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--parts", default="rates,bound,drill")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rates-seconds", type=float, default=40)
    parser.add_argument("--bound-seconds", type=float, default=30)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--trial-seconds", type=float, default=0.1)
    options = parser.parse_args()
    if options.small:
        options.rates_seconds, options.bound_seconds = 6, 6
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for part in options.parts.split(","):
        path = options.out / f"{options.device.replace(':', '')}-{part}.json"
        if path.exists():
            print(f"{path} is there", file=sys.stderr)
            continue
        started = time.monotonic()
        record = {"part": part, "device": options.device, "machine": platform.machine(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0], **getattr(bench, part)()}
        record["part_seconds"] = round(time.monotonic() - started, 1)
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(f"{part}: {record['part_seconds']} s -> {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
