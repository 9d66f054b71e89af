"""What the model's operators cost on a GPU, each as a replayed CUDA graph: time, bytes moved, share of the bandwidth
that `clone` reaches in the same run, and the ratio to torch's way. Shapes: Qwen2.5-1.5B in bf16. Also one whole decode
step made of these operators with random weights. Tables on stdout, or JSON with --json FILE."""

import argparse
import json
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402, F401  (loads the operators)

ops = torch.ops.faultline
HIDDEN, FFN, HEADS, KV_HEADS, SIZE, LAYERS, VOCABULARY = 1536, 8960, 12, 2, 128, 28, 151936
QKV = (HEADS + 2 * KV_HEADS) * SIZE
L2_BYTES = 256 << 20  # rotate over more than the cache holds


def randn(*sizes, scale=1.0):
    return torch.randn(*sizes, device="cuda", dtype=torch.float32).mul_(scale).bfloat16()


def microseconds(bodies, repeats=7):
    """Median time of one body; `bodies` are captured one after another in one graph, so launches overlap as in a step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for body in bodies:
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for body in bodies:
            body()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(bodies))
    return statistics.median(times)


def clone_bandwidth():
    """Bytes read and written a second. Eager: in a graph a clone becomes a copy node, which is slower."""
    x = torch.empty(1 << 28, device="cuda", dtype=torch.float32)
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x.clone()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * 4 * x.numel() / min(times) * 1e3


def linears():
    for rows in (1, 2, 4, 8):
        for outputs, inputs in [(QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN), (VOCABULARY, HIDDEN)]:
            if rows not in (1, 8) and outputs != 2 * FFN:
                continue
            size = outputs * inputs * 2
            x = randn(rows, inputs)
            weights = [randn(outputs, inputs, scale=0.02) for _ in range(max(1, min(24, L2_BYTES // size)))]
            ours = [lambda w=w: ops.few_rows_linear(x, w, None) for w in weights] * (1 + 8 // len(weights))
            theirs = [lambda w=w: torch.nn.functional.linear(x, w) for w in weights] * (1 + 8 // len(weights))
            yield f"few_rows_linear {rows}x{outputs}x{inputs}", size, ours, theirs


def rowwise():
    for rows in (1, 64, 256):
        x, residual, weight = randn(rows, HIDDEN), randn(rows, HIDDEN), torch.ones(HIDDEN, device="cuda")
        narrow = weight.bfloat16()
        yield (f"rms_norm {rows}x{HIDDEN}", rows * HIDDEN * 4, [lambda: ops.rms_norm(x, weight, 1e-6)] * 20,
               [lambda: torch.nn.functional.rms_norm(x, (HIDDEN,), narrow, 1e-6)] * 20)
        yield (f"add_rms_norm {rows}x{HIDDEN}", rows * HIDDEN * 8, [lambda: ops.add_rms_norm(x, residual, weight, 1e-6)] * 20,
               [lambda: torch.nn.functional.rms_norm(x + residual, (HIDDEN,), narrow, 1e-6)] * 20)
        gate_up = randn(rows, 2 * FFN)
        yield (f"swiglu {rows}x{FFN}", rows * FFN * 6, [lambda: ops.swiglu(gate_up)] * 20,
               [lambda: torch.nn.functional.silu(gate_up[:, :FFN]) * gate_up[:, FFN:]] * 20)
        qkv, positions = randn(rows, QKV), torch.full((rows,), 100, device="cuda")
        cos, sin = torch.randn(4096, SIZE // 2, device="cuda"), torch.randn(4096, SIZE // 2, device="cuda")
        yield f"rotary {rows}x{QKV}", rows * QKV * 4, [lambda: ops.rotary(qkv, positions, cos, sin, HEADS + KV_HEADS)] * 20, None
        caches = [torch.zeros(rows, KV_HEADS, 512, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        place = torch.arange(rows, device="cuda")
        key, value = qkv[:, HEADS * SIZE :][:, : KV_HEADS * SIZE], qkv[:, -KV_HEADS * SIZE :]

        def torch_store(caches=caches, place=place, positions=positions, key=key, value=value, rows=rows):
            caches[0][place, :, positions] = key.view(rows, KV_HEADS, SIZE)
            caches[1][place, :, positions] = value.view(rows, KV_HEADS, SIZE)

        yield (f"store_kv_ {rows}", rows * KV_HEADS * SIZE * 8,
               [lambda: ops.store_kv_(*caches, key, value, place, positions)] * 20, [torch_store] * 20)


def attention():
    for batch, length, context in [(1, 512, 640), (1, 512, 8192), (1, 8000, 8192), (8, 512, 640), (64, 512, 640), (256, 512, 640), (256, 256, 640)]:
        size = 2 * batch * KV_HEADS * length * SIZE * 2
        query, lengths = randn(batch, HEADS * SIZE), torch.full((batch,), length, device="cuda")
        whole = 2 * batch * KV_HEADS * context * SIZE * 2
        caches = [[randn(batch, KV_HEADS, context, SIZE) for _ in range(2)] for _ in range(max(1, min(16, L2_BYTES // whole)))]
        ours = [lambda k=k, v=v: ops.attend_cached(query, k, v, lengths, 0.088) for k, v in caches] * (1 + 8 // len(caches))
        shaped = query.view(batch, HEADS, 1, SIZE)

        def sdpa(k, v, shaped=shaped, length=length):
            return torch.nn.functional.scaled_dot_product_attention(shaped, k[:, :, :length], v[:, :, :length], scale=0.088, enable_gqa=True)

        theirs = [lambda k=k, v=v, f=sdpa: f(k, v) for k, v in caches] * (1 + 8 // len(caches))
        yield f"attend_cached B={batch} length={length} of {context}", size, ours, theirs


def sampling():
    for batch in (1, 64, 256):
        logits = randn(batch, VOCABULARY, scale=2.0)
        ints, floats = torch.zeros(batch, dtype=torch.int64, device="cuda"), torch.ones(batch, device="cuda")

        def call(temperature=1.0, top_k=0, top_p=1.0, logits=logits, ints=ints, floats=floats):
            t, p, k = floats * temperature, floats * top_p, ints + top_k
            return lambda: ops.sample(logits, t, k, p, ints, ints)

        size = batch * VOCABULARY * 2
        yield f"sample greedy B={batch}", size, [call(0.0)] * 8, [lambda x=logits: x.argmax(-1)] * 8
        yield f"sample T=1 B={batch}", size, [call()] * 8, [lambda x=logits: torch.softmax(x.float(), -1).div_(torch.empty_like(x, dtype=torch.float32).exponential_()).argmax(-1)] * 8
        yield f"sample top_p=.9 B={batch}", size, [call(top_p=0.9)] * 8, [lambda x=logits: torch.softmax(x.float().sort(-1, descending=True).values, -1).cumsum(-1)] * 4
        yield f"sample top_k=50 B={batch}", size, [call(top_k=50)] * 8, [lambda x=logits: x.topk(50, -1)] * 8


def decode_step(batch, length, context=640):
    """The whole step with random weights; products by our kernel up to eight rows, else by torch."""
    def linear(x, w):
        return ops.few_rows_linear(x, w, None) if batch <= 8 else torch.nn.functional.linear(x, w)

    layers = [[randn(o, i, scale=0.02) for o, i in [(QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN)]] for _ in range(LAYERS)]
    caches = [[torch.zeros(batch, KV_HEADS, context, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for _ in range(LAYERS)]
    embedding, gamma = randn(VOCABULARY, HIDDEN, scale=0.02), torch.ones(HIDDEN, device="cuda")
    cos, sin = torch.randn(context, SIZE // 2, device="cuda"), torch.randn(context, SIZE // 2, device="cuda")
    token, rows = torch.zeros(batch, dtype=torch.int64, device="cuda"), torch.arange(batch, device="cuda")
    positions, lengths = torch.full((batch,), length - 1, device="cuda"), torch.full((batch,), length, device="cuda")
    ints, floats = torch.zeros(batch, dtype=torch.int64, device="cuda"), torch.ones(batch, device="cuda")

    def step():
        residual = torch.nn.functional.embedding(token, embedding)
        x = ops.rms_norm(residual, gamma, 1e-6)
        for (qkv_w, o_w, up_w, down_w), (keys, values) in zip(layers, caches, strict=True):
            qkv = ops.rotary(linear(x, qkv_w), positions, cos, sin, HEADS + KV_HEADS)
            ops.store_kv_(keys, values, qkv[:, 1536:1792], qkv[:, 1792:], rows, positions)
            attended = ops.attend_cached(qkv[:, :1536], keys, values, lengths, 0.088)
            x, residual = ops.add_rms_norm(linear(attended, o_w), residual, gamma, 1e-6)
            x, residual = ops.add_rms_norm(linear(ops.swiglu(linear(x, up_w)), down_w), residual, gamma, 1e-6)
        chosen, logp = ops.sample(linear(x, embedding), floats, ints, floats, ints, positions)
        token.copy_(chosen)
        return logp

    size = 2 * sum(w.numel() for layer in layers for w in layer) + 2 * embedding.numel()
    size += LAYERS * 2 * batch * KV_HEADS * length * SIZE * 2
    return size, microseconds([step])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the numbers here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.manual_seed(0)
    results = {"device": torch.cuda.get_device_name(), "clone_bytes_per_second": clone_bandwidth(), "operators": [], "steps": []}
    bandwidth = results["clone_bytes_per_second"]
    print(f"{results['device']}: clone {bandwidth / 1e12:.2f} TB/s")
    with torch.no_grad():
        for group in (linears, rowwise, attention, sampling):
            for name, size, ours, theirs in group():
                ours_us = microseconds(ours)
                theirs_us = microseconds(theirs) if theirs else None
                share = size / ours_us * 1e6 / bandwidth
                results["operators"].append({"name": name, "us": ours_us, "bytes": size, "share_of_clone": share, "torch_us": theirs_us})
                ratio = f"{theirs_us / ours_us:5.2f}x torch ({theirs_us:8.1f} us)" if theirs else ""
                print(f"{name:44s} {ours_us:8.1f} us {size / 1e6:9.2f} MB {100 * share:5.0f} % of clone  {ratio}", flush=True)
        for batch, length in [(1, 512), (8, 512), (64, 512), (256, 512)]:
            size, us = decode_step(batch, length)
            floor = size / bandwidth * 1e6
            results["steps"].append({"batch": batch, "length": length, "us": us, "floor_us": floor, "tokens_per_second": batch / us * 1e6})
            print(f"step B={batch} length={length}: {us:.0f} us, {batch / us * 1e6:.0f} tok/s, memory floor {floor:.0f} us", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
