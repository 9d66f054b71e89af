"""The figures of docs/results are those of their records, drawn by the program."""

import xml.etree.ElementTree

import pytest

import draw_results
from program import PROGRAM, ROOT


@pytest.fixture(scope="module")
def drawn():
    return draw_results.figures(PROGRAM)


@pytest.mark.parametrize("file", draw_results.FIGURES)
def test_a_figure_is_that_of_its_record(drawn, file):
    published = (draw_results.RESULTS / "figures" / file).read_text(encoding="utf-8")
    assert published == drawn[file], "python tests/draw_results.py --build build"
    root = xml.etree.ElementTree.fromstring(published)
    assert len(list(root)) > 4 and "var(--" not in published.replace("var(--s)", ""), "the page's colours are resolved"
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/results").glob("*.md")]
    assert sum(f"](figures/{file})" in page for page in pages) == 1
