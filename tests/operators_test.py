"""The operators from Python: every kind on every dtype and every kind of tensor, equal bits on every instruction set and
thread count, the device row, the package."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import faultline
from operator_cases import DTYPES, FAULTS, OPS, normal, same_bits


# --- every kind, every dtype ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_changes_something_repeats_itself_and_leaves_its_input_alone(fault, dtype):
    x = normal(33, 72, dtype=dtype)
    before = x.clone()
    ledger = faultline.new_ledger()
    y = faultline.apply(x, fault, seed=3, site="layers.0.mlp", ledger=ledger)
    assert same_bits(x, before)
    assert not same_bits(y, x)
    assert y.dtype == dtype and y.shape == x.shape and y.is_contiguous()
    assert same_bits(y, faultline.apply(x, fault, seed=3, site="layers.0.mlp"))
    numbers = faultline.read_ledger(ledger)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert numbers["changed"] == int((x.view(kind) != y.view(kind)).sum())
    assert numbers["elements"] == x.numel() and numbers["calls"] == numbers["active_calls"] == 1
    assert numbers["nonfinite"] == int((~torch.isfinite(y)).sum())
    assert numbers["zeroed"] == int(((x != 0) & (y == 0)).sum())
    assert numbers["saturated"] == 0 or fault.startswith("quantize")
    error = (y.double() - x.double())[torch.isfinite(y)]
    sums = {"sum_abs_error": error.abs().sum(), "sum_squared_error": error.square().sum(), "max_abs_error": error.abs().max()}
    for name, expected in sums.items():
        # A lane is fp32 (fp64 for fp64 tensors): squares beyond its range are counted as infinite.
        limit = 1e300 if dtype == torch.float64 else 1e37
        assert numbers[name] == pytest.approx(float(expected), rel=1e-4) or (expected > limit and numbers[name] == math.inf), name


@pytest.mark.parametrize("fault", FAULTS)
def test_the_in_place_form_writes_the_same_bits_and_returns_its_tensor(fault):
    x = normal(17, 40, dtype=torch.bfloat16)
    y = x.clone()
    result = faultline.apply_(y, fault, seed=1, step=2, call=3)
    assert result.data_ptr() == y.data_ptr()
    assert same_bits(y, faultline.apply(x, fault, seed=1, step=2, call=3))


def views(seed=7):
    base = normal(24, 48, seed=seed)
    images = normal(2, 8, 6, 16, seed=seed)
    return {
        "transposed": base.t(),
        "sliced rows": base[::2],
        "sliced columns": base[:, 3:41],
        "strided columns": base[:, ::3],
        "offset": base.view(-1)[5:].view(-1)[: 24 * 40].view(24, 40),
        "channels last": images.to(memory_format=torch.channels_last),
        "permuted": images.permute(3, 0, 2, 1),
        "size-one dimension": base[:, None, :],
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_non_contiguous_tensors_give_the_contiguous_result(fault):
    for name, x in views().items():
        expected = faultline.apply(x.contiguous().clone(), fault)
        assert same_bits(faultline.apply(x, fault), expected), name
    for name, x in views(seed=8).items():
        expected = faultline.apply(x.contiguous().clone(), fault)
        outside = x._base if x._base is not None else x
        untouched = outside.clone()
        faultline.apply_(x, fault)
        assert same_bits(x.contiguous(), expected), name
        if name == "sliced columns":
            assert same_bits(outside[:, :3], untouched[:, :3]) and same_bits(outside[:, 41:], untouched[:, 41:])


@pytest.mark.parametrize("fault", FAULTS)
def test_empty_tensors_and_scalars_are_calls_too(fault):
    if "count" in fault or "swap" in fault:
        pytest.skip("asks for more elements than there are; refused, see operators_refused_test.py")
    for shape in [(0,), (0, 5), (5, 0), ()]:
        x = torch.full(shape, 0.625)
        ledger = faultline.new_ledger()
        assert faultline.apply(x, fault, ledger=ledger).shape == x.shape
        numbers = faultline.read_ledger(ledger)
        assert numbers["calls"] == 1 and numbers["elements"] in (0, x.numel())


def test_a_ledger_adds_up_over_calls():
    ledger, x = faultline.new_ledger(), normal(64, 64)
    for call in range(5):
        faultline.apply(x, "relative_gaussian(strength=0.05)", call=call, ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["calls"] == 5 and numbers["elements"] == 5 * 4096
    assert numbers["relative_rms"] == pytest.approx(0.05, rel=0.2)
    assert numbers["sqnr_db"] == pytest.approx(20 * math.log10(1 / 0.05), abs=0.5)


# --- equal bits whatever runs them ------------------------------------------------------------------------------------
DIGESTS = """
import json, sys, torch, faultline
sys.path.insert(0, sys.argv[1])
from operator_cases import FAULTS, DTYPES, normal
torch.set_num_threads(int(sys.argv[2]))
out = {}
for dtype in DTYPES:
    x = torch.cat([normal(150, 263, dtype=dtype), normal(150, 263, seed=9, scale=1e-3, dtype=dtype)])
    x[5, 7], x[6, 8], x[9, 1] = float("nan"), float("inf"), -0.0
    for fault in FAULTS:
        ledger = faultline.new_ledger()
        y = faultline.apply(x, fault, seed=11, site="layers.3.mlp", step=2, call=1, ledger=ledger)
        out[f"{dtype} {fault}"] = [faultline.digest(y), faultline.checksum(y), ledger.view(torch.int64).tolist()]
