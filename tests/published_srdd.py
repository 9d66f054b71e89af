"""SRDD 8.0 (self-referential differential diagnosis) made again in Python from its formulas, to hold `diagnose --method srdd` against:
the script scripts/srdd_error_finder.py at 8d20192b in the branch feature/npu-aqn-test of github.com/zhshgmail/verl. For each layer
of a Hugging Face model 11 whole forwards and six statistics of the layer's output, in the type and order of the script; then
robust z-scores along depth and scores. The normal numbers of the noise at the input can be given: the script draws them from an
unseeded generator.

    python tests/published_srdd.py FOLDER "What is 2 + 2? Answer:"       prints the scores of a model as JSON lines"""

import contextlib
import json
import sys

import numpy as np
import torch

SHIFT, NOISE, BINS = 50.0, 0.1, 100
STATISTICS = ("instability", "gain", "kurtosis", "max_gain", "failure_rate", "pileup_ratio")


def first_of(output):
    return output[0] if isinstance(output, tuple) else output


def output_of(model, layer, ids, change=None):
    """What the layer gives in one forward of the whole model, after `change` of its input."""
    kept, module = [], model.model.layers[layer]
    hooks = [module.register_forward_hook(lambda _, __, output: kept.append(first_of(output).detach().clone()))]
    if change:
        hooks.append(module.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:])))
    try:
        with torch.no_grad():
            model(input_ids=ids)
    finally:
        for hook in hooks:
            hook.remove()
    return kept[0]


def deviation(x):
    return torch.std(x.float()).item()


def instability(run):
    first, *others = [run() for _ in range(3)]
    return float(np.mean([deviation(other - first) for other in others]))


def gain(run, normal):
    added = []

    def noisy(x):
        added.append(normal(x) * NOISE * torch.std(x))
        return x + added[0]

    clean, moved = run(), run(noisy)
    strength = deviation(added[0])
    return deviation(moved - clean) / strength if strength > 1e-9 else 0.0


def excess_kurtosis(run):
    x = run().float().cpu().numpy().ravel()
    squares = (x - x.mean()) ** 2
    return float((squares**2).mean() / squares.mean() ** 2 - 3)


def moved_by_a_shift(run):
    clean, moved = run(), run(lambda x: x + SHIFT)
    return moved - clean


def max_gain(run):
    return torch.quantile((moved_by_a_shift(run) / SHIFT).float().ravel(), 0.999).item()


def failure_rate(run):
    moved = moved_by_a_shift(run).float().ravel()
    middle = torch.median(moved).item()
    return (moved < 0.85 * middle).float().mean(dtype=torch.float64).item() if abs(middle) >= 0.1 * SHIFT else 0.0


def pileup_ratio(run):
    x = run().float().cpu().numpy().ravel()
    if x.size < 100 or x.std() < 1e-6:
        return 0.0
    counts = np.histogram(x, bins=BINS)[0]
    return float(max(side[0] / max((side[2] + side[3]) / 2, 1) for side in (counts, counts[::-1])))


def measured(model, ids, normal=lambda layer, x: torch.randn_like(x)):
    """-> of each layer its six statistics."""
    layers = []
    for layer in range(len(model.model.layers)):

        def run(change=None, layer=layer):
            return output_of(model, layer, ids, change)

        values = (instability(run), gain(run, lambda x, layer=layer: normal(layer, x)), excess_kurtosis(run), max_gain(run), failure_rate(run), pileup_ratio(run))
        layers.append(dict(zip(STATISTICS, values)))
    return layers


def robust_z(values, bound=np.inf):
    if not len(values):
        return np.array([])
    middle = np.median(values)
    spread = max(np.median(np.abs(values - middle)), 0.01 * abs(middle), 1e-6)
    return np.clip((values - middle) / (1.4826 * spread), -bound, bound)


def inner_z(values, bound):
    """Of all but two layers at either end, among themselves; 0 there."""
    z = np.zeros(len(values))
    z[2:-2] = robust_z(values[2:-2], bound)
    return z


def first_where(flags, among):
    return next((int(i) for i in among if flags[i]), None)


