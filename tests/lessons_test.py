"""docs/lessons.md against the sources: every lesson and every lie of the liar suite is there, each says refused, reported, immune or owed, each that is not
owed names tests, every named test exists and is not switched off. Whether each of them ran and passed is looked up at the end
of a run of everything (tests/run.py, the suite "lessons")."""

import pathlib
import re

import pytest

from lessons import read_rows, unproven

ROOT = pathlib.Path(__file__).resolve().parents[1]
if not (ROOT / "docs/lessons.md").exists():
    pytest.skip("no documents in the bundle", allow_module_level=True)

NUMBERS = [*map(str, range(1, 73)), *(f"L{number}" for number in range(1, 73))]  # lessons, lies
GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
PYTEST = re.compile(r"((?:^@pytest\.mark\.[^\n]*\n(?:^[^@d\n][^\n]*\n)*)*)^def (test_\w+)\(", re.MULTILINE)


def gtests(text):
    """Names of a test file that run; DISABLED_ ones do not."""
    return {f"{suite}.{name}" for suite, name in GTEST.findall(text) if "DISABLED_" not in suite + name}


def pytests(file, text):
    """Names of a test file that run; those with an unconditional skip or an expected failure do not."""
    return {f"{file}::{name}" for marks, name in PYTEST.findall(text) if "mark.skip(" not in marks and "mark.xfail" not in marks}


def existing():
    names = set()
    for path in (ROOT / "src").glob("**/*_test.cpp"):
        names |= gtests(path.read_text())
    for path in (ROOT / "tests").glob("*_test.py"):
        names |= pytests(path.name, path.read_text())
    return names


def complaints(text, names):
    found, seen = [], []
    for number, sentence, state, tests in read_rows(text):
        seen.append(number)
        if state not in ("refused", "reported", "immune", "owed"):
            found.append(f"lesson {number}: '{state}' is no state")
        if (state == "owed") != (not tests):
            found.append(f"lesson {number}: {state}, with {len(tests)} tests")
        if len(sentence) < 20:
            found.append(f"lesson {number}: nothing is said")
        found += [f"lesson {number}: there is no test {name}, or it is switched off" for name in tests if name not in names]
    if seen != NUMBERS:
        found.append(f"lessons {', '.join(sorted(set(NUMBERS) ^ set(seen)))} are missing, repeated or out of order")
    return found


def test_every_lesson_names_tests_that_exist():
    text = (ROOT / "docs/lessons.md").read_text()
    assert complaints(text, existing()) == []
    owed = [number for number, _, state, _ in read_rows(text) if state == "owed"]
    print("owed:", owed)
    assert owed == [], owed


SAMPLE = "\n".join(f"| {n} | a sentence about what went wrong | immune | `A.B` |" for n in NUMBERS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("`A.B` |\n| 2 ", "`A.C` |\n| 2 "), "lesson 1: there is no test A.C"),
        (("| immune | `A.B` |\n| 2 ", "| immune | |\n| 2 "), "lesson 1: immune, with 0 tests"),
        (("| immune | `A.B` |\n| 2 ", "| owed | `A.B` |\n| 2 "), "lesson 1: owed, with 1 tests"),
        (("| immune | `A.B` |\n| 2 ", "| fine | `A.B` |\n| 2 "), "'fine' is no state"),
        (("| 5 | ", "| 4 | "), "lessons 5 are missing"),
        (("| L40 | ", "| 4 | "), "lessons L40 are missing"),
    ],
)
def test_a_planted_mistake_is_found(change, says):
    assert complaints(SAMPLE, {"A.B"}) == []
    text = SAMPLE.replace(*change)
    assert text != SAMPLE
    assert any(says in sentence for sentence in complaints(text, {"A.B"})), complaints(text, {"A.B"})


def test_tests_that_are_switched_off_do_not_count():
    assert gtests("TEST(A, B) {\nTEST_F(C, DISABLED_D) {\n  TEST(E, F)") == {"A.B"}
    source = "@pytest.mark.skip(reason='x')\ndef test_a():\n    pass\n\n\n@pytest.mark.parametrize('x', [\n    1,\n])\ndef test_b(x):\n    pass\n\n\n@pytest.mark.xfail\ndef test_c():\n    pass\n"
    assert pytests("f.py", source) == {"f.py::test_b"}


ROWS = "| 1 | a sentence about what went wrong | immune | `A.B`, `c_test.py::test_d` |"
BOTH = [("A.B", "passed", ""), ("tests.c_test::test_d[1]", "passed", "")]


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ([BOTH[0]], "lesson 1: c_test.py::test_d did not run"),
        ([BOTH[0], ("tests.c_test", "skipped", "could not import 'gguf'")], "lesson 1: c_test.py::test_d did not run"),
        ([BOTH[0], ("tests.c_test::test_d", "skipped", "could not import 'gguf'")], "lesson 1: c_test.py::test_d was skipped: could not import 'gguf'"),
        ([BOTH[1], ("A.B", "failed", "")], "lesson 1: A.B failed"),
        ([*BOTH, ("All/A.B/1", "failed", "")], "lesson 1: A.B failed"),
        ([*BOTH, ("tests.c_test::test_d[2]", "failed", "")], "lesson 1: c_test.py::test_d failed"),
    ],
)
def test_a_lesson_whose_test_did_not_run_and_pass_is_found(results, says):
    assert unproven(ROWS, BOTH) == ({}, {})
    assert list(unproven(ROWS, results)[0].values()) == [says]


def test_what_needs_a_gpu_is_left_out_and_said():
    assert unproven(ROWS, [BOTH[1], ("A.B", "skipped", "no CUDA device here")]) == ({}, {"A.B": "no CUDA device here"})
