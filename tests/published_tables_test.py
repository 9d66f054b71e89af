"""The published analyses once more, from the published stores and nothing of ours: arm means, paired differences, sign-flip tests and
Holm's correction, in a few lines of Python."""

import itertools
import json
import lzma
import sqlite3
import statistics

import pytest

from program import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "docs/results/aqn").glob("*-default/analysis.json"))


def finished(folder):
    """-> {arm: {seed: (results, curves)}} of the trials with proof that came to their end; and all rows."""
    store = sqlite3.connect(":memory:")
    store.deserialize(lzma.decompress((folder / "campaign.sqlite.xz").read_bytes()))
    rows = store.execute("SELECT cell, trial_index, status, started, outcome FROM trial").fetchall()
    arms = {}
    for cell, seed, status, _, outcome in rows:
        if status == "pass":
            outcome = json.loads(outcome)
            arms.setdefault(cell, {})[seed] = (outcome["results"], outcome["curves"])
    return arms, rows


def by_seed(trials, metric):
    return {seed: results[metric] for seed, (results, _) in trials.items() if metric in results}


def differences(arm, against):
    return [arm[seed] - against[seed] for seed in sorted(arm.keys() & against.keys())]


def sign_flip(values):
    """Two-sided and exact: every choice of signs."""
    observed, sums = abs(sum(values)), []
    for signs in itertools.product((1, -1), repeat=len(values)):
        sums.append(abs(sum(sign * value for sign, value in zip(signs, values))))
    return sum(one >= observed * (1 - 1e-9) for one in sums) / len(sums)


