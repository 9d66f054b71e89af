"""The figures of docs/results/race.md: what digests cost, how long an iteration takes, whether memory stays flat, and, on a
GPU, how often the host waits for it. Digests are taken in every second iteration of one run; the drift is what the same
measure gives for iterations that are both without. CPU seconds are the same on a busy machine, the others are not: the load
is recorded. `python tests/bench_race.py --build build --json OUT [--device cuda] [--quick] [--memory-shard 1000000]`."""

import argparse
import json
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMUNICATION = ["mode=fsdp", "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len", "canary=off", "shared_layer_weights=true", "h2d_tensor_size=1000000"]
BIG = [*COMMUNICATION, "num_layers=24", "fsdp_shard_size=1000000"]


class Bench:
    def __init__(self, options):
        self.program = options.build.resolve() / "faultline"
        self.device = options.device
        self.quick = options.quick
        self.memory_shard = options.memory_shard

    def command(self, *arguments):
        return [str(self.program), "race", "--ranks", "4", "--device", self.device, "--json", "--quiet", *arguments]

    def race(self, *arguments, env=None):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=ROOT)
        if not done.stdout:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout)
        assert result["verdict"] == "pass", result["sentence"]
        return result, done.stderr

    def overhead(self, name, *arguments, pairs):
        result, _ = self.race("--measure-overhead", "warmup_iterations=4", f"verify_iterations={2 * pairs}", *arguments)
        return {"name": name, **result["overhead"]}

    def iteration(self):
        result, _ = self.race("warmup_iterations=1", f"verify_iterations={2 if self.quick else 8}", *BIG)
        return {rank["rank"]: rank["step_seconds"] for rank in result["evidence"]}[0]

    def cpu_seconds(self):
        """CPU time of one such iteration on all ranks, with digests and without: of four more iterations than one."""
        cost = {}
        for digest in ("before", "off"):
            spent = []
            for iterations in (1, 5):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                self.race("warmup_iterations=0", f"verify_iterations={iterations}", f"digest={digest}", *BIG)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            cost[digest] = (spent[1] - spent[0]) / 4
        return {"with": cost["before"], "without": cost["off"], "relative": cost["before"] / cost["off"] - 1}

    def memory(self):
        """Resident memory of the process every tenth of a second; flat: the last quarter is no larger than the second."""
        iterations = 60 if self.quick else 500
        process = subprocess.Popen(self.command("warmup_iterations=5", f"verify_iterations={iterations}", *COMMUNICATION, "num_layers=24", f"fsdp_shard_size={self.memory_shard}"),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        samples = []
        while process.poll() is None:
            try:
                text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                samples.append(int(text.split("VmRSS:")[1].split()[0]))
            except (OSError, IndexError):
                pass
            time.sleep(0.1)
        quarter = len(samples) // 4
        return {"iterations": iterations, "shard": self.memory_shard, "samples": len(samples), "second_quarter_max_kib": max(samples[quarter : 2 * quarter]), "last_quarter_max_kib": max(samples[-quarter:-1])}

    def waits(self):
        """Waits of the host for the GPU in 20 iterations, with few and with many layers: the same number."""
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "libcount.so"
            compiler = shutil.which("c++") or shutil.which("g++")
            if compiler is None:
                return {"skipped": "no C++ compiler"}
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests" / "race_sync_count.cpp", "-ldl"], check=True)
            counts = {}
            for layers in (4, 24):
                _, text = self.race("warmup_iterations=2", "verify_iterations=20", *COMMUNICATION, f"num_layers={layers}", "fsdp_shard_size=20000", env={"LD_PRELOAD": str(library)})
                counts[layers] = int(text.split("RACE_SYNC_COUNT ")[1].split()[0])
            return {"layers_4": counts[4], "layers_24": counts[24]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory-shard", type=int, default=20000, help="elements of a shard in the 500 iterations that memory is watched in")
    options = parser.parse_args()
    bench = Bench(options)
    on_gpu = options.device != "cpu"
    pairs = 5 if options.quick else 60 if on_gpu else 20
    compute = ["model_dim=1024", "num_heads=8", "seq_len=512", "num_layers=24", "fsdp_shard_size=1000000", "real_backward=true"] if on_gpu else ["model_dim=256", "num_heads=4", "seq_len=128", "num_layers=8", "fsdp_shard_size=100000"]
    record = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load_average": os.getloadavg(), "device": options.device, "ranks": 4, "overhead": []}
    record["overhead"].append(bench.overhead("fsdp, transformer compute", *compute, pairs=pairs))
    record["overhead"].append(bench.overhead("fsdp, communication alone", *COMMUNICATION, "num_layers=24", "fsdp_shard_size=1000000" if on_gpu else "fsdp_shard_size=100000", pairs=pairs))
    record["iteration_4_ranks_24_layers_1M"] = bench.iteration()
    record["memory"] = bench.memory()
    if on_gpu:
        record["host_waits_in_20_iterations"] = bench.waits()
    else:
        record["cpu_seconds_of_that_iteration"] = bench.cpu_seconds()
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
