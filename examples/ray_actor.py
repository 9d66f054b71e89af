"""Ray: an actor that knows nothing of the plan computes under it; the driver gets its ledger.

    PYTHONPATH=python python examples/ray_actor.py"""
import pathlib

import ray

from faultline import collect, ray_workers


@ray.remote
class Worker:
    def multiply(self):
        import torch

        return (torch.ones(256, 256) @ torch.ones(256, 256)).mean().item()  # 256 where arithmetic is sound


ray.init(address="local", num_cpus=1, log_to_driver=False, include_dashboard=False, runtime_env=ray_workers.runtime_env(pathlib.Path(__file__).with_name("noise.yaml")))
worker = Worker.remote()
print("256 =", ray.get(worker.multiply.remote()))
print(collect([worker])["rules"])
