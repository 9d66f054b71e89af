"""docs/lessons.md as data, and what the reports of a run of all tests say of the tests that it names. A name is proof only if
it ran and passed: one that a missing package or an unmet condition skipped shows nothing. What needs a GPU is left out where
there is none, and said."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/lessons.md"
ROW = re.compile(r"^\| (L?\d+) \| (.+) \| (\w+) \| ?(.*?) ?\|$", re.MULTILINE)  # L: a lie of the liar suite
NEEDS_GPU = re.compile(r"\b(CUDA|GPU)\b")


def read_rows(text):
    """-> [(number, sentence, state, [tests])], numbers as they are written: "45", "L7" """
    return [(number, sentence, state, re.findall(r"`([^`]+)`", tests)) for number, sentence, state, tests in ROW.findall(text)]


def plain(name):
    """A report's name as lessons write it: `tests.a_test::test_b[1]` is `a_test.py::test_b`, `All/Suite.Name/0` is `Suite.Name`."""
    if "::" in name:
        module, test = name.split("::", 1)
        return f"{module.rsplit('.', 1)[-1]}.py::{test.split('[')[0]}"
    return "/".join(part for part in name.split("/") if "." in part)


def unproven(text, results):
    """results: [(name, "passed" | "failed" | "skipped", why)]. -> ({test: sentence} that failed the check, {test: why} left out)"""
    seen = {}
    for name, state, why in results:
        seen.setdefault(plain(name), []).append((state, why))
    wrong, left_out = {}, {}
    for number, _, _, tests in read_rows(text):
        for test in tests:
            states = seen.get(test, [])
            if any(state == "failed" for state, _ in states):
                wrong[test] = f"lesson {number}: {test} failed"
            elif any(state == "passed" for state, _ in states):
                continue
            elif states and all(NEEDS_GPU.search(why) for _, why in states):
                left_out[test] = states[0][1]
            else:
                wrong[test] = f"lesson {number}: {test} " + (f"was skipped: {states[0][1]}" if states else "did not run")
    return wrong, left_out
