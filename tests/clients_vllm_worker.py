"""What the tests of vLLM do inside a worker (worker_extension_cls): look at one layer's output before and after the plan's own
hooks, and send new weights."""

import torch


class Extension:
    def watch_layer(self, number):
        """From now on, the first forward's output of that layer: the sum as it came, and what the model went on with."""
        layer = self.model_runner.get_model().model.layers[number]
        self.seen = seen = []

        def before(_module, _arguments, output):
            if not seen:
                seen.append((output[0] + output[1]).clone())

        def after(_module, _arguments, output):
            if len(seen) == 1:
                seen.append((output[0] + output[1]).clone())

        layer.register_forward_hook(before, prepend=True)
        layer.register_forward_hook(after)

    def watched(self):
        return [tensor.view(torch.int16).tolist() for tensor in self.seen]

    def overwrite_norm(self):
        """New weights by a way that nobody watches."""
        self.model_runner.get_model().model.norm.weight.data.fill_(1)

    def send_norms(self):
        """A trainer's new weights: every norm is 1. -> how far the weights are from that afterwards"""
        model = self.model_runner.get_model()
        norms = {name: parameter for name, parameter in model.named_parameters() if name.endswith("norm.weight")}
        model.load_weights([(name, torch.ones_like(parameter)) for name, parameter in norms.items()])
        return {name: (parameter.float() - 1).square().mean().sqrt().item() for name, parameter in norms.items()}
