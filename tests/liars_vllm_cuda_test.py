"""Engines of vLLM on a GPU in configurations that could make the lab lie (skipped elsewhere): quantised models and caches, mixtures of
experts, adapters, speculation, chunked and cached prefills, a model that sleeps. Either every product of every forward was faulted, exactly,
or the run is refused with the kernels by name. A tiny model with random weights; each engine in a process of its own."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from clients_vllm_test import installed, variables_of  # noqa: F401  fixture

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None or not torch.cuda.is_available(), reason="needs vLLM and a GPU")

LAYERS, PRODUCTS = 4, 17  # qkv, o, gate and up, down of each layer; the head
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1e6}
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
         "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16", "tie_word_embeddings": False, **ROPE}
DENSE = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", **SIZES}
MIXTURE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
           "norm_topk_prob": True, "router_aux_loss_coef": 0.0, "attention_bias": False, **SIZES}
GEMMA = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64, "sliding_window": 128, "attn_logit_softcapping": 50.0,
         "final_logit_softcapping": 30.0, **SIZES, "tie_word_embeddings": True}
NOISE = {"faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
AQN = {"aqn": {"schedule": "constant", "sigma_start": 0.05, "sigma_scale": "relative"}}
STILL = {"aqn": {"schedule": "global_decay", "sigma_start": 0.1, "sigma_end": 0.02, "num_stages": 10}}

SCRIPT = """
import json, random, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    options, sampling, actions = json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    engine = LLM(model=sys.argv[1], skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=256, gpu_memory_utilization=0.05, kv_cache_memory_bytes=1 << 30, max_num_seqs=16, seed=0,
                 **{"enable_prefix_caching": False, **options})
    draw = random.Random(0)
    prompts = [{"prompt_token_ids": [draw.randrange(10, 1000) for _ in range(48)]} for _ in range(4)]
    more = {}
    if "adapter" in actions:
        from vllm.lora.request import LoRARequest
        more = {"lora_request": LoRARequest("adapter", 1, sys.argv[1] + "/adapter")}
    for _ in range(2):
        engine.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False, **sampling), use_tqdm=False, **more)
        if "sleep" in actions:
            engine.sleep(level=1)
            engine.wake_up()
    print("result", json.dumps(sys.modules["faultline"].collect(engine, on_missing="warn")), flush=True)
"""


def write_adapter(folder):
    from safetensors.torch import save_file

    folder.mkdir()
    width, rank = DENSE["hidden_size"], 8
    names = [f"base_model.model.model.layers.{layer}.self_attn.{name}" for layer in range(LAYERS) for name in ("q_proj", "o_proj")]
    tensors = {f"{name}.lora_A.weight": torch.randn(rank, width) * 0.05 for name in names} | {f"{name}.lora_B.weight": torch.randn(width, rank) * 0.05 for name in names}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj"], "bias": "none", "task_type": "CAUSAL_LM"}))


def engine(tmp_path, path, recipe, config, *actions, sampling=None, **options):
    """A run under the launcher, as a user starts it. -> (its status, what it collected or None, what it said)"""
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "script.py").write_text(SCRIPT)
    if "adapter" in actions:
        write_adapter(tmp_path / "adapter")
    command = [sys.executable, "-m", "faultline", "--recipe", tmp_path / "recipe.json", tmp_path / "script.py", tmp_path, json.dumps(options), json.dumps(sampling or {}), *actions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**variables_of(path), "VLLM_CACHE_ROOT": str(tmp_path / "cache"), **({"FAULTLINE_TOTAL_STEPS": "116"} if recipe is STILL else {})})
    lines = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    return done.returncode, json.loads(lines[0]) if lines else None, done.stderr


@pytest.mark.parametrize(("config", "actions", "options", "sampling"), [
    pytest.param(DENSE, (), {}, {}, id="plain"),
    pytest.param(DENSE, (), {"quantization": "fp8"}, {}, id="fp8"),
    pytest.param(DENSE, (), {"kv_cache_dtype": "fp8"}, {}, id="fp8-cache"),
    pytest.param(DENSE, (), {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}, {}, id="speculation"),
    pytest.param(DENSE, (), {"enable_prefix_caching": True, "max_num_batched_tokens": 64, "enable_chunked_prefill": True}, {}, id="cached-and-chunked"),
    pytest.param(DENSE, ("sleep",), {"enable_sleep_mode": True}, {}, id="sleep"),
    pytest.param(DENSE, (), {}, {"prompt_logprobs": 1}, id="prompt-logprobs"),
    pytest.param(GEMMA, (), {}, {}, id="gemma"),
])
def test_every_product_of_every_forward_is_faulted(tmp_path, installed, config, actions, options, sampling):  # noqa: F811
    status, collected, said = engine(tmp_path, installed, NOISE, config, *actions, sampling=sampling, **options)
    assert status == 0 and collected["complaints"] == [], said[-3000:]
    [report] = [process["report"] for process in collected["processes"] if process["report"]["rows"]]
    forwards = report["forwards_by_kind"]["rollout"]
    assert sum(row["ledger"]["calls"] for row in report["rows"]) == (PRODUCTS - 1) * forwards["body"] + forwards["head"]
    assert collected["launches"]["faulted"] == collected["launches"]["products"] > 0 and collected["launches"]["absent"] == []


@pytest.mark.parametrize(("config", "actions", "options", "kernel"), [
    pytest.param(MIXTURE, (), {}, "fused_moe_kernel", id="experts"),
    pytest.param(MIXTURE, (), {"enforce_eager": True}, "fused_moe_kernel", id="experts-eager"),
    pytest.param(MIXTURE, (), {"quantization": "fp8"}, "fused_moe_kernel", id="experts-fp8"),
    pytest.param(DENSE, ("adapter",), {"enable_lora": True, "max_lora_rank": 8}, "_lora_shrink_kernel", id="adapters"),
])
def test_products_in_kernels_that_no_tap_reaches_are_named(tmp_path, installed, config, actions, options, kernel):  # noqa: F811
    status, collected, said = engine(tmp_path, installed, NOISE, config, *actions, **options)
    assert status != 0 and collected is None and "product kernels ran without a fault on the GPU" in said and kernel in said, said[-3000:]


@pytest.mark.parametrize(("config", "actions", "options", "norms"), [
    pytest.param(MIXTURE, (), {}, LAYERS, id="experts"),
    pytest.param(GEMMA, (), {}, 4 * LAYERS + 1, id="gemma"),
    pytest.param(DENSE, ("sleep",), {"enable_sleep_mode": True}, 2 * LAYERS + 1, id="sleep"),
])
def test_noise_is_on_every_norm(tmp_path, installed, config, actions, options, norms):  # noqa: F811
    status, collected, said = engine(tmp_path, installed, AQN, config, *actions, **options)
    assert status == 0 and collected["complaints"] == [] and collected["aqn"]["asked"] == collected["aqn"]["norms"] == norms, said[-3000:]


def test_a_schedule_that_nobody_moves_is_refused(tmp_path, installed):  # noqa: F811
    status, collected, said = engine(tmp_path, installed, STILL, DENSE)
    assert status == 3 and {"noise_silent", "still"} <= {one["code"] for one in collected["complaints"]}, said[-3000:]
