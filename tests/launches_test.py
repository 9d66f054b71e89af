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
from testing_ops import OPS  # noqa: E402

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
        name: {"launches": sum(kernel["launches"] for kernel in kernels.values()), "faulted": sum(kernel["faulted"] for kernel in kernels.values()), "left_out": 0, "parts": 0, "kernels": kernels}
        for name, kernels in families.items()
    }
    return {"available": True, "reason": None, "why": None, "launches": sum(family["launches"] for family in totals.values()), "in_graphs": 0, "families": totals, "cost": {"left_out": 0}}


def test_the_table_names_what_was_not_faulted():
    answer = answer_of(fault={"faultline::numeric::cuda::fault_kernel": counted(112)}, product={"nvjet_a": counted(84, 84), "nvjet_b": counted(28, 28), "triton_mm_31": counted(1)}, norm={"rms_norm": counted(57)})
    assert launches_table(answer) == [
        "[launches] 282 kernel launches in this process, 0 of them by replayed graphs",
        "[launches] fault: 112: 112 faultline::numeric::cuda::fault_kernel",
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


# --- the proof window: which forwards it is opened for, and what its answer decides ---------------------------------------------
REPORT = {"rules": [{"name": "noise", "every_product": True}], "allowed_partial": []}


@pytest.fixture
def window(monkeypatch):
    """A window whose answers are those that a test puts into `window.next`."""
    module = sys.modules["faultline.launches"]
    opened = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(module, "begin_launches", lambda: opened.append(True))
    the_window = module.ProofWindow()
    monkeypatch.setattr(module, "end_launches", lambda: the_window.next)
    the_window.opened, the_window.next = opened, answer_of(product={"nvjet": counted(112, 112), "triton_mm_31": counted(1)})
    return the_window


@pytest.fixture
def armed():
    with faultline.plan({"faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}, on_missing="warn"):
        yield


def forwards(window, kind, count=1, **how):
    for _ in range(count):
        window.begin(kind, **how)
        window.end()


def test_the_first_forward_of_each_kind_is_proven_and_no_other(window, armed):
    forwards(window, "prefill", 3)
    forwards(window, "decode", 3)
    assert len(window.opened) == 2 and list(window.kinds) == ["prefill", "decode"]
    window.next = answer_of(product={"nvjet": counted(113, 113)})
    for graph in range(9):
        forwards(window, f"graph {graph}")
    [one] = window.complaints(REPORT)
    assert one["code"] == "unfaulted_kernels" and one["rule"] == "noise" and one["sentence"] == "prefill, decode: 1 of 113 product kernels ran without a fault on the GPU: 1 triton_mm_31"
    assert window.lines() == ["[launches] prefill, decode: 112 of 113 product kernels were faulted; not: 1 triton_mm_31", "[launches] graph 0, graph 1 and 7 more: 113 of 113 product kernels were faulted"]


def test_compiled_code_is_proven_when_it_runs_as_it_will(window, armed):
    forwards(window, "whole", 3, is_compiled=True)
    assert window.opened == []
    forwards(window, "whole", 2, is_compiled=True)
    assert len(window.opened) == 1


def test_a_rule_of_some_products_and_a_phase_without_faults_are_not_held_to_all(window, armed):
    forwards(window, "whole")
    assert window.complaints({"rules": [{"name": "noise", "every_product": False}], "allowed_partial": []}) == []
    assert window.complaints({**REPORT, "allowed_partial": [{"place": "lm_head"}]}) == []
    window.next = answer_of(product={"nvjet": counted(113)})
    forwards(window, "eval whole")
    assert [one["sentence"].split(":")[0] for one in window.complaints(REPORT)] == ["whole"]


def test_no_window_where_nothing_could_be_proven(window, armed, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        forwards(window, "whole")
    torch.ops.faultline.silence("warm-up")
    forwards(window, "whole")
    torch.ops.faultline.end_silence()
    window.begin("whole")
    window.end(failed=True)
    assert window.kinds == {} and len(window.opened) == 1
    monkeypatch.setenv("FAULTLINE_LAUNCHES", "off")
    forwards(window, "whole")
    assert window.lines() == ["[launches] whole: no proof by kernel launches: kernel launches are not recorded: FAULTLINE_LAUNCHES=off"] and window.complaints(REPORT) == []


def test_a_forward_inside_a_window_does_not_end_it(window, armed, monkeypatch):
    """An engine's own window is around what it does with a forward's result, too."""
    monkeypatch.setattr(sys.modules["faultline.attach"], "proof_window", window)
    model = torch.nn.Linear(4, 4)
    with faultline.attach(model):
        with window.of("the graph of 8 tokens"):
            model(torch.ones(1, 4))
            assert window.kinds == {}
        model(torch.ones(1, 4))
    assert list(window.kinds) == ["the graph of 8 tokens", "whole"]


@pytest.mark.parametrize(("captured", "products", "codes"), [("before", {"nvjet": counted(6)}, ["unfaulted_kernels"]), ("before", {}, []), ("under", {"nvjet": counted(6)}, []),
                                                           ("under an earlier plan", {"nvjet": counted(6, 6)}, ["unfaulted_kernels"]), ("before", None, ["hidden"])])
def test_a_graph_is_held_to_the_plan_under_which_it_was_captured(window, armed, monkeypatch, captured, products, codes):
    graphs = sys.modules["faultline.graphs"]
    monkeypatch.setattr(graphs, "proof_window", window)
    graphs.reset()
    begin, replay = graphs._noting_plan(lambda graph: None), graphs._proving(lambda graph: window.replays.append(graph))
    window.replays, graph = [], type("Graph", (), {})()
    if captured == "before":
        torch.ops.faultline.plan_disarm()
        begin(graph)
        torch.ops.faultline.plan_arm()
    else:
        begin(graph)
    if captured == "under an earlier plan":
        graphs.reset()
    window.next = answer_of(**({"product": products} if products else {})) if products is not None else {**answer_of(), "available": False, "why": "lost"}
    for _ in range(3):
        replay(graph)
    assert [one["code"] for one in graphs.complaints()] == codes and window.replays == [graph] * 3 and window.kinds == {}
    assert len(window.opened) == (0 if captured == "under" else 3 if products is None else 1)


def test_without_a_plan_there_is_no_window(window):
    forwards(window, "whole")
    assert window.opened == []


# Kernels of ours that neither fault nor compute for a model.
BESIDE = {"digest_kernel", "checksum_kernel", "fill_kernel", "check_kernel", "rotary_kernel", "maximum_kernel", "weigh_kernel", "narrow_kernel", "ties_kernel", "draw_kernel", "result_kernel"}


def test_every_kernel_of_the_library_has_its_family():
    """A kernel that was renamed must not fall out of the table that says which launches are faults."""
    symbols = {symbol.decode() for symbol in re.findall(rb"\.text\.(_ZN9faultline\w+)", faultline.library_path().read_bytes())}
    if not symbols:
        pytest.skip("a library without CUDA kernels")
    families = {symbol: OPS.launch_family(symbol) for symbol in symbols}
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
    checks = [f"static_assert(offsetof(faultline::tap::CuptiKernel, {ours}) == offsetof({kernel}, {theirs}) && sizeof(faultline::tap::CuptiKernel::{ours}) == sizeof({kernel}::{theirs}));" for ours, theirs in fields.items()]
    checks += [f"static_assert(offsetof(faultline::tap::CuptiCall, {ours}) == offsetof(CUpti_CallbackData, {theirs}));" for ours, theirs in {"site": "callbackSite", "context_number": "contextUid", "correlation": "correlationId"}.items()]
    checks += [
        "static_assert(faultline::tap::is_known_cupti(CUPTI_API_VERSION));",
        "static_assert(faultline::tap::kCuptiHeldByAnother == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED && faultline::tap::kCuptiEndOfBuffer == CUPTI_ERROR_MAX_LIMIT_REACHED);",
        "static_assert(int(faultline::tap::CuptiActivity::kConcurrentKernel) == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && faultline::tap::kCuptiFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);",
        "static_assert(int(faultline::tap::CuptiDomain::kDriver) == CUPTI_CB_DOMAIN_DRIVER_API && int(faultline::tap::CuptiDomain::kRuntime) == CUPTI_CB_DOMAIN_RUNTIME_API && CUPTI_API_ENTER == 0);",
    ]
    for calls, prefix, names in (
        ("kRuntimeLaunches", "CUPTI_RUNTIME_TRACE_CBID_", ("cudaLaunchKernel_v7000", "cudaLaunchKernel_ptsz_v7000", "cudaLaunchCooperativeKernel_v9000", "cudaLaunchCooperativeKernel_ptsz_v9000", "cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC_ptsz_v11060")),
        ("kDriverLaunches", "CUPTI_DRIVER_TRACE_CBID_", ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz")),
    ):
        checks += [f"static_assert(faultline::tap::{calls}[{place}] == {prefix}{name});" for place, name in enumerate(names)]
    source = write(tmp_path, "layout.cpp", "\n".join(["#include <cupti.h>", '#include "tap/cupti.h"', *checks, ""]))
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-w", "-I", ROOT / "src", "-I", headers[-1].parent, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
