"""Traces of other engines than transformers for compare_campaign.py: one small model as files, run by our own program and by vLLM, clean and with a
fault planted in one operator or module.

    python tests/compare_engines.py ours FOLDER --clean 120 --faulty 60
    VLLM'S PYTHON tests/compare_engines.py vllm FOLDER --clean 240 --faulty 160 [--dtype bfloat16]

FOLDER/model is made by whoever comes first; FOLDER/ours and FOLDER/vllm-DTYPE get one trace a job, and jobs.jsonl of what was run; a second call goes on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import string
import subprocess

import torch

PROMPTS = 60
KINDS = {
    "gain": {"kind": "gain", "strength": 0.1},
    "deadzone": {"kind": "deadzone", "threshold": 0.2},
    "noise": {"kind": "relative_gaussian", "strength": 0.1},
    "saturate": {"kind": "saturate", "margin": 0.5},
    "mxfp4": {"kind": "quantize", "format": "mxfp4"},
}
PLACES = {
    "ours": [("operator", "matmul"), ("operator", "attention"), ("operator", "norm"), ("operator", "activation"), ("module", "o_proj"), ("module", "down_proj"), ("module", "layer_output")],
    "vllm": [("operator", "matmul"), ("operator", "attention"), ("operator", "norm"), ("operator", "activation"), ("module", "qkv_proj"), ("module", "o_proj"), ("module", "gate_up_proj"), ("module", "down_proj")],
}
LAYERS = 2


def model_folder(folder):
    """A Llama whose heads are as wide as vLLM's attention wants them."""
    place = folder / "model"
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        import tiny_folder
        import transformers

        tiny_folder.make(place, layers=LAYERS)
        words = json.loads((place / "config.json").read_text())["vocab_size"]
        torch.manual_seed(0)
        sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=256)
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=words, eos_token_id=2, tie_word_embeddings=False, dtype="bfloat16", **sizes))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn_like(parameter) * (0.1 if parameter.dim() > 1 else 0.2) + (parameter.dim() == 1))
        made.bfloat16().save_pretrained(place)
        (place / "done").touch()
    return place


def text_of(prompt):
    draw = random.Random(f"prompt {prompt}")
    return " ".join("".join(draw.choices(string.ascii_lowercase, k=draw.randrange(2, 7))) for _ in range(draw.randrange(3, 7)))


def ids_of(model, prompt):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / "tokenizer.json")).encode(text_of(prompt)).ids


def jobs(engine, clean, faulty, seed):
    """What is run: the same for the same seed."""
    draw = random.Random(f"{engine} {seed}")
    for index in range(clean + faulty):
        job = {"name": f"{seed}-{index}", "prompt": draw.randrange(PROMPTS), "detail": draw.choice(["sample", "full"]), "others": draw.randrange(3), "dtype": draw.choice(["bf16", "bf16", "fp32"]), "fault": None}
        if index >= clean:
            number = index - clean
            how, name = PLACES[engine][number % len(PLACES[engine])]
            kind = sorted(KINDS)[(number // len(PLACES[engine])) % len(KINDS)]
            layer = draw.randrange(LAYERS)
            where = {"module": name, "surface": "output", "layer": layer} if how == "module" and name != "layer_output" else {how: name, "layer": layer}
            job["fault"] = {"kind": kind, "where": where, "what": KINDS[kind], "layer": layer, "name": name}
        yield job


def to_run(place, engine, options):
    place.mkdir(parents=True, exist_ok=True)
    store = place / "jobs.jsonl"
    done = {json.loads(line)["name"] for line in store.read_text().splitlines()} if store.exists() else set()
    for job in jobs(engine, options.clean, options.faulty, options.seed):
        if job["name"] in done:
            continue
        shutil.rmtree(place / job["name"], ignore_errors=True)
        job["changed"] = yield job
        with store.open("a") as lines:
            lines.write(json.dumps(job) + "\n")


def short(fault):
    """As the program takes it."""
    strengths = ", ".join(f"{key}={value}" for key, value in fault["what"].items() if key != "kind")
    return f"{fault['what']['kind']}({strengths}) @ " + ",".join(f"{key}={value}" for key, value in fault["where"].items())


def run_ours(options):
    model, place, changed = model_folder(options.folder), options.folder / "ours", None
    program = pathlib.Path(os.environ.get("FAULTLINE_BUILD", "build")) / "faultline"
    work = to_run(place, "ours", options)
    with contextlib.suppress(StopIteration):
        while True:
            job = work.send(changed)
            more = ["--fault", short(job["fault"])] if job["fault"] else []
            done = subprocess.run([program, "compare", "--json", "--model", model, "--a", f"cpu:{job['dtype']}", "--record", place / job["name"], "--detail", job["detail"], "--prompt", text_of(job["prompt"]), *more],
                                  capture_output=True, text=True)
            if done.returncode not in (0, 3):
                raise RuntimeError(f"{job}: {done.stderr[-2000:]}")
            changed = sum(rule["changed"] for rule in json.loads(done.stdout)["evidence"]["rules"]) if job["fault"] else None


def run_vllm(options):
    """One engine in this process; each job is one request, recorded in a trace of its own."""
    from vllm import LLM, SamplingParams

    import faultline
    from faultline import vllm_plugin

    vllm_plugin.keep_originals()
    model, place, changed = model_folder(options.folder), options.folder / f"vllm-{options.dtype}", None
    engine = LLM(str(model), skip_tokenizer_init=True, dtype=options.dtype, enforce_eager=True, max_model_len=192, max_num_seqs=4, enable_prefix_caching=False, disable_log_stats=True,
                 distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor")  # in this process
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    inner = worker.model_runner.get_model()
    work = to_run(place, "vllm", options)
    with contextlib.suppress(StopIteration):
        while True:
            job = work.send(changed)
            prompts = [{"prompt_token_ids": ids_of(model, (job["prompt"] + 7 * other) % PROMPTS)} for other in range(1 + job["others"])]
            with contextlib.ExitStack() as around:
                plan = None
                if job["fault"]:
                    recipe = {"seed": 7, "faults": [{"name": "fault", "where": job["fault"]["where"], "what": job["fault"]["what"]}]}
                    plan = around.enter_context(faultline.plan(recipe, model=inner, on_missing="warn"))
                around.enter_context(faultline.trace(inner, place / job["name"], detail=job["detail"]))
                engine.generate(prompts, SamplingParams(max_tokens=1 + job["prompt"] % 3, temperature=0, prompt_logprobs=0, detokenize=False, ignore_eos=True), use_tqdm=False)
            changed = sum(rule["changed"] for rule in plan.report["rules"]) if plan else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("ours", "vllm"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--clean", type=int, default=120)
    parser.add_argument("--faulty", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", help="of vLLM's engine")
    options = parser.parse_args()
    torch.set_num_threads(1)
    (run_ours if options.engine == "ours" else run_vllm)(options)


if __name__ == "__main__":
    main()
