"""The numbers of docs/results/aqn.md."""

import itertools
import json
import math
import statistics

from published_numbers import say
from published_records import CLEAN, FAULTY, RESULTS, experiment, holm, interval, sign_flip

PAGE = "docs/results/aqn.md"
FROZEN = {"Planned before the run": "f20bab703b3296c4"}

noisy, zone, robust, bias, overhead = (experiment(name) for name in ("noisy-ops", "deadzone-guided", "robustness", "bias", "overhead"))
hardware, truncation, schedules, alone, strong = (experiment(name) for name in ("hw-error", "truncation", "schedules", "aqn-only", "bias-strong"))
AFTER_DESIGN = set(range(2, 12))  # noisy-ops: seeds 100 and 101 are older


def bounds(name, values):
    return dict(zip((name, name + "_low", name + "_high"), values))


def excluded(*intervals):
    """The smallest gain, to a tenth of a point, that lies above all of these intervals."""
    return math.ceil(10 * max(high for _, _, high in intervals)) / 10


def arm(one, name):
    return next(row for row in one.analysis["arms"] if row["arm"] == name)


def percent(one, name, metric=FAULTY):
    return one.mean(name, metric)


def under(one, name, fault):
    return 100 * arm(one, name)["under"][fault]["accuracy"]["mean"]


NOISE = [("e5a", "e5"), ("e5b", "e5"), ("e5d", "e5c")]


def headline_claims():
    helps, cost = noisy.contrast("e5", "baseline"), noisy.contrast("e5", "baseline", CLEAN)
    everything = (noisy, zone, robust, bias, overhead, hardware, truncation, schedules, alone, strong)
    significant = [(row["arm"], row["against"]) for one in everything for row in one.analysis["contrasts"] if row.get("p_holm", 1) < 0.05]
    assert significant == [("e5", "baseline"), ("noisy_training", "clean_training")], "no comparison with AQN survives Holm's correction"
    return [
        say("a little better under that noise ({gain:+.1f} points, 95 % interval {gain_low:.1f} to {gain_high:.1f}) and clearly worse without it ({cost:.1f}).", **bounds("gain", helps), cost=cost[0]),
        say("is unresolved ({gain:+.1f} points, {gain_low:.1f} to {gain_high:.1f}).", **bounds("gain", zone.contrast("guided", "global"))),
    ]  # fmt: skip


