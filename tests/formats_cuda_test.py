"""Every number format and every fault in its encoding on a GPU against the CPU: equal bits, equal ledgers. Needs numpy and
torch alone. FAULTLINE_TEST_DEVICE=cpu rehearses it: then the CPU is held against itself."""

import os

import format_texts as texts
import pytest
import torch

import faultline

DEVICE = os.environ.get("FAULTLINE_TEST_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
torch.set_num_threads(1)


def cases_of(shape, dtype):
    g = torch.Generator().manual_seed(6)
    x = (torch.randn(shape, generator=g) * torch.exp2(torch.randint(-10, 10, shape, generator=g))).to(dtype)
    special = x.clone()
    special[0, 3], special[1, 40], special[2], special[3, :64] = float("nan"), float("-inf"), 0, -0.0
    tiny = (torch.randn(shape, generator=g) * 2.0**-120).to(dtype)
    levels = (torch.tensor(texts.NF4)[torch.randint(0, 16, shape, generator=g)] * 0.731).to(dtype)
    return {"plain": x, "special": special, "tiny": tiny, "levels": levels}


@pytest.mark.parametrize("shape", [(70, 200), (40, 1024)])
def test_a_device_gives_the_cpus_bits_and_ledger(shape):
    """Whole blocks of 16-bit numbers take the short forms of CUDA, other shapes and fp32 the general kernel."""
    different = []
    for fault in [f"quantize(format={name})" for name in faultline_names()] + texts.FAULTS + texts.OTHERS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for kind, x in cases_of(shape, dtype).items():
                outcomes = []
                for device in ("cpu", DEVICE):
                    ledger = faultline.new_ledger(device)
                    y = faultline.apply(x.to(device), fault, ledger=ledger)
                    outcomes.append((y.cpu().view(torch.int32 if dtype == torch.float32 else torch.int16), torch.ops.faultline.ledger_columns(ledger.cpu())))
                (a, row), (b, other) = outcomes
                if not torch.equal(a, b) or not torch.equal(row, other):
                    different.append(f"{fault} {dtype} {kind}: {int((a != b).sum())} elements, columns {torch.nonzero(row != other).flatten().tolist()}")
    assert not different, different


def faultline_names():
    old = ["mxfp4", "mxfp4_ceil", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "nvfp4_single", "fp8_e4m3", "fp8_e5m2", "int2", "int8", "bfp"]
    return old + list(texts.NAMED)
