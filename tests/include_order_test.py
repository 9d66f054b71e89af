"""The layers of docs/architecture.md hold in the `#include` lines: a module includes only what stands left of or above
it; CUDA lives in numeric/cuda and model/cuda; the torch-free folders stay torch-free; libraries do not print. Each check
is tried on a planted violation first. Each folder has a namespace of its own name (base is faultline itself), so that types of
different folders never collide; within one, a type's name stands for one type: two of one name in files that never meet
compile and link, and the linker keeps one set of constructors and containers' code for both."""

import collections
import pathlib
import re

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "src"
if not SOURCE.is_dir():
    pytest.skip("no sources in the bundle", allow_module_level=True)

# module -> the modules it stands on directly; what these stand on is allowed too.
ARROWS = {
    "base": [],
    "record": ["base"],
    "report": ["record"],
    "trials": ["record"],
    "cluster": ["base"],
    "site": ["base"],
    "numeric": ["site"],
    "recipe": ["numeric"],
    "tap": ["recipe"],
    "aqn": ["numeric"],
    "race": ["numeric", "cluster", "record"],
    "triage": ["race", "trials", "report"],
    "model": ["site"],
    "task": ["model"],
    "train": ["task", "record"],
    "lab": ["train", "tap", "aqn"],
    "experiment": ["lab", "trials"],
    "diagnose": ["lab", "trials"],
    "screen": ["race", "model", "tap"],
    "plugin": ["triage", "experiment", "diagnose", "screen"],
    "cli": ["plugin"],
}
NO_TORCH = ("base/", "record/", "trials/", "report/", "numeric/cpu/", "numeric/cuda/", "model/cpu/")
CUDA_FOLDERS = ("numeric/cuda/", "model/cuda/")
TORCH = re.compile(r"^(ATen|torch|c10|caffe2)/")
CUDA = re.compile(r"^(cuda|cublas|curand|cooperative_groups|cub/|nccl)")
PRINTING = re.compile(r"std::(cout|cerr|clog)\b|(?<![\w.>])(?:std::)?(?:f|v|vf)?printf\s*\(|(?<![\w.>])(?:std::)?puts\s*\(|\bfmt::print\b")
MAY_PRINT = ("cli/", "base/progress.cpp")  # the progress bar's one purpose is standard error
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
COMMENTS_AND_STRINGS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def reachable(module):
    found = {module}
    for below in ARROWS[module]:
        found |= reachable(below)
    return found


def violations(path, text):
    """path: relative to src/, `numeric/cpu/faults.cpp`. -> sentences"""
    found = []
    module = path.split("/")[0]
    if module not in ARROWS:
        return [f"{path}: the module '{module}' is not in the design's layers"]
    allowed = reachable(module)
    beside = path.endswith(("_test.cpp", "_bench.cpp", "_fuzz.cpp"))
    for include in INCLUDE.findall(text):
        target = include.split("/")[0]
        if target in ARROWS and "/" in include and target not in allowed:
            found.append(f"{path}: includes {include}, but {module} stands on {', '.join(sorted(allowed - {module})) or 'nothing'}")
        if TORCH.match(include) and path.startswith(NO_TORCH):
            found.append(f"{path}: includes the torch header {include} in a torch-free folder")
        if CUDA.match(include) and not path.startswith(CUDA_FOLDERS) and not beside:
            found.append(f"{path}: includes the CUDA header {include} outside {' and '.join(CUDA_FOLDERS)}")
    if path.endswith((".cu", ".cuh")) and not path.startswith(CUDA_FOLDERS):
        found.append(f"{path}: CUDA sources belong into {' or '.join(CUDA_FOLDERS)}")
    if not path.startswith(MAY_PRINT) and not beside:
        for match in PRINTING.finditer(COMMENTS_AND_STRINGS.sub('""', text)):
            found.append(f"{path}: prints ({match.group(0).strip()}); libraries return text, cli/ prints")
    return found


def sources():
    return [p for p in sorted(SOURCE.rglob("*")) if p.suffix in (".h", ".cpp", ".cu", ".cuh", ".inc")]


def test_a_planted_violation_of_each_rule_is_found():
    planted = {
        ("base/rng.h", '#include "numeric/fault.h"\n'): "base stands on nothing",
        ("site/roles.cpp", '#include "tap/plan.h"\n'): "site stands on base",
        ("model/attention.cpp", '#include "tap/plan.h"\n'): "includes tap/plan.h",
        ("train/trainer.cpp", '#include "diagnose/probes.h"\n'): "includes diagnose/probes.h",
        ("report/page.cpp", '#include "numeric/ledger.h"\n'): "includes numeric/ledger.h",
        ("numeric/cpu/faults.cpp", "#include <ATen/ATen.h>\n"): "torch-free",
        ("record/jsonl.cpp", "#  include <c10/util/Exception.h>\n"): "torch-free",
        ("numeric/apply.cpp", "#include <cuda_runtime.h>\n"): "CUDA header",
        ("tap/kernel.cu", ""): "CUDA sources belong",
        ("tap/plan.cpp", 'void f() { std::cout << "hello"; }\n'): "prints",
        ("numeric/apply.cpp", 'void f() { printf("%d", 1); }\n'): "prints",
        ("numeric/apply.cpp", 'void f() { fprintf(stderr, "x"); }\n'): "prints",
        ("gadgets/utils.h", ""): "not in the design's layers",
    }
    for (path, text), sentence in planted.items():
        assert any(sentence in violation for violation in violations(path, text)), (path, text, violations(path, text))


