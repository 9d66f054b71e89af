"""Small Hugging Face models with the shapes that matter (depth, roles, tied heads), recipes in one line, and questions
to a report. Weights are random: nothing is downloaded."""

import collections
import contextlib
import re

import torch

VOCABULARY = 96


def _build(model_class, config):
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms of their own, so that a fault on them would show
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def _sizes(layers, **others):
    sizes = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    return {**sizes, **others}


def qwen2(layers=2, **others):
    """Qwen2.5's architecture: biases on q, k, v; the head is tied to the embedding."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _build(Qwen2ForCausalLM, Qwen2Config(**_sizes(layers, tie_word_embeddings=True, **others)))


def llama(layers=2, **others):
    """No biases, and a head with its own weight."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _build(LlamaForCausalLM, LlamaConfig(**_sizes(layers, tie_word_embeddings=False, **others)))


def qwen3_moe(layers=2, *, experts=None, **others):
    """experts: how they are computed; "eager" runs them one by one, None (torch's choice) all at once."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = _sizes(layers, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1)
    model = _build(Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**sizes, **others}))
    if experts is not None:
        model.set_experts_implementation(experts)
    return model


def qwen2_moe(layers=2, *, experts=None, **others):
    """As qwen3_moe, with an expert that every token passes."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = _sizes(layers, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24, decoder_sparse_step=1)
    model = _build(Qwen2MoeForCausalLM, Qwen2MoeConfig(**{**sizes, **others}))
    if experts is not None:
        model.set_experts_implementation(experts)
    return model


def tokens(rows=2, length=8, seed=1):
    return torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- recipes ----------------------------------------------------------------------------------------------------------
NOISE = {"kind": "relative_gaussian", "strength": 0.05}


def rule(name="fault", *, where=None, what=None, **others):
    return {"name": name, "where": where or {"operator": "matmul"}, "what": what or NOISE, **others}


def recipe(*rules, seed=7, **others):
    return {"seed": seed, "faults": list(rules) or [rule()], **others}


# --- questions to a report --------------------------------------------------------------------------------------------
def rows(report, **wanted):
    """Rows of the ledger whose columns have these values, e.g. rows(report, phase="rollout", layer=1)."""
    return [row for row in report["rows"] if all(row[key] == value for key, value in wanted.items())]


def calls(report, **wanted):
    return sum(int(row["ledger"]["calls"]) for row in rows(report, **wanted))


def calls_by_layer(report, **wanted):
    by_layer = collections.Counter()
    for row in rows(report, **wanted):
        by_layer[row["layer"]] += int(row["ledger"]["calls"])
    return dict(by_layer)


@contextlib.contextmanager
def refused(code, *, rule="fault", place="", match=""):
    """What runs inside is refused for this reason, perhaps among others; `match` is looked for in its sentence."""
    import pytest

    import faultline

    with pytest.raises(faultline.EvidenceError) as error:
        yield error
    said = [each["sentence"] for each in error.value.complaints if (each["code"], each["rule"], each["place"]) == (code, rule, place)]
    assert any(re.search(match, sentence) for sentence in said), error.value.complaints


def same_bits(first, second):
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def logits(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def training_step(model, ids):
    """One forward and backward. -> gradients by name"""
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
