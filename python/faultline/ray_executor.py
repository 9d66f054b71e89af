"""Trials of a campaign as Ray tasks: the helper behind `faultline triage run --executor ray`. Run as a file, never imported by
the package, so it needs Ray and nothing else. Requests come as JSON lines on standard input, answers leave the same way;
what a request asks for is run on some machine of the cluster as `PROGRAM race --trial FOLDER`, in a folder of its own. A
task whose worker or machine is lost is run again, and the answer says how often."""

import json
import os
import socket
import subprocess
import sys
import threading

ATTEMPTS = 4  # of one trial, the first included
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def run_trial(program, request, variables, timeout):
    """On a worker: one process, its answer and its log. Nothing of it outlives the task."""
    import ctypes
    import pathlib
    import signal
    import tempfile
    import time

    def die_with_the_worker():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    if not os.access(program, os.X_OK):
        return {"error": f"{program} is not on {os.uname().nodename}; every machine of the cluster needs it under the same path"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in LAUNCHER}
    with tempfile.TemporaryDirectory(prefix="faultline-trial-") as name:
        folder = pathlib.Path(name)
        (folder / "request.json").write_text(request, encoding="utf-8")
        begin = time.monotonic()
        with open(folder / "log.txt", "wb") as log:
            process = subprocess.Popen([program, "race", "--trial", name], env={**kept, **variables}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                       start_new_session=True, preexec_fn=die_with_the_worker)
            answer = {}
            try:
                code = process.wait(timeout)
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
        answer["log"] = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[:65536]
        if (folder / "response.json").exists():
            answer["response"] = (folder / "response.json").read_text(encoding="utf-8")
        return answer


def send(message, lock=threading.Lock()):
    with lock:
        OUTPUT.write(json.dumps(message) + "\n")
        OUTPUT.flush()


def connect():
    """-> ray, connected, and the cluster's size as the first answer"""
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


def answer_one(ray, task, program, message, cpus):
    number, lost = message["id"], 0
    trial = task.options(num_cpus=min(message["ranks"], cpus))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer = ray.get(trial.remote(program, message["request"], message["variables"], message["timeout"]))
            return send({"id": number, "lost": lost, **answer})
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError, ray.exceptions.OutOfMemoryError) as error:
            lost += 1
            if attempt == ATTEMPTS:
                return send({"id": number, "lost": lost, "error": f"{ATTEMPTS} workers were lost while they ran this trial; the last: {str(error).splitlines()[0]}"})
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
    task = ray.remote(max_retries=0)(run_trial)
    for line in sys.stdin:
        threading.Thread(target=answer_one, args=(ray, task, program, json.loads(line), cpus), daemon=True).start()
    ray.shutdown()  # whoever asked has gone: tasks that still run are ended
    return 0


if __name__ == "__main__":
    OUTPUT = os.fdopen(os.dup(1), "w")  # what others print goes to stderr
    os.dup2(2, 1)
    sys.exit(main(sys.argv[1]))
