"""Our pages can be read: none scores worse than grade 12 (readability.py), the glossary is in order, and no document uses
an idiom that was taken out."""

import re

import pytest
import readability
from program import ROOT

PAGES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in readability.pages()]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_no_harder_than_grade_12(page):
    assert readability.grade(page.read_text(encoding="utf-8")) <= readability.HARDEST


def test_the_formula_counts_what_it_says():
    assert readability.sentences("One two. Three `a.b(c) d` four? | x |\n\n- an item\n\n```\ncode here\n```\n") == [
        ("One two.", ["One", "two"]), ("Three X four? | x |", ["Three", "X", "four", "x"]), ("an item", ["an", "item"])]  # fmt: skip
    known = {"fault": 1, "layer": 2, "operators": 4, "evidence": 3, "named": 1, "changes": 2, "strength": 1, "quantised": 2, "tables": 2, "noises": 2, "measured": 2, "tested": 2, "rules": 1, "gradient": 3, "variable": 4, "training": 2, "trial": 2}
    assert {word: readability.syllables(word) for word in known} == known
    hard = "The heterogeneous instrumentation infrastructure facilitates comprehensive characterisation of probabilistic vulnerabilities throughout computationally intensive environments."
    assert readability.grade(hard) > 20 > 5 > readability.grade("A fault is put in. It is seen. The tool says where.")


def test_a_harder_page_is_noticed():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readability.grade(text + "\n" + 40 * "Instrumentation infrastructure facilitates comprehensive characterisation of computational vulnerabilities and probabilistic heterogeneities. ") > readability.grade(text) + 2


# Said in full where they stood; a reader should not have to guess.
IDIOMS = [r"\blived with\b", r"\baloud\b", r"\bto the bone\b", r"\bin nobody's name\b", r"\bputs? up with\b", r"\bmade good\b", r"\bborne out\b"]
READ_ALOUD = {"docs/lessons.md", "docs/results/mutation.md"}  # name tests, which have such words in their names


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_none_of_the_idioms_that_were_taken_out(page):
    if str(page.relative_to(ROOT)) in READ_ALOUD:
        return
    text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert [found for idiom in IDIOMS for found in re.findall(idiom, text)] == []


def test_the_glossary_is_in_order():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        terms = re.findall(r"^### (.*)$", part, re.MULTILINE)
        assert terms == sorted(terms, key=str.lower)
