"""Numpy references for the named formats beyond format_references.py, each written from the text that docs/formats.md
names: no code is shared with src/numeric. Grids are made by counting codes, never by the adder trick of the kernels;
scales are computed in the order of operations that the text gives. Arrays are fp32 (rows, columns), columns a multiple of 256."""

import numpy as np

F32 = np.float32


# --- grids: every magnitude of an element, from its codes -------------------------------------------------------------
def minifloat_grid(exponent_bits, mantissa_bits, rule):
    """All finite magnitudes in ascending order, decoded code by code. rule: fn, ieee or fnuz."""
    bias = 2 ** (exponent_bits - 1) - (0 if rule == "fnuz" else 1)
    values = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        e, m = divmod(code, 2**mantissa_bits)
        if rule == "ieee" and e == 2**exponent_bits - 1:
            continue
        if rule == "fn" and 1 + exponent_bits + mantissa_bits == 8 and code == 2**7 - 1:
            continue
        fraction = m / 2**mantissa_bits
        values.append(np.ldexp(fraction, 1 - bias) if e == 0 else np.ldexp(1 + fraction, e - bias))
    return np.array(values)


def integer_grid(bits, unit):
    return np.arange(2 ** (bits - 1)) * unit


def hif8_grid():
    """HiFloat8 (2409.16626): 7 exponents with 3 mantissa bits, 8 with 2, 16 with 1 (the last code is infinity), 7 denormal powers."""
    values = [0.0] + [2.0**e for e in range(-22, -15)]
    for e in range(-15, 16):
        bits = 3 if abs(e) <= 3 else 2 if abs(e) <= 7 else 1
        values += [2.0**e * (1 + m / 2**bits) for m in range(2**bits)]
    return np.array(sorted(values))[:-1]


def nearest(a, grid, ties="even"):
    """Magnitudes (fp64) to the nearest of the grid, saturating; a tie goes to the even code, away from zero or (zero) nothing rounds up."""
    a = np.asarray(a, np.float64)
    low = np.clip(np.searchsorted(grid, a, side="right") - 1, 0, len(grid) - 1)
    high = np.minimum(low + 1, len(grid) - 1)
    down, up = a - grid[low], grid[high] - a
    if ties == "zero":
        return grid[low].astype(F32)
    pick_up = (up < down) | ((up == down) & ((low % 2 == 1) if ties == "even" else True))
    return grid[np.where(pick_up, high, low)].astype(F32)


def signed(value, like):
    return np.copysign(value, like).astype(F32)


# --- units ------------------------------------------------------------------------------------------------------------
def tiles(x, rows, columns):
    """(rows, columns) -> (tiles down, tiles across, rows of one, columns of one), filled with zeros."""
    padded = np.pad(x, [(0, -x.shape[0] % rows), (0, -x.shape[1] % columns)])
    return padded.reshape(padded.shape[0] // rows, rows, -1, columns).swapaxes(1, 2)


def flat(t, shape):
    down, across, rows, columns = t.shape
    return np.ascontiguousarray(t.swapaxes(1, 2).reshape(down * rows, across * columns)[: shape[0], : shape[1]])


def exponent_of(a):
    return np.where(a > 0, np.frexp(np.where(a > 0, a, 1))[1] - 1, -127)


def power_scaled(x, grid, block, ties="even", up=False):
    """OCP MX: 2^e with e = floor(log2 amax) - exponent of the grid's largest; `up`: the smallest 2^e that holds the largest."""
    t = tiles(x, *block)
    amax = np.abs(t).max((2, 3), keepdims=True).astype(np.float64)
    e = exponent_of(amax) - exponent_of(grid[-1])
    if up:
        e = e + (amax > grid[-1] * np.ldexp(1.0, e))
    scale = np.ldexp(1.0, np.clip(e, -127, 127))
    y = nearest(np.abs(t) / scale, grid, ties) * scale
    return flat(signed(np.where(amax > 0, y, 0), t), x.shape)


def quotient_scaled(x, grid, block, ties="even"):
    """fp32 scale amax / largest; a true division."""
    t = tiles(x, *block)
    scale = (np.abs(t).max((2, 3), keepdims=True) / F32(grid[-1])).astype(F32)
    with np.errstate(all="ignore"):
        y = nearest(np.nan_to_num(np.abs(t) / scale).astype(F32), grid, ties) * scale
    return flat(signed(np.where(scale > 0, y, 0), t), x.shape)


def row_scaled(x, grid):
    return quotient_scaled(x, grid, (1, x.shape[1]))


def unscaled(x, grid, ties):
    return signed(nearest(np.abs(x), grid, ties), x)


NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]  # fmt: skip
FP4 = [0.0, 0.005208333488553762, 0.1666666716337204, 0.25, 0.3333333432674408, 0.5, 0.6666666865348816, 1.0]


