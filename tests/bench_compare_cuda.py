"""Pairs of engines on a GPU, and what recording costs there. Each part writes FOLDER/PART.json and is skipped where that is there, so the
same command goes on. Models are random, in the shape of SmolLM2-135M or of a 1.5B Qwen2; nothing is downloaded.

    python tests/bench_compare_cuda.py FOLDER [--parts cpu-cuda,batch,tf32,fp8,cost,vllm] [--device cuda] [--small]

cpu-cuda: the same model on the CPU and on the GPU. batch: one prompt alone and among 64. tf32: off and on. fp8: products by
torch._scaled_mm and by fake-quantised weights and inputs. cost: seconds of a plain forward and of recorded ones. vllm: transformers and
vLLM (where it is installed), eager; each pair with its faulty twin, a gain of 5 % on one product of one side."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import faultline

SHAPES = {
    "135m": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
    "small": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=512),
}
TWIN = {"seed": 3, "faults": [{"name": "twin", "where": {"module": "down_proj", "surface": "output", "layer": 1}, "what": {"kind": "gain", "strength": 0.05}}]}


def model_of(shape, dtype=torch.bfloat16, device="cpu", attention="sdpa"):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation=attention)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
    return model.eval()


def ids_of(shape, rows, length, seed=1):
    return torch.randint(3, shape["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))


def record(folder, model, ids, *, detail="sample", twin=False):
    device = next(model.parameters()).device
    with torch.no_grad():
        if twin:
            with faultline.plan(TWIN, model=model, on_missing="warn"), faultline.trace(model, folder, detail=detail):
                model(input_ids=ids.to(device))
        else:
            with faultline.trace(model, folder, detail=detail):
                model(input_ids=ids.to(device))


def words(found):
    growth = [{key: one[key] for key in ("place", "surface", "difference", "own_a", "own_b", "allowed", "reordered", "share_equal")} for one in found["places"]]
    return {"verdict": found["verdict"], "sentence": found["sentence"], "first": found["first"][:2], "judged": [found[side]["judged"] for side in "ab"], "untested": [found[side]["untested"] for side in "ab"], "wrong": [len(found[side]["wrong"]) for side in "ab"], "wrong_operators": sorted({one["operator"] for side in "ab" for one in found[side]["wrong"]}), "not_judged": [found[side]["not_judged"] for side in "ab"], "tokens": {key: value for key, value in found["tokens"].items() if key != "worst"}, "places": growth, "remarks": found["remarks"], "without_partner": found["without_partner"]}


def pair(work, first, second, twin):
    """Both sides recorded and compared, then with the twin of the second."""
    out, started = {}, time.monotonic()
    for name in ("a", "b", "twin"):
        shutil.rmtree(work / name, ignore_errors=True)
    first(work / "a")
    second(work / "b")
    out["record_seconds"] = time.monotonic() - started
    out["clean"] = words(faultline.compare(work / "a", work / "b"))
    out["seconds"] = time.monotonic() - started
    twin(work / "twin")
    out["twin"] = words(faultline.compare(work / "a", work / "twin"))
    out["twin"].pop("places")
    return out


def part_cpu_cuda(work, shape, device):
    ids, model = ids_of(shape, 1, 64), model_of(shape)
    there = model_of(shape)
    there.load_state_dict(model.state_dict())
    there = there.to(device)
    return pair(work, lambda to: record(to, model, ids), lambda to: record(to, there, ids), lambda to: record(to, there, ids, twin=True))


def part_batch(work, shape, device):
    ids, model = ids_of(shape, 64, 48), model_of(shape).to(device)
    return pair(work, lambda to: record(to, model, ids[:1]), lambda to: record(to, model, ids), lambda to: record(to, model, ids, twin=True))


def part_tf32(work, shape, device):
    ids, model = ids_of(shape, 1, 64), model_of(shape, torch.float32).to(device)

    def run(to, allowed, **options):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            record(to, model, ids, **options)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    # Here the second side is wrong by itself: TF32 is no rounding of fp32.
    return pair(work, lambda to: run(to, False), lambda to: run(to, True), lambda to: run(to, False, twin=True))


class Fp8Linear(torch.nn.Module):
    """A product in fp8 e4m3 with one scale a tensor; fake: the same numbers multiplied in bf16."""

    def __init__(self, linear, fake):
        super().__init__()
        self.weight, self.fake = linear.weight, fake
        self.scale = (linear.weight.detach().abs().amax().float() / 448).clamp_min(1e-12)
        self.quantised = (linear.weight.detach().float() / self.scale).to(torch.float8_e4m3fn)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        scale = (rows.abs().amax().float() / 448).clamp_min(1e-12)
        small = (rows.float() / scale).to(torch.float8_e4m3fn)
        if self.fake:
            y = (small.float() * scale).to(x.dtype) @ (self.quantised.float() * self.scale).to(x.dtype).t()
        else:
            y = torch._scaled_mm(small, self.quantised.t(), scale_a=scale, scale_b=self.scale, out_dtype=x.dtype)
        return y.reshape(*x.shape[:-1], -1)


def part_fp8(work, shape, device):
    ids = ids_of(shape, 1, 64)

    def made(fake):
        model = model_of(shape).to(device)
        for name, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                around, _, last = name.rpartition(".")
                setattr(model.get_submodule(around), last, Fp8Linear(module, fake))
        return model

    real, fake = made(False), made(True)
    return pair(work, lambda to: record(to, fake, ids), lambda to: record(to, real, ids), lambda to: record(to, real, ids, twin=True))


def timed(run, device, times):
    seconds = []
    for _ in range(times):
        if device != "cpu":
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


def part_cost(work, shape, device):
    """Seconds of a forward of 8 x 512 tokens: plain, and inside an open trace; what opening and closing take stands apart."""
    rows, length = (8, 512) if shape["vocab_size"] > 1000 else (2, 16)
    model = model_of(shape).to(device)
    ids = ids_of(shape, rows, length).to(device)
    run = lambda: model(input_ids=ids, logits_to_keep=1)  # noqa: E731
    out = {"rows": rows, "length": length, "plain": [], "digest": [], "sample": [], "open_close": {}}
    with torch.no_grad():
        timed(run, device, 3)
        for _ in range(3):  # in turn
            out["plain"] += timed(run, device, 5)
            for detail in ("digest", "sample"):
                shutil.rmtree(work / detail, ignore_errors=True)
                started = time.perf_counter()
                trace = faultline.trace(model, work / detail, detail=detail)
                opened = time.perf_counter() - started
                out[detail] += timed(run, device, 4)[1:]
                started = time.perf_counter()
                trace.close()
                out["open_close"].setdefault(detail, []).append([opened, time.perf_counter() - started])
    middle = {name: statistics.median(out[name]) for name in ("plain", "digest", "sample")}
    out["overhead"] = {name: middle[name] / middle["plain"] - 1 for name in ("digest", "sample")}
    return out


VLLM = """
import json, sys
from vllm import LLM, SamplingParams
folder, ids = sys.argv[1], json.loads(sys.argv[2])
llm = LLM(folder, enforce_eager=True, skip_tokenizer_init=True, gpu_memory_utilization=0.5, max_model_len=256, enable_prefix_caching=False)
llm.generate([{"prompt_token_ids": row} for row in ids], SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False))
"""


def part_vllm(work, shape, device):
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        return {"skipped": str(error)}
    ids, model = ids_of(shape, 1, 64), model_of(shape).to(device)
    model.save_pretrained(work / "model")

    def run_vllm(to, twin=False):
        variables = {"FAULTLINE_TRACE": str(to), "FAULTLINE_TRACE_DETAIL": "sample", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        if twin:
            (work / "twin.json").write_text(json.dumps(TWIN))
            variables |= {"FAULTLINE_RECIPE": str(work / "twin.json"), "FAULTLINE_ON_MISSING": "warn"}
        done = subprocess.run([sys.executable, "-c", VLLM, str(work / "model"), json.dumps(ids.tolist())], env={**os.environ, **variables}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])

    record(work / "a", model, ids)
    run_vllm(work / "b")
    out = {"clean": words(faultline.compare(work / "a", work / "b" / "vllm-0"))}
    run_vllm(work / "twin", twin=True)
    out["twin"] = words(faultline.compare(work / "a", work / "twin" / "vllm-0"))
    out["twin"].pop("places")
    return out


PARTS = {"cpu-cuda": (part_cpu_cuda, "135m"), "batch": (part_batch, "135m"), "tf32": (part_tf32, "135m"), "fp8": (part_fp8, "135m"), "large": (part_batch, "1.5b"), "cost": (part_cost, "1.5b"), "vllm": (part_vllm, "135m")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the parts")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.parts.split(","):
        path = options.folder / f"{name}.json"
        if path.exists():
            print(f"{name}: done before", flush=True)
            continue
        part, shape = PARTS[name]
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as work:
            try:
                out = part(pathlib.Path(work), SHAPES["small" if options.small else shape], options.device)
            except Exception as error:  # the other parts are worth having
                out = {"failed": f"{type(error).__name__}: {error}"}
        out |= {"part": name, "torch": torch.__version__, "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu", "part_seconds": time.monotonic() - started}
        if "failed" not in out:
            path.write_text(json.dumps(out, indent=1) + "\n")
        print(f"{name}: {out['part_seconds']:.1f} s; {out.get('failed') or out.get('skipped') or out.get('overhead') or (out['clean']['sentence'], out['twin']['sentence'])}", flush=True)


if __name__ == "__main__":
    main()
