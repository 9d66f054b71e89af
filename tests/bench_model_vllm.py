"""Tokens a second that vLLM decodes on a CPU, for bench_model.py --vllm: it runs in vLLM's environment, with random weights of
the shape whose configuration is given, and measures as bench_model does: a long run less a short one, best of three.

    PYTHON bench_model_vllm.py '{"model_type": "llama", …}' 1,32 64 128      -> {"1": tokens a second, "32": …}
"""

import json
import os
import pathlib
import sys
import tempfile
import time

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def rate(engine, batch, prompt, new):
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [10 + (7 * row + 3 * column) % 990 for column in range(prompt)]} for row in range(batch)]

    def seconds(count):
        how = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        engine.generate(prompts, how, use_tqdm=False)
        return time.perf_counter() - start

    seconds(new)
    long, short = (min(seconds(count) for _ in range(3)) for count in (new, new // 4))
    return batch * (new - new // 4) / (long - short)


def main():
    config, batches, prompt, new = json.loads(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(",")], int(sys.argv[3]), int(sys.argv[4])
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config | {"architectures": [ARCHITECTURES[config["model_type"]]], "torch_dtype": "bfloat16"}))
        engine = LLM(folder, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, max_model_len=prompt + new, max_num_seqs=max(batches), enable_prefix_caching=False, disable_log_stats=True)
        print(json.dumps({batch: rate(engine, batch, prompt, new) for batch in batches}))


if __name__ == "__main__":
    main()
