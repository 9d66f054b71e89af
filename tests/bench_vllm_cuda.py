"""What a plan costs inside vLLM on a GPU: engines with 5 % noise on every product and without it, compiled with CUDA graphs and eager,
started together and measured in turns, one at a time, because a host's speed drifts more than a plan costs. Qwen2.5-1.5B's shape with random weights,
prompt 64; tokens a second of decoding alone (128 less 8 new tokens, best of three). Needs vLLM, a GPU of 40 GB and the library with CUDA.

    python tests/bench_vllm_cuda.py [--rounds 2] [--batches 1,64,256] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

CONFIG = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True,
              bos_token_id=1, eos_token_id=2, dtype="bfloat16", hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936)
RECIPE = {"faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
ENGINES = {"clean": (), "armed": ("armed",), "clean_eager": ("eager",), "armed_eager": ("armed", "eager")}


# --- one engine: a process that answers lines of its standard input -------------------------------------------------------------
def serve(folder, is_eager):
    from vllm import LLM, SamplingParams

    engine = LLM(model=folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=512, gpu_memory_utilization=0.08, kv_cache_memory_bytes=4 << 30, enforce_eager=is_eager,
                 max_num_seqs=256, enable_prefix_caching=False, max_num_batched_tokens=16384, seed=0)
    print("READY", flush=True)

    def seconds(batch, count):
        draw = random.Random(0)
        prompts = [{"prompt_token_ids": [draw.randrange(10, 1000) for _ in range(64)]} for _ in range(batch)]
        start = time.perf_counter()
        engine.generate(prompts, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False), use_tqdm=False)
        return time.perf_counter() - start

    for line in sys.stdin:
        batch = int(line)
        short, long = (min(seconds(batch, count) for _ in range(3)) for count in (8, 128))
        print("RESULT", json.dumps(batch * 120 / (long - short)), flush=True)
    if "faultline" in sys.modules:
        collected = sys.modules["faultline"].collect(engine, on_missing="warn")
        forwards = [process["report"].get("forwards_by_kind") for process in collected["processes"]]
        print("RESULT", json.dumps({name: collected[name] for name in ("rules", "launches", "complaints")} | {"forwards": forwards}), flush=True)


class Engine:
    def __init__(self, name, folder):
        self.name, options = name, ENGINES[name]
        launcher = ["-m", "faultline", "--recipe", folder / "recipe.json"] if "armed" in options else []
        mode = ["--serve-eager" if "eager" in options else "--serve", folder]
        self.log = open(folder / f"{name}.log", "w")
        # Each with a cache of compiled code of its own: they start together.
        self.process = subprocess.Popen([sys.executable, *launcher, __file__, *mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, "VLLM_CACHE_ROOT": str(folder / f"cache-{name}"), "VLLM_LOGGING_LEVEL": "WARNING"})

    def answer(self, prefix):
        for line in self.process.stdout:
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()
        raise RuntimeError(f"{self.name} has ended; its log ends with: {pathlib.Path(self.log.name).read_text()[-2000:]}")

    def rate(self, batch):
        self.process.stdin.write(f"{batch}\n")
        self.process.stdin.flush()
        return round(json.loads(self.answer("RESULT ")), 1)

    def end(self):
        self.process.stdin.close()
        evidence = json.loads(self.answer("RESULT ")) if "armed" in ENGINES[self.name] else None
        return {"exit": self.process.wait(timeout=120), "evidence": evidence}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", default="1,64,256")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", type=pathlib.Path)
    for name in ("--serve", "--serve-eager"):
        parser.add_argument(name, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if folder := options.serve or options.serve_eager:
        return serve(folder, is_eager=options.serve_eager is not None)
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "recipe.json").write_text(json.dumps(RECIPE))
        engines = [Engine(name, folder) for name in options.engines.split(",")]
        for engine in engines:
            engine.answer("READY")
        rates = {engine.name: {} for engine in engines}
        for number in range(options.rounds):
            for batch in options.batches.split(","):
                for engine in engines:
                    rates[engine.name].setdefault(batch, []).append(engine.rate(batch))
            print(f"round {number + 1}: {json.dumps(rates)}", flush=True)
        ends = {engine.name: engine.end() for engine in engines}
    for armed, clean in (("armed", "clean"), ("armed_eager", "clean_eager")):
        if armed in rates and clean in rates:
            print(armed, "in percent of", clean, {batch: round(100 * max(values) / max(rates[clean][batch]), 1) for batch, values in rates[armed].items()})
    print(json.dumps(ends))
    if options.json:
        options.json.write_text(json.dumps({"tokens_per_second": rates, "ends": ends}, indent=1))


if __name__ == "__main__":
    main()
