"""The library for C++ programs: installed as `cmake --install` does it, found by find_package, used by examples/cmake_project; and
docs/cpp.md against the one header that is installed."""

import os
import re
import shutil
import subprocess

import pytest

from program import PROGRAM, ROOT

HEADER = ROOT / "include/faultline/faultline.h"
if not HEADER.exists() or not (PROGRAM.parent / "cmake_install.cmake").exists() or shutil.which("cmake") is None:
    pytest.skip("needs a build folder and cmake", allow_module_level=True)


def call(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    place = tmp_path_factory.mktemp("prefix")
    call("cmake", "--install", PROGRAM.parent, "--prefix", place)
    return place


@pytest.fixture(scope="module")
def example(prefix, tmp_path_factory):
    out = tmp_path_factory.mktemp("example")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    call("cmake", *generator, "-S", ROOT / "examples/cmake_project", "-B", out, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    call("cmake", "--build", out)
    return out / "example"


def test_the_header_is_all_that_is_installed(prefix):
    assert [path.name for path in (prefix / "include").rglob("*.h")] == ["faultline.h"]
    assert re.findall(r'#include "', HEADER.read_text()) == []
    [library] = prefix.rglob("libfaultline.so")
    assert library.stat().st_size > 1 << 20


def test_the_program_runs_from_where_it_was_installed(prefix, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAULTLINE_")}
    done = call(prefix / "bin/faultline", "apply", "relative_gaussian(strength=0.05)", "--json", env=environment, cwd=tmp_path)
    assert '"changed"' in done.stdout


def test_the_example_faults_its_second_layer_and_proves_it(example):
    done = call(example)
    assert "[fault noise] registered 1 sites" in done.stdout
    assert "first injection model.layers.1.mlp.up_proj aten::mm eval: shape=[8,64]" in done.stdout
    assert done.stdout.rstrip().endswith("different")


def test_a_torch_that_has_moved_is_a_sentence(prefix, tmp_path):
    done = subprocess.run(["cmake", "-S", ROOT / "examples/cmake_project", "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={prefix}", "-DFAULTLINE_TORCH=/nowhere"], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "set FAULTLINE_TORCH to the folder of torch" in " ".join(done.stderr.split())


def test_the_page_names_what_the_header_declares():
    header = re.sub(r"//[^\n]*|\{ return [^}]*\}", "", HEADER.read_text())
    public = "\n".join(part.split("private:")[0] for part in re.split(r"(?<=\n\};)", header))
    names = set(re.findall(r"^(?:class|struct) (\w+) \{", public, re.MULTILINE)) | set(re.findall(r"(?<![~\w])([a-z]\w+)\([^)]*\)(?: const)?(?:;| *$)", public, re.MULTILINE))
    assert {"Recipe", "Armed", "Proof", "judge", "diagnose", "digest", "apply", "report_page"} <= names
    page = (ROOT / "docs/cpp.md").read_text()
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", page)] == []
    assert [name for name in re.findall(r"\bfl::(\w+)", page) if name not in names] == []