def noisy_claims():
    helps, cost = noisy.contrast("e5", "baseline"), noisy.contrast("e5", "baseline", CLEAN)
    p = [one["p_holm"] for one in noisy.analysis["contrasts"]]
    later = [noisy.contrast(*pair, seeds=AFTER_DESIGN) for pair in NOISE]
    later_p = holm([sign_flip(noisy.paired(*pair, seeds=AFTER_DESIGN)) for pair in [("e5", "baseline"), *NOISE]])
    task, train = noisy.plan["task"], noisy.plan["train"]
    trained = [name for name in ("e5", "e5a", "e5b", "e5c", "e5d")]
    lost = [100 * one["degradation"]["mean"] for name in ("baseline", *trained) for label, one in arm(noisy, name)["under"].items() if label.startswith("unseen")]
    starts = {seed: 100 * value[CLEAN] for seed, value in noisy.start("baseline").items()}
    ends = {seed: 100 * value for seed, value in noisy.by_seed("baseline", CLEAN).items()}
    gains = [ends[seed] - starts[seed] for seed in ends]
    assert train["steps"] * train["prompts"] < task["train"] and len(noisy.analysis["contrasts"]) == 4
    span = lambda fault: dict(low=min(under(noisy, name, fault) for name in trained), high=max(under(noisy, name, fault) for name in trained), clean=under(noisy, "baseline", fault))  # noqa: E731
    return [
        say("{with_noise:.1f} against {clean:.1f} % under the noise, {gain:+.1f} points (95 % interval {gain_low:.1f} to {gain_high:.1f}, p = {p:.2g} after Holm), and {a:.1f} against {b:.1f} % without it, {cost:.1f} points ({cost_low:.1f} to {cost_high:.1f})",
            with_noise=percent(noisy, "e5"), clean=percent(noisy, "baseline"), **bounds("gain", helps), p=p[0], a=percent(noisy, "e5", CLEAN), b=percent(noisy, "baseline", CLEAN), **bounds("cost", cost)),
        say("The noise takes {clean:.1f} points from the model that was trained clean and {noisy:.1f} from the one trained under it",
            clean=percent(noisy, "baseline", CLEAN) - percent(noisy, "baseline"), noisy=percent(noisy, "e5", CLEAN) - percent(noisy, "e5")),
        say("{a:.1f} points ({a_low:.1f} to {a_high:.1f}) with global decay, {b:.1f} ({b_low:.1f} to {b_high:.1f}) with the schedule `epoch_aware`, {c:.1f} ({c_low:.1f} to {c_high:.1f}) where all operators are noisy",
            **bounds("a", noisy.contrast(*NOISE[0])), **bounds("b", noisy.contrast(*NOISE[1])), **bounds("c", noisy.contrast(*NOISE[2]))),
        say("all four contrasts at once, a gain of {gain:.1f} points or more is excluded for each of the three (Bonferroni", gain=excluded(*(noisy.contrast(*pair, family=4) for pair in NOISE))),
        say("{steps} steps of {prompts} prompts are {seen:,} of the {all:,} training problems", steps=train["steps"], prompts=train["prompts"], seen=train["steps"] * train["prompts"], all=task["train"]),
        say("{clean:.1f} % for the model trained clean, {low:.1f} to {high:.1f} % for the others", **span("noise_10")),
        say("cost no arm more than {lost:.1f} points", lost=max(lost)),
        say("the model trained clean answers best: {clean:.1f} % under the gain, the others {low:.1f} to {high:.1f} %", **span("unseen_gain")),
        say("{clean:.1f} % under the truncation, the others {low:.1f} to {high:.1f} %", **span("unseen_truncation")),
        say("GRPO gains {least:.1f} to {most:.1f} points over its own supervised start** in each of {seeds} seeds (arm `baseline`, {problems:,} test problems): from {start:.1f}–{start_high:.1f} % to {end:.1f}–{end_high:.1f} %, on average {mean:.1f}",
            least=min(gains), most=max(gains), seeds=len(gains), problems=train["validation_problems"], start=min(starts.values()), start_high=max(starts.values()), end=min(ends.values()), end_high=max(ends.values()), mean=statistics.mean(gains)),
        say("{trials} of the {of} trials (seeds 100 and 101)", **noisy.analysis["before_design"]),
        say("The ten seeds after the design say the same: {gain:+.1f} points ({gain_low:.1f} to {gain_high:.1f}, p = {p:.2g} after Holm) for training under the noise; {a:.1f} ({a_low:.1f} to {a_high:.1f}), {b:.1f} ({b_low:.1f} to {b_high:.1f}) and {c:.1f} ({c_low:.1f} to {c_high:.1f}) for AQN, where jointly a gain of {joint:.1f} or more is excluded",
            **bounds("gain", noisy.contrast("e5", "baseline", seeds=AFTER_DESIGN)), p=later_p[0], **bounds("a", later[0]), **bounds("b", later[1]), **bounds("c", later[2]), joint=excluded(*(noisy.contrast(*pair, seeds=AFTER_DESIGN, family=4) for pair in NOISE))),
        *later_attempts(),
    ]  # fmt: skip


def later_attempts():
    """Six trials ran again: the first attempt was refused by a check on 128 problems."""
    seeds, accuracies = {}, []
    for cell, seed, _, _, outcome, _ in noisy.rows:
        if cell.startswith("earlier"):
            seeds.setdefault(cell.split(":")[1], set()).add(seed)
            accuracies += [[float(word) for word in complaint.split() if word.replace(".", "").isdigit()][1:3] for complaint in json.loads(outcome)["complaints"]]
    without = [noisy.contrast(name, against, seeds=set(range(12)) - seeds[name]) for name, against in NOISE]
    before, after = zip(*accuracies)
    return [
        say("{trials} trials with AQN are later attempts**", trials=sum(map(len, seeds.values()))),
        say("found {low:.1f} to {high:.1f} % where the clean model had {clean_low:.1f} to {clean_high:.1f} %", low=min(after), high=max(after), clean_low=min(before), clean_high=max(before)),
        say("Without them the contrasts have ten pairs each and say the same: {a:.1f} ({a_low:.1f} to {a_high:.1f}), {b:.1f} ({b_low:.1f} to {b_high:.1f}), {c:.1f} ({c_low:.1f} to {c_high:.1f})",
            **bounds("a", without[0]), **bounds("b", without[1]), **bounds("c", without[2])),
    ]  # fmt: skip


