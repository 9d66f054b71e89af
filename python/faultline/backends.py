"""The option --import of every command here that takes a device or a backend: torch learns of an NPU, an XPU or a backend of
torch.distributed when its module is imported, so that is done first. A module that cannot be imported and a device that torch does not
know are sentences."""

from __future__ import annotations

import argparse
import importlib

import torch

EXIT_RUNTIME, EXIT_USAGE = 2, 64


def add_import_option(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help=f"{what}; may be repeated")


def import_backends(options: argparse.Namespace) -> None:
    """Raises ValueError with the sentence: an import runs somebody else's code, which may fail in any way."""
    for module in options.modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"--import {module}: {said[0]}") from error


def device_named(name: str) -> torch.device:
    """Raises ValueError with the sentence and the remedy."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"this torch has no device '{name}'; a backend is loaded by --import MODULE") from error
