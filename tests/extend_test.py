"""CONTRIBUTING.md, kept true: what its steps say is written out as patches in tests/extend, one for each way to extend the
lab. Here they must still apply and touch exactly the files that the steps name. `python tests/extend_test.py NAME…` does the
rest, in a copy of the tree with a build of its own, which takes as long as a build takes: it applies the patch, builds, and
runs what the last step says."""

import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# heading in CONTRIBUTING.md, and what proves that the extension works: command and what it must print
EXTENSIONS = {
    "fault_kind": ("Add a fault kind", [("faultline apply 'shrink(strength=0.1)' --quiet", "0.1"), ("numeric_test --gtest_brief=1", "PASSED")]),
    "operator_family": ("Add an operator family", [("faultline list operators", "pooling"), ("tap_test --gtest_filter=Operators.*", "EveryFamilyMeansAnOperator")]),
    "probe": ("Add a probe", [("diagnose_test --gtest_filter=Self.*:Healthy.*", "SeesThatTwiceTheInputIsNotTwiceTheOutput"), ("faultline diagnose --explain", "twice the input")]),
}  # fmt: skip


def patch_of(name):
    return ROOT / "tests" / "extend" / f"{name}.patch"


def section(heading):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(rf"^## {heading}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[0]


def files_named(text):
    """Paths in backquotes, `a.*` meaning the header and the source."""
    found = set()
    for path in re.findall(r"`((?:src|docs|tests)/[\w/.*]+)`", text):
        found |= {str(file.relative_to(ROOT)) for file in ROOT.glob(path)} or {path}
    return found


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_patch_of_the_text_applies(name):
    done = subprocess.run(["git", "apply", "--check", "--verbose", patch_of(name)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"the code has moved on: mend tests/extend/{name}.patch, and the text\n{done.stderr}"


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_steps_name_every_file_that_is_touched(name):
    named = files_named(section(EXTENSIONS[name][0]))
    touched = set(re.findall(r"^\+\+\+ b/(.*)$", patch_of(name).read_text(encoding="utf-8"), re.MULTILINE))
    assert touched <= named, f"a reader of the steps would not find {touched - named}"
    assert all((ROOT / path).exists() for path in named), [path for path in named if not (ROOT / path).exists()]


def carry_out(name, folder):
    """In a clone: what ccache knows is not compiled again."""
    copy = folder / name
    subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
    subprocess.run(["git", "apply", patch_of(name)], cwd=copy, check=True)
    subprocess.run(["./dev", "build"], cwd=copy, check=True)
    for command, wanted in EXTENSIONS[name][1]:
        done = subprocess.run(["bash", "-c", f"./{command}"], cwd=copy / "build", capture_output=True, text=True)
        assert done.returncode == 0 and wanted in done.stdout, (command, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        print(f"{name}: {command}: as it should", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for extension in sys.argv[1:] or EXTENSIONS:
            carry_out(extension, pathlib.Path(scratch))
