"""verl on a CPU: it ships platforms for accelerators only and takes others from external modules, as this one is
(VERL_USE_EXTERNAL_MODULES=verl_on_cpu,faultline_verl VERL_PLATFORM=cpu), for main_ppo too. Run as a script it trains with verl's own SFT
trainer, engine and optimizer; arguments are hydra's. (Not `-m verl.trainer.sft_trainer`: that one asks for two backends, one
of them for "cpu", and torch refuses the same device twice.)"""

import contextlib
import sys

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

for _name in ("memory_reserved", "memory_allocated", "max_memory_allocated", "max_memory_reserved", "empty_cache"):
    setattr(torch.cpu, _name, lambda *_: 0)
torch.cpu.get_rng_state, torch.cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state  # of checkpoints


def _nothing(self, *_):
    return None


class Cpu(PlatformBase):
    device_name, vendor_name, device_module = "cpu", "none", torch.cpu
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "NO_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "GPU"  # one that Ray is told of: it hands out accelerators by that name alone

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield


def _one_backend(original):
    """verl asks for a backend for the processor and one for the device, which is the processor here."""

    def init_process_group(backend=None, *arguments, **keywords):
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *arguments, **keywords)

    return init_process_group


torch.Tensor.pin_memory = lambda self, *_: self  # of a reference that FSDP2 keeps off the device: only drivers pin
torch.distributed.init_process_group = _one_backend(torch.distributed.init_process_group)

def _keep_weights(original):
    """vLLM packs a linear's weight and throws it away; a trainer's next one would have nowhere to go."""

    def dispatch(layer, remove_weight):
        return original(layer, remove_weight=False)

    return dispatch


if "vllm" in sys.modules:  # in its worker, which takes verl in before it loads a model
    import vllm.model_executor.layers.utils as layers

    layers.dispatch_cpu_unquantized_gemm = _keep_weights(layers.dispatch_cpu_unquantized_gemm)

if PlatformRegistry.get("cpu") is None:  # as a script this file is imported twice
    PlatformRegistry.register(platform="cpu")(Cpu)


def main(overrides):
    import hydra
    from verl.trainer.sft_trainer import SFTTrainer

    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("sft_trainer_engine", overrides)
    torch.distributed.init_process_group("gloo")
    SFTTrainer(config=config).fit()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