def zone_claims():
    calibration = json.loads((zone.folder / "calibration.json").read_text())
    last = calibration["sweep"][-1]
    pairs = {other: zone.contrast("guided", other) for other in ("none", "global", "wrong_layer", "guided_without_fault")}
    joint = {other: zone.contrast("guided", other, family=3) for other in ("none", "global", "wrong_layer")}
    cost = [-value for value in zone.contrast("guided", "guided_without_fault", CLEAN)]
    against_none = [name for name in zone.outcomes if not name.startswith("pilot:") and name != "none"]
    design, resolvable = zone.analysis["design"], [100 * one["resolvable"] for one in zone.analysis["contrasts"]]
    return [
        say("a dead zone of {value:.4f} of a row's largest value behind layer {layer} left {share:.0f} % of the first start's accuracy ({left:.1f} of {clean:.1f} %)",
            value=calibration["value"], layer=zone.plan["faults"][0]["where"]["layer"], share=100 * calibration["share"], left=100 * last["accuracy"], clean=100 * calibration["clean"]),
        say("guided noise against global noise is **unresolved**: {a:+.1f} points ({a_low:.1f} to {a_high:.1f}; jointly with the other two contrasts {j_low:.1f} to {j_high:.1f})", **bounds("a", pairs["global"]), j_low=joint["global"][1], j_high=joint["global"][2]),
        say("Against no noise {a:.1f} points ({a_low:.1f} to {a_high:.1f}; jointly {j_low:.1f} to {j_high:.1f}): a gain of {gain:.1f} points or more is excluded.", **bounds("a", pairs["none"]), j_low=joint["none"][1], j_high=joint["none"][2], gain=excluded(joint["none"])),
        say("Against a wrong layer {a:.1f} ({a_low:.1f} to {a_high:.1f}; jointly {j_low:.1f} to {j_high:.1f}): unresolved too", **bounds("a", pairs["wrong_layer"]), j_low=joint["wrong_layer"][1], j_high=joint["wrong_layer"][2]),
        say("{guided:.1f} % under it against {without:.1f} % of the same training without it, both with the guided noise: {a:.1f} points ({a_low:.1f} to {a_high:.1f}). It costs {b:.1f} points ({b_high:.1f} to {b_low:.1f}) once the zone is gone",
            guided=percent(zone, "guided"), without=percent(zone, "guided_without_fault"), **bounds("a", pairs["guided_without_fault"]), **bounds("b", cost)),
        say("compared `none` with `guided_without_fault` ({old:.1f} points)", old=zone.contrast("none", "guided_without_fault")[0]),
        say("*better* with the dead zone than without ({under:.1f} and {clean:.1f} % in `none`)", under=percent(zone, "none"), clean=percent(zone, "none", CLEAN)),
        say("Global noise costs a little against none, {a:.1f} ({a_low:.1f} to {a_high:.1f}), as one of {many} such intervals; jointly {j_low:.1f} to {j_high:.1f}",
            **bounds("a", zone.contrast("global", "none")), many=len(against_none), j_low=zone.contrast("global", "none", family=len(against_none))[1], j_high=zone.contrast("global", "none", family=len(against_none))[2]),
        say("Twelve pairs resolve {a:.1f}, {b:.1f} and {c:.1f} points at Holm's first step (goal: 3). The pilot promised {promised:.1f}: its {pairs} pairs had an SD of {sd:.1f} points, the twelve have {real:.1f}.",
            a=resolvable[0], b=resolvable[1], c=resolvable[2], promised=100 * design["resolvable"], pairs=design["pilot"]["pairs"], sd=100 * design["pilot"]["sd_of_differences"], real=statistics.stdev(zone.paired("guided", "none"))),
        *survival_claims(),
        *noise_time_claims(),
    ]  # fmt: skip


