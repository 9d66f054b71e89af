"""Processes of the program as Ray tasks: the helper behind `--executor ray` of triage, campaigns and experiments. Run as a file,
never imported by the package, so it needs Ray and nothing else. Requests come as JSON lines on standard input, answers
leave the same way. A request names a folder: its files travel to some machine of the cluster, the program runs there in a
folder of its own, and its log and what was wanted come back. A task whose worker or machine is lost is run again, and
the answer says how often."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

ATTEMPTS = 4  # of one task, the first included
MAX_LOG = 65536  # bytes that come back
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def run_task(program, request, files):
    """On a worker: one process, its log and its files. Nothing of it outlives the task. -> (answer, files)"""
    import contextlib
    import ctypes
    import pathlib
    import shutil
    import signal
    import tempfile
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
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in LAUNCHER}
    with tempfile.TemporaryDirectory(prefix=f"faultline-task-{os.getpid()}-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        begin = time.monotonic()
        log = stack.enter_context(open(folder / "log.txt", "wb"))
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
        return answer, {**back, "log.txt": (folder / "log.txt").read_bytes()[:MAX_LOG]}


def send(message, lock=threading.Lock()):
    with lock:
        OUTPUT.write(json.dumps(message) + "\n")
        OUTPUT.flush()


def connect():
    """-> ray, connected"""
    try:
        import ray
    except ImportError:
        raise RuntimeError(f"--executor ray needs Ray in {sys.executable}: pip install ray, or name another Python with FAULTLINE_PYTHON") from None
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        host, _, port = address.rpartition(":")
        if host and "/" not in host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=30).close()
        # A cluster has its own dashboard or none; one of our own needs none.
        ray.init(address=address or None, log_to_driver=False, logging_level="ERROR", **({} if address else {"include_dashboard": False}))
    except Exception as error:
        raise RuntimeError(f"the Ray cluster cannot be reached (RAY_ADDRESS={address}): {str(error).splitlines()[0]}") from None
    return ray


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def answer_one(ray, task, program, request, cpus):
    number, lost, folder = request["id"], 0, pathlib.Path(request["folder"])
    trial = task.options(num_cpus=min(request["processors"], cpus))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer, files = ray.get(trial.remote(program, request, contents(folder)))
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            return send({"id": number, "lost": lost, **answer})
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError, ray.exceptions.OutOfMemoryError) as error:
            lost += 1
            if attempt == ATTEMPTS:
                return send({"id": number, "lost": lost, "error": f"{ATTEMPTS} workers were lost while they ran this task; the last: {str(error).splitlines()[0]}"})
        except Exception as error:
            return send({"id": number, "lost": lost, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})


def main(program):
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