def table_scaled(x, levels, two_sided, block):
    """bitsandbytes: x / amax, then a chain of `greater than the middle of two neighbours` in fp32."""
    levels = np.array(levels, F32)
    t = tiles(x, *block)
    amax = np.abs(t).max((2, 3), keepdims=True)
    with np.errstate(all="ignore"):
        scaled = np.where(amax > 0, t / amax, F32(0)).astype(F32)
    a = scaled if two_sided else np.abs(scaled)
    middles = ((levels[:-1] + levels[1:]) * F32(0.5)).astype(F32)
    y = levels[(a[..., None] > middles).sum(-1)]
    if not two_sided:
        y = signed(y, scaled)
    y = np.where(amax > 0, y * amax, np.copysign(F32(0), t))
    return flat(np.where(y == t, t, y).astype(F32), x.shape)


# --- NVFP4's kinds ----------------------------------------------------------------------------------------------------
E2M1 = minifloat_grid(2, 1, "fn")
E4M3 = minifloat_grid(4, 3, "fn")


def unsigned_e5m3():
    """Eight bits without sign: the last code is NaN."""
    return np.array([np.ldexp(m / 8, -14) if e == 0 else np.ldexp(1 + m / 8, e - 15) for e in range(32) for m in range(8)][:-1])


def narrow_scaled(x, block, scales, top_of_tensor, four_over_six=False):
    """torchao's order: g = amax_tensor / top, s = narrow((amax / 6) / g), x * ((1/g) / s), * (s * g). No second level: g = 1."""
    t = tiles(x, *block)
    amax = np.abs(t).max((2, 3), keepdims=True)
    g = F32(1) if top_of_tensor is None else np.maximum(F32(np.abs(x).max() / F32(top_of_tensor)), F32(2.0**-126))

    def quantised(factor):
        with np.errstate(all="ignore"):
            s = nearest(((amax / F32(6)) / g * F32(factor)).astype(F32), scales)
            reciprocal = (F32(1) / g) / s
            scaled = np.where(np.isfinite(reciprocal), t * reciprocal, t / (s * g)).astype(F32)
            y = signed(nearest(np.nan_to_num(np.abs(scaled), posinf=6), E2M1), t) * (s * g)
        return np.where((s > 0) & (amax > 0), y, np.copysign(F32(0), t)).astype(F32)

    y = quantised(1)
    if four_over_six:
        other = quantised(1.5)
        y = np.where(block_error(other, t) < block_error(y, t), other, y)
    return flat(y, x.shape)


def block_error(y, t):
    """Squares added as the kernels add them: eight in a row with one rounding each, then pairs. fp64 holds products exactly."""
    e = (y - t).astype(F32).reshape(*t.shape[:2], -1, 8)
    total = np.zeros(e.shape[:3], F32)
    with np.errstate(over="ignore"):
        for j in range(8):
            total = fused(e[..., j], e[..., j], total)
        while total.shape[2] > 1:
            total = (total[..., 0::2] + total[..., 1::2]).astype(F32)
    return total[..., None]


def fused(a, b, c):
    """a * b + c rounded once: the fp64 sum rounded to odd first."""
    a, b, c = (v.astype(np.float64) for v in (a, b, c))
    p = a * b
    s = p + c
    z = s - p
    error = (p - (s - z)) + (c - z)
    with np.errstate(invalid="ignore"):
        odd = (np.ascontiguousarray(s).view(np.int64) & 1) == 1
        neighbour = np.nextafter(s, np.where(error > 0, np.inf, -np.inf))
    return np.where(np.isfinite(s) & (error != 0) & ~odd, neighbour, s).astype(F32)


