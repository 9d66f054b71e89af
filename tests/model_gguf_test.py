"""GGUF files of every family against transformers. The files are made with the gguf package: its table of names, its
quantisers, the keys that llama.cpp's converter writes, and all block types that we read in each file. transformers gets the
values that the gguf package reads back, so both compute on the same numbers and only our reading can differ."""

import collections

import gguf
import numpy
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from program import refused
from testing_ops import OPS

CPU = torch.device("cpu")
TYPES = ["Q4_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]
VOCABULARY, LAYERS = 96, 3

COMMON = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=256, decoder_sparse_step=1, output_router_logits=False, tie_word_embeddings=False)
THETA = dict(rope_type="default", rope_theta=1e6)
FAMILIES = {  # our name: GGUF's, transformers', its options
    "llama": ("llama", "Llama", dict(tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e5))),
    "qwen2": ("qwen2", "Qwen2", dict(tie_word_embeddings=True, rope_parameters=THETA)),
    "qwen3": ("qwen3", "Qwen3", dict(tie_word_embeddings=False, head_dim=32, rope_parameters=THETA)),
    "qwen2_moe": ("qwen2moe", "Qwen2Moe", dict(shared_expert_intermediate_size=512, mlp_only_layers=[], norm_topk_prob=False, rope_parameters=THETA, **MOE)),
    "qwen3_moe": ("qwen3moe", "Qwen3Moe", dict(head_dim=64, mlp_only_layers=[], norm_topk_prob=True, rope_parameters=THETA, **MOE)),
}  # fmt: skip


def fresh(family):
    _, name, options = FAMILIES[family]
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**{**COMMON, **options})).eval()


# --- writing ----------------------------------------------------------------------------------------------------------
def matrices(model):
    """The state dict by the names that the converter has after merging: experts stacked, gate and up apart."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            found[name.replace("gate_up_proj", "gate_proj.weight")], found[name.replace("gate_up_proj", "up_proj.weight")] = gate, up
        else:
            found[name + (".weight" if name.endswith("experts.down_proj") else "")] = tensor
    return found


K_SCALES = {  # where a block's fp16 scales lie, and how large they are
    "Q4_K": [(0, 2.5e-4), (2, 1.9e-3)], "Q6_K": [(208, 4e-5)], "Q2_K": [(80, 3e-3), (82, 4.5e-3)], "Q3_K": [(108, 1.2e-3)],
    "Q5_K": [(0, 1.2e-4), (2, 1.9e-3)], "IQ4_NL": [(0, 8e-4)], "IQ4_XS": [(0, 5e-5)], "NVFP4": [],
}  # fmt: skip


def k_blocks(type, shape, generator):
    """Blocks that a quantiser could have written, values of about 0.05. The package reads these types, and writes none."""
    block, size = gguf.GGML_QUANT_SIZES[type]
    data = generator.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=numpy.uint8)
    if type.name == "NVFP4":
        data[..., :4] = generator.integers(8, 24, (*data.shape[:-1], 4))  # scales from 2^-6 to 2^-4
    for place, scale in K_SCALES[type.name]:
        half = (generator.uniform(0.5, 1.5, data.shape[:-1]) * scale).astype("<f2")
        data[..., place : place + 2] = half[..., None].view(numpy.uint8)
    return data.reshape(*shape[:-1], -1)


def stored(kind, shape, generator):
    """-> (array as GGUFWriter takes it, its type, what it means in fp32)"""
    type = gguf.GGMLQuantizationType[kind]
    if kind in K_SCALES:
        data = k_blocks(type, shape, generator)
    else:
        data = gguf.quants.quantize((generator.standard_normal(shape) * 0.05).astype(numpy.float32), type)
    return data, type, gguf.quants.dequantize(data, type).reshape(shape).astype(numpy.float32)


def permuted(w, heads):
    """Rows of q and k as llama.cpp's converter turns them for the architecture llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def add_keys(writer, config, more):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    if config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    if config.model_type.startswith("qwen3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type.endswith("moe"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    for key, value in more.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))


def write(path, family, *, squeezed=True, more={}, leave_out=()):
    """-> the values by Hugging Face name, the block types by tensor."""
    model, architecture = fresh(family), FAMILIES[family][0]
    names = gguf.get_tensor_name_map(next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture), LAYERS)
    writer, generator = gguf.GGUFWriter(path, architecture), numpy.random.default_rng(5)
    add_keys(writer, model.config, more)
    values, types = {}, {}
    turns = collections.Counter()
    for hf, tensor in matrices(model).items():
        name, shape = names.get_name(hf, try_suffixes=(".weight", ".bias")), tuple(tensor.shape)
        assert name is not None, hf
        if name in leave_out:
            continue
        if len(shape) == 1 or "ffn_gate_inp" in name:  # the converter keeps vectors and routers in F32
            value = (generator.standard_normal(shape) * (0.5 if "gate_inp" in name else 0.1) + (1 if "norm" in name else 0)).astype(numpy.float32)
            data, type = (value[0] if squeezed and shape[0] == 1 else value), gguf.GGMLQuantizationType.F32
        else:
            fitting = TYPES if shape[-1] % 256 == 0 else TYPES[2:9]
            kind = fitting[turns[len(fitting)] % len(fitting)]
            data, type, value = stored(kind, shape, generator)
            turns[len(fitting)] += 1
        writer.add_tensor(name, data, raw_dtype=type)
        types[name] = type.name
        values[hf] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, values, types


