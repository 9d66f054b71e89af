"""Console blocks of documents: read, replayed, compared. A block

    ```console
    $ faultline list faults | head -1
    kind …
    ```

holds commands after `$ ` and what they print, both streams together. In what is shown, `…` stands for anything within the
line, a line that is `…` alone for any number of lines, and `~1.5` for a number that may differ from machine to machine;
everything else must be printed exactly so. `python tests/transcript.py FILE` replays a document and prints it as it is now."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)"
LINKED = ["recipes", "examples", "docs"]  # what documents name from the repository's root


def blocks(text):
    """(language, content, line number of its first line) of every fenced block."""
    return [(match[1], match[2], text[: match.start(2)].count("\n") + 1) for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def steps(block):
    """[command, [lines shown]] of a console block; a command goes on where its line ends with a backslash."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], []])
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1][0] += "\n" + line
        else:
            assert found, f"a console block begins with a command, not with {line!r}"
            found[-1][1].append(line)
    return found


def environment(build):
    path = [str(build), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    python = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",  # as at a terminal: lines of both streams in the order in which they were written
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(filter(None, python)),
        "FAULTLINE_LIBRARY": os.environ.get("FAULTLINE_LIBRARY", str(build / "libfaultline.so")),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def prepare(folder):
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


def replay(command, folder, build, timeout=1800):
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment(build), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)
    return done.stdout.splitlines()


def line_pattern(shown):
    parts = []
    for piece in re.split(rf"(…|~{NUMBER})", shown.rstrip()):
        parts.append(".*" if piece == "…" else NUMBER if re.fullmatch(rf"~{NUMBER}", piece) else re.escape(piece))
    return "".join(parts) + r"\s*"


def matches(shown, printed):
    """Whether the lines printed are those shown; `…` alone takes any number of them, as few as will do."""
    pattern = ""
    for line in shown:
        pattern += r"(?:.*\n)*?" if line.strip() == "…" else line_pattern(line) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def difference(shown, printed):
    """The first line that does not fit, for people."""
    for count in range(len(shown), -1, -1):
        if matches([*shown[:count], "…"], printed):
            expected = shown[count] if count < len(shown) else "(no more lines)"
            return f"does not fit: {expected!r}\nprinted:\n" + "\n".join(printed)
    return "printed:\n" + "\n".join(printed)


if __name__ == "__main__":
    import tempfile

    build = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve()
    work = prepare(pathlib.Path(tempfile.mkdtemp()))
    for language, content, _ in blocks(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")):
        for command, shown in steps(content) if language == "console" else []:
            printed = replay(command, work, build)
            print(f"{'ok  ' if matches(shown, printed) else 'DIFF'} $ {command}", *(["\n".join(printed)] if not matches(shown, printed) else []), sep="\n")
    shutil.rmtree(work)
