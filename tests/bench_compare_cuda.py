"""Pairs of engines on a GPU, and what recording costs there. Each part writes FOLDER/PART.json and is skipped where that is there, so the
same command goes on. Models are random, in the shape of SmolLM2-135M or of a 1.5B Llama; nothing is downloaded.

    python tests/bench_compare_cuda.py FOLDER [--parts cost,large,cpu-cuda,batch,types,packed,decode,trl,tf32,fp8,vllm,vllm-graphs,ours]
                                              [--device cuda] [--small] [--model FOLDER]

cost: seconds of a plain forward and of recorded ones. large: the batch pair of the 1.5B shape, end to end. cpu-cuda: the same model on the CPU and
on the GPU. batch: one prompt alone and among 64. types: bf16 and fp32. packed: prompts padded, and in one row. decode: an answer at once, and token by
token with a cache. trl: what GRPOTrainer's rollout computes and what its loss does. ours: our own program (--model, a folder). tf32: off, beside off and beside on. fp8: products by torch._scaled_mm and by fake-quantised
weights and inputs. vllm: transformers and vLLM (where it is installed), eager, with what each operator contributes to the gap of the
log-probabilities (compare_gap.py). vllm-graphs: vLLM compiled with CUDA graphs. Each pair has its faulty twin, a gain of 5 % on one product of one
side. A part says whether it went as it must (`as_expected`); the program ends with 1 where one did not. vLLM's engines start first, all at once, and
the parts that measure nothing run beside them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import compare_gap
import faultline

SHAPES = {
    "135m": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
    "small": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=512),
}
TWIN_PLACE = "model.layers.1.mlp.down_proj"
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


def record(folder, model, ids, *, detail="sample", twin=False, tokenizer=None, **given):
    device = next(model.parameters()).device
    given = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with contextlib.ExitStack() as around, torch.no_grad():
        if twin:
            around.enter_context(faultline.plan(TWIN, model=model, on_missing="warn"))
        around.enter_context(faultline.trace(model, folder, detail=detail, tokenizer=tokenizer))
        model(input_ids=ids.to(device), **given)


def words(found):
    growth = [{key: one[key] for key in ("place", "surface", "difference", "own_a", "own_b", "allowed", "reordered", "share_equal")} for one in found["places"]]
    return {"verdict": found["verdict"], "sentence": found["sentence"], "first": found["first"][:2], "judged": [found[side]["judged"] for side in "ab"], "share_judged": [found[side]["share_judged"] for side in "ab"], "unseen": found["unseen"], "untested": [found[side]["untested"] for side in "ab"], "wrong": [len(found[side]["wrong"]) for side in "ab"], "wrong_operators": sorted({one["operator"] for side in "ab" for one in found[side]["wrong"]}), "not_judged": [found[side]["not_judged"] for side in "ab"], "tokens": {key: value for key, value in found["tokens"].items() if key != "worst"}, "places": growth, "remarks": found["remarks"], "without_partner": found["without_partner"]}


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
    return with_twin(out, faultline.compare(work / "a", work / "twin"))


def with_twin(out, found, *, clean=("within_rounding",)):
    """The clean pair accuses nobody; the twin names the fault that was planted, and nothing else on that side before it."""
    out["twin"] = words(found)
    out["twin"].pop("places")
    first = [(one["side"], one["place"]) for one in found["first"]]
    out["as_expected"] = out["clean"]["verdict"] in clean and first == [("b", TWIN_PLACE)]
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


def part_types(work, shape, device):
    ids, model = ids_of(shape, 1, 64), model_of(shape).to(device)
    wide = model_of(shape).to(device).float()
    return pair(work, lambda to: record(to, wide, ids), lambda to: record(to, model, ids), lambda to: record(to, model, ids, twin=True))


def part_packed(work, shape, device):
    """Three prompts, padded on the right, and one after another in one row, as an actor without padding runs them."""
    model, lengths = model_of(shape).to(device), (20, 33, 11)
    rows = [ids_of(shape, 1, length, seed)[0] for seed, length in enumerate(lengths)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(padded.shape[1])[None] < torch.tensor(lengths)[:, None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return pair(work, lambda to: record(to, model, padded, attention_mask=mask.long()), lambda to: record(to, model, torch.cat(rows)[None], position_ids=positions, use_cache=False),
                lambda to: record(to, model, torch.cat(rows)[None], position_ids=positions, use_cache=False, twin=True))


def part_decode(work, shape, device):
    model, prompt, new = model_of(shape).to(device), ids_of(shape, 1, 24), 8
    answer = []

    def steps(to, twin=False):
        with contextlib.ExitStack() as around, torch.no_grad():
            if twin:
                around.enter_context(faultline.plan(TWIN, model=model, on_missing="warn"))
            around.enter_context(faultline.trace(model, to))
            answer[:] = [model.generate(prompt.to(device), max_new_tokens=new, do_sample=False, use_cache=True)]

    def whole(to):
        steps(work / "first")
        record(to, model, answer[0].cpu())

    return pair(work, whole, steps, lambda to: steps(to, twin=True))


def part_trl(work, shape, device):
    """GRPOTrainer's first step: its rollout with a cache, and the forward of its loss. The twin is planted in the rollout alone."""
    traces = {}
    for name in ("clean", "twin"):
        done = subprocess.run([sys.executable, "-c", TRL, str(work / name), json.dumps(shape), json.dumps(TWIN if name == "twin" else None), device], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        traces[name] = work / name
    out = {"clean": words(faultline.compare(traces["clean"] / "actor", traces["clean"] / "rollout"))}
    return with_twin(out, faultline.compare(traces["twin"] / "actor", traces["twin"] / "rollout"))


TRL = """
import contextlib, json, pathlib, sys
import torch
sys.path.insert(0, "tests")
from bench_compare_cuda import model_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from datasets import Dataset
import faultline

folder, shape, twin, device = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>"] + [f"w{i}" for i in range(3, 200)])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
model = model_of(shape, device=device)
model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
config = GRPOConfig(output_dir=str(folder / "out"), max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=12, temperature=1.0, report_to=[], use_cpu=device == "cpu", bf16=False,
                    gradient_checkpointing=False, learning_rate=1e-6, logging_steps=1, save_strategy="no", beta=0.0)
rows = Dataset.from_list([{"prompt": f"w{i + 3} w{i + 9} w{i + 20} w{i + 5}"} for i in range(8)])
trainer = GRPOTrainer(model, reward_funcs=lambda completions, **_: [float(len(one)) for one in completions], args=config, train_dataset=rows, processing_class=tokenizer)
generate, loss, seen = model.generate, trainer.compute_loss, set()

def rollout(*arguments, **keywords):
    if "rollout" in seen:
        return generate(*arguments, **keywords)
    seen.add("rollout")
    with faultline.plan(twin, model=model, on_missing="warn") if twin else contextlib.nullcontext(), faultline.trace(model, folder / "rollout"):
        return generate(*arguments, **keywords)

def actor(*arguments, **keywords):
    if "actor" in seen:
        return loss(*arguments, **keywords)
    seen.add("actor")
    with faultline.trace(model, folder / "actor"):
        return loss(*arguments, **keywords)

model.generate, trainer.compute_loss = rollout, actor
trainer.train()
"""


def part_ours(work, shape, device, model_folder):
    """Our own program beside transformers, from one folder of weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(model_folder), AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).to(device).eval()
    text = "Seven of twenty apples are eaten. How many are left, and who ate them?"
    ids = torch.tensor([tokenizer(text)["input_ids"]])

    def ours(to, *more):
        program = pathlib.Path(os.environ.get("FAULTLINE_BUILD", "build")) / "faultline"
        done = subprocess.run([program, "compare", "--model", model_folder, "--a", f"{device}:bf16", "--record", to, "--detail", "sample", "--prompt", text, *more], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout[-1000:] + done.stderr[-2000:])

    processor = time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = pair(work, lambda to: record(to, model, ids, tokenizer=tokenizer), ours, lambda to: ours(to, "--fault", "gain(strength=0.05) @ module=down_proj, surface=output, layer=1"))
    out["processor_seconds_with_twin"] = time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - processor
    return out


def part_tf32(work, shape, device):
    ids, model = ids_of(shape, 1, 64), model_of(shape, torch.float32).to(device)

    def run(to, allowed, **options):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            record(to, model, ids, **options)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    out = pair(work, lambda to: run(to, False), lambda to: run(to, False), lambda to: run(to, False, twin=True))
    # With TF32 the second side is wrong by itself, at its first product: TF32 is no rounding of fp32.
    run(work / "on", True)
    out["on"] = words(faultline.compare(work / "a", work / "on"))
    out["on"].pop("places")
    if device != "cpu":  # which has none
        out["as_expected"] &= [(one["side"], one["place"]) for one in out["on"]["first"]] == [("b", "model.layers.0.self_attn.q_proj")]
    return out


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
    """Seconds of a forward, plain and inside an open trace, in turn; what opening and closing take stands apart. A forward's time is that of
    the device: the work of recording that runs beside it is hidden, as it is in use."""
    model = model_of(shape).to(device)
    out = {"sizes": {}}
    for rows, length in ((8, 512), (32, 512)) if shape["vocab_size"] > 1000 else ((2, 16),):
        ids = ids_of(shape, rows, length).to(device)
        run = lambda ids=ids: model(input_ids=ids, logits_to_keep=1)  # noqa: E731
        one = {"plain": [], "digest": [], "sample": [], "open_close": {}, "bytes": {}}
        with torch.no_grad():
            timed(run, device, 3)
            for _ in range(3):
                one["plain"] += timed(run, device, 4)
                for detail in ("digest", "sample"):
                    shutil.rmtree(work / detail, ignore_errors=True)
                    started = time.perf_counter()
                    trace = faultline.trace(model, work / detail, detail=detail)
                    opened = time.perf_counter() - started
                    one[detail] += timed(run, device, 4)[1:]  # the first keeps the weights' samples
                    started = time.perf_counter()
                    trace.close()
                    one["open_close"].setdefault(detail, []).append([opened, time.perf_counter() - started])
                    one["bytes"][detail] = sum(path.stat().st_size for path in (work / detail).iterdir())
        middle = {name: statistics.median(one[name]) for name in ("plain", "digest", "sample")}
        one["overhead"] = {name: middle[name] / middle["plain"] - 1 for name in ("digest", "sample")}
        out["sizes"][f"{rows}x{length}"] = one
    ids, full = ids_of(shape, 1, 256).to(device), {}
    with torch.no_grad():
        full["plain"] = statistics.median(timed(lambda: model(input_ids=ids, logits_to_keep=1), device, 4)[1:])
        with faultline.trace(model, work / "full", detail="full", most_bytes=1 << 33):
            full["recorded"] = timed(lambda: model(input_ids=ids, logits_to_keep=1), device, 2)
    out["full"] = full
    out["overhead"] = {size: one["overhead"] for size, one in out["sizes"].items()}
    out["as_expected"] = True  # it measures
    return out


VLLM = """
import json, sys
from vllm import LLM, SamplingParams
folder, ids, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
llm = LLM(folder, skip_tokenizer_init=True, max_model_len=256, enable_prefix_caching=False, disable_log_stats=True, **options)
llm.generate([{"prompt_token_ids": row} for row in ids], SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False))
"""


class Engines:
    """vLLM's processes, clean and faulty, eager and with graphs, all at once: each takes most of a minute to start."""

    def __init__(self, folder, shape, device):
        self.folder, self.running, self.ids = folder, {}, ids_of(shape, 1, 64)
        if importlib.util.find_spec("vllm") is None:
            return
        self.model = model_of(shape)
        self.model.save_pretrained(folder / "model")
        installed = folder / "installed/faultline_lab-0.1.0.dist-info"  # so that vLLM finds the plug-in
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faultline-lab\nVersion: 0.1.0\n")
        (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nfaultline = faultline_vllm:register\n")
        (folder / "twin.json").write_text(json.dumps(TWIN))
        for mode in ("eager", "graphs"):
            for kind in ("clean", "twin"):
                options = {"enforce_eager": mode == "eager"}
                if device != "cpu":
                    options |= {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}
                if mode == "graphs":
                    options["compilation_config"] = {"cudagraph_capture_sizes": [1, 2, 4]}
                variables = {**os.environ, "FAULTLINE_TRACE": str(folder / mode / kind), "FAULTLINE_TRACE_DETAIL": "full", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
                             "PYTHONPATH": os.pathsep.join(filter(None, [str(folder / "installed"), os.environ.get("PYTHONPATH", "")]))}
                if device == "cpu":
                    variables |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
                if kind == "twin":
                    variables |= {"FAULTLINE_RECIPE": str(folder / "twin.json"), "FAULTLINE_ON_MISSING": "warn", "FAULTLINE_EVIDENCE": str(folder / mode / "evidence")}
                log = (folder / f"{mode}-{kind}.log").open("w")
                self.running[mode, kind] = subprocess.Popen([sys.executable, "-c", VLLM, str(folder / "model"), json.dumps(self.ids.tolist()), json.dumps(options)], env=variables, stdout=log, stderr=subprocess.STDOUT)

    def trace(self, mode, kind):
        """The worker's trace, once its process has ended."""
        code = self.running[mode, kind].wait(timeout=600)
        found = self.folder / mode / kind / "vllm-0"
        if not (found / "end.json").exists():
            raise RuntimeError(f"vLLM ({mode}, {kind}) ended with {code}: " + (self.folder / f"{mode}-{kind}.log").read_text()[-3000:])
        return found

    def end(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def part_vllm(work, shape, device, engines, mode="eager"):
    if not engines.running:
        return {"skipped": "vLLM is not installed", "as_expected": True}
    started = time.monotonic()
    record(work / "a", engines.model.to(device), engines.ids, detail="full")
    clean = engines.trace(mode, "clean")
    out = {"record_seconds": time.monotonic() - started, "clean": words(faultline.compare(work / "a", clean))}
    if mode == "eager":
        out["gap"] = compare_gap.gap(engines.folder / "model", engines.ids, work / "a", clean, device)
    # Compiled code hides norms and activations: what was judged is right, and the verdict says what was not seen.
    return with_twin(out, faultline.compare(work / "a", engines.trace(mode, "twin")), clean=("within_rounding",) if mode == "eager" else ("within_rounding", "partly_judged"))


def part_graphs(work, shape, device, engines):
    return part_vllm(work, shape, device, engines, "graphs")


ALONE = {"cost": (part_cost, "1.5b"), "large": (part_batch, "1.5b")}
BESIDE = {"cpu-cuda": (part_cpu_cuda, "135m"), "batch": (part_batch, "135m"), "types": (part_types, "135m"), "packed": (part_packed, "135m"), "decode": (part_decode, "135m"), "trl": (part_trl, "135m"), "ours": (part_ours, "135m"), "tf32": (part_tf32, "135m"), "fp8": (part_fp8, "135m")}
OF_ENGINES = {"vllm": (part_vllm, "135m"), "vllm-graphs": (part_graphs, "135m")}
PARTS = {**ALONE, **BESIDE, **OF_ENGINES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="of the part ours: a folder of Hugging Face weights")
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try the parts")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    shape_of = lambda name: SHAPES["small" if options.small else name]  # noqa: E731
    wanted = [name for name in options.parts.split(",") if not (options.folder / f"{name}.json").exists() and (name != "ours" or options.model)]
    wrong, engines = [], None
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for name in [*filter(ALONE.get, wanted), "engines", *filter(BESIDE.get, wanted), *filter(OF_ENGINES.get, wanted)]:
            if name == "engines":
                if any(name in OF_ENGINES for name in wanted):
                    (work / name).mkdir()
                    engines = Engines(work / name, shape_of("135m"), options.device)
                continue
            part, shape = PARTS[name]
            started, own = time.monotonic(), work / name
            own.mkdir()
            try:
                out = part(own, shape_of(shape), options.device, *([engines] if name in OF_ENGINES else [options.model] if name == "ours" else []))
            except Exception as error:  # the other parts are worth having
                out = {"failed": f"{type(error).__name__}: {error}", "as_expected": False}
            out |= {"part": name, "torch": torch.__version__, "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu", "part_seconds": time.monotonic() - started}
            (options.folder / f"{name}{'.failed' if 'failed' in out else ''}.json").write_text(json.dumps(out, indent=1) + "\n")
            if not out["as_expected"]:
                wrong.append(name)
            said = out.get("failed") or out.get("skipped") or out.get("overhead") or (out["clean"]["sentence"], out["twin"]["sentence"])
            print(f"{name}: {out['part_seconds']:.1f} s; {'as expected' if out['as_expected'] else 'NOT AS EXPECTED'}; {said}", flush=True)
            shutil.rmtree(own, ignore_errors=True)
        if engines:
            engines.end()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
