"""What a plan costs: one training step (forward + backward) of a Qwen2-shaped model with random weights, 5 %
relative noise on every matmul with the full ledger, against the same step without a plan, in one run. Beside it the
step with hooks alone, with the plan disarmed, and with the published way (Python functions patched, PyTorch noise)."""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import faultline  # noqa: E402

CLOCK = time.perf_counter
NOISE = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
EMBEDDING = {"seed": 1, "faults": [{"name": "other", "where": {"operator": "embedding"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}


def qwen2(size, device):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {
        "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
        "small": dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=4, vocab_size=8192),
    }
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**sizes[size], tie_word_embeddings=True, use_cache=False)).to(torch.bfloat16)
    return model


@contextlib.contextmanager
def published_way(strength=0.05):
    """What the literature's code does: torch.matmul and F.linear replaced by Python functions that add noise."""
    linear, matmul = torch.nn.functional.linear, torch.matmul

    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(_context, y):
            return y + torch.randn_like(y) * y.abs() * strength

        @staticmethod
        def backward(_context, gradient):
            return gradient + torch.randn_like(gradient) * gradient.abs() * strength

    torch.nn.functional.linear = lambda *a, **k: Noise.apply(linear(*a, **k))
    torch.matmul = lambda *a, **k: Noise.apply(matmul(*a, **k))
    try:
        yield
    finally:
        torch.nn.functional.linear, torch.matmul = linear, matmul


def median_ms(step, device, repeats):
    step()
    times = []
    gc.collect()
    gc.disable()  # a collection inside a step is none of the plan's cost
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = CLOCK()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((CLOCK() - start) * 1e3)
    gc.enable()
    return statistics.median(times)


def compiled(model, ids, rows):
    """Default Inductor: every GEMM of the model must be reached; 7 a layer and the head, and rotary's one."""
    forward = torch.compile(model)
    with torch.no_grad():
        forward(input_ids=ids)
        with faultline.plan(NOISE, model=model) as plan:
            forward(input_ids=ids)
    calls = sum(row["ledger"]["calls"] for row in plan.report["rows"])
    layered = sum(row["ledger"]["calls"] for row in plan.report["rows"] if row["layer"] >= 0)
    expected = 7 * model.config.num_hidden_layers + 1
    rows.append({"name": "compiled forward: GEMMs reached", "calls": calls, "with_layer": layered, "linears_of_the_model": expected})
    print(f"compiled forward: {calls:.0f} GEMMs reached, {layered:.0f} with their layer; the model has {expected} linears")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3, help="steps of a block; the median of them is a block's time")
    parser.add_argument("--rounds", type=int, default=11, help="pairs of blocks, with and without, in turn")
    parser.add_argument("--processor-time", action="store_true", help="seconds of this process' threads: for a machine with other work, on a CPU")
    parser.add_argument("--no-peer", action="store_true", help="leave out the published way and the compiled forward")
    options = parser.parse_args()
    if options.processor_time:
        global CLOCK
        CLOCK = time.process_time
    cuda = options.device == "cuda"
    size, batch, tokens = ("1.5b", 8, 512) if cuda else ("small", 4, 256)
    repeats = options.repeats
    model = qwen2(size, options.device)
    ids = torch.randint(0, 8000, (batch, tokens), device=options.device)
    name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"device: {name}, Qwen2 {size}, {batch}x{tokens} tokens, bf16, forward + backward")

    def step():
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()

    # Clocks drift by several per cent: every variant is measured right beside the step without a plan, each first in
    # every second pair, and the median of the ratios counts.
    def beside(label, variant, rounds=options.rounds):
        ratios, times = [], []
        step()
        for turn in range(rounds):
            base = median_ms(step, options.device, repeats) if turn % 2 == 0 else None
            with variant():
                times.append(median_ms(step, options.device, repeats))
            base = base or median_ms(step, options.device, repeats)
            ratios.append(times[-1] / base)
        row = {"name": label, "ms": round(statistics.median(times), 3), "over_no_plan": round(statistics.median(ratios) - 1, 4), "spread": [round(min(ratios) - 1, 4), round(max(ratios) - 1, 4)]}
        rows.append(row)
        print(f"{label:58} {row['ms']:9.2f} ms  {100 * row['over_no_plan']:+7.2f} %  ({100 * row['spread'][0]:+.2f} … {100 * row['spread'][1]:+.2f})", flush=True)

    @contextlib.contextmanager
    def armed(recipe, **options):
        nonlocal last
        with faultline.plan(recipe, **options) as last:
            yield

    rows, last = [], None
    beside("no plan", contextlib.nullcontext)
    beside("module hooks alone", lambda: faultline.attach(model))
    beside("5 % noise on every matmul, full ledger, layers by hooks", lambda: armed(NOISE, model=model))
    log = last.report["log"]
    print("  " + "\n  ".join(log), last.report["forwards"])
    beside("the same without module hooks", lambda: armed(NOISE))
    beside("a rule on another operator (embedding)", lambda: armed(EMBEDDING))
    beside("disarmed, matmul kernels still wrapped", contextlib.nullcontext)
    if not options.no_peer:
        beside("published way (Python patches)", published_way, rounds=2)
    torch.ops.faultline.unwrap()
    if cuda and not options.no_peer:
        compiled(model, ids, rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "model": size, "tokens": [batch, tokens], "rows": rows, "log": log}, file, indent=1)


if __name__ == "__main__":
    main()