def passed_the_zone():
    """-> {arm: {phase: {seed: share of the values other than 0 that the zone left}}}, from the ledger of each trial's evidence."""
    arms = {}
    for name, trials in zone.evidence.items():
        for seed, evidence in trials.items():
            for count in evidence["faults"]["counts"]:
                if count["rule"] == "dead_zone":
                    arms.setdefault(name, {}).setdefault(count["phase"], {})[seed] = 1 - count["zeroed"] / count["nonzero"]
    return arms


def survival_claims():
    passed, claims = passed_the_zone(), []
    for row in zone.analysis["arms"]:
        name, words, values = row["arm"], "| " + row["arm"], {}
        for phase in ("rollout", "actor_forward", "eval"):
            shares = [100 * share for share in passed[name].get(phase, {}).values()]
            words += f" | {{{phase}:.1f}} ± {{{phase}_sd:.1f}}" if shares else " | "
            values |= {phase: statistics.mean(shares), f"{phase}_sd": statistics.stdev(shares)} if shares else {}
        accuracy, clean = zone.by_seed(name), zone.by_seed(name, CLEAN)
        kept = [100 * accuracy[seed] / clean[seed] for seed in accuracy]
        ended = row["survival"]
        assert ended["survived"] == ended["trials"] == len(kept)
        values |= dict(under=percent(zone, name), under_sd=100 * statistics.stdev(accuracy.values()), kept=statistics.mean(kept), kept_sd=statistics.stdev(kept), survived=ended["survived"], trials=ended["trials"])
        claims.append(say(words + " | {under:.1f} ± {under_sd:.1f} | {kept:.0f} ± {kept_sd:.0f} | {survived} of {trials} |", **values))
    trained = [name for name in passed if not name.startswith("pilot:") and "rollout" in passed[name]]
    means = {phase: [100 * statistics.mean(passed[name][phase].values()) for name in trained] for phase in ("rollout", "actor_forward")}
    low, high = ({phase: pick(values) for phase, values in means.items()} for pick in (min, max))
    return [*claims, say("{a:.1f} to {b:.1f} % of the values in rollout and {c:.1f} to {d:.1f} % in the forward pass", a=low["rollout"], b=high["rollout"], c=low["actor_forward"], d=high["actor_forward"])]


def noise_time_claims():
    spent = {name: [1000 * zone.outcomes[name][seed]["noise_seconds"] / len(zone.outcomes[name][seed]["curves"]["seconds"]) for seed in range(12)] for name in ("guided", "global")}
    guided, everywhere = spent["guided"], spent["global"]
    ratios = sorted(one / other for one, other in zip(guided, everywhere))
    difference = statistics.mean(everywhere) - statistics.mean(guided)
    step = statistics.mean(statistics.mean(one["curves"]["seconds"]) for one in zone.outcomes["global"].values())
    norms = {zone.evidence[name][0]["aqn"]["weights"] for name in spent}
    return [
        say("{guided:.2f} ms a step on the two norms of layer 15 against {all:.2f} ms on all {norms}: {saved:.0f} % (medians {m:.2f} and {n:.2f}; seed by seed {least:.0f} to {most:.0f} %)",
            guided=statistics.mean(guided), all=statistics.mean(everywhere), norms=max(norms), saved=-100 * (1 - statistics.mean(guided) / statistics.mean(everywhere)), m=statistics.median(guided), n=statistics.median(everywhere), least=-100 * (1 - ratios[-1]), most=-100 * (1 - ratios[0])),
        say("That is {ms:.1f} ms of a step of {step:.2f} s, {share:.1f} %", ms=difference, step=step, share=100 * difference / 1000 / step),
    ]  # fmt: skip


