"""The numbers of docs/results/compare.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/compare.md"
CAMPAIGN = record("compare-campaign.json")
CLEAN, FAULTY = CAMPAIGN["clean"], CAMPAIGN["faulty"]


def upper_limit(count):
    """Of a rate of which nothing was seen in so many: 95 %, one-sided."""
    return 100 * (1 - 0.05 ** (1 / count))


CLAIMS = [
    say("{accused} of {pairs:,} clean pairs were accused (upper 95 % limit {limit:.2f} %)", accused=CLEAN["accused"], pairs=CLEAN["pairs"], limit=upper_limit(CLEAN["pairs"])),
    say("{calls:,} operator calls were judged in them", calls=CLEAN["calls"]),
    say("of {other:,} pairs the two sides had different number types", other=CLEAN["pairs"] - CLEAN["one_type"]),
    say("the first wrong operator was right in {right:,} of {pairs:,} pairs with a planted fault ({share:.2f} %)", right=FAULTY["right"], pairs=FAULTY["pairs"], share=100 * FAULTY["right"] / FAULTY["pairs"]),
    say("the side in {side:,}", side=FAULTY["side"]),
    say("in {unchanged} more the fault changed no number", unchanged=FAULTY["unchanged"]),
]
REASONS = []
