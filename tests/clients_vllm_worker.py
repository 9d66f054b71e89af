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

    def recapture_without_the_plan(self):
        """As an engine would that captures its graphs before anybody arms: they hold no faults."""
        from vllm.compilation.cuda_graph import CUDAGraphWrapper

        for wrapper in CUDAGraphWrapper._all_instances:
            wrapper.concrete_cudagraph_entries.clear()
        torch.ops.faultline.plan_disarm()
        try:
            self.model_runner.capture_model()
        finally:
            torch.ops.faultline.plan_arm()

    def rescale_layers(self, factor):
        """A trainer's new weights: every matrix of the layers times `factor`."""
        model = self.model_runner.get_model()
        packed = {name: parameter for name, parameter in model.named_parameters() if ".layers." in name and parameter.dim() == 2}
        # vLLM loads the parts of its fused matrices under the names that checkpoints have.
        new = []
        for name, parameter in packed.items():
            rows = parameter.shape[0]
            if "qkv_proj" in name:
                head = model.config.head_dim
                sizes = [model.config.num_attention_heads * head, model.config.num_key_value_heads * head, model.config.num_key_value_heads * head]
                new += [(name.replace("qkv_proj", part), factor * piece.clone()) for part, piece in zip(("q_proj", "k_proj", "v_proj"), parameter.detach().split(sizes), strict=True)]
            elif "gate_up_proj" in name:
                new += [(name.replace("gate_up_proj", part), factor * piece.clone()) for part, piece in zip(("gate_proj", "up_proj"), parameter.detach().split(rows // 2), strict=True)]
            else:
                new.append((name, factor * parameter.detach().clone()))
        model.load_weights(new)

    def overwrite_norm(self):
        """New weights by a way that nobody watches."""
        self.model_runner.get_model().model.norm.weight.data.fill_(1)

    def send_norms(self):
        """A trainer's new weights: every norm is 1. -> how far the weights are from that afterwards"""
        model = self.model_runner.get_model()
        norms = {name: parameter for name, parameter in model.named_parameters() if name.endswith("norm.weight")}
        model.load_weights([(name, torch.ones_like(parameter)) for name, parameter in norms.items()])
        return {name: (parameter.float() - 1).square().mean().sqrt().item() for name, parameter in norms.items()}
