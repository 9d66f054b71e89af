"""The race on several machines: four network namespaces, real TCP between them, ranks started by ssh, srun, mpirun and
torchrun. A planted fault is laid on the right rank and host, a host that dies or stops is named, and what was refused
leaves nothing running."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from hosts import Hosts, unavailable
from program import PROGRAM, ROOT, free_port

REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

SMALL = ["mode=fsdp", "fsdp_shard_size=600", "h2d_tensor_size=0", "num_layers=2", "simulate_compute=false", "~model_dim", "~num_heads", "~seq_len", "warmup_iterations=0"]
FAULTS = int(os.environ.get("FAULTLINE_HOST_FAULTS", "16"))
ITERATIONS = int(os.environ.get("FAULTLINE_HOST_ITERATIONS", "60"))
PUBLISHED = ROOT / "docs/results/hosts-race.json"


def note(**figures):
    """Where FAULTLINE_HOST_RECORD names a file, figures are added to it: the record behind docs/results/race.md."""
    if path := os.environ.get("FAULTLINE_HOST_RECORD"):
        record = pathlib.Path(path)
        record.write_text(json.dumps({**(json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}), **figures}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with Hosts(4, tmp_path_factory.mktemp("stand-ins")) as made:
        yield made


def start(hosts, *arguments, env=None, **options):
    environment = {**os.environ, "NO_COLOR": "1", **hosts.environment(), **(env or {})}
    environment.pop("RANK", None)
    return subprocess.Popen(hosts.command(PROGRAM, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT, **options)


def finish(process, seconds=240):
    out, err = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def on_four(hosts, launcher, *arguments, ranks=4, **options):
    return start(hosts, "race", "--transport", "gloo", "--ranks", ranks, "--launcher", launcher, "--hosts", ",".join(hosts.names), "--address", hosts.address, *arguments, **options)


def race(hosts, launcher, *arguments, **options):
    done = finish(on_four(hosts, launcher, "--json", *SMALL, *arguments, **options))
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done


def no_rank_is_left(hosts):
    for _ in range(200):
        left = [process for name in hosts.names for process in hosts.processes(name)]
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("launcher", ["ssh", "srun", "mpirun"])
def test_a_planted_fault_is_laid_on_its_rank_and_host(hosts, launcher):
    result, done = race(hosts, launcher, "verify_iterations=5", "inject={target: all_gather, kind: bitflip, layer: 1, rank: 5, iteration: 2, element: 3}", ranks=8)
    assert done.returncode == 1, done.stderr
    assert result["hosts"] == ["n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"]
    assert result["sentence"].startswith("1 corruption on rank 5 on n3; first: collective in all_gather of layer 1 on rank 5 on n3")
    (event,) = [e for rank in result["evidence"] for e in rank["events"]["items"]]
    assert (event["rank"], event["cause"], event["iteration"]) == (5, "collective", 2)


def test_every_line_of_the_log_names_the_host(hosts):
    done = finish(on_four(hosts, "ssh", *SMALL, "verify_iterations=3", "inject={target: all_gather, kind: bitflip, layer: 1, rank: 2, iteration: 1, element: 700}"))
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("ALL_GATHER CORRUPTION")][0].endswith(" host=n3")
    assert [line for line in lines if line.startswith("ATTRIBUTION")][0].endswith(" host=n3 source_hosts=[n2]")


def test_planted_faults_are_all_attributed_with_host_and_rank(hosts):
    """One of every kind of place after the other, in one run: rank, host, layer, iteration, cause."""
    places = [{"target": ("all_gather", "comm_input")[i % 2], "kind": "bitflip", "rank": i % 4, "layer": i // 4 % 2, "iteration": i, "element": 7 + i, "bit": i % 16} for i in range(FAULTS)]
    result, _ = race(hosts, "ssh", f"verify_iterations={FAULTS + 1}", "stop_on_first_corruption=false", f"inject={json.dumps(places)}")
    events = [e for rank in result["evidence"] for e in rank["events"]["items"]]
    seen = {(e["iteration"], e["rank"], result["hosts"][e["rank"]], e["layer"], e["cause"]) for e in events}
    causes = {"all_gather": "collective", "comm_input": "local_memory"}
    wanted = {(p["iteration"], p["rank"], f"n{p['rank'] + 1}", p["layer"], causes[p["target"]]) for p in places}
    note(planted=FAULTS, attributed_with_host=len(seen & wanted), events=len(events))
    assert seen == wanted
    assert len(events) == FAULTS


def test_clean_iterations_raise_no_alarm(hosts):
    result, done = race(hosts, "srun", f"verify_iterations={ITERATIONS}", ranks=8)
    alarms = [e for rank in result["evidence"] for kind in ("events", "mismatches", "deviations") for e in rank[kind]["items"]]
    note(clean_iterations=result["iterations"], clean_ranks=result["ranks"], alarms=len(alarms))
    assert done.returncode == 0 and result["verdict"] == "pass" and result["iterations"] == ITERATIONS and not alarms


def test_the_published_figures_are_the_record():
    record = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    page = (ROOT / "docs/results/race.md").read_text(encoding="utf-8")
    assert f"{record['attributed_with_host']} of {record['planted']} planted corruptions" in page and record["events"] == record["planted"]
    assert f"{record['alarms']} alarms in {record['clean_iterations']:,} clean iterations x {record['clean_ranks']} ranks" in page


def test_what_one_host_sends_wrong_is_laid_on_what_it_sent(hosts, tmp_path):
    """The fault is not ours: an interposed send() on n2 alone flips bits of what leaves that host."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library, log = tmp_path / "send.so", tmp_path / "flips.txt"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests" / "race_send_fault.cpp", "-ldl"], check=True)
    hosts.program("faulty-ssh", f"""
[ "$3" = n2 ] && set -- "$1" "$2" "$3" "env LD_PRELOAD={library} FAULTLINE_SEND_BYTES=1000 FAULTLINE_SEND_EVERY=4 FAULTLINE_SEND_LOG={log} $4"
exec "$(dirname "$0")/ssh" "$@"
""")
    result, _ = race(hosts, f"{hosts.folder}/faulty-ssh -o x {{host}} {{quoted}}", "mode=default", "alltoall_tensor_size=8000", "allreduce_tensor_size=100", "~fsdp_shard_size", "~shared_layer_weights",
                     "verify_iterations=20", "stop_on_first_corruption=false", "canary=off")
    flips = log.read_text(encoding="utf-8").splitlines()
    mismatches = [m for rank in result["evidence"] for m in rank["mismatches"]["items"]]
    assert flips and sum(m["count"] for m in mismatches) == len(flips)
    assert {result["hosts"][m["source"]] for m in mismatches} == {"n2"}, "every wrong byte came from n2"
    assert {e["cause"] for rank in result["evidence"] for e in rank["events"]["items"]} == {"collective"}


