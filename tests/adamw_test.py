"""AdamW against torch.optim.AdamW, and that its bits depend on no number of threads."""

import pytest
import torch

from testing_ops import OPS


def gradients(steps, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * 10.0 ** torch.randint(-6, 2, (size,), generator=generator) for _ in range(steps)]


def run(grads, weights, scale=1.0, **options):
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    for step, gradient in enumerate(grads, 1):
        OPS.adamw_(weights, first, second, gradient, step, scale, options["lr"], *options["betas"], options["eps"], options["weight_decay"])
    return weights


@pytest.mark.parametrize("options", [
    dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
    dict(lr=1e-1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.0),
])  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_updates_equal_those_of_torch(options, scale):
    start = torch.randn(10007, generator=torch.Generator().manual_seed(4))
    grads = gradients(20, start.numel())
    reference = start.clone().double().requires_grad_()
    optimizer = torch.optim.AdamW([reference], **options)
    single = start.clone().requires_grad_()
    theirs = torch.optim.AdamW([single], foreach=False, **options)
    for gradient in grads:
        reference.grad, single.grad = gradient.double() * scale, gradient * scale
        optimizer.step(), theirs.step()
    got = run(grads, start.clone(), scale, **options)
    exact = reference.detach()
    ours, torchs = (got - exact).abs().max(), (single.detach() - exact).abs().max()
    assert ours <= 2 * torchs + 1e-9, (ours, torchs)
    torch.testing.assert_close(got, single.detach(), rtol=1e-6, atol=4e-7 * max(1.0, start.abs().max().item()))  # a few ulps of the weights


def test_threads_do_not_change_a_bit():
    size = 3 * (1 << 16) + 17
    grads, start = gradients(3, size), torch.randn(size, generator=torch.Generator().manual_seed(4))
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append((run(grads, start.clone(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01), OPS.gradient_norm(grads[0])))
    torch.set_num_threads(before)
    for weights, norm in results[1:]:
        assert torch.equal(weights, results[0][0]) and norm == results[0][1]
    assert results[0][1] == pytest.approx(grads[0].double().norm().item(), rel=1e-12)


def test_tensors_that_do_not_fit_are_refused():
    x = torch.zeros(8)
    for bad in (torch.zeros(9), torch.zeros(8).double(), torch.zeros(16)[::2]):
        with pytest.raises(RuntimeError, match="contiguous fp32"):
            OPS.adamw_(x, x.clone(), bad, x.clone(), 1, 1.0, 1e-3)
