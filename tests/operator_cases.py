"""What the tests of the operators share: one rule of every kind that acts on a tensor, visible in every dtype, and the
few helpers to make tensors, compare them to the bit and expect a refusal."""

import pytest
import torch

import faultline  # noqa: F401  (registers torch.ops.faultline)

torch.set_num_threads(1)
OPS = torch.ops.faultline
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FAULTS = [
    "relative_gaussian(strength=0.05)",
    "relative_gaussian(strength=0.003, rule.rounding=stochastic)",
    "absolute_gaussian(strength=0.1)",
    "scaled_gaussian(strength=0.1, scale=mean_abs)",
    "scaled_gaussian(strength=0.1, axis=channel)",
    "scaled_gaussian(strength=0.1, axis=tensor)",
    "nondeterministic(factor=5)",
    "nondeterministic(factor=5, mode=inconsistent)",
    "nondeterministic(factor=5, mode=correlated)",
    "systematic_bias(strength=0.01)",
    "gain(strength=0.02)",
    "offset(strength=0.1)",
    "offset(strength=0.1, scale=absolute)",
    "truncate(bits=3)",
    "truncate(bits=3, mode=nearest)",
    "truncate(bits=3, mode=stochastic)",
    "deadzone(threshold=0.05)",
    "deadzone(threshold=0.05, axis=tensor)",
    "deadzone(threshold=0.3, relative_to=none)",
    "saturate(margin=0.5)",
    "saturate(limit=0.7)",
    "spike(probability=0.05)",
    "bitflip(bit=3, rate=0.05)",
    "bitflip(field=exponent, count=7)",
    "bitflip(rate=0.01)",
    "stuck_at(bit=9, value=1)",
    "zero(extent.fraction=0.1, extent.structure=channel)",
    "zero(extent.fraction=0.3, extent.structure=tile, extent.tile=4x8)",
    "nan(extent.fraction=0.2, extent.structure=row)",
    "inf(extent.fraction=0.1, extent.structure=lane)",
    "gain(strength=0.5, extent.rows=[0, '2-'], extent.columns='1-')",
    "swap(length=16, count=3)",
    "relative_gaussian(strength=0.05, rule.keyed_by=row)",
    "relative_gaussian(strength=0.05, extent.fraction=0.3, extent.structure=element)",
    "absolute_gaussian(strength=0.05, lifetime.kind=transient, lifetime.probability=0.7)",
] + [f"quantize(format={name})" for name in (
    "mxfp4", "mxfp4_ceil", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "nvfp4_single", "fp8_e4m3", "fp8_e5m2", "int2", "int3", "int4", "int5", "int6", "int7",
    "int8", "bfp", "fp8_e4m3, granularity=tile", "fp8_e5m2, granularity=row", "int4, scheme=affine", "int4, granularity=group, scheme=affine",
    "mxfp4, rounding=stochastic", "nvfp4, rounding=stochastic", "int4, rounding=stochastic", "bfp, bits=3, block=8", "mxfp4, nonfinite=spec")]  # fmt: skip


def normal(*shape, dtype=torch.float32, seed=7, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def same_bits(a, b):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def refused(words, function, *arguments, **options):
    with pytest.raises(ValueError) as caught:
        function(*arguments, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"