def unpermuted(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def meant(model, values):
    """What the file means, by Hugging Face name: llama's rows turned back."""
    if model.config.model_type != "llama":
        return values
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    return {name: unpermuted(v, heads[name.split(".")[-2]]) if name.split(".")[-2] in heads else v for name, v in values.items()}


def give(model, values):
    """transformers' model with these values: experts stacked again."""
    state = {}
    for name, value in values.items():
        if ".experts." not in name:
            state[name] = torch.from_numpy(numpy.ascontiguousarray(value))
        elif name.endswith("down_proj.weight"):
            state[name.removesuffix(".weight")] = torch.from_numpy(value)
        elif name.endswith("gate_proj.weight"):
            both = [torch.from_numpy(value), torch.from_numpy(values[name.replace("gate_proj", "up_proj")])]
            state[name.replace("gate_proj.weight", "gate_up_proj")] = torch.cat(both, dim=1)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    model.tie_weights()
    return model


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "model.gguf"
    model, values, types = write(path, request.param)
    values = meant(model, values)
    handle = OPS.model_open(str(path), torch.float32, CPU)
    yield give(model, values), handle, path, values, types
    OPS.model_close(handle)


# --- reading ----------------------------------------------------------------------------------------------------------
class Choices(TorchDispatchMode):
    """Which experts a forward chooses: the results of every top-k that runs inside, ours or transformers'."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if function is torch.ops.aten.topk.default:
            self.made.append(result[1].reshape(-1, result[1].shape[-1]).sort(-1).values)
        return result


def largest_difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def some_tokens(*shape):
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def test_all_block_types_are_in_the_file(pair):
    assert set(pair[4].values()) == set(TYPES)


def test_logits_are_those_of_transformers(pair):
    reference, handle, *_ = pair
    tokens = some_tokens(3, 40)
    with torch.no_grad():
        theirs, ours = reference(tokens).logits, OPS.model_logits(handle, tokens)
    assert theirs.std() > 0.1  # a model that says nothing would agree with anything
    assert largest_difference(ours, theirs) < 1e-4


def test_routers_choose_the_same_experts(pair):
    reference, handle, *_ = pair
    experts = getattr(reference.config, "num_experts", 0)
    sparse = LAYERS - len(reference.config.mlp_only_layers) if experts else 0
    tokens = some_tokens(4, 200)
    with torch.no_grad(), Choices() as theirs:
        reference(tokens)
    with torch.no_grad(), Choices() as ours:
        OPS.model_logits(handle, tokens)
    assert len(ours.made) == len(theirs.made) == sparse
    for mine, other in zip(ours.made, theirs.made):
        assert torch.equal(mine, other)
        assert len(mine.unique()) == experts  # every expert is somebody's choice


def test_greedy_continuations_are_those_of_transformers(pair):
    reference, handle, *_ = pair
    prompts = [some_tokens(length) for length in (1, 3, 8, 21)]
    made, _ = OPS.model_generate(handle, torch.cat(prompts).tolist(), [len(p) for p in prompts], 16, 0.0, 0, 1.0, 0, 3, [], False)
    for prompt, row in zip(prompts, made):
        with torch.no_grad():
            theirs = reference.generate(prompt.unsqueeze(0), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert row.tolist() == theirs[0, len(prompt) :].tolist()


def test_every_tensor_is_the_packages_to_the_bit(pair):
    _, _, path, values, _ = pair
    compared = 0
    for name, value in values.items():
        parts = [(name.replace(".experts.", f".experts.{e}."), part) for e, part in enumerate(value)] if ".experts." in name else [(name, value)]
        for ours, wanted in parts:
            read = OPS.read_model_tensor(str(path), ours, torch.float32)
            assert torch.equal(read.view(torch.int32), torch.from_numpy(numpy.ascontiguousarray(wanted)).view(torch.int32)), ours
            compared += 1
    assert compared == len(OPS.model_tensor_names(str(path)))


def test_a_shared_experts_gate_may_keep_its_row_dimension(tmp_path):
    model, values, _ = write(tmp_path / "x.gguf", "qwen2_moe", squeezed=False)
    name = "model.layers.0.mlp.shared_expert_gate.weight"
    assert torch.equal(OPS.read_model_tensor(str(tmp_path / "x.gguf"), name, torch.float32), torch.from_numpy(values[name]))


@pytest.mark.parametrize(
    "family, more, leave_out, says",
    [
        ("qwen2", {}, ["blk.2.attn_k.bias"], "blk.2.attn_k.bias"),
        ("qwen3", {}, ["blk.1.attn_q_norm.weight"], "blk.1.attn_q_norm.weight"),
        ("qwen3_moe", {}, ["blk.0.ffn_gate_inp.weight"], "blk.0.ffn_gate_inp.weight"),
        ("qwen2_moe", {}, ["blk.0.ffn_up_shexp.weight"], "blk.0.ffn_up_shexp.weight"),
        ("qwen2", {"qwen2.rope.scaling.type": "yarn"}, [], "'yarn' is not supported"),
        ("qwen3", {"qwen3.expert_count": 4}, [], "a mixture of experts of this architecture is not supported"),
    ],
)
def test_a_file_that_lacks_or_asks_for_something_is_refused_by_name(tmp_path, family, more, leave_out, says):
    write(tmp_path / "x.gguf", family, more=more, leave_out=leave_out)
    error = refused(64, "census", "--model", tmp_path / "x.gguf", says=says)
    assert "x.gguf" in error
