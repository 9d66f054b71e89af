"""How much of the log-probability gap between two engines each operator contributes. Two traces of detail full, of one prompt, say what every
product of each side read and gave; between two products lies one operator: a norm (with the sums of the residual before it), attention (with
its rotation), an activation. The model in fp64 gives what each had to give, so each side's own error is known at every place. These errors are put
back into the fp64 model, one group at a time: what a group changes in the log-probabilities is its contribution. All groups together must give the
recorded log-probabilities again, which is checked.

    python tests/compare_gap.py MODEL A B [--device cuda]      a folder of a Llama or Qwen2, two traces; JSON"""

from __future__ import annotations

import argparse
import json
import pathlib

import torch

READS = {"aten::mm": 0, "aten::addmm": 1, "faultline::few_rows_linear": 0, "_C::onednn_mm": 1}
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
GROUPS = ("norm", "q k v", "attention", "o", "gate up", "activation", "down", "head")


def tensors_of(folder):
    from safetensors.torch import load_file

    found = {}
    for part in sorted(folder.glob("part-*.safetensors")):
        found.update(load_file(part))
    return found


def products_of(folder, tokens):
    """By place: what the product of all tokens read and gave, fp64; fused ones in their parts."""
    header, stored, found = json.loads((folder / "header.json").read_text()), tensors_of(folder), {}
    if header["detail"] != "full":
        raise ValueError(f"{folder}: has the detail {header['detail']}; record with detail full")
    for part in sorted(folder.glob("part-*.jsonl")):
        for line in map(json.loads, part.read_text().splitlines()):
            if line.get("operator") not in READS or line["arguments"] is None:
                continue
            x = stored[line["arguments"][READS[line["operator"]]]["tensor"]].double()
            y = stored[line["results"][0]["tensor"]].double()
            x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
            if len(x) < tokens - 1:
                continue
            around, _, last = line["place"].rpartition(".")
            names = FUSED.get(last, (last,))
            sizes = [header["weights"][f"{around}.{name}.weight"]["shape"][0] for name in names] if len(names) > 1 else [y.shape[1]]
            for name, piece in zip(names, y.split(sizes, 1), strict=True):
                found.setdefault(f"{around}.{name}".lstrip("."), (x[:tokens], piece[:tokens]))
    return found


