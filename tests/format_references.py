"""Two opinions on every number format that neither share code with src/numeric nor with each other: torchao, and plain
numpy with the casts of ml_dtypes, written from docs/formats.md. Also the inputs on which they are compared: ties,
subnormals, zero blocks, huge and tiny scales. Arrays are fp32 (rows, columns)."""

import os

import numpy as np
import torch

import faultline

DEVICE = os.environ.get("FAULTLINE_TEST_DEVICE", "cpu")  # `cuda` runs the same comparisons through the CUDA kernels
COLUMNS = 1024
ROWS = 128
F32 = np.float32


def ours(x, fault, dtype=torch.float32):
    """x (numpy, any shape) through our operator, as fp32."""
    y = faultline.apply(torch.from_numpy(np.ascontiguousarray(x)).to(dtype).to(DEVICE), fault)
    return y.cpu().float().numpy()


def mismatches(a, b):
    """True where the bits differ; two NaNs agree whatever their spelling, +0 and -0 do not."""
    a, b = np.ascontiguousarray(a, F32), np.ascontiguousarray(b, F32)
    return (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))


def blocks_of(x, block):
    """(rows, columns) -> (rows, blocks, block), a short last block filled with zeros."""
    padding = -x.shape[1] % block
    return np.pad(x, ((0, 0), (0, padding))).reshape(x.shape[0], -1, block)


def rows_of(blocks, columns):
    return np.ascontiguousarray(blocks.reshape(blocks.shape[0], -1)[:, :columns])


def by_blocks(x, block, function):
    return rows_of(function(blocks_of(x, block)), x.shape[1])


# --- numpy and ml_dtypes ----------------------------------------------------------------------------------------------
ELEMENTS = {"e2m1": (2, 6.0), "e4m3": (8, 448.0), "e5m2": (15, 57344.0)}  # exponent of the largest binade, largest value


