#!/usr/bin/env python3
"""Speed of our generation beside Hugging Face's in one process, and beside the floor: the bytes a step must read over the
measured copy bandwidth, plus its FLOPs over the measured matmul rate.

    bench_model.py --device cuda --json out.json     Qwen2.5-1.5B shape, batches 1, 64, 256; SmolLM2 512 x 64
    bench_model.py --device cpu  --json out.json     SmolLM2 bf16, batches 1 and 32, 2 threads
                   --vllm PYTHON                     vLLM as well, run by the Python of its own environment
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

import torch

import faultline
from testing_ops import OPS as TESTING

OPS = torch.ops.faultline
QWEN = dict(model_type="qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)
SMOL = dict(model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=1e5, tie_word_embeddings=True)
PLAN = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}


def sync(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def best(run, device, repeats):
    times = []
    for _ in range(repeats):
        sync(device)
        start = time.perf_counter()
        run()
        sync(device)
        times.append(time.perf_counter() - start)
    return min(times)


def parameters_of(config):
    h, layers, kv = config["hidden_size"], config["num_hidden_layers"], config["hidden_size"] // config["num_attention_heads"] * config["num_key_value_heads"]
    return layers * (h * (2 * h + 2 * kv) + 3 * h * config["intermediate_size"]) + config["vocab_size"] * h


def floor_seconds(config, batch, length, device, bandwidth, rate):
    kv = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * (config["hidden_size"] // config["num_attention_heads"]) * length * batch
    return (2 * parameters_of(config) + kv) / bandwidth + 2 * parameters_of(config) * batch / rate


def measured_limits(device):
    size = 1 << 28 if device.type == "cuda" else 1 << 26
    x = torch.empty(size, dtype=torch.bfloat16, device=device).normal_()
    copy = best(lambda: x.clone(), device, 5)
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device).bfloat16()
    matmul = best(lambda: a @ a, device, 5)
    return 2 * 2 * size / copy, 2 * n**3 / matmul


def ours(handle, batch, prompt, new, seed=0, slots=None):
    tokens = torch.randint(10, 1000, (batch, prompt), generator=torch.Generator().manual_seed(1)).flatten().tolist()
    return TESTING.model_generate(handle, tokens, [prompt] * batch, new, 0.0, 0, 1.0, seed, slots or batch, [], True)


def decode_rate(handle, batch, prompt, new, device, repeats=3):
    """Tokens a second of decoding alone: the difference of a long and a short run, prefill out of it."""
    ours(handle, batch, prompt, new)
    long = best(lambda: ours(handle, batch, prompt, new), device, repeats)
    short = best(lambda: ours(handle, batch, prompt, new // 4), device, repeats)
    return batch * (new - new // 4) / (long - short), long


def hf_model(config, device):
    import transformers

    config_class = transformers.AutoConfig.for_model(**config)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config_class, dtype=torch.bfloat16).eval()


def hf_rate(model, batch, prompt, new, device, repeats=2, **how):
    tokens = torch.randint(10, 1000, (batch, prompt), generator=torch.Generator().manual_seed(1)).to(device)
    mask = torch.ones_like(tokens)

    def run(count):
        with torch.no_grad():
            model.generate(tokens, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, **how)

    run(new), run(new // 4)
    long, short = best(lambda: run(new), device, repeats), best(lambda: run(new // 4), device, repeats)
    return batch * (new - new // 4) / (long - short), long


def vllm_rates(python, config, batches, prompt, new):
    """-> {batch: tokens a second}, measured by another process in vLLM's environment."""
    command = [python, pathlib.Path(__file__).with_name("bench_model_vllm.py"), json.dumps(config), ",".join(map(str, batches)), str(prompt), str(new)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {int(batch): rate for batch, rate in json.loads(done.stdout.splitlines()[-1]).items()}


def with_plan(handle, batch, prompt, new, device):
    OPS.plan_load(json.dumps(PLAN), [], 1, 0)
    OPS.plan_arm()
    try:
        rate, seconds = decode_rate(handle, batch, prompt, new, device)
        report = json.loads(OPS.plan_report(False))
    finally:
        OPS.plan_disarm()
    return rate, seconds, {"calls": sum(row["ledger"]["calls"] for row in report["rows"]), "complaints": report["complaints"][:3]}


def bench(config, batches, device, limits, arguments):
    rows = []
    handle = TESTING.model_random(json.dumps(config), 1, torch.bfloat16, device)
    peer = None if arguments.no_peer else hf_model(config, device)
    vllm = vllm_rates(arguments.vllm, config, batches, arguments.prompt, arguments.new) if arguments.vllm else {}
    for batch in batches:
        prompt, new = arguments.prompt, arguments.new
        rate, _ = decode_rate(handle, batch, prompt, new, device)
        floor = floor_seconds(config, batch, prompt + new / 2, device, *limits)
        row = {"batch": batch, "ours_tok_s": rate, "step_ms": 1e3 * batch / rate, "floor_ms": 1e3 * floor, "step_over_floor": batch / rate / floor}
        faulty, _, evidence = with_plan(handle, batch, prompt, new, device)
        row |= {"with_plan_tok_s": faulty, "plan_cost": rate / faulty - 1, "plan_evidence": evidence}
        if peer is not None:
            row["hf_eager_tok_s"], _ = hf_rate(peer, batch, prompt, min(new, 32), device, 1)
            row["over_hf_eager"] = rate / row["hf_eager_tok_s"]
            if arguments.compile:
                row["hf_static_compiled_tok_s"], _ = hf_rate(peer, batch, prompt, new, device, 2, cache_implementation="static")
                row["over_hf_compiled"] = rate / row["hf_static_compiled_tok_s"]
        if batch in vllm:
            row |= {"vllm_tok_s": vllm[batch], "over_vllm": rate / vllm[batch]}
        print(json.dumps(row), flush=True)
        rows.append(row)
    TESTING.model_close(handle)
    del peer
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--compile", action="store_true", help="also Hugging Face with a static cache and torch.compile")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--vllm", metavar="PYTHON", help="the Python of an environment with vLLM: its rates beside ours")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--batches", default=None)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(2)
    limits = measured_limits(device)
    result = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__, "bandwidth_gb_s": limits[0] / 1e9, "matmul_tflop_s": limits[1] / 1e12}
    print(json.dumps(result), flush=True)
    batches = [int(b) for b in arguments.batches.split(",")] if arguments.batches else None
    if device.type == "cuda":
        result["qwen2.5-1.5b"] = bench(QWEN, batches or [1, 64, 256], device, limits, arguments)
        handle = TESTING.model_random(json.dumps(SMOL), 1, torch.bfloat16, device)
        ours(handle, 512, 32, 64)
        result["smollm2_512x64_s"] = best(lambda: ours(handle, 512, 32, 64), device, 3)
        print(json.dumps({"smollm2_512x64_s": result["smollm2_512x64_s"]}))
    else:
        result["smollm2"] = bench(SMOL, batches or [1, 32], device, limits, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