def scored(statistics, bound=np.inf):
    """-> of each layer its z-scores, score and reasons. bound: of every z-score; the script has none."""
    column = {name: np.array([layer[name] for layer in statistics]) for name in STATISTICS}
    count = len(statistics)
    inner = range(2, count - 2)
    logs = np.log(np.maximum(column["kurtosis"], 1e-4))
    z = {
        "z_instability": robust_z(column["instability"], bound),
        "z_instability_jump": robust_z(np.diff(column["instability"], prepend=0), bound),
        "z_gain": robust_z(column["gain"], bound),
        "z_kurt": robust_z(logs, bound),
        "z_kurt_drop": robust_z(np.diff(logs, prepend=logs[0]), bound),
        "z_max_gain": inner_z(column["max_gain"], bound),
        "z_max_gain_drop": inner_z(np.diff(column["max_gain"], prepend=column["max_gain"][0]), bound),
        "z_failure_jump": inner_z(np.diff(column["failure_rate"], prepend=0), bound),
        "z_pileup_jump": inner_z(np.diff(column["pileup_ratio"], prepend=0), bound),
    }
    scores, reasons = np.zeros(count), [[] for _ in range(count)]

    def add(layer, score, reason):
        scores[layer] += score
        reasons[layer].append(reason)

    source = first_where((z["z_instability_jump"] > 2) & (column["instability"] > 0.1), range(count))
    for layer in range(count):
        if layer == source:
            add(layer, 1e9, "NOISE_SOURCE")
        elif source is not None and z["z_instability"][layer] > 2:
            add(layer, 10 + count - layer, "NOISE_PROP")
        if z["z_gain"][layer] < -2:
            add(layer, 2 * abs(z["z_gain"][layer]), "DEAD_ZONE")
    if source is None and not (z["z_gain"] < -2).any():
        families = [  # name, where it starts, where that is looked for, where it is called propagation, what that adds
            ("SAT", "SOURCE", z["z_kurt_drop"] < -2, range(2, count), z["z_kurt_drop"] < -5, 0.3 * np.abs(z["z_kurt_drop"])),
            ("SPARSE_SAT", "", z["z_max_gain_drop"] < -2, inner, z["z_max_gain"] < -3, 1.5 * np.abs(z["z_max_gain"])),
            ("DISCRETE", "SAT", (z["z_failure_jump"] > 2) & (column["failure_rate"] > 0.001), inner, column["failure_rate"] > 0.01, 500 * column["failure_rate"]),
            ("PILEUP", "SAT", (z["z_pileup_jump"] > 2) & (column["pileup_ratio"] > 2), inner, column["pileup_ratio"] > 3, 10 * column["pileup_ratio"]),
        ]
        for name, suffix, starts, among, follows, adds in families:
            start = first_where(starts, among)
            for layer in inner:
                if layer == start:
                    add(layer, 100, "_".join(filter(None, (name, suffix))))
                elif follows[layer]:
                    add(layer, adds[layer], f"{name}_PROP")
    return [{**{name: float(values[i]) for name, values in z.items()}, "score": float(scores[i]), "reasons": reasons[i]} for i in range(count)]


FAULTS = {  # HardwareFaultSimulator's that are the same at every call: of a layer's output x, with the magnitude m
    "dead_zone": lambda x, m: x.masked_fill(x.abs() < x.abs().max() * m, 0.0),
    "saturation": lambda x, m: x.clamp(-x.abs().max() * (1 - m), x.abs().max() * (1 - m)),
    "bias": lambda x, m: x + m * x.std(),
}


@contextlib.contextmanager
def broken(model, layer, kind, magnitude):
    def fault(_, __, output):
        faulty = FAULTS[kind](first_of(output), magnitude)
        return (faulty, *output[1:]) if isinstance(output, tuple) else faulty

    hook = model.model.layers[layer].register_forward_hook(fault)
    try:
        yield
    finally:
        hook.remove()


def main(folder, prompt):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids = transformers.AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt").input_ids
    statistics = measured(model, ids)
    for layer, (values, scores) in enumerate(zip(statistics, scored(statistics))):
        print(json.dumps({"layer": layer, **values, **scores}))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