TE_SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], F32)


def butterflies(x):
    """(…, 16) times the Hadamard matrix of Sylvester, over 4, in fp32 steps of 1, 2, 4, 8."""
    y = x.reshape(-1, 16)
    for step in (1, 2, 4, 8):
        pairs = y.reshape(-1, 8 // step, 2, step)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = np.stack([a + b, a - b], 2).astype(F32).reshape(-1, 16)
    return (y * F32(0.25)).reshape(x.shape)


def rotated(x, back=False):
    with np.errstate(over="ignore", invalid="ignore"):
        signs = np.tile(TE_SIGNS, x.shape[1] // 16)
        if back:
            return butterflies(x) * signs
        y = butterflies(x * signs)
    return np.where(np.isfinite(y), y, F32(0))


def own_bits(y, x):
    """Where the result equals x, x's own bits stay."""
    return np.where(y == x, x, y)


def transformer_engine(x):
    """encode = 2688 / amax_tensor, s = E4M3(amax * (encode * (1/6))), x * (1 / (s * (1 / encode)))."""
    t = tiles(x, 1, 16)
    amax, most = np.abs(t).max((2, 3), keepdims=True), np.finfo(F32).max
    with np.errstate(all="ignore"):
        encode = np.minimum(F32(2688) / np.abs(x).max(), most)
        decode = F32(1) / encode
        s = nearest((amax * (encode * (F32(1) / F32(6)))).astype(F32), E4M3)
        inverse = np.minimum(F32(1) / (s * decode), most)
        y = signed(nearest(np.abs(t * inverse), E2M1), t) * (s * decode)
    return flat(np.where((s > 0) & (amax > 0), y, np.copysign(F32(0), t)).astype(F32), x.shape)


# --- others -----------------------------------------------------------------------------------------------------------
def bf16(x):
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F32)


def hif4(x):
    """HiFloat4 (2602.11287) as its published simulator computes it: 64 elements; 8 of them share a bit, 4 another."""
    t = tiles(x, 1, 64).reshape(-1, 8, 2, 4)
    a = np.abs(t)
    four = a.max(3, keepdims=True)
    eight = four.max(2, keepdims=True)
    amax = eight.max(1, keepdims=True)
    with np.errstate(all="ignore"):
        wanted = np.clip(bf16(amax * bf16(F32(1) / F32(7))), F32(2.0**-48), F32(49152))
        step = np.ldexp(1.0, exponent_of(wanted) - 2)
        scale = (np.rint(wanted / step) * step).astype(F32)
        inverse = bf16(F32(1) / scale)
        of_eight = np.where(eight * inverse >= 4, F32(2), F32(1))
        of_four = np.where(four * inverse / of_eight >= 2, F32(2), F32(1))
        factor = of_eight * of_four
        quarters = np.minimum(np.floor((a * (inverse / factor)).astype(np.float64) * 4 + 0.5), 7)
    y = (quarters / 4).astype(F32) * (scale * factor)
    return flat(signed(np.where(amax > 0, y, F32(0)), t).reshape(x.shape[0], -1, 1, 64), x.shape)


def q8_0(x):
    """gguf: d = amax / 127, q = round(x * (1 / d)) with ties away, y = q * fp16(d)."""
    t = tiles(x, 1, 32)
    d = np.abs(t).max((2, 3), keepdims=True) / F32(127)
    with np.errstate(all="ignore"):
        inverse = F32(1) / d
        half = np.minimum(d, F32(65504)).astype(np.float16).astype(F32)
        q = np.floor(np.abs(t * inverse).astype(np.float64) + 0.5)
        y = signed(q * half, t)
    return flat(np.where(np.isfinite(inverse), y, np.copysign(F32(0), t)).astype(F32), x.shape)


NAMED = {
    "mxfp6_e2m3": lambda x: power_scaled(x, minifloat_grid(2, 3, "fn"), (1, 32)),
    "mxfp6_e3m2": lambda x: power_scaled(x, minifloat_grid(3, 2, "fn"), (1, 32)),
    "mxint8": lambda x: power_scaled(x, integer_grid(8, 1 / 64), (1, 32)),
    "mxint4": lambda x: power_scaled(x, integer_grid(4, 1 / 4), (1, 32)),
    "mxint2": lambda x: power_scaled(x, integer_grid(2, 1), (1, 32)),
    "mxfp8_e4m3_ceil": lambda x: power_scaled(x, E4M3, (1, 32), up=True),
    "nvfp4_16x16": lambda x: narrow_scaled(x, (16, 16), E4M3, 2688),
    "nvfp4_te": transformer_engine,
    "nvfp4_hadamard": lambda x: own_bits(rotated(transformer_engine(rotated(x)), back=True), x),
    "nvfp4_four_over_six": lambda x: narrow_scaled(x, (1, 16), E4M3, 1536, four_over_six=True),
    "nvfp4_e5m3": lambda x: narrow_scaled(x, (1, 16), unsigned_e5m3(), None),
    "fp8_e4m3fnuz": lambda x: quotient_scaled(x, minifloat_grid(4, 3, "fnuz"), x.shape),
    "fp8_e5m2fnuz": lambda x: quotient_scaled(x, minifloat_grid(5, 2, "fnuz"), x.shape),
    "fp8_e3m4": lambda x: quotient_scaled(x, minifloat_grid(3, 4, "ieee"), x.shape),
    "fp8_e4m3_1x128": lambda x: quotient_scaled(x, E4M3, (1, 128)),
    "fp8_e4m3_128x128": lambda x: quotient_scaled(x, E4M3, (128, 128)),
    "fp8_e4m3_1x128_e8m0": lambda x: power_scaled(x, E4M3, (1, 128), up=True),
    "fp8_e4m3_128x128_e8m0": lambda x: power_scaled(x, E4M3, (128, 128), up=True),
    "nf4": lambda x: table_scaled(x, NF4, True, (1, 64)),
    "fp4_bnb": lambda x: table_scaled(x, FP4, False, (1, 64)),
    "fp6_e2m3": lambda x: row_scaled(x, minifloat_grid(2, 3, "fn")),
    "fp6_e3m2": lambda x: row_scaled(x, minifloat_grid(3, 2, "fn")),
    "fp4_e2m1": lambda x: row_scaled(x, E2M1),
    "q8_0": q8_0,
    "hif8": lambda x: unscaled(x, hif8_grid(), "away"),
    "hif4": hif4,
}

# Faults in the encoding and forms that no name has, for comparisons of one arithmetic with another.
FAULTS = [
    "quantize(format=nvfp4, flip={where: codes, rate: 0.01})",
    "quantize(format=mxfp8_e4m3, flip={where: codes, rate: 0.05})",
    "quantize(format=fp8_e5m2, flip={where: codes, rate: 0.05, bit: 6})",
    "quantize(format=fp8_e4m3fnuz, flip={where: codes, rate: 0.3, bit: 7})",
    "quantize(format=mxint8, flip={where: codes, rate: 0.05})",
    "quantize(format=int4, scheme=affine, flip={where: codes, rate: 0.05})",
    "quantize(format=int8, stuck={where: codes, bit: 6, value: 1})",
    "quantize(format=nf4, flip={where: codes, rate: 0.05})",
    "quantize(format=hif4, flip={where: codes, rate: 0.05})",
    "quantize(format=mxfp4, flip={where: scales, rate: 0.05})",
    "quantize(format=nvfp4, flip={where: scales, rate: 0.05})",
    "quantize(format=nvfp4_e5m3, stuck={where: scales, bit: 3, value: 1})",
    "quantize(format=nvfp4_16x16, flip={where: scales, rate: 0.2})",
    "quantize(format=fp8_e4m3_128x128_e8m0, stuck={where: scales, bit: 0, value: 0})",
    "quantize(format=hif4, flip={where: scales, rate: 0.1})",
    "quantize(format=nvfp4, flip={where: codes, rate: 0.05}, extent.fraction=0.3, extent.structure=row)",
]
OTHERS = ["quantize(format=mxfp6_e2m3, rounding=away)", "quantize(format=nvfp4_four_over_six, rounding=stochastic)",
          "quantize(format=nvfp4_hadamard, nonfinite=spec)", "quantize(format={element: e4m3, scale: e5m2, block: [4, 24]})"]  # fmt: skip
