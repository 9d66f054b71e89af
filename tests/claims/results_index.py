"""The numbers of docs/results/README.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/README.md"


def least_share_of_clean():
    speeds = record("h200-vllm.json")["tokens_per_second"]
    return min(100 * max(speeds["armed"][batch]) / max(speeds["clean"][batch]) for batch in ("1", "64", "256"))


CLAIMS = [say("is faulted and counted, at {share:.0f} % of its speed or more", share=least_share_of_clean())]
REASONS = []
