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
