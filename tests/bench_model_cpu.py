"""The model's operators on a CPU at SmolLM2's shapes (135M, bf16), batch 1 and 32, beside what PyTorch offers and the
floor that memory sets. Each of the 30 layers has tensors of its own, so that no cache holds the weights from one step to
the next. `step` is everything that decoding one token a row does. Run on an idle machine."""

import argparse
import functools
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))
import faultline  # noqa: E402, F401

OPS = torch.ops.faultline
LAYERS, HIDDEN, HEADS, KV_HEADS, SIZE, FFN, VOCABULARY = 30, 576, 9, 3, 64, 1536, 49152
QKV = (HEADS + 2 * KV_HEADS) * SIZE
SHAPES = {"qkv": (QKV, HIDDEN), "o": (HIDDEN, HEADS * SIZE), "gate_up": (2 * FFN, HIDDEN), "down": (HIDDEN, FFN)}


def random(*shape, dtype=torch.bfloat16):
    return (torch.randn(*shape) * 0.05).to(dtype)


class Model:
    def __init__(self, batch, length, context):
        self.layers = [{name: random(*shape) for name, shape in SHAPES.items()} for _ in range(LAYERS)]
        self.head = random(VOCABULARY, HIDDEN)
        self.norms = [random(HIDDEN, dtype=torch.float32) + 1 for _ in range(2 * LAYERS + 1)]
        self.caches = [(random(batch, KV_HEADS, context, SIZE), random(batch, KV_HEADS, context, SIZE)) for _ in range(LAYERS)]
        angles = torch.outer(torch.arange(float(context)), 100000.0 ** -(torch.arange(32.0) / 32))
        self.cos, self.sin = angles.cos(), angles.sin()
        self.rows = torch.arange(batch)
        self.lengths = torch.full((batch,), length)
        self.x = random(batch, HIDDEN)
        self.settings = (torch.ones(batch), torch.zeros(batch, dtype=torch.int64), torch.full((batch,), 0.95), self.rows, self.lengths)

    def step(self):
        residual = self.x
        y = OPS.rms_norm(residual, self.norms[0], 1e-5)
        positions = self.lengths - 1
        for layer, (weights, (keys, values)) in enumerate(zip(self.layers, self.caches)):
            qkv = OPS.rotary(OPS.few_rows_linear(y, weights["qkv"], None), positions, self.cos, self.sin, HEADS + KV_HEADS)
            query, key, value = qkv.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], 1)
            OPS.store_kv_(keys, values, key, value, self.rows, positions)
            y = OPS.few_rows_linear(OPS.attend_cached(query, keys, values, self.lengths, SIZE**-0.5), weights["o"], None)
            y, residual = OPS.add_rms_norm(y, residual, self.norms[2 * layer + 1], 1e-5)
            y = OPS.few_rows_linear(OPS.swiglu(OPS.few_rows_linear(y, weights["gate_up"], None)), weights["down"], None)
            y, residual = OPS.add_rms_norm(y, residual, self.norms[2 * layer + 2], 1e-5)
        return OPS.sample(OPS.few_rows_linear(y, self.head, None), *self.settings)


def linear_cases(model, batch):
    """name -> (ours, torch's, torch's with packed weights, bytes read)"""
    reorder, pointwise = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    for name, (outputs, inputs) in [*SHAPES.items(), ("lm_head", (VOCABULARY, HIDDEN))]:
        weights = [model.head] if name == "lm_head" else [layer[name] for layer in model.layers]
        packed = [reorder(weight, batch) for weight in weights]
        x = random(batch, inputs)
        yield (
            name,
            lambda x=x, w=weights: [OPS.few_rows_linear(x, weight, None) for weight in w],
            lambda x=x, w=weights: [F.linear(x, weight) for weight in w],
            lambda x=x, w=packed: [pointwise(x, weight, None, "none", [], "") for weight in w],
            len(weights) * outputs * inputs * 2,
        )


