"""Model files against other readers: every GGUF block type and the whole default model against the gguf package, to the
bit; folders that transformers saved, for all five families, single and sharded; folders that we write, read by
transformers."""

import collections
import json
import os
import pathlib

import gguf
import numpy
import pytest
import torch
import transformers

from program import as_json, ok, refused
from testing_ops import OPS

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
DEFAULT = pathlib.Path(os.environ.get("FAULTLINE_MODEL") or CACHE / "faultline/models/SmolLM2-135M-Instruct.Q4_1.gguf")
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
HIDDEN, HEADS, KV_HEADS, INNER, VOCABULARY = 512, 8, 4, 256, 40


def read(model, name, dtype=torch.float32):
    return OPS.read_model_tensor(str(model), name, dtype)


def same_bits(a, b):
    a, b = torch.as_tensor(a).contiguous(), torch.as_tensor(b).contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def unpermuted(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def random_blocks(type, shape, generator):
    """Blocks of any bytes, with scales that are finite: all that a quantiser could write, and more."""
    block, size = gguf.GGML_QUANT_SIZES[type]
    data = generator.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=numpy.uint8)
    scales = {"Q4_K": (0, 2), "Q6_K": (208,)}[type.name]
    for place in scales:
        half = generator.standard_normal(data.shape[:-1]).astype("<f2")
        half.flat[:3] = [6e-8, -0.0, 60000]  # a subnormal number, a zero, a large one
        data[..., place : place + 2] = half[..., None].view(numpy.uint8)
    return data.reshape(*shape[:-1], -1)


def stored(type, shape, generator):
    """-> (array as GGUFWriter takes it, what it means in fp32)"""
    if type.name in ("Q4_K", "Q6_K"):
        data = random_blocks(type, shape, generator)
    else:
        values = generator.standard_normal(shape).astype(numpy.float32) * 10.0 ** generator.integers(-6, 3, (shape[0], 1))
        data = gguf.quants.quantize(values.astype(numpy.float32), type)
    return data, gguf.quants.dequantize(data, type).reshape(shape).astype(numpy.float32)


def llama_gguf(path, type_of, generator):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    wanted = {}

    def add(name, hf, shape, heads=0):
        type = gguf.GGMLQuantizationType[type_of(name, shape)]
        data, values = stored(type, shape if len(shape) > 1 else (1, *shape), generator)
        writer.add_tensor(name, data if len(shape) > 1 else data[0], raw_dtype=type)
        wanted[hf] = unpermuted(values, heads) if heads else values.reshape(shape)

    add("token_embd.weight", "model.embed_tokens.weight", (VOCABULARY, HIDDEN))
    add("output_norm.weight", "model.norm.weight", (HIDDEN,))
    head = HIDDEN // HEADS
    for name, hf, shape, heads in [
        ("attn_norm", "input_layernorm", (HIDDEN,), 0),
        ("attn_q", "self_attn.q_proj", (HIDDEN, HIDDEN), HEADS),
        ("attn_k", "self_attn.k_proj", (KV_HEADS * head, HIDDEN), KV_HEADS),
        ("attn_v", "self_attn.v_proj", (KV_HEADS * head, HIDDEN), 0),
        ("attn_output", "self_attn.o_proj", (HIDDEN, HIDDEN), 0),
        ("ffn_norm", "post_attention_layernorm", (HIDDEN,), 0),
        ("ffn_gate", "mlp.gate_proj", (INNER, HIDDEN), 0),
        ("ffn_up", "mlp.up_proj", (INNER, HIDDEN), 0),
        ("ffn_down", "mlp.down_proj", (HIDDEN, INNER), 0),
    ]:
        add(f"blk.0.{name}.weight", f"model.layers.0.{hf}.weight", shape, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


@pytest.mark.parametrize("kind", TYPES)
def test_every_block_type_equals_the_gguf_package_to_the_bit(tmp_path, kind):
    path = tmp_path / "x.gguf"
    wanted = llama_gguf(path, lambda name, shape: kind if len(shape) > 1 else "F32", numpy.random.default_rng(3))
    assert OPS.model_tensor_names(str(path)) == sorted(wanted)
    for name, values in wanted.items():
        assert same_bits(read(path, name), values), name
        assert same_bits(read(path, name, torch.bfloat16), torch.from_numpy(values).bfloat16()), name
        if numpy.abs(values).max() < 65504:
            assert same_bits(read(path, name, torch.float16), torch.from_numpy(values).half()), name


def mapped_name(name):
    for ours, theirs in [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("blk", "model.layers")]:
        name = theirs + name[len(ours) :] if name.startswith(ours) else name
    for ours, theirs in [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_output", "self_attn.o_proj"),
                         ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"),
                         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")]:  # fmt: skip
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name


needs_model = pytest.mark.skipif(not DEFAULT.exists(), reason="the default model is not there; run ./dev setup")


@needs_model
def test_the_whole_default_model_equals_the_gguf_package_to_the_bit():
    reader = gguf.GGUFReader(DEFAULT)
    names = OPS.model_tensor_names("default")
    assert len(names) == len(reader.tensors) == 272
    types = collections.Counter(tensor.tensor_type.name for tensor in reader.tensors)
    assert types == {"Q4_1": 210, "F32": 61, "Q8_0": 1}, "docs/model.md says so"
    parameters = 0
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2], 0)
        values = torch.tensor(unpermuted(values, heads) if heads else values)
        assert same_bits(read("default", mapped_name(tensor.name), torch.bfloat16), values.bfloat16()), tensor.name
        parameters += values.numel()
    assert parameters == 134_515_008
    config = json.loads(OPS.model_config("default"))
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] and config["eos_token_id"] == 2 and config["max_position_embeddings"] == 8192


BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, eos_token_id=3)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, mlp_only_layers=[1])
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
FAMILIES = {
    "llama": ("Llama", dict(rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "llama_bias": ("Llama", dict(attention_bias=True)),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen2_moe": ("Qwen2Moe", dict(shared_expert_intermediate_size=40, **MOE)),
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=16, norm_topk_prob=True, **MOE)),
}


def tiny(family):
    name, options = FAMILIES[family]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**BASE, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def expected_tensors(model):
    """The state dict with an expert's matrices apart."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        for expert in range(tensor.shape[0] if ".experts." in name else 0):
            prefix = name.rsplit(".", 1)[0]
            if name.endswith("gate_up_proj"):
                gate, up = tensor[expert].chunk(2)
                found[f"{prefix}.{expert}.gate_proj.weight"], found[f"{prefix}.{expert}.up_proj.weight"] = gate, up
            else:
                found[f"{prefix}.{expert}.down_proj.weight"] = tensor[expert]
        if ".experts." not in name:
            found[name] = tensor
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sharded", [False, True], ids=["single", "sharded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_folders_that_transformers_saved(tmp_path, family, sharded, dtype):
    model = tiny(family).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=10_000 if sharded else "1GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    expected = expected_tensors(model)
    assert OPS.model_tensor_names(str(tmp_path)) == sorted(expected)
    for name, tensor in expected.items():
        assert same_bits(read(tmp_path, name, dtype), tensor), name
    written, config = json.loads(OPS.model_config(str(tmp_path))), model.config.to_dict()
    for key, value in written.items():
        if key in config and key != "rope_scaling":
            assert config[key] == value, key


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_we_wrote_is_the_same_model_to_transformers(tmp_path, family):
    model = tiny(family)
    model.save_pretrained(tmp_path / "in")
    summary = as_json("convert-model", tmp_path / "in", tmp_path / "out", "--dtype", "fp32")
    assert summary["files"] == 1 and summary["architecture"] == model.config.model_type
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(again) is type(model)
    for name, tensor in model.state_dict().items():
        assert same_bits(again.state_dict()[name], tensor), name
    tokens = torch.arange(40)[None]
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)
    refused(64, "convert-model", tmp_path / "in", tmp_path / "out", says="exists already")


TEXTS = ["Hello, world! 1234567", "  many   spaces\n\n\ttabs", "naïve café 東京 🙂 e\u0301", "<|im_start|>user\nhi<|im_end|>", "x = 3.14159; // 42's"]


@needs_model
def test_the_default_model_as_a_folder(tmp_path):
    ok("convert-model", "default", tmp_path / "smol")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "smol")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "smol")
    assert model.dtype == torch.bfloat16 and model.config.eos_token_id == 2 and model.generation_config.eos_token_id == 2
    assert model.config.rope_parameters["rope_theta"] == 100000 and model.config.tie_word_embeddings
    name = "model.layers.7.self_attn.k_proj.weight"
    assert same_bits(model.state_dict()[name], read("default", name, torch.bfloat16))
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token, tokenizer.unk_token) == ("<|im_end|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1234567")) == 7 and tokenizer.encode("<|im_start|>") == [1]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    ids = tokenizer(chat, return_tensors="pt").input_ids
    answer = model.float().generate(ids, max_new_tokens=12, do_sample=False)  # in bf16 the first word is a near tie, in fp32 none
    assert "Paris" in tokenizer.decode(answer[0, ids.shape[1] :])


@pytest.mark.parametrize("pre, pattern", [("smollm", "Digits"), ("qwen2", "Split")])
def test_a_made_tokenizer_loads_and_unknown_kinds_are_refused(tmp_path, pre, pattern):
    path = tmp_path / "x.gguf"
    llama_gguf(path, lambda name, shape: "F32", numpy.random.default_rng(3))
    refused(64, "convert-model", path, tmp_path / "out", says="tokenizer.ggml.model")
    assert not list(tmp_path.glob("out*"))
    # GPT-2's 256 byte letters, one merge, one control token
    letters = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255 else None for b in range(256)]
    rest = iter(range(256, 512))
    letters = [letter or chr(next(rest)) for letter in letters]
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(tmp_path / "y.gguf", "llama")
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            writer.add_key_value(key, field.contents(), field.types[0])
    tokens = [*letters, "12", "<end>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges(["1 2"])
    writer.add_eos_token_id(257)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, numpy.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ok("convert-model", tmp_path / "y.gguf", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert pattern in (tmp_path / "out/tokenizer.json").read_text(encoding="utf-8")
    assert tokenizer.encode("12<end>") == [ord("1"), ord("2"), 257]  # digits are cut apart before merging
    assert tokenizer.decode(tokenizer.encode("é 東")) == "é 東"


def test_refusals_are_python_errors(tmp_path):
    with pytest.raises(ValueError, match="no such model"):
        OPS.model_config(str(tmp_path / "nothing"))
    (tmp_path / "x.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(RuntimeError, match="number of tensors"):
        OPS.model_config(str(tmp_path / "x.gguf"))
    refused(2, "convert-model", tmp_path / "x.gguf", tmp_path / "out", says="x.gguf")
    refused(64, "convert-model", "default", tmp_path / "out", "--dtype", "int8", says="int8")
