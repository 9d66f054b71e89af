"""Processes of the program as Ray tasks: the helper behind `--executor ray` of triage, campaigns and experiments. Run as a file,
never imported by the package, so it needs Ray and nothing else. Requests come as JSON lines on standard input, answers
leave the same way. A request names a folder: its files travel to some machine of the cluster, the program runs there in a
folder of its own, and its log and what was wanted come back. An answer says whether a task was lost with its worker. A cluster of our own, where RAY_ADDRESS names none, is for us alone: its ports are on loopback, its
token and its folder are this user's. The program gets of a worker's environment what the request lists, so no secret."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

MAX_LOG = 65536  # bytes that come back
LOG = "log.txt"
OF_AN_ANSWER = {"status": int, "timed_out": bool, "seconds": float, "error": str}


def inherited(variables: Mapping[str, str], listed: dict[str, list[str]]) -> dict[str, str]:
    """The variables that a task's program gets, as record/environment.cpp decides it, whose lists these are."""

    def is_secret(name):
        return not name.lower().endswith(tuple(listed["no_secrets"])) and any(word in name.lower() for word in listed["secrets"])

    return {name: value for name, value in variables.items() if name in listed["names"] or (name.startswith(tuple(listed["prefixes"])) and not is_secret(name))}


def run_task(program: str, request: dict[str, Any], files: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """On a worker: one process, its log and its files. Nothing of it outlives the task. -> (answer, files)"""
    import contextlib
    import ctypes
    import signal
    import time

    for left in pathlib.Path(tempfile.gettempdir()).glob("faultline-task-*-*"):  # by workers that were killed
        if not os.path.exists(f"/proc/{left.name.split('-')[2]}"):
            shutil.rmtree(left, ignore_errors=True)

    def die_with_the_worker():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    if not os.access(program, os.X_OK):
        return {"error": f"{program} is not on {os.uname().nodename}; every machine of the cluster needs it under the same path"}, {}
    if request["directory"] and not os.path.isdir(request["directory"]):
        return {"error": f"{request['directory']} is not on {os.uname().nodename}; every machine of the cluster needs recipe, data and model under the same path"}, {}
    kept = inherited(os.environ, request["inherits"])
    with tempfile.TemporaryDirectory(prefix=f"faultline-task-{os.getpid()}-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        begin = time.monotonic()
        log = stack.enter_context(open(folder / LOG, "wb"))
        source = stack.enter_context(open(folder / request["input"], "rb")) if request["input"] else subprocess.DEVNULL
        output = stack.enter_context(open(folder / request["output"], "wb")) if request["output"] else log
        words = [word.replace("{folder}", name) for word in request["arguments"]]
        process = subprocess.Popen([program, *words], env={**kept, **request["variables"]}, cwd=request["directory"] or name, stdout=output, stderr=log,
                                   stdin=source, start_new_session=True, preexec_fn=die_with_the_worker)
        answer = {}
        try:
            code = process.wait(request["timeout"] or None)
            answer["status"] = -code if code < 0 else code << 8  # as waitpid tells it
        except subprocess.TimeoutExpired:
            answer["timed_out"] = True
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
            except ProcessLookupError:
                pass
            process.wait()
        answer["seconds"] = time.monotonic() - begin
        back = {wish: (folder / wish).read_bytes() for wish in request["wanted"] if (folder / wish).is_file()}
        return answer, {**back, LOG: (folder / LOG).read_bytes()[:MAX_LOG]}


def send(message: dict[str, Any], lock: Any = threading.Lock()) -> None:
    """Writes one answer as a line of JSON; threads take turns."""
    with lock:
        OUTPUT.write(json.dumps(message) + "\n")
        OUTPUT.flush()


def own_cluster() -> Any:
    """-> ray, with a cluster of its own that nobody else can use, another user of this machine included"""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or Ray takes an address of the network for this machine's
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    import ray

    # Ray opens its folder to everybody, so it lies in one that is ours. Sockets lie in it, and their paths have to be short.
    place = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="faultline-ray-", dir=place if len(place) < 30 else "/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # "local": without an address Ray would look for a cluster in /tmp, where anybody can name one.
    ray.init(address="local", log_to_driver=False, logging_level="ERROR", include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=f"{folder}/ray")
    return ray


def named_cluster(address: str) -> Any:
    """-> ray, connected to the cluster at this address. Raises OSError at once where nobody listens."""
    import ray

    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():  # Ray itself would try for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=30).close()
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    return ray


def connect() -> Any:
    """-> ray, connected to the cluster of RAY_ADDRESS or to one of our own. Raises RuntimeError with a sentence where it cannot be."""
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        return named_cluster(address) if address not in ("", "local") else own_cluster()
    except ImportError:
        raise RuntimeError(f"--executor ray needs Ray in {sys.executable}: pip install ray, or name another Python with FAULTLINE_PYTHON") from None
    except Exception as error:
        raise RuntimeError(f"the Ray cluster cannot be reached (RAY_ADDRESS={address}): {str(error).splitlines()[0]}") from None


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Every file of a folder by its path in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def take(answer: dict[str, Any], files: dict[str, bytes], request: dict[str, Any]) -> dict[str, Any]:
    """A worker's answer, and its files into the request's folder: what was asked for and nothing else. -> answer. Raises ValueError
    for anything else."""
    for name in files:
        if name != LOG and name not in request["wanted"]:
            raise ValueError(f"a worker answered with a file {name!r}, which nobody asked for")
    for key, value in answer.items():
        if not isinstance(value, OF_AN_ANSWER.get(key, ())):
            raise ValueError(f"a worker answered {key!r} with {value!r}")
    for name, content in files.items():
        path = pathlib.Path(request["folder"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return answer


def answer_one(ray: Any, task: Any, program: str, request: dict[str, Any], cpus: int) -> None:
    """Runs one request on the cluster and sends its answer. A task whose worker or machine is lost says so: whoever asked decides
    whether it is run again."""
    number, folder = request["id"], pathlib.Path(request["folder"])
    trial = task.options(num_cpus=min(request["processors"], cpus))
    try:
        answer, files = ray.get(trial.remote(program, request, contents(folder)))
        send({**take(answer, files, request), "id": number})
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError, ray.exceptions.OutOfMemoryError) as error:
        send({"id": number, "lost": True, "error": f"its worker was lost: {str(error).splitlines()[0]}"})
    except Exception as error:
        send({"id": number, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})


def main(program: str) -> int:
    """Answers the requests on standard input until it ends. -> the status of the process"""
    try:
        ray = connect()
    except RuntimeError as error:
        send({"id": 0, "error": str(error)})
        return 2
    sizes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    cpus = max([1, *sizes])
    send({"id": 0, "slots": max(1, sum(sizes)), "nodes": len(sizes)})
    task = ray.remote(max_retries=0)(run_task)
    for line in sys.stdin:
        threading.Thread(target=answer_one, args=(ray, task, program, json.loads(line), cpus), daemon=True).start()
    ray.shutdown()  # whoever asked has gone: tasks that still run are ended
    return 0


if __name__ == "__main__":
    OUTPUT = os.fdopen(os.dup(1), "w")  # what others print goes to stderr
    os.dup2(2, 1)
    sys.exit(main(sys.argv[1]))
