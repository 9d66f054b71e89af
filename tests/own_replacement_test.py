"""Faults that replace a computation, on the operators of our own model and on the attention that it calls: a wide accumulator
and a fine table give nearly the right result and a narrow one does not, everything that is no part of the fault stays, what a kind
cannot replace is refused."""

import pytest
import torch

import faultline
from program import as_json, refused
from tap_models import recipe, rule
import tiny_folder

OPS = torch.ops.faultline


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cached():
    lengths = torch.tensor([5, 0, 9])  # the second row is idle
    return normal(3, 8 * 4, seed=4), normal(4, 2, 12, 8, seed=5), normal(4, 2, 12, 8, seed=6), lengths, 0.3


CALLS = {
    "linear": lambda: OPS.few_rows_linear(normal(6, 96), normal(10, 96, seed=1), normal(10, seed=2)),
    "linear without bias": lambda: OPS.few_rows_linear(normal(6, 96), normal(10, 96, seed=1), None),
    "norm": lambda: OPS.rms_norm(normal(6, 96), normal(96, seed=1), 1e-5),
    "norm after a sum": lambda: OPS.add_rms_norm(normal(6, 96), normal(6, 96, seed=3), normal(96, seed=1), 1e-5)[0],
    "swiglu": lambda: OPS.swiglu(normal(6, 96)),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(normal(2, 4, 7, 8), normal(2, 4, 7, 8, seed=1), normal(2, 4, 7, 8, seed=2), is_causal=True),
    "cached attention": lambda: OPS.attend_cached(*cached()),
}
SUMS = {"kind": "accumulate", "dtype": "fp32", "chunk": 4}, {"kind": "accumulate", "dtype": "bf16", "chunk": 4}


def table(function):
    return tuple({"kind": "approximate", "function": function, "method": "piecewise", "size": size} for size in (4096, 6))


@pytest.mark.parametrize(
    "call, family, what",
    [(name, family, SUMS) for name, family in [("linear", "matmul"), ("linear without bias", "matmul"), ("norm", "norm"), ("norm after a sum", "norm"), ("attention", "attention"), ("cached attention", "attention")]]
    + [(name, "norm", table("rsqrt")) for name in ("norm", "norm after a sum")]
    + [(name, "attention", table("exp")) for name in ("attention", "cached attention")]
    + [("swiglu", "activation", table("silu"))],
)
def test_a_fine_replacement_is_nearly_right_and_a_coarse_one_is_not(call, family, what):
    def error(kind):
        rules = recipe(rule(where={"operator": family}, what=kind))
        with torch.inference_mode(), faultline.plan(rules, on_missing="warn") as plan:
            with faultline.phase("eval"):
                faulted = CALLS[call]()
        assert plan.report["rules"][0]["changed"] > 0
        return (faulted - clean).abs().max().item() / clean.abs().max().item()

    with torch.inference_mode():
        clean = CALLS[call]()
    fine, coarse = map(error, what)
    assert fine < 2e-5 and coarse > 1e-3, (fine, coarse)


@pytest.mark.parametrize("method", ["table", "piecewise", "polynomial"])
def test_a_number_that_is_none_stays_one(method):
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]])
    rules = recipe(rule(where={"operator": "activation"}, what={"kind": "approximate", "function": "sigmoid", "method": method, "size": 8}))
    with torch.inference_mode(), faultline.plan(rules, on_missing="warn"), faultline.phase("eval"):
        y = torch.sigmoid(x)[0]
    assert y[0].isnan() and y[1:].isfinite().all()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_folder.make(tmp_path_factory.mktemp("replaced") / "tiny"))


@pytest.mark.parametrize(
    "fault, says",
    [
        ("accumulate(chunk=8) @ operator=activation", "accumulate replaces matrix products"),
        ("accumulate(chunk=8) @ operator=rotary", "accumulate replaces matrix products"),
        ("approximate(function=gelu) @ operator=activation", "approximate replaces aten::gelu, not faultline::swiglu"),
        ("approximate(function=silu) @ operator=matmul", "approximate replaces aten::silu and the silu of faultline::swiglu"),
        ("approximate(function=exp) @ operator=norm", "the softmax of fused attention"),
    ],
)
def test_what_a_kind_cannot_replace_is_refused(model, fault, says):
    refused(64, "eval", "--model", model, "--limit", "1", "--max-new-tokens", "2", "--fault", fault, says=says)


@pytest.mark.parametrize(
    "fault",
    ["accumulate(dtype=bf16,chunk=8) @ operator=matmul", "accumulate(dtype=bf16,chunk=8) @ operator=norm", "accumulate(dtype=bf16,chunk=4) @ operator=attention",
     "approximate(function=silu,size=6) @ operator=activation", "approximate(function=rsqrt,size=3) @ operator=norm", "approximate(function=exp,size=6) @ operator=attention",
     "stale() @ operator=matmul", "stale() @ operator=norm", "stale() @ operator=attention", "stale() @ operator=activation"],
)  # fmt: skip
def test_an_evaluation_proves_each_of_them(model, fault):
    evaluated = as_json("eval", "--model", model, "--limit", "2", "--max-new-tokens", "4", "--fault", fault)
    assert evaluated  # exit 0: the canary differs, and the ledger says that elements changed
