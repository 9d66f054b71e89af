"""A Hugging Face folder with a random Llama of two layers and a tokenizer of bytes: what training tests run on."""

import json

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 32, 64, 2, 4, 2, 8
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make(folder, seed=0, layers=LAYERS, learned_from=(), context=1024):
    """learned_from: texts that the tokenizer learns 1,000 words from, so that prompts are short; none: bytes alone."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    if learned_from:
        tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if learned_from:
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        tokenizer.train_from_iterator(learned_from, trainer)
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>"}))
    vocabulary = tokenizer.get_vocab_size() if learned_from else len(words)
    config = dict(
        model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=INNER,
        num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD, max_position_embeddings=context,
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu", attention_bias=False, mlp_bias=False,
        eos_token_id=2, torch_dtype="float32",
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * 0.05

    tensors = {"model.embed_tokens.weight": normal(vocabulary, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD),
            f"{layer}.mlp.gate_proj.weight": normal(INNER, HIDDEN),
            f"{layer}.mlp.up_proj.weight": normal(INNER, HIDDEN),
            f"{layer}.mlp.down_proj.weight": normal(HIDDEN, INNER),
        }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
