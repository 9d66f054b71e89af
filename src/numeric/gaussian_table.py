"""Writes gaussian_table.inc: the segmented inverse normal CDF that gaussian.h reads.

The table is checked in, not computed at start-up, because another libm could round one entry differently and the same
seed would then give other bits on another machine. For a word with magnitude f (an odd integer below 2^W, W = 15 or 31)
the upper-tail probability is f / 2^(W+1); a segment is one sixteenth of an octave of f, with a straight line in it that
halves the interpolation error; finally all lines are scaled so that the variance over every word is exactly one.
"""

import math
import struct
from statistics import NormalDist

SEGMENTS_PER_OCTAVE = 16


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def lines(octaves, total_bits):
    top = 2.0**octaves
    quantile = lambda f: -NormalDist().inv_cdf(min(f, top) / 2.0**total_bits) if f < top else 0.0
    table = []
    for octave in range(octaves):
        for part in range(SEGMENTS_PER_OCTAVE):
            a = math.ldexp(1 + part / SEGMENTS_PER_OCTAVE, octave)
            b = math.ldexp(1 + (part + 1) / SEGMENTS_PER_OCTAVE, octave)
            za, zb = quantile(a), quantile(b)
            slope = (zb - za) / (b - a)
            excess = za + slope * (0.5 * (a + b) - a) - quantile(0.5 * (a + b))
            table.append((slope, za - slope * a - 0.5 * excess))
    return table


def variance15(table):
    total = 0.0
    for f in range(1, 1 << 15, 2):
        octave = f.bit_length() - 1
        slope, base = table[octave * SEGMENTS_PER_OCTAVE + int((f / 2.0**octave - 1) * SEGMENTS_PER_OCTAVE)]
        total += (f * slope + base) ** 2
    return total / (1 << 14)


def variance31(table):
    """Exact integral of the piecewise linear function (its sum over 2^30 words agrees to 1e-9)."""
    total = 0.0
    for index, (slope, base) in enumerate(table):
        octave, part = divmod(index, SEGMENTS_PER_OCTAVE)
        a = math.ldexp(1 + part / SEGMENTS_PER_OCTAVE, octave)
        b = math.ldexp(1 + (part + 1) / SEGMENTS_PER_OCTAVE, octave)
        cube = lambda f: slope * slope * f**3 / 3 + slope * base * f * f + base * base * f
        total += cube(b) - cube(a)
    return total / 2.0**31


def emit(name, table, variance, out, extra=0):
    scale = 1 / math.sqrt(variance(table))
    print(f"#ifdef {name}", file=out)
    for slope, base in table + [(0.0, 0.0)] * extra:
        print(f"{{{f32(slope * scale).hex()}f, {f32(base * scale).hex()}f}},", file=out)
    print("#endif", file=out)


def main():
    with open(__file__.replace("gaussian_table.py", "gaussian_table.inc"), "w") as out:
        print("// Written by gaussian_table.py: {slope, base} of each segment.", file=out)
        emit("FL_GAUSSIAN_16", lines(15, 16), variance15, out)
        emit("FL_GAUSSIAN_32", lines(31, 32), variance31, out, extra=1)  # 2^31 - 1 rounds to 2^31: the median


if __name__ == "__main__":
    main()