def wait_for(hosts, name):
    for _ in range(1200):
        if found := hosts.processes(name):
            return found
        time.sleep(0.05)
    raise AssertionError("the rank never came")


@pytest.mark.parametrize("launcher", ["ssh", "srun", "mpirun"])
def test_a_host_that_dies_is_named(hosts, launcher):
    process = on_four(hosts, launcher, "--json", *SMALL, "verify_iterations=1000000", "timeout_seconds=10", "log_interval=10")
    (rank,) = wait_for(hosts, "n3")
    time.sleep(2)
    os.kill(rank, signal.SIGKILL)
    done = finish(process)
    result = json.loads(done.stdout)
    assert done.returncode == 2 and result["verdict"] == "error"
    assert result["blamed"] == [2] and result["sentence"].startswith("rank 2 on n3: "), result["sentence"]
    assert no_rank_is_left(hosts)


def test_a_host_whose_cable_is_pulled_is_named(hosts):
    process = on_four(hosts, "ssh", "--json", *SMALL, "verify_iterations=1000000", "timeout_seconds=5")
    wait_for(hosts, "n2")
    time.sleep(2)
    subprocess.run(["ip", "-n", hosts.hub, "link", "set", "to-n2", "down"], check=True)
    try:
        done = finish(process)
    finally:
        subprocess.run(["ip", "-n", hosts.hub, "link", "set", "to-n2", "up"], check=True)
    result = json.loads(done.stdout)
    assert done.returncode == 2 and result["outcome"] == "hang"
    assert result["blamed"] == [1] and " on n2" in result["sentence"]


def test_a_host_that_stops_is_named(hosts):
    process = on_four(hosts, "ssh", "--json", *SMALL, "verify_iterations=1000000", "timeout_seconds=4")
    (rank,) = wait_for(hosts, "n4")
    time.sleep(2)
    os.kill(rank, signal.SIGSTOP)
    try:
        done = finish(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGCONT)
    result = json.loads(done.stdout)
    assert done.returncode == 2 and result["outcome"] == "hang" and result["blamed"] == [3]
    assert "rank 3 on n4" in result["sentence"]


def test_a_host_that_is_late_is_noted_and_not_blamed(hosts):
    result, done = race(hosts, "ssh", "verify_iterations=20", "inject={target: all_gather, kind: delay, layer: 1, rank: 1, iteration: 12, delay_ms: 1500}", "canary=off")
    assert done.returncode == 0 and result["verdict"] == "pass" and result["hosts"][1] == "n2"


def test_an_interruption_reaches_the_ranks_and_the_evidence_comes_home(hosts):
    process = on_four(hosts, "ssh", "--json", *SMALL, "verify_iterations=1000000")
    wait_for(hosts, "n4")
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    result = json.loads(done.stdout)
    assert result["outcome"] == "interrupted" and len(result["evidence"]) == 4
    assert no_rank_is_left(hosts)


def test_no_rank_outlives_a_launcher_that_was_killed(hosts):
    process = on_four(hosts, "ssh", *SMALL, "verify_iterations=1000000")
    for name in hosts.names:
        wait_for(hosts, name)
    time.sleep(1)
    process.kill()
    process.communicate()
    assert no_rank_is_left(hosts)


