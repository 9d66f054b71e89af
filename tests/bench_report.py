"""How large the page of a campaign of ten thousand trials is, and when a browser first paints it (Chromium, headless; its own
paint timing). `python tests/bench_report.py STORE.sqlite`: the trials of the store are repeated until there are enough."""

import pathlib
import shutil
import sqlite3
import sys
import tempfile
import time

import browser
from program import ok

COLUMNS = "cell, seed, status, started, finished, fingerprint, outcome"


def repeat_trials(store, wanted):
    base = sqlite3.connect(store)
    count = base.execute("select count(*) from trial").fetchone()[0]
    for again in range(1, wanted // count + 2):
        base.execute(f"insert into trial ({COLUMNS}, trial_index) select {COLUMNS}, trial_index + {1000 * again} from trial where trial_index < 1000")
    base.execute("insert into evidence (trial, body) select id, '{}' from trial where id not in (select trial from evidence)")
    base.commit()
    count = base.execute("select count(*) from trial").fetchone()[0]
    base.close()
    return count


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as page:
        store, html = pathlib.Path(folder) / "big.sqlite", pathlib.Path(folder) / "big.html"
        shutil.copy(sys.argv[1], store)
        trials = repeat_trials(store, 10_000)
        start = time.monotonic()
        ok("report", store, "-o", html)
        print(f"{trials} trials: {html.stat().st_size} bytes, made in {time.monotonic() - start:.1f} s; load {pathlib.Path('/proc/loadavg').read_text().split()[0]}")
        for width in (390, 1440):
            paints = []
            for _ in range(5):
                page.open(html, width)
                page.screenshot(pathlib.Path(folder) / "page.png", whole=False)
                paints.append(page.evaluate("performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime"))
            print(f"{width} px: first contentful paint {', '.join(f'{paint:.0f}' for paint in paints)} ms")
