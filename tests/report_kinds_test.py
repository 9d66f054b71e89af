"""A page for every kind of record. The records are made by the commands themselves, on a random model of six layers, so
that what is written and what is read cannot drift apart; every page is then loaded in a browser where there is one."""

import json
import pathlib
import re
import shutil

import pytest

import bench_report
import browser
import tiny_folder
from program import ROOT, launch, ok

QUESTIONS = [json.loads(line)["question"] for line in (ROOT / "data/gsm8k/test.jsonl").read_text().splitlines()[:300]]
NOISE = "{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"


def done(codes, *arguments, **options):
    result = launch(*arguments, timeout=1800, **options)
    assert result.returncode in codes, (arguments, result.returncode, result.stdout[-2000:], result.stderr[-2000:])
    return result.stdout


class Records:
    """Each made when it is first asked for."""

    def __init__(self, folder):
        self.folder = folder
        self.model = tiny_folder.make(folder / "model", layers=6, learned_from=QUESTIONS, context=2048)
        self.made = {}

    def get(self, kind):
        if kind not in self.made:
            self.made[kind] = getattr(self, kind)(self.folder / kind)
        return self.made[kind]

    def eval(self, out):
        fault = "relative_gaussian(strength=0.05) @ operator=matmul"
        done([0], "eval", "--model", self.model, "--limit", 4, "--max-new-tokens", 4, "--fault", fault, "--strengths", "0.05,0.1,1", "--out", out)
        return next(out.iterdir())

    def injection(self, out):
        done([0], "run", ROOT / "recipes/noise.yaml", f"model={self.model}", "evaluate.limit=4", "evaluate.max_new_tokens=4", "--out", out)
        return next(out.iterdir())

    def train(self, out):
        changes = [f"faults=[{NOISE}]", "+phases={rollout: true, actor_forward: true, eval: both}", "+aqn={schedule: constant, sigma_start: 0.02, sigma_scale: relative, force: true}"]
        done([0], "train", ROOT / "recipes/train/tiny.yaml", f"model={self.model}", *changes, "--dtype", "fp32", "--quiet", "--out", out)
        return next(out.iterdir())

    def diagnosis(self, out):
        out.mkdir()
        fault = "gain(strength=0.05) @ module=layer_output,layer=3"
        done([1], "diagnose", "--model", self.model, "--fault", fault, "--out", out / "verdict.json")
        return out / "verdict.json"

    def healthy(self, out):
        out.mkdir()
        done([0], "diagnose", "--model", self.model, "--out", out / "verdict.json")
        return out / "verdict.json"

    def campaign(self, out):
        out.mkdir()
        done([0], "diagnose", "--model", self.model, "--campaign", "smoke", "--method", "all", "--store", out / "trials.sqlite", "--quiet")
        return out / "trials.sqlite"

    def scan(self, out):
        out.mkdir()
        done([0], "scan", "--model", self.model, "--formats", "all", "--quiet", "--out", out / "scan.json")
        return out / "scan.json"

    def race(self, out):
        out.mkdir()
        done([1], "race", "--quiet", "--out", out / "race.json", "inject={target: comm_output, kind: bitflip, layer: 7, rank: 2}")
        return out / "race.json"

    def triage(self, out):
        done([0, 1, 2], "triage", "run", "--quiet", "--recipe", ROOT / "recipes/race-smoke.yaml", "--out", out, "trials=2", "steps=4")
        return out


