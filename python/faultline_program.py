"""`faultline` on the path of an environment with the wheel: becomes the program inside the package, with the libraries of the
torch that Python would import. A module of its own, because importing the package takes seconds."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import faultline_model


def _folder_of(package: str) -> pathlib.Path | None:
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def main() -> None:
    program = pathlib.Path(__file__).resolve().parent / "faultline" / "program" / "faultline"
    torch = _folder_of("torch")
    if not program.is_file() or torch is None:
        sys.exit(f"error: {'this Python has no torch' if torch is None else f'{program} is not there'}; install faultline-lab and torch into one environment")
    # The tour is what people begin with; every other command says what to do when the default model is missing.
    names_a_model = any(word.split("=")[0] in ("-h", "--help", "--model") for word in sys.argv) or os.environ.get("FAULTLINE_MODEL")
    if sys.argv[1:2] == ["demo"] and not names_a_model:
        faultline_model.fetch()
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(torch / "lib"), environment.get("LD_LIBRARY_PATH")]))
    environment.setdefault("FAULTLINE_PYTHON", sys.executable)
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
