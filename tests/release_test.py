"""The files beside the wheels of a release (release.py), on wheels that hold nothing but the name of their torch; and the files
that a stranger looks for in a repository: they are there, their versions agree, they name no person's address."""

import hashlib
import re
import zipfile

import pytest
import release
import yaml
from program import ROOT

CHANGES = "# Changes\n\n## Unreleased\n\n### Added\n- soon\n\n## 0.2.0\n\n### Added\n- a thing\n\n## 0.1.0\n- first\n"


def make(folder, version="0.2.0", tag="2110", torch="2.11.0+cpu"):
    path = folder / f"faultline_lab-{version}-{tag}torch-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("faultline/libfaultline.torch", torch + "\n")
    return path


def test_a_release_has_checksums_and_the_notes_of_its_version(tmp_path):
    first, second = make(tmp_path), make(tmp_path, tag="2130", torch="2.13.0")
    release.write(tmp_path, "0.2.0", CHANGES)
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)}
    notes = (tmp_path / "NOTES.md").read_text()
    assert "- a thing" in notes and "soon" not in notes and "- first" not in notes
    assert f"| `{second.name}` | 2.13.0 | " in notes


def test_a_version_without_a_section_takes_what_is_unreleased(tmp_path):
    make(tmp_path, version="0.3.0")
    release.write(tmp_path, "0.3.0", CHANGES)
    assert "## Unreleased\n\n### Added\n- soon" in (tmp_path / "NOTES.md").read_text()


@pytest.mark.parametrize("wrong, says", [({"version": "0.1.0"}, "is no wheel of version 0.2.0"), ({"torch": "2.13.0"}, "holds a library for torch 2.13.0")])
def test_a_wheel_that_is_not_what_its_name_says_ends_the_release(tmp_path, wrong, says):
    make(tmp_path, **wrong)
    with pytest.raises(SystemExit, match=says):
        release.write(tmp_path, "0.2.0", CHANGES)
    assert not (tmp_path / "SHA256SUMS").exists()


def test_a_folder_without_wheels_is_no_release(tmp_path):
    with pytest.raises(SystemExit, match="no wheel lies in"):
        release.write(tmp_path, "0.2.0", CHANGES)


def test_the_version_is_one():
    said = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == said and citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"
    assert f'__version__ = "{said}"' in (ROOT / "python/faultline/__init__.py").read_text()
    assert release.section((ROOT / "CHANGELOG.md").read_text(), said)[1]


def test_what_a_stranger_looks_for_is_there():
    for name in ("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "CITATION.cff", "Containerfile"):
        assert (ROOT / name).stat().st_size > 100, name
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert [path.name for path in forms] == ["bug.yml", "config.yml", "question.yml", "wrong-number.yml"]
    for path in forms:
        form = yaml.safe_load(path.read_text())
        if path.name == "config.yml":
            assert form["blank_issues_enabled"] is False
            continue
        assert form["name"] and form["description"] and form["body"]
        identities = [part["id"] for part in form["body"] if "id" in part]
        assert len(identities) == len(set(identities)) and all(part["type"] in ("markdown", "input", "textarea", "dropdown", "checkboxes") for part in form["body"])