def few_seeds_claims():
    pairs, draws = robust.paired("noisy_aqn", "noisy_training"), noisy.paired("e5a", "e5")
    threes = lambda values: [interval(three) for three in itertools.combinations(values, 3)]  # noqa: E731
    assert [robust.outcomes["noisy_aqn"][seed]["curves"]["loss"] == noisy.outcomes["e5a"][seed]["curves"]["loss"] for seed in range(2, 12)] == [True] * 10
    for mine, theirs in (("noisy_training", "e5"), ("clean_training", "baseline")):
        assert all(robust.outcomes[mine][seed]["curves"]["loss"] == noisy.outcomes[theirs][seed]["curves"]["loss"] for seed in range(2, 12))
    for mine, theirs in (("noisy_aqn", "global_decay"), ("noisy_training", "none")):
        assert all(robust.outcomes[mine][seed]["curves"]["loss"] == schedules.outcomes[theirs][seed]["curves"]["loss"] for seed in range(3))
    both = [sum(low > 0 for low, _ in threes(values)) for values in (pairs, draws)], [sum(high < 0 for _, high in threes(values)) for values in (pairs, draws)]
    return [
        say("On the first three seeds of `robustness` AQN looks worth {a:.1f} points ({b:.1f} to {c:.1f}), on the first eight {d:.1f} ({e:.1f} to {f:.1f}), on all twelve {g:.1f} ({h:.1f} to {i:.1f}), and with four draws of the noise (`noisy-ops`) {j:.1f} ({k:.1f} to {l:.1f})",
            **dict(zip("abcdefghijkl", [value for part in (pairs[:3], pairs[:8], pairs, draws) for value in (statistics.mean(part), *interval(part))]))),
        say("Of the {ways} ways to choose three of the twelve seeds, {up} give an interval above 0 and {down} one below it in `robustness`, {up2} and {down2} in `noisy-ops`", ways=len(threes(pairs)), up=both[0][0], down=both[1][0], up2=both[0][1], down2=both[1][1]),
    ]  # fmt: skip


def three_seed_claims():
    unchanged = [count for count in hardware.evidence["e2n"][0]["faults"]["counts"]]
    assert sum(count["changed"] for count in unchanged) == 0
    assert all(hardware.outcomes["e2n"][seed]["curves"]["loss"] == hardware.outcomes["e1"][seed]["curves"]["loss"] for seed in range(3))
    spans = [schedules.contrast(name, "none") for name in ("global_decay", "epoch_aware", "constant", "linear", "cosine", "zones")]
    above = [one for one in spans if one[1] > 0]
    assert len(above) == 1 and above[0] == spans[0]
    lost = lambda one, name: one.mean(name, CLEAN) - one.mean(name)  # noqa: E731
    won = [100 * arm(robust, name)["under"]["noise_5"]["recovery"]["mean"] for name in ("noisy_training", "noisy_aqn")]
    unseen = [-value for name in ("noisy_training", "noisy_aqn") for fault in ("unseen_gain", "unseen_truncation") for value in [100 * arm(robust, name)["under"][fault]["against_control"]["difference"]]]
    refused = [[float(word) for word in json.loads(outcome)["complaints"][0].split() if word.replace(".", "").isdigit()][1:3] for cell, _, status, _, outcome, _ in alone.rows if status == "error"]
    first, second = robust.analysis["contrasts"]
    return [
        say("cost {a:.1f} ({a_low:.1f} to {a_high:.1f}) and {b:.1f} points ({b_low:.1f} to {b_high:.1f})", **bounds("a", hardware.contrast("e2", "e1")), **bounds("b", hardware.contrast("e4", "e1"))),
        say("not one of the {elements:.0f} billion bf16 elements", elements=sum(count["elements"] for count in unchanged) / 1e9),
        say("takes {clean:.1f} points from a model that was trained clean and {trained:.1f} from one that was trained under it, which pays {paid:.1f} points of clean accuracy for it. Under the fault the two differ by {a:.1f} points ({a_low:.1f} to {a_high:.1f})",
            clean=lost(truncation, "clean_training"), trained=lost(truncation, "truncated"), paid=-truncation.contrast("truncated", "clean_training", CLEAN)[0], **bounds("a", truncation.contrast("truncated", "clean_training"))),
        say("between {low:.1f} and {high:.1f} points around no noise. `global_decay` has the only interval without 0 ({a:.1f}, {a_low:.1f} to {a_high:.1f})", low=min(one[1] for one in spans), high=max(one[2] for one in spans), **bounds("a", above[0])),
        say("{a:.1f} points ({a_low:.1f} to {a_high:.1f}; p = {p:.2g} after Holm), AQN on top {b:.1f} ({b_low:.1f} to {b_high:.1f})", **bounds("a", robust.contrast("noisy_training", "clean_training")), p=first["p_holm"], **bounds("b", robust.contrast("noisy_aqn", "noisy_training"))),
        say("wins back {a:.0f} % of what the noise takes, with AQN {b:.0f} %", a=won[0], b=won[1]),
        say("under 10 % all stay below {most:.0f} % accuracy", most=math.ceil(max(under(robust, name, "noise_10") for name in ("clean_training", "noisy_training", "noisy_aqn")))),
        say("the model trained clean stays the best, by {low:.1f} to {high:.1f} points", low=min(unseen), high=max(unseen)),
        say("σ from 0.05 changes clean accuracy by {a:.1f} points ({a_low:.1f} to {a_high:.1f})", **bounds("a", alone.contrast("3a", "none", CLEAN))),
        say("from {a:.1f} to {b:.1f} and from {c:.1f} to {d:.1f} %", a=refused[0][0], b=refused[0][1], c=refused[1][0], d=refused[1][1]),
        *bias_claims(),
        *overhead_claims(),
    ]  # fmt: skip


