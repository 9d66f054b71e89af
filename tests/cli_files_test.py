"""Tensor files on the command line: what goes in comes out, and a hostile file ends in a sentence, never in a crash."""

import json
import struct

import numpy
import pytest

from program import SMALL, as_json, ok, refused


def save_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_npy_goes_in_and_out(tmp_path, dtype):
    x = numpy.random.default_rng(0).standard_normal((33, 65)).astype(dtype)
    order = "F" if dtype == "f4" else "C"
    numpy.save(tmp_path / "x.npy", numpy.asarray(x, order=order))
    report = as_json("apply", "gain(strength=1)", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert report["shape"] == [33, 65]
    y = numpy.load(tmp_path / "y.npy")
    assert y.dtype == x.dtype and numpy.array_equal(y, x * x.dtype.type(2))


def test_bf16_npy_and_safetensors(tmp_path):
    bits = (numpy.arange(64, dtype="<u2") + 0x3F80).reshape(8, 8)
    numpy.save(tmp_path / "x.npy", bits.view("V2"))
    refused(64, "apply", "zero", "--input", tmp_path / "x.npy", says="--dtype bf16")
    ok("apply", "gain(strength=1)", "--input", tmp_path / "x.npy", "--dtype", "bf16", "--output", tmp_path / "y.safetensors")
    ok("apply", "gain(strength=1)", "--input", tmp_path / "y.safetensors", "--output", tmp_path / "z.npy")
    assert numpy.array_equal(numpy.load(tmp_path / "z.npy").view("<u2"), bits + 0x100)  # times 4: exponent + 2


def test_safetensors_with_several_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    ones = numpy.ones(6, "<f4").tobytes()
    save_safetensors(path, {"a": ("F32", [2, 3], ones), "b": ("F16", [4], b"\0<" * 4), "i": ("I32", [6], ones)})
    refused(64, "apply", "zero", "--input", path, says="choose one with --tensor")
    refused(64, "apply", "zero", "--input", path, "--tensor", "c", says="no tensor 'c'")
    refused(64, "apply", "zero", "--input", path, "--tensor", "i", says="I32")
    assert as_json("apply", "zero", "--input", path, "--tensor", "a")["rules"][0]["ledger"]["zeroed"] == 6


def test_the_input_is_not_overwritten(tmp_path):
    path = tmp_path / "x.npy"
    numpy.save(path, numpy.ones((4, 4), "f4"))
    (tmp_path / "link.npy").symlink_to(path)
    for name in ("x.npy", "link.npy"):
        refused(64, "apply", "zero", "--input", path, "--output", tmp_path / name, says="--force")
    assert numpy.load(path).sum() == 16
    ok("apply", "zero", "--input", path, "--output", path, "--force")
    assert numpy.load(path).sum() == 0


def npy_bytes(header, data=b"\0" * 64):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }"


@pytest.mark.parametrize(
    "code, content",
    [
        (2, b""),
        (2, b"\x93NUMPY"),
        (2, b"PK\x03\x04" + b"\0" * 100),
        (2, b"\x93NUMPY\x09\x00" + b"\0" * 100),
        (2, b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
        (2, npy_bytes(GOOD)[:-1]),
        (2, npy_bytes(GOOD) + b"x"),
        (2, npy_bytes(GOOD)[:40]),
        (2, npy_bytes("{'descr': '<f4', 'shape': (4, 4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': 1, 'shape': (4, 4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': [[[[")),
        (2, npy_bytes("{" * 60000)),
        (64, npy_bytes("{'descr': '<i4', 'fortran_order': False, 'shape': (4, 4)}")),
        (64, npy_bytes("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 4)}")),
        (64, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}")),
        (64, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,)}")),
    ],
)
def test_hostile_npy(tmp_path, code, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    refused(code, "apply", "zero", "--input", path, says="x.npy")


def safetensors_bytes(header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape=(4,), offsets=(0, 16), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "code, content",
    [
        (2, b"\1\2"),
        (2, struct.pack("<Q", 2**63) + b"{}"),
        (2, struct.pack("<Q", 99) + b"{}"),
        (2, safetensors_bytes(b"[" * 5000)),
        (2, safetensors_bytes(b"[1]")),
        (2, safetensors_bytes({"a": 3})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 17))})),
        (2, safetensors_bytes({"a": entry(offsets=(16, 0))})),
        (2, safetensors_bytes({"a": entry(offsets=(-1, 16))})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 2**64 - 1))})),
        (2, safetensors_bytes({"a": entry(shape=(5,))})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 8), shape=(2,))})),
        (2, safetensors_bytes({"a": entry(), "b": entry()})),
        (64, safetensors_bytes({"a": entry(shape=(2**62, 2**62))})),
        (64, safetensors_bytes({"a": entry(dtype="F8_E4M3")})),
        (64, safetensors_bytes({}, b"")),
    ],
)
def test_hostile_safetensors(tmp_path, code, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    refused(code, "apply", "zero", "--input", path, says="x.safetensors")


def test_files_that_are_not_there(tmp_path):
    refused(2, "apply", "zero", "--input", tmp_path / "no.npy", says="no.npy")
    (tmp_path / "folder.npy").mkdir()
    refused(64, "apply", "zero", "--input", tmp_path / "folder.npy", says="not a regular file")
    refused(2, "apply", "zero", *SMALL, "--output", tmp_path / "no" / "y.npy", says="y.npy")