def holm(p_values):
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_there_are_analyses_to_look_at():
    assert len(FOLDERS) >= 8


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_arms_of_a_published_analysis_are_those_of_its_store(folder):
    analysis = json.loads((folder / "analysis.json").read_text())
    arms, rows = finished(folder)
    for row in analysis["arms"]:
        trials = arms.get(row["arm"], {})
        values = list(by_seed(trials, analysis["endpoint"]).values())
        assert row["endpoint"]["n"] == len(values) and row["endpoint"]["mean"] == close(statistics.mean(values))
        if len(values) > 1:
            assert row["endpoint"]["sd"] == close(statistics.stdev(values))
        seconds = [statistics.mean(curves["seconds"]) for _, curves in trials.values()]
        assert row["seconds_a_step"]["n"] == len(seconds) and row["seconds_a_step"]["mean"] == close(statistics.mean(seconds))
        assert row["trials"] == sum(cell == row["arm"] for cell, *_ in rows)
        assert row["evidence_missing"] == sum(cell == row["arm"] and status == "error" for cell, _, status, *_ in rows)
    names = {row["arm"] for row in analysis["arms"]}
    started = [when for cell, _, _, when, _ in rows if cell in names]
    assert analysis["before_design"] == {"trials": sum(when < analysis["design"]["created"] for when in started), "of": len(started)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_contrasts_of_a_published_analysis_are_those_of_its_store(folder):
    analysis = json.loads((folder / "analysis.json").read_text())
    arms, _ = finished(folder)
    assert [(one["arm"], one["against"]) for one in analysis["contrasts"]] == [(one["arm"], one["against"]) for one in analysis["design"]["contrasts"]]
    p_values = []
    for one in analysis["contrasts"]:
        values = differences(*(by_seed(arms[arm], analysis["endpoint"]) for arm in (one["arm"], one["against"])))
        assert one["pairs"] == len(values)
        p_values.append(sign_flip(values) if len(values) > 1 else 1.0)
        if len(values) > 1:
            assert one["difference"] == close(statistics.mean(values)) and one["sd"] == close(statistics.stdev(values))
            assert one["p"] == close(p_values[-1])
            possible = 2 ** (1 - len(values)) <= 0.05 / len(analysis["contrasts"])
            assert (one["resolvable"] is not None) == possible
    for one, adjusted in zip(analysis["contrasts"], holm(p_values)):
        assert "p" not in one or one["p_holm"] == close(adjusted)


# --- what passes the dead zone, and what the noise itself takes: a table and two sentences of aqn.md against the store ---------------
DEADZONE = ROOT / "docs/results/aqn/deadzone-guided-default"
PHASES = ("rollout", "actor_forward", "eval")


def spread(values, factor=100, digits=1):
    return f"{factor * statistics.mean(values):.{digits}f} ± {factor * statistics.stdev(values):.{digits}f}" if values else ""


def passed_the_zone(folder):
    """-> {arm: {phase: {seed: share of the values other than 0 that the zone left}}}, from the ledger of each trial's evidence."""
    store = sqlite3.connect(":memory:")
    store.deserialize(lzma.decompress((folder / "campaign.sqlite.xz").read_bytes()))
    arms = {}
    for cell, seed, body in store.execute("SELECT cell, trial_index, body FROM trial JOIN evidence ON evidence.trial = trial.id WHERE status = 'pass'"):
        for count in json.loads(body)["faults"]["counts"]:
            if count["rule"] == "dead_zone":
                arms.setdefault(cell, {}).setdefault(count["phase"], {})[seed] = 1 - count["zeroed"] / count["nonzero"]
    return arms


def test_the_survival_under_the_dead_zone_is_that_of_its_records():
    page, analysis = (ROOT / "docs/results/aqn.md").read_text(), json.loads((DEADZONE / "analysis.json").read_text())
    arms, _ = finished(DEADZONE)
    passed = passed_the_zone(DEADZONE)
    assert len(analysis["arms"]) == 7
    for row in analysis["arms"]:
        arm = row["arm"]
        under, clean = by_seed(arms[arm], analysis["endpoint"]), by_seed(arms[arm], "val-core/arithmetic/acc/mean@1")
        kept = [under[seed] / clean[seed] for seed in sorted(under)]
        cells = [spread(list(passed[arm].get(phase, {}).values())) for phase in PHASES]
        trainings = f"{row['survival']['survived']} of {row['survival']['trials']}"
        assert row["survival"]["survived"] == row["survival"]["trials"] == len(under) == 12
        assert f"| {arm} | {' | '.join(cells)} | {spread(list(under.values()))} | {spread(kept, digits=0)} | {trainings} |" in page
    trained = [passed[arm][phase] for arm in passed if not arm.startswith("pilot:") for phase in ("rollout", "actor_forward") if phase in passed[arm]]
    means = [statistics.mean(one.values()) for one in trained]
    assert f"{100 * min(means[0::2]):.1f} to {100 * max(means[0::2]):.1f} % of the values in rollout" in page
    assert f"{100 * min(means[1::2]):.1f} to {100 * max(means[1::2]):.1f} % in the forward pass" in page


def test_what_the_noise_itself_takes_is_what_its_records_say():
    page, analysis = (ROOT / "docs/results/aqn.md").read_text(), json.loads((DEADZONE / "analysis.json").read_text())
    store = sqlite3.connect(":memory:")
    store.deserialize(lzma.decompress((DEADZONE / "campaign.sqlite.xz").read_bytes()))
    spent = {}
    for cell, seed, outcome in store.execute("SELECT cell, trial_index, outcome FROM trial WHERE status = 'pass'"):
        outcome = json.loads(outcome)
        spent.setdefault(cell, {})[seed] = 1000 * outcome["noise_seconds"] / len(outcome["curves"]["seconds"])
    for row in analysis["arms"]:
        assert 1000 * row["noise_seconds_a_step"]["mean"] == close(statistics.mean(spent[row["arm"]].values())), row["arm"]
    guided, everywhere = (list(spent[arm].values()) for arm in ("guided", "global"))
    saved = 100 * (1 - statistics.mean(guided) / statistics.mean(everywhere))
    assert f"**{statistics.mean(guided):.2f} ms a step on the two norms of layer 15 against {statistics.mean(everywhere):.2f} ms on all 61: −{saved:.0f} %**" in page
    assert f"(medians {statistics.median(guided):.2f} and {statistics.median(everywhere):.2f})" in page
    ratios = sorted(spent["guided"][seed] / spent["global"][seed] for seed in spent["guided"])
    assert f"−{100 * (1 - ratios[-1]):.0f} to −{100 * (1 - ratios[0]):.0f} %" in page
    difference = statistics.mean(everywhere) - statistics.mean(guided)
    step = statistics.mean([statistics.mean(curves["seconds"]) for _, curves in finished(DEADZONE)[0]["global"].values()])
    assert f"{difference:.1f} ms of a step of {step:.2f} s, {100 * difference / 1000 / step:.1f} %" in page


# --- vLLM on an H200: the tables of two pages against their record ----------------------------------------------------------------
VLLM = json.loads((ROOT / "docs/results/h200-vllm.json").read_text())
BATCHES = ("1", "64", "256")


def best(arm, batch):
    return max(VLLM["tokens_per_second"][arm][batch])


def test_the_table_of_vllm_is_that_of_its_record():
    page = (ROOT / "docs/results/clients.md").read_text()
    for clean, armed, words in (("clean", "armed", ("clean", "armed, every product faulted")), ("clean_eager", "armed_eager", ("clean, eager", "armed, eager"))):
        assert f"| {words[0]} | " + " | ".join(f"{best(clean, batch):,.0f}" for batch in BATCHES) + " |" in page
        assert f"| {words[1]} | " + " | ".join(f"{best(armed, batch):,.0f} ({100 * best(armed, batch) / best(clean, batch):.0f} %)" for batch in BATCHES) + " |" in page
    for evidence in VLLM["evidence"].values():
        assert evidence["complaints"] == [] and evidence["calls"] == 112 * evidence["forwards"]["body"] + evidence["forwards"]["head"]
        assert evidence["launches"]["products"] == evidence["launches"]["faulted"] == 113 * evidence["launches"]["kinds"] and evidence["launches"]["absent"] == []
    armed = VLLM["evidence"]["armed"]
    assert f"{armed['calls']:,} calls = 113 products x {armed['forwards']['body']:,} forwards" in page and f"**{armed['launches']['faulted']:,} of {armed['launches']['products']:,} product kernels" in page


def test_the_readme_says_what_the_record_says():
    readme, armed = (ROOT / "README.md").read_text(), VLLM["evidence"]["armed"]
    shares = [f"{100 * best('armed', batch) / best('clean', batch):.0f}" for batch in BATCHES]
    assert f"5 % noise on every product: {shares[0]}, {shares[1]} and {shares[2]} % of its clean tokens a second at batch 1, 64 and 256" in readme
    assert f"All {armed['calls']:,}\n  calls (113 products x {armed['forwards']['body']:,} forwards)" in readme and f"{armed['launches']['faulted']:,} of {armed['launches']['products']:,} product kernels that CUPTI saw" in readme


def test_our_generation_stands_beside_vllms_as_recorded():
    page = (ROOT / "docs/results/model.md").read_text()
    for row in VLLM["ours"]["rows"]:
        batch = str(row["batch"])
        clean, armed = row["ours_tok_s"], row["with_plan_tok_s"]
        assert f"| {batch} | {clean:,.0f} | {best('clean', batch):,.0f} | {clean / best('clean', batch):.2f}x | {armed:,.0f} (+{100 * row['plan_cost']:.0f} %) | {best('armed', batch):,.0f} | {armed / best('armed', batch):.2f}x |" in page
