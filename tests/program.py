"""The program under test, $FAULTLINE_BUILD/faultline (default: build/faultline), and the ways in which tests run it. A run
costs a third of a second, nearly all of it loading torch; so the runs of the case tables are started in the background
while other tests are busy."""

import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "faultline"
SMALL = ["--shape", "64x96"]
POOL = concurrent.futures.ThreadPoolExecutor(max_workers=2)
STARTED = {}


def cases(table, command=()):
    """The table for parametrize; its runs are started as soon as the first test asks for any run."""
    for case in table:
        arguments = case[0] if isinstance(case[0], list) else [case[0]]
        STARTED[(*command, *arguments)] = None
    return table


def run(*arguments, env=None, **options):
    for key, future in STARTED.items():
        STARTED[key] = future or POOL.submit(launch, *key)
    key = tuple(map(str, arguments))
    if key in STARTED and not env and not options:
        return STARTED[key].result()
    return launch(*arguments, env=env, **options)


def launch(*arguments, env=None, timeout=600, **options):
    environment = {**os.environ, "NO_COLOR": "1", **(env or {})}
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=environment, cwd=ROOT, **options
    )


def succeeded(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ok(*arguments, **options):
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(*arguments):
    return json.loads(ok(*arguments, "--json"))


def refused(code, *arguments, says=""):
    done = run(*arguments)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") and "please report" not in done.stderr
    assert says in done.stderr
    if code == 64:
        assert done.stdout == ""
    return done.stderr
