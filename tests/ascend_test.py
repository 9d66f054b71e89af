"""vLLM-Ascend and verl on NPUs, as far as it can be tried without one: neither package installs on a CPU, so that what runs here are
fixtures which carry their class, module and operator names (AscendRMSNorm, NPUWorker, npu::npu_add_rms_norm; vLLM-Ascend 0.11 to
0.18) on the test backend. What torch_npu itself answers is played by a module of its name."""

import sys
import types

import pytest
import torch

import faultline
import toy_device
from faultline import ascend, vllm_plugin, vllm_residuals
from faultline.attach import Attachment
from tap_models import calls_by_layer, recipe, rows, rule, tokens

NPU = torch.ops.npu
HIDDEN, LAYERS = 32, 2
WEIGHTS = recipe(rule(where={"operator": "matmul", "surface": "weight"}, what={"kind": "quantize", "format": "mxfp4"}))


class AscendRMSNorm(torch.nn.Module):
    """Adds its residual and normalises the sum in one operator."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(1 + 0.1 * torch.randn(HIDDEN)), 1e-6

    def forward(self, x, residual=None):
        if residual is None:
            return NPU.npu_rms_norm(x, self.weight, self.variance_epsilon)[0]
        y, _, total = NPU.npu_add_rms_norm(x, residual, self.weight, self.variance_epsilon)
        return y, total


class AscendQKVParallelLinear(torch.nn.Linear):
    pass


class AscendRowParallelLinear(torch.nn.Linear):
    pass


class AscendSiluAndMul(torch.nn.Module):
    def forward(self, x):
        return NPU.npu_swiglu(x)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_proj, self.o_proj = AscendQKVParallelLinear(HIDDEN, 3 * HIDDEN, bias=False), AscendRowParallelLinear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv_proj(x).chunk(3, -1))
        return self.o_proj(NPU.npu_fusion_attention(q, k, v, 4, scale=HIDDEN**-0.5)[0].transpose(1, 2).flatten(-2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.act_fn, self.down_proj = AscendQKVParallelLinear(HIDDEN, 96, bias=False), AscendSiluAndMul(), AscendRowParallelLinear(48, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class Qwen2DecoderLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn, self.post_attention_layernorm, self.mlp = AscendRMSNorm(), Attention(), AscendRMSNorm(), Mlp()

    def forward(self, x, residual):
        x, residual = (self.input_layernorm(x), x) if residual is None else self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x), residual)
        return self.mlp(x), residual


class Qwen2ForCausalLM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(96, HIDDEN)
        self.model.layers = torch.nn.ModuleList(Qwen2DecoderLayer() for _ in range(LAYERS))
        self.model.norm = AscendRMSNorm()

    @torch.no_grad()
    def forward(self, ids):
        x, residual = self.model.embed_tokens(ids), None
        for layer in self.model.layers:
            x, residual = layer(x, residual)
        return self.model.norm(x, residual)[0]


def serve(a_recipe, device=toy_device.NAME):
    model = Qwen2ForCausalLM().to(device)
    with faultline.plan(a_recipe, model=model) as plan:
        result = model(tokens().to(device)).cpu()
    return result, plan.report


@pytest.mark.parametrize("family, operators, by_layer", [("norm", {"npu::npu_rms_norm", "npu::npu_add_rms_norm"}, {-1: 1, 0: 2, 1: 2}), ("activation", {"npu::npu_swiglu"}, {0: 1, 1: 1}),
                                                         ("attention", {"npu::npu_fusion_attention"}, {0: 1, 1: 1})])
def test_families_mean_the_npus_own_operators_and_layers_are_known(family, operators, by_layer):
    a_recipe = recipe(rule(where={"operator": family}))
    result, report = serve(a_recipe)
    assert {row["operator"] for row in report["rows"]} == operators and calls_by_layer(report) == by_layer
    assert torch.equal(result, serve(a_recipe, "cpu")[0])


def test_norms_and_linears_are_found_by_their_role_whatever_their_class():
    _, report = serve(recipe(rule("norms", where={"module": "rmsnorm", "surface": "output"}), rule()))
    assert len(rows(report, rule="norms")) == 2 * LAYERS + 1
    assert calls_by_layer(report, rule="fault") == {0: 4, 1: 4}
    assert torch.ops.faultline.aqn_norms("{seed: 1, aqn: {schedule: constant, sigma_start: 0.01}}", [path for path, _ in Qwen2ForCausalLM().named_modules()], 1)


def test_a_norms_input_in_two_parts_is_their_sum():
    model = Qwen2ForCausalLM().to(toy_device.NAME)
    with faultline.plan(recipe(rule("sums", where={"module": "rmsnorm", "surface": "input"})), model=model) as plan:
        vllm_residuals.join(model)
        model(tokens().to(toy_device.NAME))
    assert len(rows(plan.report, rule="sums")) == 2 * LAYERS + 1


# --- packed weights ---------------------------------------------------------------------------------------------------
@pytest.fixture
def torch_npu(monkeypatch):
    """Says of linears' weights that they lie packed, as after vLLM-Ascend has loaded them."""
    module = types.ModuleType("torch_npu")
    module.get_npu_format = lambda tensor: ascend.FRACTAL_NZ if tensor.dim() == 2 and tensor.shape[0] != 96 else 2
    monkeypatch.setitem(sys.modules, "torch_npu", module)


