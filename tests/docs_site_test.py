"""The documentation site (mkdocs.yml, docs/site.py): its map names every page of docs/ once and nothing else; built with the MkDocs that
./dev test installs, it has no warning, every link and anchor in it leads somewhere, and no page loads anything from elsewhere."""

import html.parser
import os
import pathlib
import subprocess
import time
import urllib.parse

import browser
import pytest
import yaml
from program import PROGRAM, ROOT

PYTHON = os.environ.get("FAULTLINE_DOCS_PYTHON")
MADE = {"index.md", "contributing.md", "changelog.md", "reference/cli.md", "reference/recipe.md", "reference/header.md"}
needs_mkdocs = pytest.mark.skipif(not PYTHON, reason="FAULTLINE_DOCS_PYTHON names no Python with MkDocs: ./dev test and ./dev docs install it")


def leaves(tree):
    if isinstance(tree, str):
        return [tree]
    return [leaf for part in (tree if isinstance(tree, list) else tree.values()) for leaf in leaves(part)]


def test_the_map_names_every_page_once():
    named = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert len(named) == len(set(named)) and set(named) == pages | MADE


class Links(html.parser.HTMLParser):
    """What a page links to, what it loads by itself, and the places in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev") and found.get("href"):
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    environment = {**os.environ, "FAULTLINE_BUILD": str(PROGRAM.parent), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([PYTHON, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_mkdocs
def test_every_link_leads_somewhere_and_nothing_comes_from_elsewhere(site):
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    wrong = []
    for path, page in pages.items():
        for target in page.links + page.loads:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or target.startswith("//"):
                wrong += [f"{path.name} loads {target}"] if target in page.loads and parts.scheme != "data" else []
                continue
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html":  # its links are those of a server's root
                continue
            if not there.exists():
                wrong.append(f"{path.relative_to(site)} -> {target}")
            elif parts.fragment and there in pages and parts.fragment not in pages[there].places and parts.fragment != "__top":
                wrong.append(f"{path.relative_to(site)} -> {target}: no such place")
    assert wrong == []


@needs_mkdocs
def test_the_pages_that_are_made_hold_what_the_program_says(site):
    command_line = (site / "reference/cli.html").read_text(encoding="utf-8")
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    for name in ("diagnose", "race", "triage", "train", "reproduce"):
        assert f"  {name} " in listed and f'id="faultline-{name}"' in command_line
    recipe = (site / "reference/recipe.html").read_text(encoding="utf-8")
    assert all(f"<code>{key}</code>" in recipe for key in ("faults", "faults[].what", "seed", "train.steps"))
    assert "Armed" in (site / "cpp.html").read_text(encoding="utf-8") and "namespace" in (site / "reference/header.html").read_text(encoding="utf-8")


@needs_mkdocs
@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium: apt-get install chromium")
def test_a_page_that_is_opened_as_a_file_can_be_searched_and_asks_for_nothing_elsewhere(site):
    with browser.Browser() as chromium:
        chromium.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
        chromium.call("Page.navigate", url=f"{(site / 'tutorials/fp4.html').as_uri()}?q=deadzone")
        for _ in range(120):
            if found := chromium.evaluate("document.querySelectorAll('.md-search-result__link').length"):
                break
            time.sleep(0.5)
        asked = [event["params"]["request"]["url"] for event in chromium.events if event.get("method") == "Network.requestWillBeSent"]
        assert found, "the search found nothing"
        assert asked and [address for address in asked if not address.startswith(("file:", "data:"))] == []


@needs_mkdocs
@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_its_window(site, width):
    with browser.Browser() as chromium:
        chromium.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        for name in ("index", "faults", "results/aqn", "reference/recipe", "reference/cli"):
            chromium.call("Page.navigate", url=(site / f"{name}.html").as_uri())
            for _ in range(60):
                if chromium.evaluate("document.readyState") == "complete":
                    break
                time.sleep(0.25)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width, name


def test_the_pages_that_are_made_follow_links_out_of_docs():
    """docs/site.py without MkDocs: a stand-in for the one class that it takes from there."""
    source = (ROOT / "docs/site.py").read_text(encoding="utf-8").replace("from mkdocs.structure.files import File", "File = None")
    names = {"__file__": str(ROOT / "docs/site.py")}
    exec(compile(source, "site.py", "exec"), names)
    readme = names["of_root"]("README.md")
    assert "](docs/" not in readme and "](start.md)" in readme and "](contributing.md)" in readme and "(`LICENSE`)" in readme
    assert names["anchor"]("The model, & `its` *4 bits*") == "the-model--its-4-bits"
    assert names["kind_of"]({"type": "number", "minimum": 0, "maximum": 1}) == "number, 0 to 1"
    assert pathlib.Path(names["PROGRAM"]).name == "faultline"
