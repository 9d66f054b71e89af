"""The numbers of docs/results/compare.md."""

import statistics

from published_numbers import say
from published_records import record

PAGE = "docs/results/compare.md"
CAMPAIGN = record("compare-campaign.json")
PAIRS = record("compare-pairs.json")
OURS = PAIRS["ours"]
assert all(one["as_expected"] and one["verdict"] == "within_rounding" for one in PAIRS.values())
CLEAN, FAULTY = CAMPAIGN["clean"], CAMPAIGN["faulty"]
H200 = record("h200-compare.json")
GPU, COST = H200["pairs"], H200["cost"]
SHORT, LONG = COST["sizes"]["8x512"], COST["sizes"]["32x512"]
TF32 = GPU["tf32"]["on"]
TWIN = [("b", "model.layers.1.mlp.down_proj", "gain")]
assert [(one["side"], one["place"]) for one in TF32["first"]] == [("b", "model.layers.0.self_attn.q_proj")] and TF32["wrong_operators"] == ["aten::bmm", "aten::mm"]
assert {name for name, one in GPU.items() if one["clean"]["places"]["with_a_difference"] == 0} == {"batch", "tf32"}
assert GPU["cpu-cuda"]["clean"]["not_judged"] == [{"aten::cat: not kept": 60}] * 2  # of keys and values


def upper_limit(count):
    """Of a rate of which nothing was seen in so many: 95 %, one-sided."""
    return 100 * (1 - 0.05 ** (1 / count))


def row(words, name):
    """Of the table of pairs on the GPU."""
    one = GPU[name]["clean"]
    return say(words + " | {a:,} and {b:,} | {largest:.3f} |", a=one["judged"][0], b=one["judged"][1], largest=one["tokens"]["largest"])


def named(one):
    """Whether the twin was named, and it alone."""
    return [(first["side"], first["place"], first["kind"]) for first in one["first"]] == TWIN and one["wrong"] == [0, 1]


def milliseconds(size, detail):
    return 1000 * size["median_seconds"][detail]


def added(size, detail):
    return milliseconds(size, detail) - milliseconds(size, "plain")


def overhead(size, detail):
    """In percent, of the medians of all forwards."""
    middle = {name: statistics.median(size["seconds"][name]) for name in ("plain", detail)}
    share = middle[detail] / middle["plain"] - 1
    assert abs(share - size["overhead"][detail]) < 1e-3
    return 100 * share


def overheads_of_rounds(size, detail):
    """Plain and recorded forwards take turns, so many of each."""
    plain, recorded = size["seconds"]["plain"], size["seconds"][detail]
    return [100 * (statistics.median(recorded[3 * i : 3 * i + 3]) / statistics.median(plain[4 * i : 4 * i + 4]) - 1) for i in range(3)]


