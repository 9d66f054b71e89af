"""Draws the figures of docs/results from the records there: a chart of the page that `faultline report` makes of a record, as a file of its
own.

    python tests/draw_results.py --build build"""

import argparse
import gzip
import json
import lzma
import pathlib
import re
import shutil
import sqlite3
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
FIGURES = {  # file: (record, how the chart's title begins)
    "noisy-ops.svg": ("noisy-ops", "Contrasts named beforehand"),
    "noisy-ops-unseen.svg": ("noisy-ops", "Accuracy of the final models"),
    "deadzone-guided.svg": ("deadzone-guided", "Contrasts named beforehand"),
    "diagnosis-self.svg": ("diagnosis", "self: layer named rightly, by kind"),
}
COLOURS = re.compile(r"--([\w-]+): (#[0-9a-f]+)")
MARGIN = 12


def experiment_folder(name, there):
    folder = there / f"{name}-default"
    shutil.copytree(RESULTS / "aqn" / folder.name, folder)
    store = folder / "campaign.sqlite.xz"
    (folder / "campaign.sqlite").write_bytes(lzma.decompress(store.read_bytes()))
    store.unlink()
    return folder


def diagnosis_store(there):
    """The campaign's trials as a store again; its tables are those of any other store."""
    store = sqlite3.connect(experiment_folder("noisy-ops", there) / "campaign.sqlite")
    store.execute("DELETE FROM trial")
    store.execute("DELETE FROM evidence")
    for number, line in enumerate(gzip.open(RESULTS / "diagnosis.jsonl.gz", "rt"), 1):
        row = json.loads(line)
        values = [row[key] for key in ("cell", "index", "seed", "status", "started", "finished", "fingerprint")]
        store.execute("INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (number, *values, json.dumps(row["outcome"])))
        store.execute("INSERT INTO evidence VALUES (?, ?)", (number, json.dumps(row["evidence"])))
    store.commit()
    path = there / "diagnosis.sqlite"
    with sqlite3.connect(path) as copy:
        store.backup(copy)
    return path


def page_of(program, name):
    with tempfile.TemporaryDirectory() as there:
        there = pathlib.Path(there)
        record = diagnosis_store(there) if name == "diagnosis" else experiment_folder(name, there)
        subprocess.run([program, "report", record, "-o", there / "page.html"], check=True, capture_output=True)
        return (there / "page.html").read_text(encoding="utf-8")


def rules(style, chart):
    """The rules of the page's style that the chart uses, in the colours for light paper."""
    light = dict(COLOURS.findall(style[: style.index("@media")]))
    used = set(" ".join(re.findall(r'class="([^"]*)"', chart)).split()) | {"text", "tspan"}
    kept = []
    for selector, body in re.findall(r"^ *([^{}@]+?) \{ ([^{}]*) \}", re.sub(r"\} (?=\S)", "}\n", style[: style.index("@media (max-width")]), re.MULTILINE):
        needed = [one.strip() for one in selector.split(",") if set(re.split(r"[.\s]+", one.strip(". "))) <= used]
        if needed:
            kept.append(f"{', '.join(needed)} {{ {body} }}")
    return re.sub(r"var\(--([\w-]+)\)", lambda found: light.get(found.group(1), found.group()), "\n".join(kept))


def figure(page, title):
    chart = next(found.group() for found in re.finditer(r'<svg class="wide".*?</svg>', page, re.DOTALL) if f'aria-label="{title}' in found.group())
    width, height = (int(value) for value in re.search(r'viewBox="0 0 (\d+) (\d+)"', chart).groups())
    name = re.search(r'aria-label="([^"]*)"', chart).group(1)
    style = rules(page[page.index("<style>") + 7 : page.index("</style>")], chart)
    box = f"{-MARGIN} {-MARGIN} {width + 2 * MARGIN} {height + 2 * MARGIN}"
    inside = chart[chart.index(">") + 1 :].replace("><", ">\n<")
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-label="{name}">\n<style>\n{style}\n</style>\n<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" fill="#ffffff"/>\n{inside}\n'


def figures(program):
    pages = {name: page_of(program, name) for name in {record for record, _ in FIGURES.values()}}
    return {file: figure(pages[record], title) for file, (record, title) in FIGURES.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    folder = RESULTS / "figures"
    folder.mkdir(exist_ok=True)
    for file, drawing in figures(parser.parse_args().build / "faultline").items():
        (folder / file).write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
