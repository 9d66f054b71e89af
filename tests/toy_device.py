"""The test backend `toy`: a device of torch whose memory is the host's and whose kernels are the CPU's (tests/backend/), with what
torch asks of a backend's Python module. Importing this file loads it, as importing torch_npu loads `npu`."""

import contextlib
import types

import torch

from faultline import library_path

NAME = "toy"


def _module():
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = module.synchronize = lambda *_: None
    module.device = lambda _index: contextlib.nullcontext()
    module._is_in_bad_fork = lambda: False
    module.manual_seed = module.manual_seed_all = lambda _seed: None  # its generator is the CPU's
    module.get_rng_state = lambda _device=NAME: torch.get_rng_state()
    module.set_rng_state = lambda state, _device=NAME: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


torch.utils.rename_privateuse1_backend(NAME)
torch._register_device_module(NAME, _module())
torch.ops.load_library(str(library_path().with_name("libfaultline_toy.so")))
OPS = torch.ops.toy


@contextlib.contextmanager
def defect(name):
    """What the device does wrong inside: no_shifts, flushed (subnormal numbers) or imprecise (fp32)."""
    OPS.set_defect(name)
    try:
        yield
    finally:
        OPS.set_defect("none")


class FusedNorm(torch.autograd.Function):
    """A norm as accelerators have it: one operator forward, one backward."""

    @staticmethod
    def forward(context, x, weight, epsilon):
        y, scale = OPS.fused_rms_norm(x, weight, epsilon)
        context.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(context, gradient):
        return (*OPS.fused_rms_norm_backward(gradient, *context.saved_tensors), None)


def use_fused_norms(model):
    """The model's norms, in operators of the backend's own."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(lambda self, x: FusedNorm.apply(x, self.weight, self.variance_epsilon), module)
    return model
