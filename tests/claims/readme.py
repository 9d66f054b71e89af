"""The numbers of README.md."""

import itertools
import json
import re
import math
import statistics

from claims.tap import PATCHES, PLAN, percent
from program import ROOT
from published_numbers import say
from published_records import CLEAN, diagnoses, experiment, interval, record

PAGE = "README.md"


def fault_kinds():
    [words] = re.findall(r"enum class FaultKind : uint8_t \{(.*?)\};", (ROOT / "src/numeric/arguments.h").read_text(), re.DOTALL)
    return len(re.findall(r"\bk[A-Z]\w+,", words))


def planted():
    """Trials of `self` on faults that act in every call, at the strengths of the pools."""
    return [one["outcome"] for one in diagnoses() if one["cell"].split()[0] not in ("healthy", "curve", "intermittent")]


def healthy():
    return [one["outcome"] for one in diagnoses() if one["cell"].startswith("healthy")]


def diagnosis_claim():
    trials, runs = planted(), healthy()
    return say(
        "`self` named the layer in {right:,} of {all:,} trials (bf16) and accused {accused} of {healthy:,} healthy runs (bf16, fp16, fp32)",
        right=sum(one["self"].get("layer_right", False) for one in trials),
        all=len(trials),
        accused=sum(one["self"]["found"] for one in runs),
        healthy=len(runs),
    )


def race_claims():
    rows = record("race-selftest.json")["rows"]
    delays = [row for row in rows if row["kind"] == "delay"]
    corruptions = [row for row in rows if row["kind"] != "delay"]
    total = lambda part, key: sum(row[key] for row in part)  # noqa: E731
    assert total(corruptions, "detected") == total(corruptions, "attributed") and record("race-selftest.json")["clean_alarms"] == 0
    return [
        say("{found:,} of {planted:,} planted corruptions detected and attributed, {late} of {delays} delays laid on their rank ({ranks} ranks as threads on a CPU), no alarm in {clean:,} clean iterations",
            found=total(corruptions, "attributed"), planted=total(corruptions, "planted"), late=total(delays, "attributed"), delays=total(delays, "planted"),
            ranks=record("race-selftest.json")["ranks"], clean=record("race-selftest.json")["clean_iterations"]),
    ]  # fmt: skip


def training_claims():
    noisy, robust = experiment("noisy-ops"), experiment("robustness")
    gain, low, high = noisy.contrast("e5", "baseline")
    aqn, aqn_low, aqn_high = noisy.contrast("e5a", "e5")
    joint = max(noisy.contrast(arm, against, family=4)[2] for arm, against in (("e5a", "e5"), ("e5b", "e5"), ("e5d", "e5c")))
    pairs = robust.paired("noisy_aqn", "noisy_training")
    first = pairs[:3]
    subsets = list(itertools.combinations(pairs, 3))
    assert len(noisy.analysis["contrasts"]) == 4
    return [
        say("Trained under {noise:.0f} % noise on every matrix product, the model answers {gain:.1f} points more under that noise than the same model trained clean (95 %: {low:.1f} to {high:.1f}; {seeds} seeds), and {cost:.1f} points fewer without it",
            noise=100 * noisy.plan["faults"][0]["what"]["strength"], gain=gain, low=low, high=high, seeds=len(noisy.paired("e5", "baseline")), cost=-noisy.contrast("e5", "baseline", CLEAN)[0]),
        say("{gain:.1f} points ({low:.1f} to {high:.1f}) with global decay. All contrasts of the experiment taken together, a gain of {joint:.1f} points or more is excluded", gain=aqn, low=aqn_low, high=aqn_high, joint=math.ceil(10 * joint) / 10),
        say("gave AQN {gain:.1f} points ({low:.1f} to {high:.1f}), all twelve {all:.1f} ({all_low:.1f} to {all_high:.1f}). Of the {ways} ways to pick three of its twelve seeds, {above} have an interval above 0.",
            gain=statistics.mean(first), low=interval(first)[0], high=interval(first)[1], all=statistics.mean(pairs), all_low=interval(pairs)[0], all_high=interval(pairs)[1],
            ways=len(subsets), above=sum(interval(one)[0] > 0 for one in subsets)),
    ]  # fmt: skip


