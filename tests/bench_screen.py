"""The figures of docs/results/screen.md on one machine. `python tests/bench_screen.py OUT [--device cuda:0] [--build build]
[--name h200] [--parts drill,copies,bound,quick] [--budget SECONDS]`: each part writes OUT/NAME-screen-PART.json and is passed over where that
file is there, so the same command goes on where it was ended. With --budget the last part, bound, gets what is left of it, 300 s at most.

drill: `faultline screen --selftest` in several processes at once, each with a seed of its own: planted faults, and healthy screens.
copies: `faultline screen --load memory` while tests/screen_copy_fault.cpp (LD_PRELOAD) spoils some of torch's copies on a GPU: what
was spoilt is known from its own list. A run without a fault stands beside it.
bound: one screen with --rates: what products and copies reach while every result is judged beside the same batches unjudged, the
canaries, and the bound. quick: `--quick`, timed, and which kernels of oneDNN ran (by its own list) in a short one. Below 300 s what five minutes would give is its count times 300 over its seconds, and is called extrapolated."""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ADDED = ("planted", "found", "placed", "rated", "rate_right", "planted_launches", "healthy", "healthy_launches", "accused")
COPY_BYTES = 256 << 20  # of one buffer of a GPU's chain


def at_most_one_in(tested):
    """With no wrong launch among them: 1 / (1 - 0.05^(1/n))."""
    return int(-1 / (0.05 ** (1 / tested) - 1)) if tested else 0


def added_up(answers):
    """Self-tests of several processes as one."""
    sums = {key: sum(answer[key] for answer in answers) for key in ADDED}
    rows = {}
    for answer in answers:
        for row in answer["rows"]:
            one = rows.setdefault((row["source"], row["what"]), {"source": row["source"], "what": row["what"]})
            for key in ("planted", "found", "placed", "rated", "rate_right"):
                one[key] = one.get(key, 0) + row[key]
    lists = {key: sorted({sentence for answer in answers for sentence in answer[key]}) for key in ("misses", "not_planted")}
    seconds = {key: round(sum(answer[key] for answer in answers), 1) for key in ("seconds", "healthy_seconds")}
    return {**sums, **lists, **seconds, "processes": len(answers), "seeds": [answer["seed"] for answer in answers], "rows": [rows[key] for key in sorted(rows)]}


