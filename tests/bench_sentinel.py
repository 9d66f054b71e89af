"""What a sentinel costs and finds beside a Hugging Face model: `python tests/bench_sentinel.py OUT.json [--device cuda:0] [--steps 400]`
(with the environment of tests/run.py). Three runs of the same training: watched, watched while a planted fault acts, and alone. The cost is the
processor time inside the sentinel's calls over all processor time of the process (on a GPU: its seconds over all seconds), so another
job of the machine changes little; the promise is `share` (1 %)."""

import argparse
import json
import os
import pathlib
import time

import torch
import transformers

import faultline

FAULT = "faults: [{name: broken, where: {operator: matmul}, what: {kind: bitflip, count: 1}, lifetime: {kind: transient, probability: 0.2}}]"


def model_of(device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=1024)
    return transformers.LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)


def train(model, steps, each=None, batch=16):
    device = next(model.parameters()).device
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    began = clock()
    for number in range(steps):
        tokens = torch.randint(0, 1024, (batch, 128), generator=generator).to(device)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if each and each(number):
            return number + 1, clock() - began
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps, clock() - began


def watched(model, steps, share, device, fault=None):
    """-> the verdict, the measured share of time, after how many steps the fault was found."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    inside = 0.0
    with faultline.sentinel(model, every=1, share=share) as watch:
        ask = watch.step

        def timed():
            nonlocal inside
            began = clock()
            try:
                return ask()
            finally:
                inside += clock() - began

        watch.step = timed
        found = None
        if fault:
            with faultline.plan(fault, model=model):
                found, seconds = train(model, steps, lambda number: number % 10 == 9 and watch.verdict()["verdict"] == "faulty")
        else:
            _, seconds = train(model, steps)
        verdict = watch.verdict()
    return {"verdict": verdict["verdict"], "sentence": verdict["sentence"], "measured_share": inside / seconds, "allowed_share": share, "seconds": seconds,
            "questions": verdict["bound"]["launches"]["tested"], "linears": verdict["linears"]["launches"], "linears_wrong": verdict["linears"]["wrong"],
            "found_within_steps": found if verdict["verdict"] == "faulty" else None}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    model = model_of(options.device)
    train(model, 5)
    record = {"device": options.device, "steps": options.steps, "transformers": transformers.__version__, "torch": torch.__version__, "load_before": os.getloadavg()[0]}
    record["healthy"] = watched(model, options.steps, 0.01, options.device)
    record["broken"] = watched(model, options.steps, 0.2, options.device, FAULT)
    options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
