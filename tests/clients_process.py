"""Processes of somebody else's program, for the tests of clients: scripts run under a plan, and their evidence."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATH = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")])
LIMIT = 600  # seconds; a busy machine needs them, an idle one a few


def python(*arguments, cwd=None, **environment):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FAULTLINE_") or name == "FAULTLINE_LIBRARY"}
    variables |= {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if "FAULTLINE_BUILD" in os.environ:
        variables.setdefault("FAULTLINE_LIBRARY", str(pathlib.Path(os.environ["FAULTLINE_BUILD"]).resolve() / "libfaultline.so"))
    return subprocess.run([sys.executable, *map(str, arguments)], env={**variables, **environment}, cwd=cwd, capture_output=True, text=True, timeout=LIMIT)


def with_collectives(folder, run):
    """What run() gives; it writes into `folder`, which is empty before. Torch 2.11 itself, with nothing of ours in the process, now
    and then aborts while the threads of its collectives end: then once more."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        done = run()
        if "terminate called without an active exception" not in done.stderr:
            break
    return done


def write(folder, name, content):
    path = folder / name
    path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return path
