"""The digest against the ways data goes wrong: no pattern of the table may be missed, where the plain checksum misses
every exchange. FAULTLINE_DIGEST_TRIALS sets the number of corruptions (the 10^7 of the issue run in C++, where a
digest of 32 KiB costs microseconds); FAULTLINE_TEST_DEVICE=cuda runs the same table through the CUDA kernel."""

import os

import pytest
import torch

import faultline

torch.set_num_threads(1)
DEVICE = os.environ.get("FAULTLINE_TEST_DEVICE", "cpu")
TRIALS = int(os.environ.get("FAULTLINE_DIGEST_TRIALS", "4000"))
ELEMENTS = 16384  # 32 KiB of bf16: two tiles of the digest
CHUNK = 2048  # 4 KiB


def flip(x, index, bit):
    x[index] ^= torch.tensor(1 << bit if bit < 15 else -32768, dtype=torch.int16, device=x.device)


def pick(g, high, count=1):
    values = torch.randint(high, (count,), generator=g)
    return int(values) if count == 1 else values.tolist()


def two_different(g, x):
    """Two places whose values differ, so that exchanging them is a corruption."""
    while True:
        i, j = pick(g, x.numel(), 2)
        if int(x[i]) != int(x[j]):
            return i, j


def one_bit(g, x, old):
    flip(x, pick(g, x.numel()), pick(g, 16))


def two_bits(g, x, old):
    places = torch.randperm(x.numel() * 16, generator=g)[:2].tolist() if x.numel() < 64 else [pick(g, x.numel() * 16) for _ in range(2)]
    if places[0] == places[1]:
        places[1] ^= 1
    for place in places:
        flip(x, place // 16, place % 16)


def compensating(g, x, old):
    """+d here and -d there: the sum of the elements stays."""
    while True:
        i, j = pick(g, x.numel(), 2)
        d = 1 + pick(g, 100)
        if i != j and int(x[i]) + d < 32768 and int(x[j]) - d >= -32768:
            x[i] += d
            x[j] -= d
            return


def swapped_elements(g, x, old):
    i, j = two_different(g, x)
    x[[i, j]] = x[[j, i]]


def swapped_chunks(g, x, old):
    chunks = x.view(-1, CHUNK)
    i, j = torch.randperm(chunks.shape[0], generator=g)[:2].tolist()
    chunks[[i, j]] = chunks[[j, i]]


def rotated(g, x, old):
    x.copy_(x.roll(1 + pick(g, x.numel() - 1)))


def stale_half(g, x, old):
    half = x.numel() // 2
    side = slice(0, half) if pick(g, 2) else slice(half, None)
    x[side] = old[side]


def warp_lane(g, x, old):
    x[pick(g, 32) :: 32] ^= 1 << pick(g, 15)


# pattern -> the plain sum misses all of them
PATTERNS = {one_bit: False, two_bits: False, compensating: True, swapped_elements: True, swapped_chunks: True, rotated: True, stale_half: False, warp_lane: False}


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.__name__)
def test_no_corruption_is_missed(pattern):
    g = torch.Generator().manual_seed(20240611)
    old, x = (torch.randn(ELEMENTS, generator=g).to(torch.bfloat16).view(torch.int16).to(DEVICE) for _ in range(2))
    digest, checksum = faultline.digest(x), faultline.checksum(x)
    missed = blind = 0
    trials = max(1, TRIALS // len(PATTERNS))
    for _ in range(trials):
        y = x.clone()
        pattern(g, y, old)
        assert not torch.equal(x, y), "the pattern changed nothing"
        missed += faultline.digest(y) == digest
        blind += faultline.checksum(y) == checksum
    assert missed == 0
    assert blind == trials if PATTERNS[pattern] else blind < trials


def test_the_digest_of_equal_bytes_is_equal_whatever_the_type_and_layout():
    x = torch.randn(96, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    digest = faultline.digest(x)
    assert 0 <= digest < 2**61
    assert faultline.digest(x.clone()) == digest
    assert faultline.digest(x.view(torch.int32)) == digest
    assert faultline.digest(x.view(torch.uint8).flatten()) == digest
    assert faultline.digest(x.t().contiguous().t()) == digest  # the logical order of elements counts, not the strides
    assert faultline.digest(x.t().contiguous()) != digest


def test_the_length_is_part_of_the_digest():
    seen = {faultline.digest(torch.zeros(n, dtype=torch.uint8, device=DEVICE)) for n in range(70)}
    seen |= {faultline.digest(torch.zeros(n, dtype=torch.uint8, device=DEVICE)) for n in (16383, 16384, 16385, 32768, 65536)}
    assert len(seen) == 75


def test_every_byte_of_an_odd_sized_buffer_counts():
    for size in (1, 2, 3, 5, 63, 16387):
        x = torch.arange(size, device=DEVICE).to(torch.uint8)
        digest = faultline.digest(x)
        for index in {0, size // 2, size - 1}:
            y = x.clone()
            y[index] ^= 1
            assert faultline.digest(y) != digest


def test_the_checksum_is_the_plain_sum_of_the_elements_bits():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    for bits in (x.view(torch.int32), x.to(torch.bfloat16).view(torch.int16), x.view(torch.uint8)):
        total = int(bits.long().sum())
        width = 8 * bits.element_size()
        unsigned = int((bits.long() & ((1 << width) - 1)).sum())
        assert faultline.checksum(bits) in (total, unsigned)
    assert faultline.checksum(torch.empty(0, device=DEVICE)) == 0


# --- the definition, once more, in Python -----------------------------------------------------------------------------
PRIME, ALPHA, KAPPA, SEED = 2**61 - 1, 0x0B2F6A51C3D8E947, 0x15C8D40E7A9B3F61, 0x6661756C746C696E
WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10, Salmon et al. 2011."""
    c, k = list(counter), [key & WORD, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & WORD, (a >> 32) ^ c[3] ^ k[1], a & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def digest_by_definition(data):
    keys = []
    for pair in range(2048):
        w = philox((pair, 0, 0, 0), SEED)
        keys += [(w[0] >> 4) + ((w[1] >> 4) << 28), (w[2] >> 4) + ((w[3] >> 4) << 28)]
    tiles = -(-len(data) // 16384)
    padded = data + bytes(tiles * 16384 - len(data))
    words = memoryview(padded).cast("I") if padded else []
    total = sum(pow(ALPHA, t, PRIME) * sum(keys[j] * words[t * 4096 + j] for j in range(4096)) for t in range(tiles))
    return (total + pow(ALPHA, tiles, PRIME) * KAPPA * (len(data) + 1)) % PRIME


def test_the_digest_is_the_one_of_the_documentation():
    assert philox((0, 0, 0, 0), 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # the paper's test vector
    g = torch.Generator().manual_seed(3)
    for size in (0, 1, 4, 1000, 16384, 40001):
        x = torch.randint(256, (size,), generator=g).to(torch.uint8)
        assert faultline.digest(x.to(DEVICE)) == digest_by_definition(bytes(x.tolist())), size
