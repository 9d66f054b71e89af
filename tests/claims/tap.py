"""The numbers of docs/results/tap.md."""

import math

from published_numbers import say
from published_records import record

PAGE = "docs/results/tap.md"
FIRST, FOURTH, CPU = (record(f"{name}.json") for name in ("h200-tap", "h200-tap-3", "cpu-tap"))
PLAN, PATCHES = "5 % noise on every matmul, full ledger, layers by hooks", "published way (Python patches)"


def named(one):
    return {row["name"]: row for row in one["rows"]}


def percent(share, digits=1):
    """Half away from zero: the records have four digits, so 0.1125 is a real tie."""
    scale = 10**digits
    return f"{math.copysign(math.floor(100 * scale * abs(share) + 0.5 + 1e-9) / scale, share):+.{digits}f}"


def table_claims(one):
    return [
        say("| {name} | {ms:.2f} | {over} % | {low} … {high} % |", name=row["name"], ms=row["ms"], over=percent(row["over_no_plan"], 2), low=percent(row["spread"][0]), high=percent(row["spread"][1]))
        for row in one["rows"]
        if "ms" in row
    ]


def sentence_claims():
    first, fourth, cpu = named(FIRST), named(FOURTH), named(CPU)
    compiled = first["compiled forward: GEMMs reached"]
    bare = "the same without module hooks"
    return [
        say("{a} % in one run on an H200 and {b} % in another, where our re-creation of patches in Python costs {c} and {d} %", a=percent(first[PLAN]["over_no_plan"]), b=percent(fourth[PLAN]["over_no_plan"]), c=percent(first[PATCHES]["over_no_plan"]), d=percent(fourth[PATCHES]["over_no_plan"])),
        say("On two x86-64 cores {cpu} %", cpu=percent(cpu[PLAN]["over_no_plan"], 0)),
        say("(aim 8): {a} % with layers by hooks, {b} % without hooks", a=percent(first[PLAN]["over_no_plan"]), b=percent(first[bare]["over_no_plan"])),
        say("{calls:.0f} products reached, {layers:.0f} with their layer; the model has {linears} linears", calls=compiled["calls"], layers=compiled["with_layer"], linears=compiled["linears_of_the_model"]),
        say("{cpu} % where +25 % was the goal (our re-creation of patches: {patches} %)", cpu=percent(cpu[PLAN]["over_no_plan"], 0), patches=percent(cpu[PATCHES]["over_no_plan"], 0)),
    ]  # fmt: skip


CLAIMS = [*table_claims(FIRST), *table_claims(FOURTH), *table_claims(CPU), *sentence_claims()]
REASONS = [
    (r"range of 7 pairs|AVX-512|5 % relative noise|noise on every product|8 x 512 tokens|hidden 768, ffn 3072, 4 layers, vocabulary 8,192, 4 x 256 tokens|2 threads|of 5 rounds", "setting"),
    (r"at most \+12 % \(aim 8\)|where \+25 % was", "goal"),
]