def tap_row(name, words):
    return next(row for row in record(name)["rows"] if row["name"] == words)


def speed_claims():
    first, second = tap_row("h200-tap.json", PLAN), tap_row("h200-tap-3.json", PLAN)
    return [
        say("of a training step costs {first} and {second} % on two H200 machines ({low} to {high} and {low3} to {high3}: their clocks drift)",
            first=percent(first["over_no_plan"]), second=percent(second["over_no_plan"]), low=percent(first["spread"][0]), high=percent(first["spread"][1]), low3=percent(second["spread"][0]), high3=percent(second["spread"][1])),
        say("patches in Python costs {first} and {second} %", first=percent(tap_row("h200-tap.json", PATCHES)["over_no_plan"]), second=percent(tap_row("h200-tap-3.json", PATCHES)["over_no_plan"])),
    ]  # fmt: skip


def vllm_claims():
    vllm, batches = record("h200-vllm.json"), ("1", "64", "256")
    armed = vllm["evidence"]["armed"]
    best = lambda arm, batch: max(vllm["tokens_per_second"][arm][batch])  # noqa: E731
    return [
        say("noise on every product: {a:.0f}, {b:.0f} and {c:.0f} % of its clean tokens a second at batch 1, 64 and 256", **{key: 100 * best("armed", batch) / best("clean", batch) for key, batch in zip("abc", batches)}),
        say("All {calls:,} calls (113 products x {forwards:,} forwards)", calls=armed["calls"], forwards=armed["forwards"]["body"]),
    ]  # fmt: skip


def verl_claims():
    arms = [arm for arm in record("h200-verl.json")["arms"] if arm["processes"]]
    counted = [counts for arm in arms for process in arm["processes"] for counts in process["phases"].values()]
    assert len(arms) == 6 and {len(arm["columns"]["reward"]) for arm in arms} == {20} and all(counts["exact"] for counts in counted)
    return [say("six faulted runs of {steps} steps (noise, AQN, dead zones), {calls:,.0f} calls", steps=len(arms[0]["columns"]["reward"]), calls=sum(counts["calls"] for counts in counted))]


def recorded_seconds():
    return json.loads((ROOT / "docs/images/demo.cast").read_text(encoding="utf-8").splitlines()[0])["seconds"]


CLAIMS = [say("{kinds} fault kinds and", kinds=fault_kinds()), say("pauses shortened: {seconds:.0f} s on", seconds=recorded_seconds()), diagnosis_claim(), *race_claims(), *training_claims(), *speed_claims(), *vllm_claims(), *verl_claims()]
REASONS = [
    (r"exit code 3|or exit 3", "exit code"),
    (r"in layer 10", "the picture's own run"),
    (r"in November 2026", "a date"),
    (r"13 s on two idle Neoverse V1", "docs/results/build.md, without a record"),
    (r"\| 22 kinds on operators", "the same as in Numbers, where it is tied"),
    (r"\[21 types", "lm-resiliency's own table of failure types"),
    (r"SmolLM2-135M,", "name"),
    (r"45 number formats", "src/numeric/format_table.cpp; cli_test.py counts what `faultline list` prints"),
    (r"dequantised 4-bit one", "docs/model.md; model_files_test.py counts the tensors"),
    (r"an interval above 0\.", "a definition"),
    (r"\*\*vLLM\*\* 0\.22\.1|\*\*verl\*\* 0\.9\.1", "version"),
    (r"4-bit weights", "the format's size"),
    (r"number would be 64", "the sum of 64 ones"),
    (r"Debian 12 or Ubuntu 24\.04", "version"),
    (r"5 % noise on every (matrix )?product", "setting"),
    (r"at batch 1, 64 and 256", "setting; vllm_claims asserts it"),
    (r"\(113 products", "the model's shape; published_tables_test.py asserts it"),
]