def bias_claims():
    calibration = json.loads((bias.folder / "calibration.json").read_text())
    at = next(one for one in calibration["sweep"] if one["value"] == calibration["value"])
    rewards = [one["curves"]["reward"] for one in bias.outcomes["backward_too"].values()]
    quiet = next(step for step in range(40) if all(reward < 0.01 for curve in rewards for reward in curve[step:]))
    return [
        say("{value:.4f} added to every product away from zero leaves {share:.0f} % of the first start's accuracy ({left:.1f} of {clean:.1f} %)", value=calibration["value"], share=100 * calibration["share"], left=100 * at["accuracy"], clean=100 * calibration["clean"]),
        say("{under:.1f} % under it, {a:.1f} points ({a_low:.1f} to {a_high:.1f}) over the clean training, and {clean:.1f} % without it, {paid:.1f} points fewer than the clean training: unresolved.", under=percent(bias, "biased"), **bounds("a", bias.contrast("biased", "clean_training")), clean=percent(bias, "biased", CLEAN), paid=-bias.contrast("biased", "clean_training", CLEAN)[0]),
        say("AQN changes nothing that three seeds could show ({aqn:.1f} %)", aqn=percent(bias, "biased_aqn")),
        say("rewards fell from {low:.0f} to {high:.0f} % and stayed below 1 % from step {step} on, {under:.1f} % under the fault, {clean:.1f} % clean ({lost:.1f} points below the start)",
            low=100 * min(curve[0] for curve in rewards), high=100 * max(curve[0] for curve in rewards), step=quiet + 1, under=percent(bias, "backward_too"), clean=percent(bias, "backward_too", CLEAN), lost=-100 * arm(bias, "backward_too")["gain"]["mean"]),
        say("{value:.2f}, in rollout, forward and backward", value=strong.plan["faults"][0]["what"].get("strength", strong.plan["faults"][0]["what"].get("offset", 0.0))),
    ]  # fmt: skip


def overhead_claims():
    seconds = {name: [statistics.mean(one["curves"]["seconds"]) for one in overhead.outcomes[name].values()] for name in ("nothing", "faults", "aqn", "both")}
    cost = {name: arm(overhead, name)["overhead"] for name in ("faults", "aqn")}
    noise = [1000 * one["noise_seconds"] / 40 for name in ("aqn", "both") for one in overhead.outcomes[name].values()]
    return [
        say("a step takes {a:.3f} s without anything, {b:.3f} s with 5 % noise on every product, its ledger and its proof ({x:+.1f} %, {xl:.1f} to {xh:.1f}), {c:.3f} s with AQN ({y:+.1f} %, {yl:.1f} to {yh:.1f}) and {d:.3f} s with both",
            a=statistics.mean(seconds["nothing"]), b=statistics.mean(seconds["faults"]), c=statistics.mean(seconds["aqn"]), d=statistics.mean(seconds["both"]),
            x=100 * cost["faults"]["mean"], xl=100 * cost["faults"]["interval"][0], xh=100 * cost["faults"]["interval"][1], y=100 * cost["aqn"]["mean"], yl=100 * cost["aqn"]["interval"][0], yh=100 * cost["aqn"]["interval"][1]),
        say("takes {low:.1f} to {high:.1f} ms a step by the program's own clock; steps without anything took {least:.2f} to {most:.2f} s from seed to seed", low=min(noise), high=max(noise), least=min(seconds["nothing"]), most=max(seconds["nothing"])),
    ]  # fmt: skip


