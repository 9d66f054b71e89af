"""The numbers of README.md."""

import itertools
import json
import math
import statistics

from claims.tap import PATCHES, PLAN, percent
from program import ROOT
from published_numbers import say
from published_records import CLEAN, RESULTS, diagnoses, experiment, interval, record

PAGE = "README.md"


def fault_kinds():
    return (ROOT / "src/numeric/catalogue.cpp").read_text().count("{FaultKind::k")


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
    rows, hosts = record("race-selftest.json")["rows"], record("hosts-race.json")
    delays = [row for row in rows if row["kind"] == "delay"]
    corruptions = [row for row in rows if row["kind"] != "delay"]
    total = lambda part, key: sum(row[key] for row in part)  # noqa: E731
    assert total(corruptions, "detected") == total(corruptions, "attributed") and record("race-selftest.json")["clean_alarms"] == 0
    return [
        say("{found:,} of {planted:,} planted corruptions detected and attributed, {late} of {delays} delays laid on their rank ({ranks} ranks as threads on a CPU), no alarm in {clean:,} clean iterations",
            found=total(corruptions, "attributed"), planted=total(corruptions, "planted"), late=total(delays, "attributed"), delays=total(delays, "planted"),
            ranks=record("race-selftest.json")["ranks"], clean=record("race-selftest.json")["clean_iterations"]),
        say("(namespaces of one machine) {right} of {planted} with host and rank", right=hosts["attributed_with_host"], planted=hosts["planted"]),
    ]  # fmt: skip


def training_claims():
    noisy, zone, robust, bias = (experiment(name) for name in ("noisy-ops", "deadzone-guided", "robustness", "bias"))
    gain, low, high = noisy.contrast("e5", "baseline")
    aqn, aqn_low, aqn_high = noisy.contrast("e5a", "e5")
    joint = max(noisy.contrast(arm, against, family=4)[2] for arm, against in (("e5a", "e5"), ("e5b", "e5"), ("e5d", "e5c")))
    guided, guided_low, guided_high = zone.contrast("guided", "global")
    under, under_low, under_high = zone.contrast("guided", "guided_without_fault")
    pairs = robust.paired("noisy_aqn", "noisy_training")
    first = pairs[:3]
    subsets = list(itertools.combinations(pairs, 3))
    assert len(noisy.analysis["contrasts"]) == 4 and len(bias.by_seed("backward_too")) == 3
    return [
        say("Trained under {noise:.0f} % noise on every matrix product, the model answers {gain:.1f} points more under that noise than the same model trained clean (95 %: {low:.1f} to {high:.1f}; {seeds} seeds), and {cost:.1f} points fewer without it",
            noise=100 * noisy.plan["faults"][0]["what"]["strength"], gain=gain, low=low, high=high, seeds=len(noisy.paired("e5", "baseline")), cost=-noisy.contrast("e5", "baseline", CLEAN)[0]),
        say("{gain:.1f} points ({low:.1f} to {high:.1f}) with global decay. All contrasts of the experiment taken together, a gain of {joint:.1f} points or more is excluded", gain=aqn, low=aqn_low, high=aqn_high, joint=math.ceil(10 * joint) / 10),
        say("is unresolved**: {gain:+.1f} points ({low:.1f} to {high:.1f}; {seeds} seeds), under a dead zone in layer {layer}", gain=guided, low=guided_low, high=guided_high, seeds=len(zone.paired("guided", "global")), layer=zone.plan["faults"][0]["where"]["layer"]),
        say("{gain:.1f} points more with the zone ({low:.1f} to {high:.1f}) than the same training without it, and {cost:.1f} fewer once the zone is gone", gain=under, low=under_low, high=under_high, cost=-zone.contrast("guided", "guided_without_fault", CLEAN)[0]),
        say("gave AQN {gain:.1f} points ({low:.1f} to {high:.1f}), all twelve {all:.1f} ({all_low:.1f} to {all_high:.1f}). Of the {ways} ways to pick three of its twelve seeds, {above} have an interval above 0.",
            gain=statistics.mean(first), low=interval(first)[0], high=interval(first)[1], all=statistics.mean(pairs), all_low=interval(pairs)[0], all_high=interval(pairs)[1],
            ways=len(subsets), above=sum(interval(one)[0] > 0 for one in subsets)),
        say("undoes all training**: {left:.1f} % clean instead of {clean:.1f} (three seeds)", left=bias.mean("backward_too", CLEAN), clean=bias.mean("clean_training", CLEAN)),
    ]  # fmt: skip


def tap_row(name, words):
    return next(row for row in record(name)["rows"] if row["name"] == words)