CLAIMS = [
    row("the same model on its CPU and on the GPU | SmolLM2-135M, bf16", "cpu-cuda"),
    row("one prompt alone and among 64 | SmolLM2-135M, bf16", "batch"),
    row("one prompt alone and among 64 | a 1.5B Llama, bf16", "large"),
    row("TF32 off on both sides | SmolLM2-135M, fp32", "tf32"),
    row("fake-quantised fp8 products and those of `torch._scaled_mm` | SmolLM2-135M, bf16", "fp8"),
    say("All {pairs} clean pairs are within rounding**: {calls:,} operator calls were judged", pairs=sum(one["clean"]["verdict"] == "within_rounding" and one["clean"]["wrong"] == [0, 0] for one in GPU.values()), calls=sum(sum(one["clean"]["judged"]) for one in GPU.values())),
    say("In {named} of {pairs} pairs the faulty twin", named=sum(named(one["twin"]) for one in GPU.values()), pairs=len(GPU)),
    say("{violations} of {elements} elements leave their bound, by up to {ratio:.2f} times", violations=TF32["first"][0]["violations"], elements=TF32["first"][0]["elements"], ratio=TF32["first"][0]["ratio"]),
    say("{wrong} of its calls are wrong, all of them products; the side without TF32 has {other}", wrong=TF32["wrong"][1], other=TF32["wrong"][0]),
    say("differ by no more than {largest:.4f}", largest=TF32["tokens"]["largest"]),
    say("took {seconds:.1f} s end to end (goal 20). That covers both recordings ({record:.1f} s", seconds=GPU["large"]["seconds"], record=GPU["large"]["record_seconds"]),
    say("| plain | {short:.1f} ms | {long:.1f} ms |", short=milliseconds(SHORT, "plain"), long=milliseconds(LONG, "plain")),
    *(say(f"| `{detail}` | {{short:+.1f}} % | {{long:+.1f}} % | goal", short=overhead(SHORT, detail), long=overhead(LONG, detail)) for detail in ("digest", "sample")),
    say("A plain forward of only 256 tokens took {plain:.1f} ms", plain=1000 * COST["full"]["plain"]),
    say("{least:.0f} to {most:.0f} ms plain", least=1000 * min(SHORT["seconds"]["plain"]), most=1000 * max(SHORT["seconds"]["plain"])),
    say("`digest` cost {least:+.1f} % to {most:+.1f} %", least=min(overheads_of_rounds(SHORT, "digest")), most=max(overheads_of_rounds(SHORT, "digest"))),
    say("`digest` adds {short:.1f} ms and {long:.1f} ms", short=added(SHORT, "digest"), long=added(LONG, "digest")),
    say("`sample` adds {short:.0f} ms and {long:.0f} ms", short=added(SHORT, "sample"), long=added(LONG, "sample")),
    say("left {short:,.0f} MB and {long:,.0f} MB on disk", short=SHORT["bytes"]["sample"] / 1e6, long=LONG["bytes"]["sample"] / 1e6),
    say("took {first:.1f} s, the next one {second:.1f} s", first=COST["full"]["recorded"][0], second=COST["full"]["recorded"][1]),
    say("In all {pairs} pairs the faulty twin", pairs=sum(one["twin_first"] == [["b", "model.layers.1.mlp.down_proj", "boundary"]] for one in PAIRS.values())),
    say("In the pair of SmolLM2 {a:,} and {b:,} operator calls were judged, {first:.0f} % and {second:.0f} % of those that compute", a=OURS["calls"][0], b=OURS["calls"][1], first=100 * OURS["share_judged"][0], second=100 * OURS["share_judged"][1]),
    say("log-probabilities differ by up to {largest:.3f} over {tokens} tokens", largest=OURS["largest"], tokens=OURS["tokens"]),
    say("took {seconds:.1f} s (goal 60)", seconds=OURS["seconds"]),
    say("{accused} of {pairs:,} clean pairs were accused (upper 95 % limit {limit:.2f} %)", accused=CLEAN["accused"], pairs=CLEAN["pairs"], limit=upper_limit(CLEAN["pairs"])),
    say("{calls:,} operator calls were judged in them", calls=CLEAN["calls"]),
    say("of {other:,} pairs the two sides had different number types", other=CLEAN["pairs"] - CLEAN["one_type"]),
    say("the first wrong operator was right in {right:,} of {pairs:,} pairs with a planted fault ({share:.2f} %)", right=FAULTY["right"], pairs=FAULTY["pairs"], share=100 * FAULTY["right"] / FAULTY["pairs"]),
    say("the side in {side:,}", side=FAULTY["side"]),
    say("in {unchanged} more the fault changed no number", unchanged=FAULTY["unchanged"]),
]
REASONS = [
    ("among 64", "setting"), ("a gain of 5 %", "setting"), ("of layer [01]", "setting"), ("a 1.5B Llama|the 1.5B shape", "setting"), ("32 × 512 tokens", "setting"), ("8 × 512( tokens)?", "setting"), ("of( only)? 256 tokens", "setting"),
    ("of 48 tokens on one side, 64 of them", "setting"), ("transformers 5.17.0 .torch 2.11.0.cu130", "version"), (".16 cores", "setting"), ("limit of time, 300 s", "setting"), ("FlashAttention 3", "name"),
]  # fmt: skip