def test_a_fault_on_a_packed_weight_is_refused_with_the_setting(torch_npu):
    with pytest.raises(ValueError, match=r"rule 'fault': the weight model.layers.0.self_attn.o_proj.weight and \d more lies packed \(FRACTAL_NZ\).*VLLM_ASCEND_ENABLE_NZ=0"):
        serve(WEIGHTS)
    assert not torch.ops.faultline.plan_is_armed()
    assert serve(recipe())[1]["rules"][0]["calls"] == 8  # results lie as they say


def test_weights_that_are_not_packed_are_faulted():
    assert calls_by_layer(serve(WEIGHTS)[1]) == {0: 4, 1: 4}


# --- the worker -------------------------------------------------------------------------------------------------------
def worker_class(model):
    class NPUWorker:
        model_runner = types.SimpleNamespace(get_model=lambda: model)
        model_config = types.SimpleNamespace(enforce_eager=True)

        def load_model(self):
            return "loaded"

    return NPUWorker


def armed_for(a_recipe):
    plan = faultline.plan(a_recipe).arm()
    return types.SimpleNamespace(plan=plan, snapshot=dict)


def test_vllm_ascends_worker_is_refused_before_it_packs_weights_that_a_rule_wants(monkeypatch):
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    own, worker = armed_for(WEIGHTS), worker_class(Qwen2ForCausalLM())
    try:
        vllm_plugin._wrap_ascend_worker(worker, own)
        with pytest.raises(ValueError, match="VLLM_ASCEND_ENABLE_NZ is not set.*set VLLM_ASCEND_ENABLE_NZ=0"):
            worker().load_model()
        monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "1")
        with pytest.raises(ValueError, match="VLLM_ASCEND_ENABLE_NZ is 1"):
            worker().load_model()
    finally:
        own.plan.disarm()


def test_vllm_ascends_worker_gets_the_plan_the_names_and_the_operators_that_it_registers_itself(monkeypatch):
    """Its operators come when it is made, after the plan was armed: they are wrapped before the model is loaded."""
    model, served = Qwen2ForCausalLM().to(toy_device.NAME), []
    monkeypatch.setattr(vllm_plugin.vllm_updates, "watch", lambda *_: None)
    monkeypatch.setattr(vllm_plugin.vllm_serving, "follow_worker", lambda *_: None)
    monkeypatch.setattr(vllm_plugin, "_know", lambda model, own, is_eager: served.append(Attachment(model, is_eager=is_eager)))
    own, worker = armed_for(recipe(rule(where={"operator": "norm"}), operators={"norm": ["ascend_fixture::late_norm"]})), worker_class(model)
    try:
        vllm_plugin._wrap_ascend_worker(worker, own)
        vllm_plugin._wrap_ascend_worker(worker, own)  # the same class under its older module's name
        library = torch.library.Library("ascend_fixture", "DEF")
        library.define("late_norm(Tensor x) -> Tensor")
        library.impl("late_norm", lambda x: x / x.square().mean(-1, keepdim=True).sqrt(), "CPU")
        assert worker().load_model() == "loaded" and len(served) == 1
        x = torch.randn(4, HIDDEN, device=toy_device.NAME)
        torch.ops.ascend_fixture.late_norm(x)
        assert [row["operator"] for row in own.plan.read()["rows"]] == ["ascend_fixture::late_norm"]
    finally:
        own.plan.disarm()
        for attachment in served:
            attachment.detach()