print(json.dumps(out))
"""


def digests(isa, threads):
    environment = {**os.environ, "FAULTLINE_CPU_ISA": isa}
    if not isa:
        del environment["FAULTLINE_CPU_ISA"]
    result = subprocess.run([sys.executable, "-c", DIGESTS, os.path.dirname(__file__), str(threads)], env=environment, capture_output=True, text=True)
    if "this processor offers" in result.stderr:
        return None
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def portable():
    return digests("portable", 1)


@pytest.mark.parametrize("isa, threads", [("avx2", 1), ("avx512", 1), ("neon", 1), ("", 2), ("portable", 2)])
def test_every_instruction_set_and_thread_count_gives_equal_bits_and_ledgers(portable, isa, threads):
    other = digests(isa, threads)
    if other is None:
        pytest.skip(f"this processor has no {isa}")
    assert len(portable) == len(FAULTS) * len(DTYPES)
    assert {key: value for key, value in other.items() if value != portable[key]} == {}


def test_an_unknown_instruction_set_is_refused():
    code = "import torch, faultline; faultline.apply(torch.ones(4), 'gain(strength=0.1)')"
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FAULTLINE_CPU_ISA": "avx1024"}, capture_output=True, text=True)
    assert result.returncode != 0 and "avx1024" in result.stderr and "portable" in result.stderr


# --- the device row ---------------------------------------------------------------------------------------------------
def test_inject_reads_the_device_row_and_counts_its_calls():
    fault, x = "relative_gaussian(strength=0.05)", normal(32, 64)
    control, ledger = OPS.control(fault, step=4, device="cpu"), faultline.new_ledger()
    for call in range(3):
        y = x.clone()
        OPS.inject_(y, control, ledger, fault, seed=2, site="a")
        assert same_bits(y, faultline.apply(x, fault, seed=2, site="a", step=4, call=call))
    control[0] = 0  # disarmed: not a bit, not a count
    y = x.clone()
    OPS.inject_(y, control, ledger, fault, seed=2, site="a")
    assert same_bits(y, x)
    assert faultline.read_ledger(ledger)["calls"] == 3


# --- the package ------------------------------------------------------------------------------------------------------
def test_the_package_refuses_another_torch_with_a_sentence(monkeypatch):
    right = r"\.".join(torch.__version__.split(".")[:2])
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(ImportError, match=rf"built for torch {right}.*has torch 2\.10\.1"):
        faultline._library._check_torch(faultline.library_path())


def test_the_package_says_where_it_looked_for_the_library(monkeypatch):
    monkeypatch.setenv("FAULTLINE_LIBRARY", "/nonexistent/libfaultline.so")
    with pytest.raises(ImportError, match="/nonexistent/libfaultline.so"):
        faultline.library_path()
    monkeypatch.delenv("FAULTLINE_LIBRARY")
    assert faultline.library_path().name == "libfaultline.so"


def test_the_ledgers_columns_are_those_of_the_header():
    header = os.path.join(os.path.dirname(__file__), "..", "src", "numeric", "ledger.h")
    if not os.path.exists(header):
        pytest.skip("no sources in the bundle")
    body = open(header, encoding="utf-8").read().split("enum LedgerColumn : int {")[1].split("};")[0]
    names = [line.split(",")[0].strip()[1:] for line in body.splitlines() if line.strip().startswith("k")]
    snake = ["".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_") for name in names]
    assert [*faultline.LEDGER_COLUMNS, "ledger_columns"] == snake
    with pytest.raises(ValueError, match="448"):
        faultline.read_ledger(torch.zeros(3))
