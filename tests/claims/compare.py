"""The numbers of docs/results/compare.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/compare.md"
CAMPAIGN = record("compare-campaign.json")
PAIRS = record("compare-pairs.json")
OURS = PAIRS["ours"]
assert all(one["as_expected"] and one["verdict"] == "within_rounding" for one in PAIRS.values())
CLEAN, FAULTY = CAMPAIGN["clean"], CAMPAIGN["faulty"]


def upper_limit(count):
    """Of a rate of which nothing was seen in so many: 95 %, one-sided."""
    return 100 * (1 - 0.05 ** (1 / count))


CLAIMS = [
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
REASONS = [("among 64", "setting"), ("a gain of 5 %", "setting")]
