"""What the tests of AQN do inside a vLLM worker (worker_extension_cls): send weights as trainers do, and look at what norms read."""

import torch


def bits(tensor):
    return tensor.detach().clone().view(torch.int32).tolist()


class Extension:
    def send(self, how):
        """A trainer's new weights: every norm is 1. how: whole (one call), single (a call for each, as TRL's server makes) or
        linears (only those). -> how far the norms are from 1 afterwards"""
        model = self.model_runner.get_model()
        norms = [name for name, _ in model.named_parameters() if "norm" in name]
        weights = [(name, torch.ones_like(parameter)) for name, parameter in model.named_parameters() if name in norms]
        for part in [weights] if how == "whole" else [[weight] for weight in weights]:
            model.load_weights(part)
        return self.distances()

    def distances(self):
        return {name: (parameter.float() - 1).square().mean().sqrt().item() for name, parameter in self.model_runner.get_model().named_parameters() if "norm" in name}

    def overwrite_norm(self):
        """New weights by a way that nobody watches."""
        self.model_runner.get_model().model.norm.weight.data.fill_(1)

    def watch_norms(self):
        """From now on, the first forward at every norm: what it is called with, what it computes with, what it gives back."""
        self.seen = seen = {}
        for path, module in self.model_runner.get_model().named_modules():
            if path.rsplit(".", 1)[-1].endswith("norm"):
                seen[path] = {}
                _watch(module, seen[path])

    def watched(self):
        return self.seen


def _watch(module, seen):
    compute = module._forward_method

    def before(_module, arguments):
        seen.setdefault("parts", [bits(tensor) for tensor in arguments])

    def computing(*arguments):
        seen.setdefault("read", [bits(tensor) for tensor in arguments])
        return compute(*arguments)

    def after(_module, _arguments, output):
        seen.setdefault("gave", [bits(tensor) for tensor in (output if isinstance(output, tuple) else (output,))])

    module.register_forward_pre_hook(before, prepend=True)
    module._forward_method = computing
    module.register_forward_hook(after)
