"""A norm's input where the engine hands it over in two parts. Two models with the same weights: one adds, then normalises, as Hugging
Face's do; the other calls its norms with both parts, as vLLM's does. Under the same rule on `module: rmsnorm, surface: input` they
give the same bits: every operator is the same, and the sums are rounded to the model's dtype in both. (clients_aqn_test.py asks a
real engine.)"""

import pytest
import torch

import faultline
from faultline import vllm_residuals
from tap_models import recipe, rule

SIZE, LAYERS = 64, 3


def normalise(x, weight):
    exact = x.float()
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(SIZE))

    def forward(self, x):
        return normalise(x, self.weight)


class FusedNorm(Norm):
    """As vLLM's: the sum is normalised before it is rounded, and the forward is chosen at run time."""

    def forward_native(self, x, residual=None):
        if residual is None:
            return normalise(x, self.weight)
        total = x.float() + residual.float()
        return normalise(total, self.weight.float()).to(x.dtype), total.to(x.dtype)

    def forward(self, *arguments, **keywords):
        return self.forward_native(*arguments, **keywords)


class Layer(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn, self.mlp = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE)


class AddingLayer(Layer):
    def __init__(self):
        super().__init__(Norm)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class FusedLayer(Layer):
    def __init__(self):
        super().__init__(FusedNorm)

    def forward(self, x, residual):
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x), residual=residual)
        return self.mlp(x), residual


class Adding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(AddingLayer() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Fused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(FusedLayer() for _ in range(LAYERS))
        self.norm = FusedNorm()

    def forward(self, x):
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return self.norm(x, residual)[0]


def models(dtype):
    torch.manual_seed(0)
    adding, fused = Adding().to(dtype).eval(), Fused().to(dtype).eval()
    fused.load_state_dict(adding.state_dict())
    return adding, fused, torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)


ZONE = {"kind": "deadzone", "threshold": 0.2}


def ledgers(plan):
    return {row["place"]: row["ledger"] for row in plan.report["rows"]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"], ids=str)
def test_a_rule_on_a_norms_input_acts_on_the_sum_and_leaves_the_residual_as_it_was(dtype, backend):
    torch._dynamo.reset()
    adding, fused, x = models(dtype)
    zone = recipe(rule(where={"module": "rmsnorm", "surface": "input"}, what=ZONE))
    with torch.no_grad():
        clean = adding(x)
        with faultline.plan(zone, model=adding) as wanted:
            expected = adding(x)
        with faultline.plan(zone, model=fused) as plan:
            vllm_residuals.join(fused)
            run = fused if backend is None else torch.compile(fused, backend=backend)
            result = run(x)
    assert torch.equal(result, expected) and not torch.equal(expected, clean)
    assert ledgers(plan) == ledgers(wanted) and len(ledgers(plan)) == 2 * LAYERS + 1
    assert all(ledger["zeroed"] > 0 for ledger in ledgers(plan).values())


@pytest.mark.parametrize("backend", [None, "eager"], ids=str)
def test_a_rule_on_a_layers_output_acts_on_the_sum(backend):
    torch._dynamo.reset()
    adding, fused, x = models(torch.bfloat16)
    zone = recipe(rule(where={"module": "layer_output", "layer": 1}, what=ZONE))
    with torch.no_grad():
        with faultline.plan(zone, model=adding) as wanted:
            adding(x)
        with faultline.plan(zone, model=fused) as plan:
            vllm_residuals.join(fused)
            (fused if backend is None else torch.compile(fused, backend=backend))(x)
    [(place, ledger)] = ledgers(plan).items()
    # Clean layers before it round their sums once less than the other model's: counts may differ by a few elements.
    assert place == "layers.1" and ledger["calls"] == 1 and abs(ledger["zeroed"] - ledgers(wanted)["layers.1"]["zeroed"]) <= 4


def test_what_cannot_be_known_is_refused():
    class Unknown(Norm):
        def forward(self, *arguments):
            return normalise(arguments[0], self.weight)

    model = torch.nn.Module()
    model.norm = Unknown()
    with faultline.plan(recipe(rule(where={"module": "rmsnorm", "surface": "input"}, what=ZONE)), model=model, on_missing="warn"), pytest.raises(ValueError, match="what this norm is called with is not known"):
        vllm_residuals.join(model)
    _, fused, _ = models(torch.float32)
    with faultline.plan(recipe(rule(where={"module": "layer_input", "layer": 1}, what=ZONE)), model=fused, on_missing="warn"), pytest.raises(ValueError, match="in two parts"):
        vllm_residuals.join(fused)
