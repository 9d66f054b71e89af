"""The list of mutations fits the sources: at least 60, each text there exactly once, with a suite to notice it, in every module
that has tests. Applying them is `tests/mutate.py`'s work and takes an hour."""

import pathlib

import pytest

if not (pathlib.Path(__file__).resolve().parents[1] / "src").is_dir():
    pytest.skip("no sources in the bundle", allow_module_level=True)

from mutate import ROOT, complaints  # noqa: E402
from mutations import MUTATIONS, Mutation  # noqa: E402


def test_every_mutation_is_in_its_place():
    assert complaints(ROOT) == []
    assert len(MUTATIONS) >= 60
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS)


def test_every_module_is_broken_somewhere():
    modules = {mutation.file.split("/")[1] for mutation in MUTATIONS}
    assert modules >= {"base", "record", "report", "numeric", "site", "tap", "race", "triage", "model", "task", "lab", "aqn", "train", "diagnose"}


@pytest.mark.parametrize(
    ("mutation", "says"),
    [
        (Mutation("gone", "src/base/error.h", "no such text here", "x", "base_test"), "0 times"),
        (Mutation("no file", "src/base/none.cpp", "x", "y", "base_test"), "0 times"),
        (Mutation("everywhere", "src/base/error.h", "explicit", "", "base_test"), "times in"),
        (Mutation("nothing", "src/base/error.h", "kFound = 1,", "kFound = 1,", "base_test"), "changes nothing"),
        (Mutation("nobody", "src/base/error.h", "kFound = 1,", "kFound = 2,", "base_test", "NoSuchSuite.*:Comparison*"), "no suite"),
    ],
)
def test_a_mutation_that_fits_nowhere_is_found(mutation, says):
    assert any(says in sentence for sentence in complaints(ROOT, [mutation]))
