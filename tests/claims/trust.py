"""The numbers of docs/results/trust.md."""

from published_numbers import say
from published_records import record

PAGE = "docs/results/trust.md"


def soak_claims():
    soak = record("soak.json")
    assert soak["failures"] == [] and soak["minutes"] == 120 and all(one["flat"] for one in soak["processes"])
    return [
        say("| {done:,} {}| {first:.1f} → {last:.1f} MiB (+{growth:.2f} %) | {files:.0f} → {files_last:.0f} | {pace:.2f} → {pace_last:.2f} |".replace("{}", words),
            done=one["done"], first=one["kib_first"] / 1024, last=one["kib_last"] / 1024, growth=100 * one["growth"], files=one["files_first"], files_last=one["files_last"], pace=one["pace_first"], pace_last=one["pace_last"])
        for one, words in zip(soak["processes"], ("iterations ", "diagnoses, its end ", "diagnoses "))
    ]  # fmt: skip


CLAIMS = soak_claims()
REASONS = []
