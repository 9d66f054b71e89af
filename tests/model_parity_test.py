"""The default model (SmolLM2-135M-Instruct) against transformers on the same numbers: logits, greedy continuations, and how
often bf16 names the same likeliest token. The suite takes a sample; FAULTLINE_PARITY=full takes what docs/results/model.md
reports (32 prompts x 64 tokens, 64 texts) and prints the figures with -s."""

import json
import os
import pathlib

import pytest
import torch
import transformers

from testing_ops import OPS

CPU = torch.device("cpu")
ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
DEFAULT = pathlib.Path(os.environ.get("FAULTLINE_MODEL") or CACHE / "faultline/models/SmolLM2-135M-Instruct.Q4_1.gguf")
FULL = os.environ.get("FAULTLINE_PARITY") == "full"

pytestmark = pytest.mark.skipif(not DEFAULT.exists(), reason="the default model is not there; run ./dev setup")

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "2 + 2 =", "Water boils at", "The quick brown fox", "In 1969", "My favourite colour"]


def questions(count):
    lines = (ROOT / "data/gsm8k/test.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def tokens_of():
    handle = OPS.tokenizer_load(str(DEFAULT))
    return lambda text: list(OPS.tokenizer_encode(handle, text, True))


@pytest.fixture(scope="module")
def reference():
    return transformers.AutoModelForCausalLM.from_pretrained(DEFAULT.parent, gguf_file=DEFAULT.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def in_bf16(reference):
    model = transformers.AutoModelForCausalLM.from_config(reference.config, dtype=torch.bfloat16).eval()
    model.load_state_dict(reference.state_dict())
    return model


@pytest.fixture(scope="module")
def ours():
    handle = OPS.model_open("default", torch.float32, CPU)
    yield handle
    OPS.model_close(handle)


@pytest.fixture(scope="module")
def ours_in_bf16():
    handle = OPS.model_open("default", torch.bfloat16, CPU)
    yield handle
    OPS.model_close(handle)


def test_logits_are_those_of_transformers(reference, ours, tokens_of):
    tokens = torch.tensor([tokens_of("The capital of France is Paris, and the capital of Italy is Rome. " * 2)])
    with torch.no_grad():
        theirs, mine = reference(tokens).logits, OPS.model_logits(ours, tokens)
    assert (mine - theirs).abs().max() / theirs.abs().max() < 1e-4


def continued_by_transformers(model, prompts, new_tokens):
    """Greedy, all prompts at once, padded on the left: what transformers itself recommends for a batch."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[2] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        made = model.generate(tokens, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=2)
    return made[:, width:]


def margin(model, prompt, tokens, at):
    """How far apart the two likeliest tokens are where two continuations part, relative to the largest logit."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:at]])).logits[0, -1]
    best = logits.topk(2).values
    return ((best[0] - best[1]) / logits.abs().max()).item()


def test_greedy_continuations_are_those_of_transformers(reference, ours, tokens_of):
    new_tokens = 64 if FULL else 12
    texts = (PROMPTS + [record["question"] for record in questions(24)]) if FULL else PROMPTS
    prompts = [tokens_of(text) for text in texts]
    made, _ = OPS.model_generate(ours, sum(prompts, []), [len(p) for p in prompts], new_tokens, 0.0, 0, 1.0, 0, 8, [], False)
    theirs = continued_by_transformers(reference, prompts, new_tokens)
    parted = []
    for prompt, mine, other in zip(prompts, made.tolist(), theirs.tolist()):
        if mine != other:
            at = next(i for i in range(new_tokens) if mine[i] != other[i])
            parted.append((at, margin(reference, prompt, other, at)))
    print(f"\ngreedy, fp32: {len(prompts) - len(parted)} of {len(prompts)} continuations of {new_tokens} tokens equal; parted (token, margin): {parted}")
    # Each of two logits may be off by what test_logits_are_those_of_transformers allows; closer than that, either is right.
    assert [wide for wide in parted if wide[1] > 2e-4] == [] and len(parted) <= len(prompts) / 8


def likeliest(forward, texts):
    with torch.no_grad():
        return torch.cat([forward(torch.tensor([text])).reshape(len(text), -1).argmax(-1) for text in texts])


def share_equal(a, b):
    return (a == b).double().mean().item()


def test_bf16_names_the_likeliest_token_as_often_as_transformers_does(reference, in_bf16, ours_in_bf16, tokens_of):
    """Rounding to bf16 turns close decisions, whoever rounds. The yardstick is what it does to transformers itself."""
    texts = [tokens_of(f"{record['question']}\n{record['answer']}") for record in questions(64 if FULL else 3)]
    exact = likeliest(lambda tokens: reference(tokens).logits, texts)
    theirs = likeliest(lambda tokens: in_bf16(tokens).logits, texts)
    mine = likeliest(lambda tokens: OPS.model_logits(ours_in_bf16, tokens), texts)
    shares = {"ours and theirs, both bf16": share_equal(mine, theirs), "ours bf16 and fp32": share_equal(mine, exact), "theirs bf16 and fp32": share_equal(theirs, exact)}
    print(f"\n{len(exact)} tokens: {shares}")
    # A token is another with chance p; two samples of n tokens then differ by less than 4 standard errors of a difference.
    apart = 1 - shares["theirs bf16 and fp32"]
    allowed = 4 * (2 * max(apart, 0.01) / len(exact)) ** 0.5
    assert shares["ours bf16 and fp32"] > shares["theirs bf16 and fp32"] - allowed
    assert shares["ours and theirs, both bf16"] > 0.95
