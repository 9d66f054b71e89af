"""`faultline report` end to end: a real evaluation is recorded, rendered and loaded in a real browser (where Chromium is
installed; otherwise those tests are skipped and say so). Screenshots stay in $FAULTLINE_SCREENSHOTS when it is set."""

import json
import os
import pathlib
import shutil

import pytest

import browser
from program import as_json, ok, refused, run

FAULT = "relative_gaussian(strength=0.05) @ operator=matmul"
needs_browser = pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("The sun rises in the east and sets in the west. " * 12)
    ok("eval", "--task", "arithmetic", "--text", text, "--window", 64, "--limit", 4, "--max-new-tokens", 8, "--slots", 4, "--fault", FAULT, "--strengths", "0.05,1", "--out", out)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def page(record):
    ok("report", record)
    return record / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as one:
        yield one


def screenshots(tmp_path):
    folder = pathlib.Path(os.environ.get("FAULTLINE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_the_page_shows_what_the_record_holds(record, page):
    html = page.read_text(encoding="utf-8")
    rows = json.loads((record / "summary.json").read_text())["results"]["rows"]
    assert [row["label"] for row in rows] == ["clean", "relative_gaussian strength=0.05", "relative_gaussian strength=1"]
    for row in rows:
        assert row["label"] in html
        assert f"({row['task']['correct']}/4)" in html
    assert "4 questions cannot show any difference" in html
    assert html.index('class="verdict') < html.index("<svg")
    assert "faultline eval --task arithmetic" in html and "--limit 4" in html  # how to run it again
    assert len(html) < 1_000_000 and "http://" not in html and "https://" not in html and "<script" not in html


def test_the_command_says_the_verdict_and_where_the_page_is(record, tmp_path):
    answer = as_json("report", record, record, "-o", tmp_path / "two.html")
    assert [run["kind"] for run in answer["runs"]] == ["eval", "eval"] and answer["runs"][0]["missing"] == []
    assert "2 runs side by side" in pathlib.Path(answer["page"]).read_text(encoding="utf-8")


def test_a_torn_record_is_shown_with_what_is_missing(record, tmp_path):
    torn = tmp_path / "torn"
    shutil.copytree(record, torn)
    (torn / "summary.json").unlink()
    with open(torn / "events.jsonl", "a", encoding="utf-8") as log:
        log.write('{"v":1,"n":')
    text = ok("report", torn)
    assert "no summary.json" in text and "torn" in text


def test_help_has_a_purpose_and_two_examples():
    text = ok("report", "-h")
    assert text.count("\n  faultline report") >= 2 and "-o" in text and "self-contained" in text


def test_what_is_no_record_is_refused(tmp_path):
    refused(64, "report", tmp_path, says="no record")
    refused(64, "report", tmp_path / "nowhere", says="there is no such folder")
    assert run("report").returncode == 64


@needs_browser
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_chart_and_loads_nothing_else(page, chromium, tmp_path, width, dark):
    assert chromium.open(page, width, dark=dark) == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    drawn = """[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')].filter(
        s => s.getBoundingClientRect().width > 200 && s.querySelectorAll('circle, rect, path').length > 1).length)"""
    counts = chromium.evaluate(drawn)
    assert len(counts) >= 3 and all(count == 1 for count in counts), counts
    chromium.screenshot(screenshots(tmp_path) / f"report-{width}{'-dark' if dark else ''}.png")


HIDDEN = "[...document.querySelectorAll('.scroll')].filter(t => t.scrollWidth > t.clientWidth + 1).map(t => t.innerText.slice(0, 80))"
# Words of the charts that are shown: their height on the screen, and whether they leave the window.
WORDS = """[...document.querySelectorAll('svg text, .legend')].map(t => [t, t.getBoundingClientRect()]).filter(([t, box]) => box.width > 0).map(
    ([t, box]) => [t.textContent, t.closest('svg') ? parseFloat(getComputedStyle(t).fontSize) * t.closest('svg').getBoundingClientRect().width / t.closest('svg').viewBox.baseVal.width
    : parseFloat(getComputedStyle(t).fontSize), box.left, box.right])"""
# Lightness contrast of words with what is behind them, as WCAG 2 defines it.
CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c) && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('p, li, td, th, h1, h2, h3, figcaption, summary, pre, svg text:not(.on), .legend')].filter(e => e.textContent.trim() && e.getBoundingClientRect().width > 0).map(e => {
    const style = getComputedStyle(e), a = light(e.closest('svg') ? style.fill : style.color), b = light(behind(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName, e.textContent.slice(0, 40)]; });
})()"""


@needs_browser
def test_no_table_is_cut_off_on_a_large_screen(page, chromium):
    assert chromium.open(page, 1440) == []
    assert "added nats" in page.read_text(encoding="utf-8") and chromium.evaluate(HIDDEN) == []
    assert chromium.open(page, 390) == [] and chromium.evaluate(HIDDEN) != [], "the test sees a table that is wider than its place"


@needs_browser
def test_axes_and_legends_are_readable_on_a_telephone(page, chromium):
    assert chromium.open(page, 390) == []
    words = chromium.evaluate(WORDS)
    assert len(words) > 20
    assert [word for word in words if word[1] < 11.5] == []
    assert [word for word in words if word[2] < 0 or word[3] > 390] == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(page, chromium, dark):
    assert chromium.open(page, 1440, dark=dark) == []
    found = chromium.evaluate(CONTRAST)
    assert len(found) > 50 and [one for one in found if one[0] < 4.5] == []
    background = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") != dark


@needs_browser
def test_the_browser_test_sees_what_it_should(page, chromium, tmp_path):
    """A page with a script, an image from elsewhere or an error would not pass."""
    html = page.read_text(encoding="utf-8")
    for planted in ("<script>console.log(1)</script>", '<img src="http://127.0.0.1:9/x.png">', '<link rel="stylesheet" href="x.css">'):
        bad = tmp_path / "bad.html"
        bad.write_text(html.replace("<main>", "<main>" + planted), encoding="utf-8")
        assert chromium.open(bad, 1440) != [], planted


@needs_browser
def test_it_prints_in_black_on_white(page, chromium):
    assert chromium.open(page, 1000, dark=True, media="print") == []
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert chromium.evaluate("getComputedStyle(document.querySelector('svg.narrow')).display") == "none"