class Bench:
    def __init__(self, options):
        self.options = options
        self.program = options.build.resolve() / "faultline"
        self.device = options.device
        self.started = time.monotonic()

    def run(self, *arguments, timeout, environment=()):
        started = time.monotonic()
        command = [str(self.program), "screen", "--device", self.device, "--json", "--quiet", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **dict(environment)})
        seconds = time.monotonic() - started
        if not done.stdout.strip():
            raise RuntimeError(f"faultline screen {arguments}: exit {done.returncode}\n{done.stderr[-4000:]}")
        return {"exit_code": done.returncode, "wall_seconds": round(seconds, 2), "answer": json.loads(done.stdout)}

    def drill(self):
        o = self.options

        def one(number):
            kind = ("--trials", o.trials, "--healthy", 0) if number < o.planters else ("--trials", 0, "--healthy", o.healthy)
            arguments = ("--selftest", *kind, "--seed", o.seed + number, "--most-seconds", o.most_seconds)
            return self.run(*arguments, timeout=4 * o.most_seconds + 600, environment={"OMP_NUM_THREADS": "1"})["answer"]

        with concurrent.futures.ThreadPoolExecutor(o.planters + o.healers) as pool:
            return added_up(list(pool.map(one, range(o.planters + o.healers))))

    def copies(self):
        if not self.device.startswith("cuda"):
            return {"why_not": "torch copies within a CPU's memory by loops of its own: the drill spoils its copy operator"}
        compiler = shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            return {"why_not": "no C++ compiler on this machine"}
        runs = {}
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "libcopy_fault.so"
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/screen_copy_fault.cpp", "-ldl"], check=True)
            for name, kind, every in (("clean", 1, 0), ("to the device", 1, 41), ("on the device", 3, 401)):
                log = pathlib.Path(folder) / f"{kind}-{every}"
                environment = {"LD_PRELOAD": str(library), "FAULTLINE_COPY_BYTES": str(COPY_BYTES), "FAULTLINE_COPY_KIND": str(kind),
                               "FAULTLINE_COPY_EVERY": str(every), "FAULTLINE_COPY_AFTER": "100", "FAULTLINE_COPY_LOG": str(log)}  # fmt: skip
                found = self.run("--load", "memory", "--seconds", self.options.copy_seconds, "--memory-share", 0.02, timeout=240, environment=environment)
                record = found["answer"]["devices"][0]
                runs[name] = {
                    "verdict": record["verdict"], "sentence": record["sentence"], "spoilt": len(log.read_text().splitlines()) if log.exists() else 0,
                    "one_in": every, "wrong": record["groups"]["copy"]["wrong"], "launches": record["groups"]["copy"]["launches"],
                    "checks": {row["check"]: [row["wrong"], row["launches"]] for row in record["checks"] if row["group"] == "copy"},
                    "failures": [{key: one.get(key) for key in ("check", "stage", "suspect", "certainty", "wrong_elements", "element")} for one in record["failures"]],
                    "wall_seconds": found["wall_seconds"],
                }  # fmt: skip
        return {"runs": runs}

    def bound(self):
        o = self.options
        seconds = o.bound_seconds
        if o.budget:
            seconds = min(seconds, int(o.budget - (time.monotonic() - self.started) - o.preparation))
        found = self.run("--seconds", seconds, "--rates", timeout=seconds * 2 + 240)
        record = found["answer"]["devices"][0]
        counts = {"launches": record["bound"]["launches"]["tested"], "products": record["bound"]["products"]["tested"], "product_launches": record["groups"].get("product", {}).get("launches", 0)}
        worked = record["seconds"] - record.get("preparation_seconds", 0)
        five = {name: int(count * 300 / worked) for name, count in counts.items()}
        return {
            **{**found, "answer": record},
            "measured": {"seconds": worked, **counts, **{f"{name}_at_most_one_in": at_most_one_in(count) for name, count in counts.items()}},
            "extrapolated_to_300_s": None if seconds >= 300 else {**five, **{f"{name}_at_most_one_in": at_most_one_in(count) for name, count in five.items()}},
        }


    def quick(self):
        found = self.run("--quick", timeout=900)
        (record,) = found["answer"]["devices"]
        listed = subprocess.run([str(self.program), "screen", "--device", self.device, "--seconds", "4", "--memory-share", "0", "--json", "--quiet"],
                                capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "ONEDNN_VERBOSE": "1"})  # fmt: skip
        lines = [line.split(",") for line in listed.stdout.splitlines() if line.startswith("onednn_verbose") and ",exec," in line]
        kernels = collections.Counter(line[line.index("exec") + 3].split(":")[-1] for line in lines if "matmul" in line)
        keys = ("verdict", "sentence", "seconds", "seconds_asked", "cores", "bound", "groups", "canaries", "not_tested", "identity", "memory")
        return {"wall_seconds": found["wall_seconds"], "exit_code": found["exit_code"], **{key: record[key] for key in keys}, "onednn_matmuls": dict(kernels)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--name", help="in the names of the records; the device")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--parts", default="drill,copies,bound")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, help="seconds for all parts together")
    parser.add_argument("--bound-seconds", type=float, default=300)
    parser.add_argument("--preparation", type=float, default=35, help="seconds that inputs, answers and the end of a screen take")
    parser.add_argument("--copy-seconds", type=float, default=5)
    parser.add_argument("--trials", type=int, default=60, help="of one process")
    parser.add_argument("--healthy", type=int, default=100, help="of one process")
    parser.add_argument("--planters", type=int, default=4, help="processes that plant faults")
    parser.add_argument("--healers", type=int, default=8, help="processes of healthy screens")
    parser.add_argument("--most-seconds", type=float, default=50)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    failed = 0
    for part in options.parts.split(","):
        path = options.out / f"{options.name or options.device.replace(':', '')}-screen-{part}.json"
        if path.exists():
            print(f"{path} is there", file=sys.stderr)
            continue
        started = time.monotonic()
        record = {"part": part, "device": options.device, "machine": platform.machine(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        try:
            record.update(getattr(bench, part)())
        except (RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:  # the next part may still be had
            print(f"{part}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = 1
            continue
        record["part_seconds"] = round(time.monotonic() - started, 1)
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(f"{part}: {record['part_seconds']} s -> {path}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