def to_element(a, element):
    import ml_dtypes

    kind = {"e2m1": ml_dtypes.float4_e2m1fn, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[element]
    limit = F32(ELEMENTS[element][1])
    return np.clip(a, -limit, limit).astype(kind).astype(F32)


def floor_log2(a):
    return np.frexp(a)[1] - 1  # exact, subnormals included


def reference_mx(x, element, rule="floor"):
    top, limit = ELEMENTS[element]

    def quantize(b):
        amax = np.abs(b).max(2, keepdims=True)
        if rule == "floor":
            exponent = floor_log2(amax) - top
        else:  # the smallest e with amax <= limit * 2^e
            exponent = floor_log2(amax) - top
            exponent += amax.astype(np.float64) > np.ldexp(limit, exponent)
        scale = np.ldexp(F32(1), np.clip(exponent, -127, 127)).astype(F32)
        return to_element(b / scale, element) * scale

    return by_blocks(x, 32, quantize)


def reference_nvfp4(x, floor="subnormal", two_level=True):
    amax_tensor = np.abs(x).max(initial=F32(0))
    if amax_tensor == 0:
        return x.copy()
    g = np.maximum(F32(amax_tensor / F32(448 * 6)), F32(2.0**-126)) if two_level else F32(1)

    def quantize(b):
        wanted = (np.abs(b).max(2, keepdims=True) / F32(6)) / g
        s = to_element(np.maximum(wanted, F32(2.0**-6)) if floor == "normal" else wanted, "e4m3")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reciprocal = (F32(1) / g) / s  # as torchao and NVIDIA's kernels have it; where it overflows, divide
            scaled = np.where(np.isfinite(reciprocal), b * reciprocal, b / (s * g))
        y = to_element(np.where(s > 0, scaled, F32(0)), "e2m1") * (s * g)
        return np.where(s > 0, y, np.copysign(F32(0), b))

    return by_blocks(x, 16, quantize)


def unit_amax(x, granularity):
    """Largest magnitude of each element's tensor, row or 128x128 tile."""
    a = np.abs(x)
    if granularity == "tensor":
        return np.broadcast_to(a.max(), x.shape)
    if granularity == "row":
        return np.broadcast_to(a.max(1, keepdims=True), x.shape)
    padded = np.pad(a, [(0, -n % 128) for n in x.shape])
    tiles = padded.reshape(padded.shape[0] // 128, 128, -1, 128).max((1, 3))
    return np.repeat(np.repeat(tiles, 128, 0), 128, 1)[: x.shape[0], : x.shape[1]]


def reference_fp8(x, element, granularity):
    scale = unit_amax(x, granularity) / F32(ELEMENTS[element][1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        y = to_element(np.nan_to_num(x / scale), element) * scale
    return np.where(scale > 0, y, np.copysign(F32(0), x)).astype(F32)


def reference_int(x, bits, scheme, granularity, group=32):
    """Round half to even on the scaled value; symmetric levels ±(2^(k-1)-1), affine levels 0 … 2^k-1 with 0 in range."""

    def quantize(u):
        axes = tuple(range(1, u.ndim))
        if scheme == "symmetric":
            limit = F32(2 ** (bits - 1) - 1)
            scale = np.abs(u).max(axes, keepdims=True) / limit
            with np.errstate(divide="ignore", invalid="ignore"):
                y = np.clip(np.rint(u / scale), -limit, limit) * scale
            return np.where(scale > 0, y, np.copysign(F32(0), u))
        levels = F32(2**bits - 1)
        bottom, top = np.minimum(u.min(axes, keepdims=True), F32(0)), np.maximum(u.max(axes, keepdims=True), F32(0))
        scale = top / levels - bottom / levels
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            zero = np.rint(np.minimum(-bottom / scale, levels))
            y = (np.clip(np.rint(u / scale) + zero, F32(0), levels) - zero) * scale
        return np.where((scale > 0) & (y != u), y, np.where(scale > 0, u, np.copysign(F32(0), u)))  # -0 stays -0

    if granularity == "tensor":
        return quantize(x.reshape(1, -1)).reshape(x.shape)
    if granularity == "row":
        return quantize(x)
    b = blocks_of(x, group)
    return rows_of(quantize(b.reshape(-1, group)).reshape(b.shape), x.shape[1])


def reference_bfp(x, bits, block):
    """Sign and `bits` mantissa bits under the exponent of the block's largest magnitude; the step is at least 2^-127."""

    def quantize(b):
        amax = np.abs(b).max(2, keepdims=True)
        step = np.ldexp(1.0, np.maximum(floor_log2(amax) + 1 - bits, -127))  # fp64: every quotient is exact
        limit = 2**bits - 1
        return (np.clip(np.rint(b.astype(np.float64) / step), -limit, limit) * step).astype(F32)

    return by_blocks(x, block, quantize)


def reference_tf32(x):
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return np.where(np.isfinite(x), rounded.astype(np.uint32).view(F32), x)


# --- torchao ----------------------------------------------------------------------------------------------------------
def torchao_mx(x, element):
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    kind = {"e2m1": torch.float4_e2m1fn_x2, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[element]
    scale, data = to_mx(as_tensor(x), kind, 32, ScaleCalculationMode.FLOOR)
    return to_dtype(data, scale, kind, 32, torch.float32).numpy()


def torchao_nvfp4(x, two_level=True):
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    t = as_tensor(x)
    scale = (per_tensor_amax_to_scale(t.abs().max()),) if two_level else ()
    return NVFP4Tensor.to_nvfp4(t, 16, *scale).dequantize(torch.float32).numpy()


def torchao_fp8(x, element, granularity):
    from torchao.quantization import quant_primitives as primitives

    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[element]
    t = as_tensor(x)
    unit = {"tensor": list(t.shape), "row": [1, t.shape[1]], "tile": [128, 128]}[granularity]
    scale = primitives._choose_scale_float8(t, unit, kind)
    data = primitives._quantize_affine_float8(t, scale, kind)
    return primitives._dequantize_affine_float8(data, scale, torch.float32).numpy()


def as_tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x))


# --- inputs -----------------------------------------------------------------------------------------------------------
def midpoints(element):
    """Every number half way between two neighbours of the format's grid, and the grid itself."""
    import ml_dtypes

    kind, codes = {"e2m1": (ml_dtypes.float4_e2m1fn, 8), "e4m3": (ml_dtypes.float8_e4m3fn, 127), "e5m2": (ml_dtypes.float8_e5m2, 124)}[element]
    grid = np.arange(codes, dtype=np.uint8).view(kind).astype(F32)
    return np.concatenate([(grid[1:] + grid[:-1]) / 2, grid]).astype(F32)


def ties(rng, element, block, anchor):
    """Scales are powers of two (a block's largest magnitude is `anchor` times one), so midpoints are hit exactly, and
    their neighbours one ulp to either side."""
    points = midpoints(element)
    x = rng.choice(points, (ROWS, COLUMNS)) * rng.choice(F32([-1, 1]), (ROWS, COLUMNS))
    x = np.nextafter(x, rng.choice(F32([-np.inf, np.inf]), x.shape), where=rng.random(x.shape) < 0.3, out=x.copy())
    b = x.reshape(-1, block)
    b[:, 0] = anchor
    return (b * np.ldexp(F32(1), rng.integers(-40, 40, (b.shape[0], 1)))).reshape(ROWS, COLUMNS).astype(F32)


def scale_ties(rng):
    """nvfp4: the tensor's scale is 2^k, blocks ask for scales half way between two E4M3 numbers, or powers of two with
    E2M1 midpoints inside."""
    x = ties(rng, "e2m1", 16, 6.0).reshape(-1, 16)
    x = x / np.abs(x[:, :1]) * F32(6) * rng.choice(np.ldexp(F32(1), np.arange(-9, 9)), (x.shape[0], 1))
    half = np.arange(0, x.shape[0], 2)
    x[half] = x[half] / np.abs(x[half, :1]) * F32(6) * rng.choice(midpoints("e4m3")[:126], (half.size, 1))
    x[0, 0] = 448 * 6
    return x.reshape(ROWS, COLUMNS).astype(F32)


def random_bits(rng):
    bits = rng.integers(0, 2**32, (ROWS, COLUMNS), dtype=np.uint32)
    x = bits.view(F32)
    return np.where(np.isfinite(x), x, F32(1.5))


def normal(rng, scale=1.0):
    return (rng.standard_normal((ROWS, COLUMNS)) * scale).astype(F32)


def inputs(element):
    """name -> (ROWS, COLUMNS) fp32, 131,072 values each; the same on every run."""
    rng = np.random.default_rng(20240611)
    limit = F32(ELEMENTS[element][1])
    blocks = ROWS * COLUMNS // 16
    zero_blocks = normal(rng).reshape(blocks, 16) * (rng.random((blocks, 1)) < 0.5)
    zero_blocks[::3] *= -1
    lonely = np.zeros((blocks, 16), F32)
    lonely[np.arange(blocks), rng.integers(0, 16, blocks)] = random_bits(rng).reshape(-1)[:blocks]
    clipped = normal(rng).reshape(-1, 32)
    clipped /= np.abs(clipped).max(1, keepdims=True)
    clipped *= limit * (1 + rng.random((clipped.shape[0], 1)).astype(F32) / (3 if element == "e2m1" else 7))
    huge = normal(rng)
    subnormal = (rng.integers(0, 2**23, (ROWS, COLUMNS), dtype=np.uint32) | (rng.integers(0, 2, (ROWS, COLUMNS), dtype=np.uint32) << 31)).view(F32)
    magnitudes = np.exp2(rng.uniform(-30, 30, (ROWS, COLUMNS))).astype(F32) * rng.choice(F32([-1, 1]), (ROWS, COLUMNS))
    return {
        "normal": normal(rng),
        "normal 0.02": normal(rng, 0.02),
        "normal 1e4": normal(rng, 1e4),
        "huge": (huge / np.abs(huge).max() * F32(3.4e38)).astype(F32),
        "tiny": normal(rng, 1e-40),
        "vanishing": np.ldexp(F32(1), -149) * rng.integers(-200, 201, (ROWS, COLUMNS)).astype(F32),
        "subnormal": subnormal,
        "mixed magnitudes": magnitudes,
        "mixed and tiny": magnitudes * F32(1e-43),
        "all bit patterns": random_bits(rng),
        "ties": ties(rng, element, 16, limit),
        "scale ties": scale_ties(rng),
        "zero blocks": zero_blocks.reshape(ROWS, COLUMNS).astype(F32),
        "one element a block": lonely.reshape(ROWS, COLUMNS),
        "clipped": clipped.reshape(ROWS, COLUMNS).astype(F32),
        "zeros": np.where(rng.random((ROWS, COLUMNS)) < 0.5, F32(-0.0), F32(0)).astype(F32),
    }
