"""How long a diagnosis by `self` takes on a large model: random weights in the shape of a 1.5B Llama, written as a checkpoint
that the program loads. Prints one JSON line: seconds and cost of `self` in a process of its own, cold, and after `classic`.

    python tests/bench_diagnose.py --build build --tokenizer DIR [--device cuda] [--shape 1.5b|small]
"""
import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile

import torch

SHAPES = {
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
    "small": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=151936),
}


def tensors(shape):
    """Name and sizes of every weight."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    kv = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", (shape["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for i in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", hidden), ("k", kv), ("v", kv), ("o", hidden)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, hidden)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)


def write_checkpoint(folder, shape, device):
    """Safetensors by hand (a length, a JSON header, the bytes): the machine may have nothing but torch."""
    generator = torch.Generator(device).manual_seed(1)
    header, at = {}, 0
    for name, sizes in tensors(shape):
        count = 2 * torch.Size(sizes).numel()
        header[name] = {"dtype": "BF16", "shape": list(sizes), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, sizes in tensors(shape):
            weight = torch.ones(sizes) if len(sizes) == 1 else 0.02 * torch.randn(sizes, generator=generator, device=device)
            file.write(weight.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    config = dict(shape, model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0,
                  max_position_embeddings=2048, tie_word_embeddings=True, attention_bias=False, mlp_bias=False, torch_dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="a folder with a tokenizer.json of at most 151,936 tokens")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="1.5b", choices=sorted(SHAPES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_checkpoint(folder, SHAPES[arguments.shape], arguments.device)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (arguments.tokenizer / name).exists():
                shutil.copy(arguments.tokenizer / name, folder / name)
        verdicts = []
        for method in ("self", "self", "all"):  # classic, which "all" runs first, warms the device up
            command = [arguments.build / "faultline", "--device", arguments.device, "--json", "--quiet", "diagnose", "--model", folder, "--method", method]
            answer = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)  # classic accuses somebody: exit 1 is no failure
            verdicts += [dict(verdict, asked_for=method) for verdict in answer["verdicts"]]
    figures = [{key: one[key] for key in ("asked_for", "method", "verdict", "seconds", "forward_equivalents", "layer_forward_equivalents", "relations")} for one in verdicts]
    print(json.dumps({"shape": arguments.shape, "device": arguments.device, "diagnoses": figures}))


if __name__ == "__main__":
    main()