def step_claims():
    steps = [json.loads(line) for line in (RESULTS / "aqn/step-default.jsonl").read_text().splitlines()]
    steps = [one for one in steps if one["kind"] == "step" and one["stage"] == "grpo"]
    median = lambda key: statistics.median(one["times"][key] for one in steps)  # noqa: E731
    train = noisy.plan["train"]
    return [
        say("({prompts} prompts × {n} samples, {tokens:.1f} tokens a response)", prompts=train["prompts"], n=train["n"], tokens=statistics.mean(one["metrics"]["response_length/mean"] for one in steps)),
        say("{step:.3f} s** (median of {steps}, alone on the GPU; goal 0.75 s; generation {generation:.3f} s, update {update:.3f} s), peak memory {memory:.1f} GiB",
            step=median("timing_s/step"), steps=len(steps), generation=median("timing_s/gen"), update=median("timing_s/update_actor"), memory=max(one["times"]["perf/max_memory_allocated_gb"] for one in steps)),
        say("medians of {a:.3f}, {b:.3f} and {c:.3f} s", **dict(zip("abc", [statistics.median(one["curves"]["seconds"]) for _, one in sorted(overhead.outcomes["faults"].items())]))),
    ]  # fmt: skip


def deviation_claims():
    design = {one: one.analysis["design"] for one in (noisy, zone)}
    assert all(one.analysis["before_design"]["trials"] == 0 for one in (zone, robust, bias, overhead, hardware, truncation, schedules, alone, strong))
    return [
        say("three points need {a} pairs in `noisy-ops` and {b} in `deadzone-guided`; Holm's first step cannot pass 0.05 with fewer than {c} and {d}",
            a=design[noisy]["pairs_for_three_points"], b=design[zone]["pairs_for_three_points"], c=design[noisy]["fewest_pairs_for_holm"], d=design[zone]["fewest_pairs_for_holm"]),
        say("a pilot of {pairs} pairs", pairs=design[noisy]["pilot"]["pairs"]),
    ]  # fmt: skip


CLAIMS = [*headline_claims(), *noisy_claims(), *zone_claims(), *few_seeds_claims(), *three_seed_claims(), *step_claims(), *deviation_claims()]
REASONS = [
    (r"5 % noise", "setting"),
    (r"lies above 0; e5a, e5b and e5d against their controls lie around 0|all three intervals hold 0", "definition; the figure is drawn from the record"),
    (r"with 95 % intervals", "level"),
    (r"(Six|Seven) arms, 12 seeds|mean ± SD of 12 seeds", "contrasts and arms have 12 each: survival_claims"),
    (r"Bonferroni, 95 %", "level"),
    (r"measured 128 problems|asks 1,024 since|from 128 to 1,024 problems", "setting of the check, then and now"),
    (r"were not 0 before the zone are not 0 behind", "definition"),
    (r"norms of layer 15", "setting; zone_claims has the layer"),
    (r"\(goal: 3\)", "goal"),
    (r"an interval above 0 and|the only interval without 0", "definition"),
    (r"smallest possible p is 0\.25", "2 of the 8 signs of three pairs"),
    (r"differences of 10⁻⁵ and 10⁻⁴", "setting"),
    (r"; under 10 % all", "setting"),
    (r"σ from 0\.05 changes|σ from 0\.1 is", "setting"),
    (r"noise on 61 norms", "setting; noise_time_claims has it"),
    (r"stayed below 1 % from", "definition; bias_claims"),
    (r"first step cannot pass 0\.05", "definition"),
    (r"\*\*12 trials of", "before_design; noisy_claims"),
    (r"with 5 and 10 of 12 seeds of \S+, with 2 and 11 of \S+, with 3 and 8 of", "the history of this page"),
    (r"\(6 seeds\) and \S+ \(4 seeds\)", "withdrawn"),
    (r"an alarm below p = 0\.01", "setting"),
    (r"One model of 135 million parameters", "name"),
    (r"never were in 4 bits", "name"),
    (r"## Provenance .*? Seeds 100 and 101 of", "which seeds ran with which commit"),
]
