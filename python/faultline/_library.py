"""Finds libfaultline.so, checks that it was built for this torch, loads its operators and its plain C functions."""

from __future__ import annotations

import ctypes
import os
import pathlib

import torch

_TORCH_SERIES = "2.11"


def library_path() -> pathlib.Path:
    """The library that is loaded: FAULTLINE_LIBRARY, or the one pip installed, the bundle's, the build folder's."""
    wish = os.environ.get("FAULTLINE_LIBRARY")
    root = pathlib.Path(__file__).resolve().parents[2]
    places = [pathlib.Path(__file__).resolve().parent, root, root / "build"]
    candidates = [pathlib.Path(wish)] if wish else [place / "libfaultline.so" for place in places]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise ImportError(f"libfaultline.so was not found (looked at {looked}); run ./dev build or set FAULTLINE_LIBRARY to its path")


def _check_torch() -> None:
    version = str(torch.__version__)
    if version.split(".")[:2] != _TORCH_SERIES.split("."):
        raise ImportError(f"libfaultline.so is built for torch {_TORCH_SERIES}, this Python has torch {version}; install torch=={_TORCH_SERIES}.* or rebuild")


def _load() -> None:
    _check_torch()
    path = library_path()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(f"{path} could not be loaded: {error}") from error


_load()
# The same library again, for functions that run twice a module: a call through PyDLL costs a tenth of an operator's.
C = ctypes.PyDLL(str(library_path()))
C.faultline_push_scope.argtypes = [ctypes.c_uint32]
C.faultline_begin_forward.argtypes = [ctypes.c_uint32, ctypes.c_int32, ctypes.c_int32]
C.faultline_kind_number.argtypes = C.faultline_phase_number.argtypes = [ctypes.c_char_p]
C.faultline_kind_number.restype = C.faultline_phase_number.restype = ctypes.c_int32
