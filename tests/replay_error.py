"""One machine's arithmetic error on another, whole: a forward is recorded on the first device, made again on the second, what differs
becomes profiles and a recipe, and the recipe runs on the first. Writes DIR/replay.json: for each operator the measured ratio of error to
signal beside the one that the ledger counted, and how far the second device's logits, and the faulted first one's, lie from the first's.

    python tests/replay_error.py DIR --first cuda --second cpu           less than 40 s on one GPU
    python tests/replay_error.py DIR --first cpu --second cpu+plain      the same without one: beside this CPU without oneDNN

DIR keeps what was made (model, trace, profiles); a second run takes the trace that is there."""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import torch  # noqa: E402

import faultline  # noqa: E402
from faultline import devices  # noqa: E402
from tap_models import VOCABULARY, llama, logits  # noqa: E402

SEEDS = range(1, 9)


def side(text):
    device, _, name = text.rpartition(":")
    return (device, {"bf16": torch.bfloat16, "fp32": torch.float32}[name]) if name in ("bf16", "fp32") else (text, torch.bfloat16)


@contextlib.contextmanager
def machine(text):
    """`cpu+plain`: this CPU without oneDNN's kernels, a second machine of the same number types where there is none."""
    with torch.backends.mkldnn.flags(enabled=False) if text.endswith("+plain") else contextlib.nullcontext():
        yield side(text.removesuffix("+plain"))


def ids(device):
    return torch.randint(2, VOCABULARY, (4, 64), generator=torch.Generator().manual_seed(3)).to(device)


def build(device, dtype):
    return llama(4, hidden_size=256, intermediate_size=512, attn_implementation="eager").to(dtype).to(device)


def distance(one, other):
    """Of logits, as a share of the first's size."""
    one, other = (value.double().cpu() for value in (one, other))
    return ((other - one).square().mean() / one.square().mean()).sqrt().item()


def replay(folder, first, second):
    device, dtype = side(first)
    folder.mkdir(parents=True, exist_ok=True)
    trace, model = folder / "first", build(device, dtype)
    clean = logits(model, ids(device))
    if not trace.exists():
        devices.record(lambda: model(ids(device), use_cache=False), trace, model=model)
    with machine(second) as (there, its_dtype):
        answer = devices.compare(trace, there, dtype=its_dtype, out=folder / "profiles")
        its_logits = logits(build(there, its_dtype), ids(there))
    reached, ratios = [], collections.defaultdict(list)
    for seed in SEEDS:
        with faultline.plan(str(folder / "profiles" / "recipe.yaml"), model=model, overrides=[f"seed={seed}"]) as plan:
            reached.append(distance(clean, logits(model, ids(device))))
        for row in plan.report["rows"]:
            ratios[row["operator"].split(".")[0]].append(10 ** (-row["ledger"]["sqnr_db"] / 10) if row["ledger"]["sqnr_db"] is not None else 0)
    operators = [{**row, "replayed": math.sqrt(statistics.mean(ratios[row["operator"]]))} for row in answer["operators"] if row["operator"] in ratios]
    return {
        "first": first,
        "second": second,
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "operators": operators,
        "not_compared": answer["not_compared"],
        "logits": {"second": distance(clean, its_logits), "replayed": reached},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--first", default="cuda")
    parser.add_argument("--second", default="cpu")
    options = parser.parse_args()
    start = time.monotonic()
    answer = replay(options.folder, options.first, options.second)
    answer["seconds"] = round(time.monotonic() - start, 1)
    (options.folder / "replay.json").write_text(json.dumps(answer, indent=1) + "\n")
    for row in answer["operators"]:
        print(f"{row['operator']:<20} {row['calls']:>5} calls  measured {row['noise_to_signal']:.3g}  replayed {row['replayed']:.3g}")
    print(f"logits: {options.second} {answer['logits']['second']:.3g}; replayed {min(answer['logits']['replayed']):.3g} to {max(answer['logits']['replayed']):.3g}")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
