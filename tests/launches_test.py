"""Kernel launches where there is no GPU: the proof is absent, a sentence says why, and nothing else changes. What needs no GPU besides:
the table, the families of our own kernels, the layout of CUPTI's records."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import faultline  # noqa: E402
from clients_process import ROOT, python, write  # noqa: E402
from faultline.launches import end_launches, launches_table, unfaulted  # noqa: E402

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_without_a_gpu_the_run_runs_and_the_answer_says_why_it_was_not_recorded():
    calls = []
    answer = faultline.launches(lambda: calls.append(1))
    assert calls == [1]
    assert answer == {"available": False, "reason": "no_device", "why": answer["why"], "launches": 0, "in_graphs": 0, "families": {}, "cost": None}
    assert answer["why"].startswith("kernel launches cannot be recorded: ")


@without_gpu
def test_a_run_that_fails_fails_as_it_would():
    with pytest.raises(ZeroDivisionError):
        faultline.launches(lambda: 1 / 0)
    assert end_launches()["reason"] == "not_begun"


@without_gpu
def test_the_library_itself_says_why_too():
    answer = json.loads(torch.ops.faultline.launches_begin(True))  # with CUPTI beside torch it does not start, without it there is none
    assert answer["reason"] in ("no_device", "no_cupti") and "cannot be recorded" in answer["why"]
    assert json.loads(torch.ops.faultline.launches_end(False))["reason"] == "not_begun"


SCRIPT = """
import sys
import torch
print("arguments", sys.argv[1:])
a = torch.randn(8, 8)
a.mm(a)
sys.exit(int(sys.argv[1]))
"""


@without_gpu
@pytest.mark.parametrize("status", [0, 7])
def test_a_script_without_a_recipe_keeps_its_arguments_and_its_status(tmp_path, status):
    script = write(tmp_path, "script.py", SCRIPT)
    done = python("-m", "faultline", "--launches", script, status, "--launches=mine", "--recipe", "x")
    assert done.returncode == status
    assert f"arguments ['{status}', '--launches=mine', '--recipe', 'x']" in done.stdout
    assert "[launches] no proof by kernel launches: kernel launches cannot be recorded: " in done.stderr
    assert not (tmp_path / "mine").exists()


@without_gpu
def test_the_answer_goes_into_a_file_and_a_module_is_run_as_one(tmp_path):
    write(tmp_path, "script.py", "import os\nos.chdir('/')\n")
    done = python("-m", "faultline", "--launches=answer.json", "-m", "script", cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT / "python"), str(tmp_path)]))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text())["reason"] == "no_device"


@without_gpu
def test_a_script_that_raises_still_has_its_table_and_its_traceback(tmp_path):
    done = python("-m", "faultline", "--launches", write(tmp_path, "script.py", "raise ValueError('its own')\n"))
    assert done.returncode == 1 and "[launches] " in done.stderr and "ValueError: its own" in done.stderr


def test_mistakes_are_sentences(tmp_path):
    script = write(tmp_path, "script.py", "print('ran')\n")
    done = python("-m", "faultline", "--launches", tmp_path / "none.py")
    assert done.returncode == 64 and "there is no such script" in done.stderr
    done = python("-m", "faultline", "--launches", "--collectives", tmp_path, script)
    assert done.returncode == 64 and "no recipe" in done.stderr and "ran" not in done.stdout
    done = python("-m", "faultline", f"--launches={tmp_path}/none/answer.json", script)
    assert done.returncode == 0 and "ran" in done.stdout and "faultline: --launches: " in done.stderr


@without_gpu
def test_with_a_recipe_both_proofs_are_told(tmp_path):
    recipe = write(tmp_path, "recipe.yaml", {"seed": 1, "faults": [{"name": "noise", "where": {"operator": "aten::mm"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]})
    script = write(tmp_path, "script.py", "import torch\na = torch.randn(64, 64)\nwith torch.no_grad():\n    a.mm(a)\n")
    done = python("-m", "faultline", "--recipe", recipe, "--launches", script)
    assert done.returncode == 0, done.stderr
    assert "[fault noise] 1 calls in 1 process" in done.stderr and "[launches] no proof" in done.stderr


def counted(launches, faulted=0):
    return {"launches": launches, "faulted": faulted}


def answer_of(**families):
    totals = {
        name: {"launches": sum(kernel["launches"] for kernel in kernels.values()), "faulted": sum(kernel["faulted"] for kernel in kernels.values()), "parts": 0, "kernels": kernels}
        for name, kernels in families.items()
    }
    return {"available": True, "reason": None, "why": None, "launches": sum(family["launches"] for family in totals.values()), "in_graphs": 0, "families": totals, "cost": {"left_out": 0}}


def test_the_table_names_what_was_not_faulted():
    answer = answer_of(fault={"faultline::cuda::fault_kernel": counted(112)}, product={"nvjet_a": counted(84, 84), "nvjet_b": counted(28, 28), "triton_mm_31": counted(1)}, norm={"rms_norm": counted(57)})
    assert launches_table(answer) == [
        "[launches] 282 kernel launches in this process, 0 of them by replayed graphs",
        "[launches] fault: 112: 112 faultline::cuda::fault_kernel",
        "[launches] product: 113, 112 of them faulted; not: 1 triton_mm_31",
        "[launches] norm: 57, 0 of them faulted: 57 rms_norm",
    ]
    assert unfaulted(answer, "product") == {"triton_mm_31": 1} and unfaulted(answer, "attention") == {}


def test_the_table_of_a_clean_run_lists_kernels():
    many = {f"kernel_{i:02}": counted(20 - i) for i in range(12)}
    answer = answer_of(product=many)
    answer["cost"]["left_out"] = 5
    lines = launches_table(answer)
    assert lines[1] == "[launches] 5 more were not kept: what follows is of the first ones"
    assert lines[2].startswith("[launches] product: 174: 20 kernel_00, 19 kernel_01, ") and lines[2].endswith(" and 4 other kernels")


# Kernels of ours that neither fault nor compute for a model.
BESIDE = {"digest_kernel", "checksum_kernel", "fill_kernel", "check_kernel", "rotary_kernel", "maximum_kernel", "weigh_kernel", "narrow_kernel", "ties_kernel", "draw_kernel", "result_kernel"}


def test_every_kernel_of_the_library_has_its_family():
    """A kernel that was renamed must not fall out of the table that says which launches are faults."""
    symbols = {symbol.decode() for symbol in re.findall(rb"\.text\.(_ZN9faultline\w+)", faultline.library_path().read_bytes())}
    if not symbols:
        pytest.skip("a library without CUDA kernels")
    families = {symbol: torch.ops.faultline.launch_family(symbol) for symbol in symbols}
    found = {family for family, part in families.values() if not part}
    assert {"fault", "product", "attention", "norm", "activation"} <= found
    unknown = [symbol for symbol, (family, _) in families.items() if family == "other" and not any(f"{len(name)}{name}" in symbol for name in BESIDE)]
    assert unknown == []
    wrong = [symbol for symbol, (family, part) in families.items() if family == "fault" and not part and not re.search(r"fault_kernel|relative_gaussian_kernel|quantize_kernel|block_format_kernel", symbol)]
    assert wrong == []


def test_records_lie_as_the_header_of_the_installed_cupti_says(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    headers = sorted(pathlib.Path(torch.__file__).resolve().parents[1].glob("nvidia/*/include/cupti.h"))
    if not compiler or not headers:
        pytest.skip("no compiler, or no header of CUPTI beside torch")
    kernel = re.search(r"record structure is \\ref (CUpti_ActivityKernel\d+)", (headers[-1].parent / "cupti_activity.h").read_text()).group(1)
    fields = {"start": "start", "end": "end", "device": "deviceId", "context": "contextId", "stream": "streamId", "correlation": "correlationId", "name": "name", "graph_node": "graphNodeId", "graph": "graphId"}
    checks = [f"static_assert(offsetof(faultline::CuptiKernel, {ours}) == offsetof({kernel}, {theirs}) && sizeof(faultline::CuptiKernel::{ours}) == sizeof({kernel}::{theirs}));" for ours, theirs in fields.items()]
    checks += [f"static_assert(offsetof(faultline::CuptiExternal, {ours}) == offsetof(CUpti_ActivityExternalCorrelation, {theirs}));" for ours, theirs in {"external_kind": "externalKind", "id": "externalId", "correlation": "correlationId"}.items()]
    checks += [
        "static_assert(faultline::is_known_cupti(CUPTI_API_VERSION));",
        "static_assert(faultline::kCuptiHeldByAnother == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && faultline::kCuptiEndOfBuffer == CUPTI_ERROR_MAX_LIMIT_REACHED);",
        "static_assert(int(faultline::CuptiActivity::kConcurrentKernel) == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && int(faultline::CuptiActivity::kExternalCorrelation) == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);",
        "static_assert(faultline::kCuptiCustomKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2 && faultline::kCuptiFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);",
    ]
    for calls, prefix, names in (
        ("kRuntimeLaunches", "CUPTI_RUNTIME_TRACE_CBID_", ("cudaLaunchKernel_v7000", "cudaLaunchKernel_ptsz_v7000", "cudaLaunchCooperativeKernel_v9000", "cudaLaunchCooperativeKernel_ptsz_v9000", "cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC_ptsz_v11060")),
        ("kDriverLaunches", "CUPTI_DRIVER_TRACE_CBID_", ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz")),
    ):
        checks += [f"static_assert(faultline::{calls}[{place}] == {prefix}{name});" for place, name in enumerate(names)]
    source = write(tmp_path, "layout.cpp", "\n".join(["#include <cupti.h>", '#include "tap/cupti.h"', *checks, ""]))
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-w", "-I", ROOT / "src", "-I", headers[-1].parent, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