def speed_claims():
    first, second = tap_row("h200-tap.json", PLAN), tap_row("h200-tap-3.json", PLAN)
    ratios = {row["name"].strip(): row["ratio"] for row in record("h200-numeric.json")["rows"] if row["name"].endswith("full ledger")}
    blocks = [ratios[f"quantize {name}, full ledger"] for name in ("mxfp4", "nvfp4", "mxfp8_e4m3")]
    gaussian = ratios["relative_gaussian, full ledger"]
    others = [ratio for name, ratio in ratios.items() if ratio not in (*blocks, gaussian) and "expression" not in name]
    steps = [json.loads(line) for line in (RESULTS / "aqn/step-default.jsonl").read_text().splitlines()]
    seconds = [one["times"]["timing_s/step"] for one in steps if one.get("stage") == "grpo" and one["kind"] == "step"]
    cost = next(row for row in experiment("overhead").analysis["arms"] if row["arm"] == "faults")["overhead"]
    plan_of_step = experiment("overhead").plan["train"]
    ours = record("h200-model.json")["qwen2.5-1.5b"]
    assert [row["batch"] for row in ours] == [1, 64, 256]
    return [
        say("with the full ledger: {first} and {second} % on two H200 machines (five and seven pairs, {low} to {high} and {low3} to {high3}:",
            first=percent(first["over_no_plan"]), second=percent(second["over_no_plan"]), low=percent(first["spread"][0]), high=percent(first["spread"][1]), low3=percent(second["spread"][0]), high3=percent(second["spread"][1])),
        say("Our re-creation of patches in Python: {first} and {second} %", first=percent(tap_row("h200-tap.json", PATCHES)["over_no_plan"]), second=percent(tap_row("h200-tap-3.json", PATCHES)["over_no_plan"])),
        say("with the full ledger: {gaussian:.2f} times a copy; MX and NVFP4 formats {low:.1f} to {high:.1f}, other kinds and formats {others_low:.1f} to {others_high:.1f}",
            gaussian=gaussian, low=min(blocks), high=max(blocks), others_low=min(others), others_high=max(others)),
        say("A GRPO step of SmolLM2 under that noise, {prompts} prompts x {n} samples, on an H200: {seconds:.2f} s, the median of {steps} steps", prompts=plan_of_step["prompts"], n=plan_of_step["n"], seconds=statistics.median(seconds), steps=len(seconds)),
        say("The noise adds {cost:.0f} % to the step (95 %: {low:.0f} to {high:.0f}; three pairs)", cost=100 * cost["mean"], low=100 * cost["interval"][0], high=100 * cost["interval"][1]),
        say("Generation on an H200: {a:.1f}, {b:.1f} and {c:.1f} times Hugging Face's", **{key: row["over_hf_compiled"] for key, row in zip("abc", ours)}),
    ]  # fmt: skip


def vllm_claims():
    vllm, batches = record("h200-vllm.json"), ("1", "64", "256")
    armed = vllm["evidence"]["armed"]
    best = lambda arm, batch: max(vllm["tokens_per_second"][arm][batch])  # noqa: E731
    return [
        say("noise on every product: {a:.0f}, {b:.0f} and {c:.0f} % of its clean tokens a second at batch 1, 64 and 256", **{key: 100 * best("armed", batch) / best("clean", batch) for key, batch in zip("abc", batches)}),
        say("All {calls:,} calls (113 products x {forwards:,} forwards)", calls=armed["calls"], forwards=armed["forwards"]["body"]),
        say("{faulted:,} of {products:,} product kernels that CUPTI saw", faulted=armed["launches"]["faulted"], products=armed["launches"]["products"]),
    ]  # fmt: skip


CLAIMS = [say("{kinds} fault kinds and", kinds=fault_kinds()), diagnosis_claim(), *race_claims(), *training_claims(), *speed_claims(), *vllm_claims()]
REASONS = [
    (r"exit code 3", "exit code"),
    (r"layer 10 was seen", "the picture's own run"),
    (r"Debian 12 or Ubuntu 24\.04", "version"),
    (r"SmolLM2-135M,", "name"),
    (r"SmolLM2-135M, 98 MB", "size of the file that ./dev fetches"),
    (r"torch: 2\.11 here, and 2\.13 or 2\.15", "version"),
    (r"CMake \(3\.25", "version"),
    (r"19 number formats", "make_formats in src/numeric/catalogue.cpp"),
    (r"within 1e-4 of transformers' logits", "the bound of model_test.py"),
    (r"dequantised 4-bit one", "docs/model.md; model_files_test.py counts the tensors"),
    (r"an interval above 0\.", "a definition"),
    (r"two others gave \+7\.5 and \+13\.1 %, of which no record was kept", "said there"),
    (r"5 % noise on every (matrix )?product", "setting"),
    (r"at batch 1, 64 and 256|\(batch 1, 64, 256;", "setting; speed_claims asserts it"),
    (r"\(113 products", "the model's shape; published_tables_test.py asserts it"),
    (r"\| 0 \| fine,|\| 1 \| a fault,|\| 2 \| error at|\| 3 \| evidence missing|\| 64 \| usage", "exit codes"),
    (r"at most 60 MiB", "limit of ./dev gpu-bundle"),
]