def test_what_is_allowed_is_not_called_a_violation():
    allowed = {
        "numeric/ops.cpp": '#include <ATen/ATen.h>\n#include "base/error.h"\n#include "site/selector.h"\n// std::cout << 1\nstd::snprintf(a, 1, "printf(");\n',
        "cli/main.cpp": '#include "recipe/recipe.h"\n#include <cstdio>\nvoid f() { std::printf("x"); }\n',
        "numeric/cuda/digest.cu": '#include <cuda_runtime.h>\n#include "numeric/digest.h"\n',
        "plugin/recipe_sections.cpp": '#include "train/trainer.h"\n#include "tap/plan.h"\n',
    }
    for path, text in allowed.items():
        assert violations(path, text) == []


def test_the_sources_keep_the_layers():
    paths = sources()
    assert len(paths) > 50
    found = [v for path in paths for v in violations(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))]
    assert found == [], "\n".join(found)


def test_a_header_opens_with_pragma_once_and_imports_no_namespace():
    for path in sources():
        if path.suffix not in (".h", ".cuh"):
            continue
        text = COMMENTS_AND_STRINGS.sub("", path.read_text(encoding="utf-8"))
        assert "#pragma once" in text, path
        assert not re.search(r"^\s*using namespace", text, re.MULTILINE), path


# --- namespaces -------------------------------------------------------------------------------------------------------
OPENS = re.compile(r"(?:inline )?namespace ([\w:]*) ?\{")
CLOSES = re.compile(r"\}  // namespace")
DEFINES = re.compile(r"(?:template <.*> ?)?(?:struct|class|union|enum class|enum) (?:alignas\(.*?\) )?(\w+(?:::\w+)?(?:<[^{;]*>)?)(?: final)?(?: : [^{;]*)?(?: \{.*)?$")
PUBLIC = "faultline::api"  # of include/faultline/faultline.h


def types_of(text):
    """Names with their namespaces, of the types that a file defines for others: not in an anonymous namespace, not nested."""
    spaces = []
    for line in text.splitlines():
        if opened := OPENS.match(line):
            spaces.append(opened[1])
        elif CLOSES.match(line):
            spaces.pop()
        elif "" not in spaces and (defined := DEFINES.match(line)):
            yield "::".join([*spaces, defined[1]])


def strangers(path, text):
    """Namespaces that a file opens and that are not its folder's; a forward declaration of another folder's type may."""
    folder = path.split("/")[0]
    own = "faultline" if folder == "base" else f"faultline::{folder}"
    opened = re.findall(r"^namespace (faultline[\w:]*) \{(?!\nclass \w+;\n\})", text, re.MULTILINE)
    return [name for name in opened if name != own and not name.startswith(own + "::") and name != PUBLIC]


def test_a_file_keeps_to_the_namespace_of_its_folder():
    assert strangers("tap/plan.cpp", "namespace faultline {\n") == ["faultline"] and strangers("tap/plan.cpp", "namespace faultline::taps {\n")
    assert strangers("base/rng.h", "namespace faultline {\n") == strangers("model/ops.h", "namespace faultline::model::ops {\n") == []
    assert {str(path): found for path in sources() if (found := strangers(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")))} == {}


def test_no_type_is_defined_twice():
    planted = "namespace faultline::tap {\nstruct Forward;\nstruct Place {\n  struct Inner {\n  };\n};\nclass Failure : public std::exception {\nstruct Place::State {\nnamespace {\nstruct Own {\n}  // namespace\n}  // namespace faultline::tap\n"
    assert list(types_of(planted)) == ["faultline::tap::Place", "faultline::tap::Failure", "faultline::tap::Place::State"]
    found = collections.defaultdict(set)  # a file may define it twice: for builds with a GPU and without
    for path in sources():
        for name in types_of(path.read_text(encoding="utf-8")):
            found[name].add(path)
    assert len(found) > 400
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


# --- the map ----------------------------------------------------------------------------------------------------------
ROOT = SOURCE.parent
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8") if (ROOT / "docs/architecture.md").is_file() else ""
TABLE = re.compile(r"^\|([^|\n]*)\| file \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)


def files_of(pattern):
    """What one backquoted name of the map means: a header with its source, a glob, a folder or a file."""
    if pattern.endswith("/"):
        return [path for path in ROOT.glob(pattern + "**/*") if path.is_file()]
    return list(ROOT.glob(pattern))


def test_the_map_names_every_file_and_no_other():
    if not PAGE:
        pytest.skip("no documents in the bundle")
    section = PAGE.split("## Where do I find …?")[1].split("## How one call flows")[0]
    named, gone = set(), []
    for heading, body in re.findall(r"^### (.*)\n((?:(?!^### ).*\n?)*)", section, re.MULTILINE):
        folders = [f"src/{name}" for name in re.findall(r"\w+/", heading.split(":")[0])] if "/" in heading else []
        for first, rows in TABLE.findall(body):
            inside = re.findall(r"\w+/", first.split("(")[0])
            places = ["", *(["python/"] if "python" in heading else []), *folders, *(folder + name for folder in folders for name in inside), *(f"src/{name}" for name in inside)]
            for pattern in re.findall(r"`([\w./*]+(?:\.\w+|\.\*|/))`", "".join(row.split("|")[2] for row in rows.splitlines())):
                found = {path for place in places for path in files_of(place + pattern)}
                named |= found
                if folders and not found:
                    gone.append(pattern)
    assert gone == []
    beside = re.compile(r"_(test|fuzz|bench)\.cpp$")
    wanted = {path for path in sources() if not beside.search(path.name)} | {path for path in (ROOT / "python").rglob("*.py")}
    assert sorted(str(path.relative_to(ROOT)) for path in wanted - named) == []
