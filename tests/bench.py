"""Benchmarks: every figure beside a floor (clone) or a peer (the PyTorch expression) of the same run.

Prints a table and writes JSON. Timings are medians after warm-up; on CUDA by events, inside a CUDA graph where a figure
is about launches. Nothing here decides a test.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import faultline  # noqa: E402

OPS = torch.ops.faultline


def expression(x, strength):
    return x + torch.randn_like(x) * x.abs() * strength


def median_ms(function, device, repeats):
    for _ in range(3):
        function()
    times = []
    if device == "cuda":
        torch.cuda.synchronize()
        for _ in range(repeats):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    else:
        for _ in range(repeats):
            start = time.perf_counter()
            function()
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


class Table:
    def __init__(self):
        self.rows = []

    def add(self, name, milliseconds, against, base, goal=""):
        row = {"name": name, "ms": round(milliseconds, 5), "against": against, "ratio": round(milliseconds / base, 3), "goal": goal}
        self.rows.append(row)
        print(f"{name:58} {milliseconds:10.4f} ms  {row['ratio']:8.3f} x {against:18} {goal}", flush=True)


def bench_faults(table, x, device, repeats):
    y = torch.empty_like(x)
    clone = median_ms(lambda: y.copy_(x), device, repeats)
    table.add("clone (read + write)", clone, "clone", clone)
    slow = max(2, repeats // 5)
    peer = median_ms(lambda: expression(x, 0.05), device, slow)
    table.add("x + randn_like(x)*x.abs()*s (PyTorch)", peer, "clone", clone)
    ledger = faultline.new_ledger(x.device)
    work = x.clone()

    def run(fault, with_ledger):
        return median_ms(lambda: OPS.apply_(work, fault, ledger=ledger if with_ledger else None), device, repeats)

    full = run("relative_gaussian(strength=0.0005, rule.expect=invisible)", True)
    plain = run("relative_gaussian(strength=0.0005, rule.expect=invisible)", False)
    table.add("relative_gaussian, full ledger", full, "clone", clone, "<= 1.45 (aim 1.25) on H200")
    table.add("relative_gaussian, no ledger", plain, "clone", clone, "<= 1.15 on H200")
    table.add("  the PyTorch expression over full ledger", peer, "relative_gaussian", full, ">= 15 on 2 CPU cores")
    for fault in ("deadzone(threshold=0.001)", "scaled_gaussian(strength=0.0001)", "bitflip(rate=1e-9)", "gain(strength=0.000001, rule.expect=invisible)"):
        table.add(fault + ", full ledger", run(fault, True), "clone", clone)
    for name, goal in (("mxfp4", "<= 1.6 on H200"), ("nvfp4", "<= 2.0 on H200"), ("mxfp8_e4m3", ""), ("fp8_e4m3", ""), ("int4", ""),
                       ("mxfp6_e3m2", "<= 1.6 on H200"), ("nf4", "<= 1.6 on H200"), ("fp8_e4m3_1x128", "<= 1.6 on H200"), ("mxint8", "<= 2.0 on H200"), ("nvfp4_16x16", "<= 2.0 on H200"), ("hif8", "")):
        work.copy_(x)
        table.add(f"quantize {name}, full ledger", run(f"quantize(format={name})", True), "clone", clone, goal)
        table.add(f"quantize {name}, no ledger", run(f"quantize(format={name})", False), "clone", clone)


def bench_digest(table, x, device, repeats):
    fused = median_ms(lambda: OPS.checksum(x), device, repeats)
    table.add("checksum (fused int16 -> int64 sum)", fused, "checksum", fused)
    table.add("digest", median_ms(lambda: OPS.digest(x), device, repeats), "checksum", fused, "<= 1.15 on H200")
    peer = median_ms(lambda: x.view(torch.int16).sum(dtype=torch.int64), device, max(2, repeats // 5))
    table.add("x.view(int16).sum(int64) (PyTorch)", peer, "checksum", fused)


def graph_ms(build, count):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        build()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            build()
    return median_ms(graph.replay, "cuda", 30)


def bench_tap(table):
    """A tap of 256 x 1536 inside a CUDA graph: time it adds to a small kernel that stands for the operator."""
    x = torch.randn(256, 1536, device="cuda").to(torch.bfloat16)
    small = torch.zeros(8, device="cuda")
    fault = "relative_gaussian(strength=0.05)"
    ledger = faultline.new_ledger(x.device)
    count = 200

    def operator():
        small.add_(1)

    def tapped(control):
        operator()
        OPS.inject_(x, control, ledger, fault)

    base = graph_ms(operator, count)
    for name, armed, goal in (("armed", 1, "<= 3 us"), ("disarmed", 0, "<= 1.5 us")):
        control = OPS.control(fault, device=x.device)
        control[0] = armed
        cost = (graph_ms(lambda: tapped(control), count) - base) / count
        table.add(f"tap of 256x1536 in a graph, {name}: us each", cost * 1e3 * 1e-3, "1 us", 1e-3, goal)
    y = torch.empty_like(x)
    cost = (graph_ms(lambda: (operator(), y.copy_(x)), count) - base) / count
    table.add("copy of 256x1536 in a graph: us each", cost, "1 us", 1e-3)
    cost = (graph_ms(lambda: (operator(), expression(x, 0.05)), count) - base) / count
    table.add("PyTorch expression on 256x1536 in a graph: us each", cost, "1 us", 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--json", default="")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log2", type=int, default=0, help="elements: 2**LOG2 (default 28 on CUDA, 24 on CPU)")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    log2 = options.log2 or (28 if cuda else 24) - (4 if options.quick else 0)
    name = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    print(f"device: {name}, torch {torch.__version__}, {torch.get_num_threads()} threads, bf16, 2^{log2} elements")
    x = torch.randn(2 ** (log2 - 12), 4096, device=options.device).to(torch.bfloat16)
    table = Table()
    repeats = 30 if cuda else 7
    bench_faults(table, x, options.device, repeats)
    bench_digest(table, x, options.device, repeats)
    if cuda:
        bench_tap(table)
    if options.json:
        record = {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads(), "dtype": "bf16", "elements": 2**log2, "rows": table.rows}
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
