"""AQN in somebody else's sampler on a GPU: the same weights as on a CPU, to the bit; a captured graph reads each step's noise; weights
whose memory was given away meanwhile (vLLM's sleep) carry it when they come back."""

import json
import pathlib
import sys
import types

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from faultline import noise, vllm_updates  # noqa: E402
from faultline.environment import Armed  # noqa: E402
from faultline.norms import NormNoise  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LAYERS, SIZE, STEPS = 2, 256, 10


class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (SIZE,), self.weight)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for _ in range(LAYERS):
            layer = torch.nn.Module()
            layer.input_layernorm, layer.post_attention_layernorm = RMSNorm(), RMSNorm()
            self.layers.append(layer)
        self.norm = RMSNorm()

    def forward(self, x):
        for layer in self.layers:
            x = layer.post_attention_layernorm(x + layer.input_layernorm(x))
        return self.norm(x)

    def load_weights(self, weights):
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setenv("FAULTLINE_TOTAL_STEPS", str(STEPS))
    monkeypatch.delenv("FAULTLINE_EVIDENCE", raising=False)
    made = Armed(json.dumps({"seed": 7, "aqn": {"schedule": "linear", "sigma_start": 0.2, "sigma_end": 0.05}}))
    yield made
    made._optimizer_steps.remove()
    made.plan.disarm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_get_the_same_bits_as_on_a_cpu_at_every_step(own, dtype):
    models = [Model().to(device, dtype) for device in ("cpu", "cuda")]
    for model in models:
        NormNoise(model, own._recipe, own)
    for step in (0, 3, 9):
        own.plan.begin_step(step)
        host, device = ([parameter.detach().cpu() for parameter in model.parameters()] for model in models)
        assert all(torch.equal(a, b) for a, b in zip(host, device, strict=True)) and not torch.equal(host[0], torch.ones(SIZE, dtype=dtype))


def test_a_captured_graph_reads_the_noise_of_every_step_and_of_new_weights(own):
    model, x = Model().cuda(), torch.randn(4, SIZE, device="cuda")
    worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(get_model=lambda: model), sleep=lambda level=1: None, wake_up=lambda tags=None: None)
    vllm_updates.watch(worker, own, NormNoise(model, own._recipe, own), lambda: None)
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(x)
        seen = []
        for _ in range(3):
            model.load_weights([(name, torch.full_like(parameter, 1.5)) for name, parameter in model.named_parameters()])
            graph.replay()
            own.note_work("rollout")
            assert torch.equal(result, model(x))
            seen.append(result.clone())
    notes = own.snapshot()["notes"]["aqn"]
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    assert notes["step_from"] == "weight_updates" and notes["step"] == 2 and notes["norms"] == 2 * LAYERS + 1 and noise.complaints({"aqn": notes}, own.work) == []


def test_weights_that_slept_wake_with_their_noise(own):
    model = Model().cuda()

    def sleep(level=1):
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))  # level 2: what comes back is anything

    worker = types.SimpleNamespace(model_runner=types.SimpleNamespace(get_model=lambda: model), sleep=sleep, wake_up=lambda tags=None: None)
    vllm_updates.watch(worker, own, NormNoise(model, own._recipe, own), lambda: None)
    before = [parameter.clone() for parameter in model.parameters()]
    worker.sleep(level=2)
    worker.wake_up(["kv_cache"])
    assert all(parameter.isnan().all() for parameter in model.parameters())
    worker.wake_up(["weights"])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    worker.sleep(2)
    own.plan.begin_step(4)
    worker.wake_up()
    own.note_work("rollout")
    notes = own.snapshot()["notes"]["aqn"]
    assert notes["step"] == 4 and notes["norms"] == 2 * LAYERS + 1 and notes["overwritten"] == []
