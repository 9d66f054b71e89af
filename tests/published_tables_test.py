"""What README and the pages of docs/results say, against their records: every number of a page has a record or a reason
(published_numbers.py, and the page's module in tests/claims), and the published analyses are made once more from the published stores with
nothing of ours: arm means, paired differences, intervals, sign-flip tests and Holm's correction."""

import importlib
import statistics

import pytest

from program import ROOT
from published_numbers import NUMBER, check, plain, say, tied
from published_records import experiment, holm, interval, record, sign_flip

PAGES = sorted(path.stem for path in (ROOT / "tests/claims").glob("*.py"))
FOLDERS = sorted(path.parent.name.removesuffix("-default") for path in (ROOT / "docs/results/aqn").glob("*-default/analysis.json"))


def claims_of(name):
    module = importlib.import_module(f"claims.{name}")
    return (ROOT / module.PAGE).read_text(encoding="utf-8"), module.CLAIMS, module.REASONS, getattr(module, "FROZEN", {})


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_page_has_a_record_or_a_reason(name):
    wrong = check(*claims_of(name))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", PAGES)
def test_a_changed_number_is_noticed(name):
    """Each tied number of the page with another last digit."""
    page, claims, *_ = claims_of(name)
    page = plain(tied(page))
    for claim in claims:
        for begin, end in claim.spans:
            digits = [i for i in range(begin, end) if claim.text[i].isdigit()]
            if not digits:
                continue
            place = page.index(claim.text) + digits[-1]
            changed = page[:place] + str((int(page[place]) + 1) % 10) + page[place + 1 :]
            assert changed.count(claim.text) == 0, claim.text


def test_every_page_is_looked_at():
    pages = {str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs/results").glob("*.md")]}
    done = {importlib.import_module(f"claims.{name}").PAGE for name in PAGES}
    assert pages == done


def test_what_the_check_notices():
    page = "We saw 12 of 13 faults at\nbatch 64, −0.5 points.\n"
    claim, reason = say("{found} of {all} faults", found=12, all=13), ("at batch 64", "setting")
    points = say("{x:.1f} points", x=-0.5)
    assert check(page, [claim, points], [reason]) == []
    assert "stands 0 times" in check(page, [say("{found} of {all} faults", found=11, all=13), points], [reason])[0]
    assert "stands 2 times" in check(page + page, [claim], [])[0]
    assert "64 has no record" in check(page, [claim, points], [])[0]
    assert "-0.5 has no record" in check(page, [claim, say("-0.5 {x}", x="points")], [reason])[0], "a number in a claim's own words is not tied"
    assert "needs this reason" in check(page, [claim, points], [reason, ("no such words", "")])[0]
    assert "7 has no record" in check(page + "And 7 more.\n## Without a record\nPrinted: 8.\n", [claim, points], [reason])[0]
    assert len(check(page + "`9` [x](https://x/9)\n```\n9\n```\n", [claim, points], [reason])) == 0
    assert "is not to be edited" in check(page + "## Plan\n9 seeds\n", [claim, points], [reason], {"Plan": "0"})[0]
    assert [found.group() for found in NUMBER.finditer("H200 1.24x −3 bf16 3,840, 0.22.1, e5".replace("−", "-"))] == ["1.24", "-3", "3,840", "0.22"]
    with pytest.raises(AssertionError, match="names words"):
        check(page, [claim, points], [reason, (r"\d+", "all")])


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_there_are_analyses_to_look_at():
    assert len(FOLDERS) >= 8


@pytest.mark.parametrize("name", FOLDERS)
def test_the_arms_of_a_published_analysis_are_those_of_its_store(name):
    one = experiment(name)
    analysis = one.analysis
    for row in analysis["arms"]:
        trials = one.outcomes.get(row["arm"], {})
        values = [outcome["results"][analysis["endpoint"]] for outcome in trials.values()]
        assert row["endpoint"]["n"] == len(values) and row["endpoint"]["mean"] == close(statistics.mean(values))
        if len(values) > 1:
            assert row["endpoint"]["sd"] == close(statistics.stdev(values))
        seconds = [statistics.mean(outcome["curves"]["seconds"]) for outcome in trials.values()]
        assert row["seconds_a_step"]["n"] == len(seconds) and row["seconds_a_step"]["mean"] == close(statistics.mean(seconds))
        spent = [outcome["noise_seconds"] / len(outcome["curves"]["seconds"]) for outcome in trials.values() if "noise_seconds" in outcome]
        assert not spent or row["noise_seconds_a_step"]["mean"] == close(statistics.mean(spent))
        assert row["trials"] == sum(cell == row["arm"] for cell, *_ in one.rows)
        assert row["evidence_missing"] == sum(cell == row["arm"] and status == "error" for cell, _, status, *_ in one.rows)
    names = {row["arm"] for row in analysis["arms"]}
    started = [when for cell, _, _, when, *_ in one.rows if cell in names]
    assert analysis["before_design"] == {"trials": sum(when < analysis["design"]["created"] for when in started), "of": len(started)}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_contrasts_of_a_published_analysis_are_those_of_its_store(name):
    one = experiment(name)
    analysis, p_values = one.analysis, []
    assert [(row["arm"], row["against"]) for row in analysis["contrasts"]] == [(row["arm"], row["against"]) for row in analysis["design"]["contrasts"]]
    for row in analysis["contrasts"]:
        values = [value / 100 for value in one.paired(row["arm"], row["against"], analysis["endpoint"])]
        assert row["pairs"] == len(values)
        p_values.append(sign_flip(values) if len(values) > 1 else 1.0)
        if len(values) > 1:
            assert row["difference"] == close(statistics.mean(values)) and row["sd"] == close(statistics.stdev(values))
            assert row["interval"] == pytest.approx(interval(values), rel=1e-6) and row["p"] == close(p_values[-1])
            possible = 2 ** (1 - len(values)) <= 0.05 / len(analysis["contrasts"])
            assert (row["resolvable"] is not None) == possible
    for row, adjusted in zip(analysis["contrasts"], holm(p_values)):
        assert "p" not in row or row["p_holm"] == close(adjusted)


def test_every_product_of_vllm_was_faulted_in_the_record():
    for evidence in record("h200-vllm.json")["evidence"].values():
        assert evidence["complaints"] == [] and evidence["calls"] == 112 * evidence["forwards"]["body"] + evidence["forwards"]["head"]
        assert evidence["launches"]["products"] == evidence["launches"]["faulted"] == 113 * evidence["launches"]["kinds"] and evidence["launches"]["absent"] == []