def rotary_by_torch(x, positions, cos, sin):
    rotated, rest = x[:, : 12 * SIZE].view(-1, 12, SIZE), x[:, 12 * SIZE :]
    c, s = (torch.cat([table[positions]] * 2, -1)[:, None].to(x.dtype) for table in (cos, sin))
    turned = torch.cat([-rotated[..., 32:], rotated[..., :32]], -1)
    return torch.cat([(rotated * c + turned * s).flatten(1), rest], 1)


def attend_by_torch(query, keys, values, length):
    return F.scaled_dot_product_attention(query.view(-1, HEADS, 1, SIZE), keys[:, :, :length], values[:, :, :length], enable_gqa=True)


def draw_by_torch(logits):
    ordered, index = logits.float().softmax(-1).sort(-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > 0.95] = 0
    return index.gather(1, ordered.multinomial(1))


def other_cases(model, batch, length):
    hidden, wide, qkv = random(batch, HIDDEN), random(batch, 2 * FFN), random(batch, QKV)
    logits = random(batch, VOCABULARY) * 40
    norm, positions = model.norms[0], model.lengths - 1
    narrow, query = norm.bfloat16(), qkv[:, : HEADS * SIZE]
    each = lambda run: lambda: [run() for _ in range(LAYERS)]  # noqa: E731
    caches = lambda run: lambda: [run(*cache) for cache in model.caches]  # noqa: E731
    cache_bytes = LAYERS * 2 * batch * KV_HEADS * length * SIZE * 2
    yield "rms_norm", each(lambda: OPS.rms_norm(hidden, norm, 1e-5)), each(lambda: F.rms_norm(hidden, (HIDDEN,), narrow, 1e-5)), None, 0
    yield "add_rms_norm", each(lambda: OPS.add_rms_norm(hidden, hidden, norm, 1e-5)), each(lambda: F.rms_norm(hidden + hidden, (HIDDEN,), narrow, 1e-5)), None, 0
    yield "swiglu", each(lambda: OPS.swiglu(wide)), each(lambda: F.silu(wide[:, :FFN]) * wide[:, FFN:]), None, 0
    yield "rotary", each(lambda: OPS.rotary(qkv, positions, model.cos, model.sin, 12)), each(lambda: rotary_by_torch(qkv, positions, model.cos, model.sin)), None, 0
    yield "store_kv_", caches(lambda k, v: OPS.store_kv_(k, v, qkv[:, 576:768], qkv[:, 768:], model.rows, positions)), None, None, 0
    yield "attend_cached", caches(lambda k, v: OPS.attend_cached(query, k, v, model.lengths, 0.125)), caches(lambda k, v: attend_by_torch(query, k, v, length)), None, cache_bytes
    yield "sample", lambda: OPS.sample(logits, *model.settings), lambda: draw_by_torch(logits), None, 0


def milliseconds(run, repeats):
    if run is None:
        return None
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--length", type=int, default=128, help="filled positions of the cache")
    parser.add_argument("--only-step", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    block = torch.ones(64 << 20)
    bandwidth = block.numel() * 4 / milliseconds(functools.partial(torch.sum, block), 5) / 1e6  # GB/s
    print(f"{options.threads} threads, reading {bandwidth:.1f} GB/s; milliseconds a step of {LAYERS} layers, {options.length} positions")
    for batch in options.batches:
        model = Model(batch, options.length, max(512, options.length))
        step = milliseconds(model.step, 2 * options.repeats)
        print(f"batch {batch}: step {step:.2f} ms = {batch * 1000 / step:.1f} tokens/s")
        if options.only_step:
            continue
        print(f"{'operator':16}{'faultline':>10}{'torch':>10}{'mkldnn':>10}{'floor':>10}")
        for name, ours, theirs, packed, size in [*linear_cases(model, batch), *other_cases(model, batch, options.length)]:
            cells = [milliseconds(run, options.repeats) for run in (ours, theirs, packed)]
            cells.append(size / bandwidth / 1e6 if size else None)
            print(f"{name:16}" + "".join(f"{'-':>10}" if cell is None else f"{cell:10.2f}" for cell in cells))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