def test_torchrun_starts_the_ranks(hosts):
    """The real one, on one machine."""
    pytest.importorskip("torch")
    hosts.program("torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"\n')
    done = finish(start(hosts, "race", "--transport", "gloo", "--ranks", 3, "--launcher", "torchrun", "--json", *SMALL, "verify_iterations=3", "inject={target: all_gather, kind: bitflip, rank: 2, iteration: 1, layer: 0}"))
    assert done.stdout, done.stderr
    assert done.returncode == 1 and [e["rank"] for rank in json.loads(done.stdout)["evidence"] for e in rank["events"]["items"]] == [2], done.stderr


RECIPE = {"schema_version": 1, "trials": 2, "ranks": 4, "transport": "gloo", "warmup_trial": False,
          "workload_config": {"mode": "fsdp", "fsdp_shard_size": 600, "h2d_tensor_size": 0, "gemm_layers": 2, "simulate_compute": False, "warmup_iterations": 0, "verify_iterations": 4},
          "cells": [{"name": "baseline", "workload_config": {"inject": {"target": "all_gather", "kind": "bitflip", "layer": 1, "rank": 3, "iteration": 2}}},
                    {"name": "off", "mitigations": ["no-drill"], "workload_config": {"inject": {"target": "all_gather", "kind": "bitflip", "layer": 1, "rank": 3, "iteration": 2}}}]}


def test_the_same_triage_on_one_machine_and_on_four_differs_in_one_key(hosts, tmp_path):
    verdicts = {}
    for name, more in {"one": {}, "four": {"launcher": {"name": "ssh", "hosts": hosts.names, "address": hosts.address}}}.items():
        recipe, out = tmp_path / f"{name}.yaml", tmp_path / name
        recipe.write_text(yaml.safe_dump({**RECIPE, **more}), encoding="utf-8")
        done = finish(start(hosts, "triage", "run", "--recipe", recipe, "--out", out, "--json"))
        assert done.returncode == 0, done.stderr
        matrix = json.loads(done.stdout)
        verdicts[name] = [(cell["name"], cell["failed"], cell["valid"]) for cell in matrix["cells"]]
    assert verdicts["one"] == verdicts["four"] == [("baseline", 2, 2), ("off", 0, 2)], "a cell's variables reach ranks on other machines"
    log = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "four").rglob("*baseline*/*.log*"))
    assert " host=n4" in log, sorted(map(str, (tmp_path / "four").rglob("*")))


def test_the_dry_run_says_who_starts_the_ranks(hosts, tmp_path):
    recipe = tmp_path / "four.yaml"
    recipe.write_text(yaml.safe_dump({**RECIPE, "launcher": {"name": "ssh", "hosts": hosts.names}}), encoding="utf-8")
    done = finish(start(hosts, "triage", "run", "--recipe", recipe, "--dry-run"))
    assert "4 ranks over gloo by ssh on 4 hosts: n1, n2, n3, n4" in done.stdout


@pytest.mark.parametrize("change, says", [
    ({"launcher": {"name": "ssh"}}, "needs hosts"),
    ({"launcher": {"name": "ssh", "hosts": ["n1", "n2", "n3"]}}, "use a multiple of 3"),
    ({"launcher": {"name": "ssh", "hosts": ["-oProxyCommand=reboot"]}}, "no name of a host"),
    ({"launcher": {"name": "sh -c reboot"}}, "launcher.name"),
    ({"launcher": {"name": "ssh", "hosts": ["n1"]}, "transport": "threads"}, "threads stays in one process"),
])
def test_a_recipe_whose_launcher_cannot_be_meant_is_refused(hosts, tmp_path, change, says):
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(yaml.safe_dump({**RECIPE, **change}), encoding="utf-8")
    done = finish(start(hosts, "triage", "run", "--recipe", recipe, "--dry-run"))
    assert done.returncode == 64 and says in done.stderr, done.stderr


def test_a_launcher_that_is_not_there_or_fails_is_named(hosts):
    result, done = race(hosts, "no-such-launcher {host} {command}", "verify_iterations=2")
    assert done.returncode == 2 and "no-such-launcher exited with status 127 (a program was not found)" in result["sentence"]
    result, done = race(hosts, "false {host} {command}", "verify_iterations=2")
    assert done.returncode == 2 and "false exited with status 1; it never reported" in result["sentence"]


def test_a_job_of_another_size_is_refused_with_both_sizes(hosts):
    hosts.program("lonely", 'shift; exec env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "$@"\n')
    done = finish(start(hosts, "race", "--transport", "gloo", "--ranks", "2", "--launcher", "lonely x {command}", "--json", *SMALL, "verify_iterations=2"))
    assert done.returncode == 2 and "the launcher asked for 2 ranks, and the job that it started has 1" in json.loads(done.stdout)["sentence"]


def test_a_rank_without_a_launcher_says_so(hosts):
    done = subprocess.run([PROGRAM, "race", "--join", f"127.0.0.1:{free_port()}"], capture_output=True, text=True, cwd=ROOT, env={k: v for k, v in os.environ.items() if k != "RANK"}, timeout=60)
    assert done.returncode == 64 and "no launcher says which rank this is" in done.stderr