# kind -> what its page must say, charts it must have
PAGES = {
    "eval": (["Proof that the faults happened", "Accuracy over strength", "Coverage"], 3),
    "injection": (["Proof that the faults happened", "faultline run recipe.json"], 2),
    "train": (["Validation accuracy", "The same at every step: ", "Realised relative error by layer (rows) and step (columns)", "faultline/aqn"], 3),
    "diagnosis": (["A fault: gain at model.layers.3", "faultline diagnose --model", "Residuals: the worst elements", "Relations that were violated"], 1),
    "healthy": (["Healthy", "Nothing is accused"], 0),
    "campaign": (["No false accusation in", "planted kind (rows)", "Pools with intervals", "Method self"], 4),
    "scan": (["number formats on", "the worst: ", "Suggested strengths by layer", "mlp.down_proj: relative error by format and layer", "faultline scan --model", "mxfp4"], 3 + 1 + 7),
    "race": (["all_gather", "Corruptions by rank and layer", "fail (", "faultline race --quiet"], 1),
    "triage": (["Failure rate of each cell", "Every trial", "no-drill", "faultline triage run --recipe"], 2),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return Records(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def chromium():
    if browser.PROGRAM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with browser.Browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def page(kind):
        path = folder / f"{kind}.html"
        if not path.exists():
            ok("report", records.get(kind), "-o", path)
        return path

    return page


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_says_what_its_record_holds(pages, kind):
    html = pages(kind).read_text(encoding="utf-8")
    for words in PAGES[kind][0]:
        assert words in html, words
    assert html.count("<figure") >= PAGES[kind][1]
    assert "<script" not in html and "http" not in html.replace("http-equiv", "") and len(html) < 7_000_000
    assert "Missing from the record" not in html


DRAWN = """[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')].filter(
    s => s.getBoundingClientRect().width > 150 && s.querySelectorAll('circle, rect, path').length > 1).length)"""


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("kind", PAGES)
def test_a_browser_shows_every_page_whole(pages, chromium, kind, width):
    assert chromium.open(pages(kind), width) == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert all(count == 1 for count in chromium.evaluate(DRAWN))


def test_several_kinds_stand_side_by_side(records, tmp_path):
    kinds = ["eval", "train", "diagnosis", "race"]
    answer = json.loads(ok("report", *(records.get(kind) for kind in kinds), "-o", tmp_path / "all.html", "--json"))
    assert [run["kind"] for run in answer["runs"]] == ["eval", "train", "diagnose", "race"]
    html = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert "4 runs side by side" in html and all(run["verdict"].split(":")[0] in html for run in answer["runs"])


def test_a_page_of_a_scan_has_every_number_of_its_record(records, pages):
    """Each cell names its layer, its linear or format, and the relative error there; strengths are those of the record."""
    scan, html = json.loads(records.get("scan").read_text()), pages("scan").read_text(encoding="utf-8")
    formats = {row["format"] for row in scan["rows"]}
    assert len(formats) >= 15 and {row["surface"] for row in scan["rows"]} == {"weight", "input", "layer_output"}
    outputs = {(row["format"], row["layer"]): row["sqnr_db"] for row in scan["rows"] if row["surface"] == "layer_output"}
    assert len(outputs) == 6 * len(formats)
    for (name, layer), db in outputs.items():
        strength = 0 if db is None else scan["suggested"][name][str(layer)]
        assert db is None or strength == pytest.approx(10 ** (-db / 20))
        found = re.search(rf"<title>{name}, layer {layer}: ([^<]*)</title>", html.split("Suggested strengths by layer")[1])
        assert found and float(found[1]) == pytest.approx(strength, rel=1e-3), (name, layer)
    for row in scan["rows"]:
        if row["surface"] == "weight" and row["layer"] >= 0:
            assert f"Weights, {row['place'].split('.', 3)[3]}: relative error by format and layer" in html


def test_ten_thousand_trials_make_no_longer_page(records, tmp_path, chromium):
    """Trials of the store are repeated until there are ten thousand; what is drawn stays as small as for a dozen."""
    small, big = records.get("campaign"), tmp_path / "big.sqlite"
    shutil.copy(small, big)
    assert bench_report.repeat_trials(big, 10_000) >= 10_000
    ok("report", big, "-o", tmp_path / "big.html")
    ok("report", small, "-o", tmp_path / "small.html")
    sizes = [(tmp_path / name).stat().st_size for name in ("big.html", "small.html")]
    assert sizes[0] < 7_000_000 and sizes[0] < 1.5 * sizes[1]
    assert chromium.open(tmp_path / "big.html", 1440) == []


def hostile(value):
    """Every string of a record, replaced."""
    if isinstance(value, dict):
        return {key: hostile(item) if key not in ("kind", "verdict", "act") else item for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["diagnosis", "race", "scan"])
def test_hostile_strings_stay_text(records, chromium, tmp_path, kind):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(hostile(json.loads(pathlib.Path(records.get(kind)).read_text()))))
    ok("report", path, "-o", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>" not in html and "<img" not in html and "&lt;script&gt;" in html
    assert chromium.open(tmp_path / "page.html", 1440) == []