class Exact:
    """The model in fp64, and the errors of a side against it."""

    def __init__(self, folder, ids, device):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").to(device).eval()
        self.ids, self.device, self.tokens = ids.to(device), device, ids.shape[1]

    def attention(self, layer, q, k, v):
        """Rotation and attention of one layer, from what its products gave."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        config, size = self.model.config, layer.self_attn.head_dim
        by_head = [x.reshape(1, self.tokens, -1, size).transpose(1, 2) for x in (q, k, v)]
        angles = self.model.model.rotary_emb(by_head[2], torch.arange(self.tokens, device=self.device)[None])
        q, k = apply_rotary_pos_emb(by_head[0], by_head[1], *angles)
        group = config.num_attention_heads // config.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), by_head[2].repeat_interleave(group, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(self.tokens, -1)

    def errors(self, products):
        """By (group, module, "input" or "output"): what this side's operators gave beside what they had to give."""
        products = {place: (x.to(self.device), y.to(self.device)) for place, (x, y) in products.items()}
        head = products[next(place for place in ("lm_head", "logits_processor", "model.embed_tokens") if place in products)]
        head = head[0], head[1][:, : self.model.config.vocab_size]  # vLLM adds columns that no token has
        found = {}
        residual = self.model.model.embed_tokens(self.ids)[0]

        def product(group, place, linear, pair):
            x, y = pair
            found[group, place, "output"] = y - linear(x)
            return y

        for number, layer in enumerate(self.model.model.layers):
            at = f"model.layers.{number}"
            own = {name: products[f"{at}.{block}.{name}_proj"] for block, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))) for name in names}
            normed = own["q"][0] - layer.input_layernorm(residual)
            for name in "qkv":
                found["norm", f"{at}.self_attn.{name}_proj", "input"] = normed
            q, k, v = (product("q k v", f"{at}.self_attn.{name}_proj", getattr(layer.self_attn, f"{name}_proj"), own[name]) for name in "qkv")
            found["attention", f"{at}.self_attn.o_proj", "input"] = own["o"][0] - self.attention(layer, q, k, v)
            residual = residual + product("o", f"{at}.self_attn.o_proj", layer.self_attn.o_proj, own["o"])
            normed = own["gate"][0] - layer.post_attention_layernorm(residual)
            for name in ("gate", "up"):
                found["norm", f"{at}.mlp.{name}_proj", "input"] = normed
            gate, up = (product("gate up", f"{at}.mlp.{name}_proj", getattr(layer.mlp, f"{name}_proj"), own[name]) for name in ("gate", "up"))
            found["activation", f"{at}.mlp.down_proj", "input"] = own["down"][0] - torch.nn.functional.silu(gate) * up
            residual = residual + product("down", f"{at}.mlp.down_proj", layer.mlp.down_proj, own["down"])
        rows = min(len(head[0]), self.tokens)  # the last one says nothing about the prompt
        found["norm", "lm_head", "input"] = head[0][:rows] - self.model.model.norm(residual)[:rows]
        found["head", "lm_head", "output"] = head[1][:rows] - self.model.lm_head(head[0][:rows])
        return found, self.chances(head[1][: self.tokens - 1])

    def chances(self, logits):
        """Of the tokens that follow."""
        return logits.double().log_softmax(-1).gather(1, self.ids[0, 1:, None])[:, 0]

    def run(self, errors):
        """The model with these errors. -> log-probabilities of the prompt's tokens"""
        hooks = []
        modules = dict(self.model.named_modules())

        def added(x, error):
            x = x.clone()
            x.reshape(-1, x.shape[-1])[: len(error)] += error
            return x

        for (_, place, surface), error in errors.items():
            if surface == "input":
                hooks.append(modules[place].register_forward_pre_hook(lambda _, given, error=error: (added(given[0], error), *given[1:])))
            else:
                hooks.append(modules[place].register_forward_hook(lambda _, __, result, error=error: added(result, error)))
        try:
            return self.chances(self.model(input_ids=self.ids, use_cache=False).logits[0, :-1])
        finally:
            for hook in hooks:
                hook.remove()


def gap(folder, ids, a, b, device="cpu"):
    """The table: for each group what it adds to b - a, rms over the tokens, and its share of the gap (covariance with the gap over
    the gap's variance; all shares and the interaction make one)."""
    with torch.no_grad():
        exact = Exact(folder, ids, device)
        clean = exact.run({})
        sides, recorded, again = [], [], []
        for trace in (a, b):
            errors, chances = exact.errors(products_of(pathlib.Path(trace), ids.shape[1]))
            sides.append(errors)
            recorded.append(chances)
            again.append(float((exact.run(errors) - chances).abs().max()))
        whole = recorded[1] - recorded[0]
        rms = lambda x: float(x.square().mean().sqrt())  # noqa: E731
        share = lambda x: float((x * whole).sum() / whole.square().sum()) if whole.abs().max() > 0 else 0.0  # noqa: E731
        rows, rest = [], whole
        for group in GROUPS:
            alone = [exact.run({key: error for key, error in errors.items() if key[0] == group}) - clean for errors in sides]
            rest = rest - (alone[1] - alone[0])
            rows.append({"group": group, "rms": rms(alone[1] - alone[0]), "share": share(alone[1] - alone[0]), "rms_a": rms(alone[0]), "rms_b": rms(alone[1])})
        rows.append({"group": "interaction", "rms": rms(rest), "share": share(rest)})
    return {"tokens": len(whole), "rms": rms(whole), "largest": float(whole.abs().max()), "rms_a": rms(recorded[0] - clean), "rms_b": rms(recorded[1] - clean), "made_again": max(again), "groups": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--tokens", required=True, help="the prompt's token numbers, as JSON")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(json.dumps(gap(options.model, torch.tensor([json.loads(options.tokens)]), options.a, options.b, options.device), indent=1))


if __name__ == "__main__":
    main()
