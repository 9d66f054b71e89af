"""The portable arithmetic against the plain PyTorch expression of the same noise, in one run: `y + randn_like(y) * s` beside
absolute_gaussian with and without its ledger, and the kernels beside both. With each stands how many operators a call hands to the device
(on CUDA: kernels). Prints a table and writes JSON; decides no test."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import faultline  # noqa: E402
from bench import median_ms as by_the_clock  # noqa: E402

FAULTS = ("absolute_gaussian(strength=0.05)", "relative_gaussian(strength=0.05)")


def median_ms(function, device, repeats):
    """On a CPU processor time of all threads, which other programs on the machine hardly change; on CUDA by events."""
    if device == "cuda":
        return by_the_clock(function, device, repeats)
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append((time.process_time() - start) * 1e3)
    return statistics.median(times)


VIEWS = {"aten::" + name for name in "view as_strided select narrow slice t transpose permute unsqueeze expand reshape flatten unflatten detach alias lift_fresh empty empty_like empty_strided resize_ _reshape_alias item _local_scalar_dense".split()}


def operators(function, device):
    """How many operators one call hands to the device, views and allocations left out."""
    from torch.profiler import ProfilerActivity, profile

    function()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]) as seen:
        function()
    if device == "cuda":
        return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())
    parents = {id(event.cpu_parent) for event in seen.events() if event.cpu_parent is not None and event.name.startswith("aten::") and event.name not in VIEWS}
    return sum(event.name.startswith("aten::") and event.name not in VIEWS and id(event) not in parents for event in seen.events())


def measure(device, elements, repeats):
    """-> rows of this process's arithmetic: name, dtype, milliseconds, operators."""
    rows = []
    arithmetic = os.environ.get("FAULTLINE_ARITHMETIC", "native")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(elements // 4096, 4096, device=device).to(dtype)
        y, ledger = torch.empty_like(x), faultline.new_ledger(device)

        def add(name, function, dtype=str(dtype)):
            rows.append([name, dtype, median_ms(function, device, repeats), operators(function, device)])

        add("y + randn_like(y) * s (PyTorch)", lambda: x + torch.randn_like(x) * 0.05)
        for fault in FAULTS:
            for counted in (False, True):
                y.copy_(x)
                add(f"{fault}, {arithmetic}, {'full' if counted else 'no'} ledger", lambda: faultline.apply_(y, fault, ledger=ledger if counted else None))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--elements", type=int, default=1 << 23)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--json", help="file to write")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if os.environ.get("FAULTLINE_ARITHMETIC") != "portable":  # once more as a child, with the kernels measured first
        rows = [row for row in measure(options.device, options.elements, options.repeats) if "native" in row[0]]
        command = [sys.executable, __file__, "--device", options.device, "--elements", str(options.elements), "--repeats", str(options.repeats), "--threads", str(options.threads)]
        done = subprocess.run(command, env={**os.environ, "FAULTLINE_ARITHMETIC": "portable"}, capture_output=True, text=True, check=True)
        rows = json.loads(done.stdout) + rows
        base = {dtype: milliseconds for name, dtype, milliseconds, _ in rows if "PyTorch" in name}
        table = [{"name": name, "dtype": dtype, "ms": round(milliseconds, 3), "ratio": round(milliseconds / base[dtype], 3), "operators": count} for name, dtype, milliseconds, count in rows]
        for row in table:
            print(f"{row['dtype']:16} {row['name']:60} {row['ms']:10.3f} ms {row['ratio']:8.3f} x {row['operators']:6} operators")
        if options.json:
            page = {"device": options.device, "elements": options.elements, "threads": torch.get_num_threads(), "torch": torch.__version__, "processor": platform.machine(), "rows": table}
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(json.dumps(page, indent=1) + "\n")
    else:
        print(json.dumps(measure(options.device, options.elements, options.repeats)))


if __name__ == "__main__":
    main()
