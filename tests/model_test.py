"""Our model against transformers on the same files: tiny random models of all families. The files are written by
transformers; ours reads them. The default model: model_parity_test.py."""

import json

import pytest
import torch
import transformers

from testing_ops import OPS

CPU = torch.device("cpu")

COMMON = dict(vocab_size=320, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, decoder_sparse_step=1, output_router_logits=False)
FAMILIES = {
    "llama": (transformers.LlamaConfig, dict(rope_theta=10000.0, tie_word_embeddings=True)),
    "llama_biased": (transformers.LlamaConfig, dict(attention_bias=True, tie_word_embeddings=False)),
    "llama3": (transformers.LlamaConfig, dict(tie_word_embeddings=False, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_mlp_biased": (transformers.LlamaConfig, dict(mlp_bias=True, tie_word_embeddings=False)),
    "yarn": (transformers.LlamaConfig, dict(tie_word_embeddings=False, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=16.0))),
    "dynamic": (transformers.LlamaConfig, dict(tie_word_embeddings=False, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    "mistral": (transformers.MistralConfig, dict(head_dim=24, sliding_window=128, tie_word_embeddings=False)),
    "phi3": (transformers.Phi3Config, dict(pad_token_id=0, sliding_window=128)),
    "smollm3": (transformers.SmolLM3Config, dict(no_rope_layers=[1, 0, 1], pad_token_id=0, attention_bias=True, mlp_bias=True)),
    "granite": (transformers.GraniteConfig, dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=5.0, tie_word_embeddings=True)),
    "qwen2": (transformers.Qwen2Config, dict(tie_word_embeddings=True)),
    "qwen3": (transformers.Qwen3Config, dict(head_dim=24, tie_word_embeddings=False)),
    "qwen2_moe": (transformers.Qwen2MoeConfig, dict(shared_expert_intermediate_size=80, mlp_only_layers=[1], norm_topk_prob=False, **MOE)),
    "qwen3_moe": (transformers.Qwen3MoeConfig, dict(head_dim=16, norm_topk_prob=True, mlp_only_layers=[], **MOE)),
}


def make(family, folder):
    config_class, more = FAMILIES[family]
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(config_class(**{**COMMON, **more})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # large enough to tell a missing bias or norm
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    reference = make(request.param, folder)
    handle = OPS.model_open(str(folder), torch.float32, CPU)
    yield reference, handle, folder
    OPS.model_close(handle)


def largest_difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def test_logits_are_those_of_transformers_in_fp32(pair):
    reference, handle, _ = pair
    tokens = torch.randint(0, 320, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = reference(tokens).logits, OPS.model_logits(handle, tokens)
    assert largest_difference(ours, theirs) < 1e-4


FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def reference_gradients(reference):
    """By Hugging Face name; stacked experts taken apart."""
    found = {}
    for name, parameter in reference.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            for e, part in enumerate(parameter.grad):
                found[name.replace("experts.gate_up_proj", f"experts.{e}.gate_up_proj.weight")] = part
        elif name.endswith("experts.down_proj"):
            for e, part in enumerate(parameter.grad):
                found[name.replace("experts.down_proj", f"experts.{e}.down_proj.weight")] = part
        else:
            found[name] = parameter.grad
    return found


def test_gradients_are_those_of_transformers(pair):
    reference, handle, _ = pair
    tokens = torch.randint(0, 320, (2, 12), generator=torch.Generator().manual_seed(2))
    weight = torch.randn(2, 12, 320, generator=torch.Generator().manual_seed(3))
    reference.zero_grad()
    (reference(tokens).logits * weight).sum().backward()
    theirs = reference_gradients(reference)
    parameters = dict(zip(OPS.model_parameter_names(handle), OPS.model_parameters(handle)))
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    (OPS.model_logits(handle, tokens) * weight).sum().backward()
    compared = 0
    for name, parameter in parameters.items():
        parent, _, kind = name.rpartition(".")
        path, _, last = parent.rpartition(".")
        if name not in theirs and last in FUSED:
            expected = torch.cat([theirs[f"{path}.{part}.{kind}"] for part in FUSED[last]])
        else:
            expected = theirs[name]
        scale = expected.abs().max()
        assert ((parameter.grad - expected).abs().max() / scale < 1e-4) if scale > 0 else not parameter.grad.any(), name
        compared += 1
        parameter.requires_grad_(False)
        parameter.grad = None
    assert compared == len(parameters) > 10


def test_greedy_continuations_are_those_of_transformers(pair):
    reference, handle, _ = pair
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 320, (length,), generator=generator) for length in (1, 2, 5, 9, 17, 30)]
    made, _ = OPS.model_generate(handle, torch.cat(prompts).tolist(), [len(p) for p in prompts], 24, 0.0, 0, 1.0, 0, 4, [], False)
    for prompt, row in zip(prompts, made):
        with torch.no_grad():
            theirs = reference.generate(prompt.unsqueeze(0), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert equal_up_to_a_tie(reference, prompt, row, theirs[0, len(prompt) :])


def equal_up_to_a_tie(reference, prompt, ours, theirs):
    """The same tokens; or, where they part, the two likeliest are closer than the logits' tolerance, and either is right."""
    different = (ours != theirs).nonzero()
    if len(different) == 0:
        return True
    with torch.no_grad():
        logits = reference(torch.cat([prompt, theirs[: different[0]]])[None]).logits[0, -1]
    best, next_best = logits.topk(2).values
    return (best - next_best) / logits.abs().max() < 2e-4


def test_sampled_log_probabilities_are_those_of_a_scoring_forward(pair):
    _, handle, _ = pair
    prompt = [5, 6, 7, 8]
    made, chances = OPS.model_generate(handle, prompt, [4], 20, 0.7, 0, 1.0, 11, 1, [], False)
    with torch.no_grad():
        logits = OPS.model_logits(handle, torch.tensor([prompt + made[0].tolist()]))
    expected = torch.log_softmax(logits[0, 3:-1] / 0.7, -1).gather(1, made[0].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(chances[0], expected, atol=2e-4, rtol=1e-4)


def test_a_sequence_does_not_depend_on_its_neighbours(pair):
    _, handle, _ = pair
    prompts = [[1, 2, 3], [9, 8, 7, 6, 5], [40], [100, 101]]
    together, _ = OPS.model_generate(handle, sum(prompts, []), [len(p) for p in prompts], 12, 1.0, 0, 1.0, 50, 2, [3, 7], False)
    for i, prompt in enumerate(prompts):
        alone, _ = OPS.model_generate(handle, prompt, [len(prompt)], 12, 1.0, 0, 1.0, 50 + i, 1, [3, 7], False)
        assert alone[0].tolist() == together[i].tolist()


def test_an_end_token_ends_and_is_kept(pair):
    _, handle, _ = pair
    free, _ = OPS.model_generate(handle, [1, 2, 3], [3], 16, 0.0, 0, 1.0, 0, 1, [], False)
    stop = free[0, 4].item()
    ended, _ = OPS.model_generate(handle, [1, 2, 3], [3], 16, 0.0, 0, 1.0, 0, 1, [stop], False)
    first = free[0].tolist().index(stop)
    assert ended[0].tolist() == free[0, : first + 1].tolist() + [-1] * (15 - first)


@pytest.mark.parametrize("prompt, sentence", [([], "is empty"), ([400], "holds token 400"), ([1] * 300, "context holds")])
def test_a_prompt_that_cannot_be_run_is_refused(pair, prompt, sentence):
    _, handle, _ = pair
    with pytest.raises(Exception, match=sentence):
        OPS.model_generate(handle, prompt, [len(prompt)], 4, 0.0, 0, 1.0, 0, 1, [], False)


def test_a_sequence_as_long_as_the_window_is_whole_and_a_longer_one_is_refused(tmp_path):
    reference = make("mistral", tmp_path)
    handle = OPS.model_open(str(tmp_path), torch.float32, CPU)
    tokens = torch.randint(0, 320, (1, 136), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        assert largest_difference(OPS.model_logits(handle, tokens[:, :128]), reference(tokens[:, :128]).logits) < 1e-4
    with pytest.raises(Exception, match="136 tokens; this model is computed here up to 128"):
        OPS.model_logits(handle, tokens)
    with pytest.raises(Exception, match="the model's context holds 128"):
        OPS.model_generate(handle, tokens[0, :120].tolist(), [120], 9, 0.0, 0, 1.0, 0, 1, [], False)
    OPS.model_close(handle)


@pytest.mark.parametrize("family", ["Olmo2", "Gemma3Text", "Mixtral", "GptOss"])
def test_a_family_that_is_not_ours_is_refused_with_the_way_to_run_it(family, tmp_path):
    config = getattr(transformers, f"{family}Config")()
    config.save_pretrained(tmp_path)
    with pytest.raises(Exception, match=f"{config.model_type}.*run it in transformers"):
        OPS.model_open(str(tmp_path), torch.float32, CPU)


def test_routers_choose_as_transformers_do(pair):
    reference, handle, folder = pair
    if "moe" not in json.loads((folder / "config.json").read_text())["model_type"]:
        return
    # A wrong choice of experts changes logits far beyond rounding; equal logits over many tokens are equal choices.
    tokens = torch.randint(0, 320, (4, 200), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        assert largest_difference(OPS.model_logits(handle, tokens), reference(tokens).logits) < 1e-4
