"""`faultline` on the path of an environment with the wheel: becomes the program inside the package, with the libraries of the
torch that Python would import. A module of its own, because importing the package takes seconds."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys


def _folder_of(package: str) -> pathlib.Path | None:
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def main() -> None:
    program = pathlib.Path(__file__).resolve().parent / "faultline" / "program" / "faultline"
    torch = _folder_of("torch")
    if not program.is_file() or torch is None:
        sys.exit(f"error: {'this Python has no torch' if torch is None else f'{program} is not there'}; install faultline-lab and torch into one environment")
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(torch / "lib"), environment.get("LD_LIBRARY_PATH")]))
    environment.setdefault("FAULTLINE_PYTHON", sys.executable)
    # A command that finds the default model missing runs `-m faultline_model` with it.
    environment.setdefault("FAULTLINE_FETCH_WITH", sys.executable)
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
