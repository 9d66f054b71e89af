"""The liar suite's models and questions: a small model whose products can be taken away from the taps one by one, and what a plan
then says. A lie is a plan, a clean computation and no complaint."""

import pytest
import torch

import faultline
from tap_models import calls, recipe, rule, same_bits

WIDTH = 16
W4 = rule("w4", where={"operator": "matmul", "surface": "weight"}, what={"kind": "quantize", "format": "mxfp4"})


@torch.library.custom_op("liars::multiply", mutates_args=())
def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A kernel of somebody else's: none of torch's operators computes the product."""
    return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy().T)


@multiply.register_fake
def _(x, weight):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class Linear(torch.nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH, bias=False)


class Tile(torch.nn.Module):
    """A linear layer with a kernel of its own, and no class or base that says so."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x):
        return multiply(x, self.weight)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(), Linear()

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = torch.nn.RMSNorm(WIDTH), Mlp()

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(torch.nn.Module):
    def __init__(self, layers=2, **replaced):
        """replaced: modules by their paths, with _ for the dots."""
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.lm_head = torch.nn.ModuleList(Layer() for _ in range(layers)), Linear()
        for path, module in replaced.items():
            self.set_submodule(path.replace("__", "."), module)
        self.eval()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
PRODUCTS = 5  # of a Model


def run(model, x=X):
    with torch.no_grad():
        return model(x)


def found(a_recipe, work, **options):
    """What is complained of when work() runs under the plan. -> {(code, rule, place)}"""
    plan = faultline.plan(a_recipe, **options)
    try:
        with plan:
            work()
    except faultline.EvidenceError as error:
        return {(one["code"], one["rule"], one["place"]) for one in error.complaints}
    return set()


def codes(a_recipe, work, **options):
    return {code for code, _, _ in found(a_recipe, work, **options)}


def refuses(a_recipe, **options):
    """The plan is not armed at all, and nothing is left behind."""
    with pytest.raises(ValueError):
        faultline.plan(a_recipe, **options).arm()
    return not torch.ops.faultline.plan_is_armed()


def is_faulted(a_recipe, work, count, **options):
    """The bits differ from those of a clean run, as many calls as there must be were counted, and a clean run is clean again."""
    clean = work()
    with faultline.plan(a_recipe, **options) as plan:
        faulty = work()
    assert calls(plan.report) == count, plan.report["rows"]
    return not same_bits(clean, faulty) and same_bits(clean, work())
