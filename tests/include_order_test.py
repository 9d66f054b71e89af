"""The layers of docs/architecture.md hold in the `#include` lines: a module includes only what stands left of or above
it; CUDA lives in numeric/cuda and model/cuda; the torch-free folders stay torch-free; libraries do not print. Each check
is tried on a planted violation first."""

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
    "cluster": ["record"],
    "site": ["record"],
    "numeric": ["site"],
    "tap": ["numeric"],
    "aqn": ["tap"],
    "race": ["numeric"],
    "triage": ["race", "cluster"],
    "model": ["site"],
    "task": ["model"],
    "lab": ["task", "tap"],
    "train": ["task"],
    "experiment": ["train", "lab", "aqn"],
    "diagnose": ["lab"],
    "report": ["record"],
    "recipe": ["aqn", "triage", "experiment", "diagnose", "report", "lab"],
    "plugin": ["recipe"],
    "cli": ["plugin"],
}
NO_TORCH = ("base/", "record/", "cluster/", "report/", "numeric/cpu/", "numeric/cuda/", "model/cpu/")
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
        ("site/roles.cpp", '#include "tap/plan.h"\n'): "site stands on base, record",
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
        "recipe/recipe.cpp": '#include "train/trainer.h"\n#include "tap/plan.h"\n',
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
