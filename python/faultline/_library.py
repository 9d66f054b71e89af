"""Finds libfaultline.so, checks that it was built for this torch, loads its operators and its plain C functions."""

from __future__ import annotations

import ctypes
import os
import pathlib

import torch


def library_path() -> pathlib.Path:
    """The library that is loaded: FAULTLINE_LIBRARY, or the one pip installed, the bundle's, the build folder's.
    Raises ImportError where there is none."""
    wish = os.environ.get("FAULTLINE_LIBRARY")
    root = pathlib.Path(__file__).resolve().parents[2]
    places = [pathlib.Path(__file__).resolve().parent, root, root / "build"]
    candidates = [pathlib.Path(wish)] if wish else [place / "libfaultline.so" for place in places]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise ImportError(f"libfaultline.so was not found (looked at {looked}); run ./dev build or set FAULTLINE_LIBRARY to its path")


def _check_torch(path: pathlib.Path) -> None:
    """The build leaves libfaultline.torch beside the library, with the version of its torch: a library for another one does
    not load, or crashes later."""
    note = path.with_suffix(".torch")
    if not note.is_file():
        return
    wanted, version = note.read_text(encoding="utf-8").strip(), str(torch.__version__)
    if version.split(".")[:2] != wanted.split(".")[:2]:
        raise ImportError(f"{path} is built for torch {wanted}, this Python has torch {version}; run `pip install . --no-build-isolation` in this environment, or install torch=={wanted.split('+')[0]}")


def _check_single(path: pathlib.Path) -> None:
    """Two copies would each wrap the kernels, and neither ledger would tell the whole story."""
    loaded = {pathlib.Path(library).resolve() for library in torch.ops.loaded_libraries if pathlib.Path(library).name == path.name}
    if others := loaded - {path}:
        raise ImportError(f"another copy of the library is loaded in this process already: {others.pop()}; set FAULTLINE_LIBRARY to one path, or remove one of the installations")


def _load() -> None:
    path = library_path()
    _check_torch(path)
    _check_single(path)
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
