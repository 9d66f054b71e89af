"""Complaints have one list of codes for C++, Python and the documents, and whatever the library complains of is of that form."""

import json
import pathlib
import re

import pytest
import torch

import faultline
from faultline.complaints import codes, complaint, sentences

DOCUMENT = pathlib.Path(__file__).resolve().parents[1] / "docs/tap.md"


def listed():
    return [(each["code"], each["meaning"]) for each in json.loads(torch.ops.faultline.complaint_codes())]


@pytest.mark.skipif(not DOCUMENT.exists(), reason="no documents in the bundle")
def test_the_document_has_exactly_the_codes_of_the_list():
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## Complaints\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE) == listed()


def test_python_has_the_same_list_and_no_other_code():
    assert list(codes().items()) == listed()
    assert complaint("canary", "nothing changed", place="lm_head") == {"code": "canary", "rule": "", "place": "lm_head", "sentence": "nothing changed"}
    with pytest.raises(AssertionError, match="no code 'cannary'"):
        complaint("cannary", "nothing changed")
    assert sentences([complaint("canary", "one"), complaint("idle", "two")]) == "one; two"


def test_the_librarys_complaints_are_of_that_form():
    recipe = {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "aten::gelu"}, "what": {"kind": "gain", "strength": 0.1}}]}
    with pytest.raises(faultline.EvidenceError) as error, faultline.plan(recipe):
        torch.ones(2, 2) @ torch.ones(2, 2)
    [one] = error.value.complaints
    assert sorted(one) == ["code", "place", "rule", "sentence"] and (one["code"], one["rule"], one["place"]) == ("never_fired", "noise", "")
    assert str(error.value) == "the evidence is missing: " + one["sentence"]
