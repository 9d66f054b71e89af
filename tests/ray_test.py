"""Ray: workers that arm a plan before anybody's code runs, their ledgers back at the driver, and trials of triages, campaigns and
experiments as tasks on a cluster of two machines. Everything on this machine, on the loopback address."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

# Ray takes the loopback address for a machine's own only where it believes that there are no clusters.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # what other programs of this machine hold is no reason to kill ours
os.environ["RAY_worker_register_timeout_seconds"] = "600"
os.environ["RAY_local_fs_capacity_threshold"] = "1"
os.environ["RAY_worker_niceness"] = "0"  # 15 otherwise: a busy machine would never come to them
ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

import faultline  # noqa: E402
from clients_process import LIMIT, PATH, write  # noqa: E402
from program import PROGRAM  # noqa: E402
from tap_models import recipe, rule  # noqa: E402

STORE = 80 << 20  # bytes; the least that Ray accepts is 75 MiB
NODE = dict(num_cpus=1, object_store_memory=STORE, include_dashboard=False, node_ip_address="127.0.0.1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two machines of one processor each; .tasks: where their workers keep temporary files."""
    tasks = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tasks))
        two = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE)
        two.add_node(**{key: value for key, value in NODE.items() if key != "include_dashboard"})
    two.tasks = tasks
    yield two
    ray.shutdown()
    two.shutdown()


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("recipe"), "recipe.json", recipe())


class Worker:
    """Somebody's actor: it knows nothing of us."""

    def multiply(self, times):
        import torch

        generator = torch.Generator().manual_seed(0)
        return [(torch.randn(8, 8, generator=generator) @ torch.randn(8, 8, generator=generator)).sum().item() for _ in range(times)]

    def process(self):
        return os.getpid()


def connect(cluster, **runtime_env):
    ray.shutdown()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime_env or None)


def test_an_actors_arithmetic_is_faulty_and_the_driver_gets_its_ledger(cluster, recipe_file, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PATH)
    if "FAULTLINE_BUILD" in os.environ:
        monkeypatch.setenv("FAULTLINE_LIBRARY", str(faultline.library_path()))
    here = Worker().multiply(3)
    connect(cluster, **faultline.ray_workers.runtime_env(recipe_file))
    actors = [ray.remote(num_cpus=0.5)(Worker).remote() for _ in range(2)]
    first, second = ray.get([actors[0].multiply.remote(3), actors[1].multiply.remote(0)], timeout=LIMIT)
    assert len(first) == 3 and all(faulty != clean for faulty, clean in zip(first, here, strict=True)) and second == []
    collection = faultline.collect(actors)
    calls = {process["pid"]: int(process["report"]["rules"][0]["calls"]) for process in collection["processes"]}
    assert calls == dict(zip(ray.get([actor.process.remote() for actor in actors], timeout=LIMIT), [3, 0], strict=True))
    assert collection["rules"]["fault"]["calls"] == 3 and collection["complaints"] == []
    assert {process["role"] for process in collection["processes"]} == {"worker"}
    # The same seed gives the same faults in another process; the driver itself has no plan.
    again = ray.get(ray.remote(num_cpus=0.5)(Worker).remote().multiply.remote(3), timeout=LIMIT)
    assert again == first and Worker().multiply(3) == here


def test_actors_without_a_plan_and_actors_that_died_are_told_apart(cluster):
    connect(cluster)
    actor = ray.remote(num_cpus=0.5)(Worker).options(runtime_env={"env_vars": {"PYTHONPATH": PATH, "FAULTLINE_LIBRARY": str(faultline.library_path())}}).remote()
    with pytest.raises(ValueError, match="1 of 1 actors have no plan armed"):
        faultline.collect([actor])
    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):  # it may still answer for a while: a kill does not wait for the death
        for _ in range(10 * LIMIT):
            ray.get(actor.process.remote(), timeout=LIMIT)
            time.sleep(0.1)
    with pytest.raises(RuntimeError, match="an actor is gone, and its evidence with it .set FAULTLINE_EVIDENCE"):
        faultline.collect([actor])


def test_a_runtime_env_is_extended_and_never_overwritten(recipe_file, tmp_path):
    extended = faultline.ray_workers.runtime_env(recipe_file, base={"env_vars": {"MINE": "1"}, "pip": ["x"]})
    assert extended["env_vars"]["MINE"] == "1" and extended["pip"] == ["x"] and extended["env_vars"]["FAULTLINE_RECIPE"] == str(recipe_file)
    with pytest.raises(ValueError, match="has a worker_process_setup_hook already"):
        faultline.ray_workers.runtime_env(recipe_file, base={"worker_process_setup_hook": "theirs"})
    with pytest.raises(ValueError, match="there is no such recipe"):
        faultline.ray_workers.runtime_env(tmp_path / "missing.yaml")


# --- verl -------------------------------------------------------------------------------------------------------------
def import_verl_module(**environment):
    variables = {**os.environ, "PYTHONPATH": PATH, "FAULTLINE_LIBRARY": str(faultline.library_path()), **environment}
    code = "import faultline_verl, torch\nx = torch.ones(4, 4) @ torch.ones(4, 4)\nprint(x.sum().item() != 64)"
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=LIMIT)


def test_verls_module_arms_and_a_plan_that_cannot_be_armed_ends_the_process(recipe_file, tmp_path):
    faulty = import_verl_module(FAULTLINE_RECIPE=str(recipe_file))
    assert faulty.returncode == 0 and faulty.stdout == "True\n" and "[fault fault] registered 1 sites" in faulty.stderr
    clean = import_verl_module()
    assert clean.returncode == 0 and clean.stdout == "False\n" and clean.stderr == ""
    wrong = write(tmp_path, "wrong.json", recipe(rule(where={"operator": "aten::admm"})))
    refused = import_verl_module(FAULTLINE_RECIPE=str(wrong))
    assert refused.returncode == 64 and refused.stdout == "" and "verl would have gone on without it" in refused.stderr


# --- triage -----------------------------------------------------------------------------------------------------------
MATRIX = """
schema_version: 1
workload: race
ranks: 2
trials: 3
steps: 3
warmup_trial: false
timeout_per_trial: 300
workload_config: {mode: fsdp, warmup_iterations: 0, fsdp_shard_size: 200, h2d_tensor_size: 100, compute_type: transformer,
  model_dim: 16, num_heads: 2, num_layers: 2, seq_len: 4, stop_on_first_corruption: false, timeout_seconds: 120,
  inject: {kind: bitflip, layer: 1, rank: 1, iteration: 1}}
cells: [{name: baseline}, {name: fixed, mitigations: [no-drill]}]
"""


def triage(cluster, folder, *more, address=None, program=PROGRAM):
    recipe_path = write(folder, "matrix.yaml", MATRIX)
    variables = {**os.environ, "RAY_ADDRESS": address or cluster.address, "FAULTLINE_PYTHON": sys.executable, "NO_COLOR": "1"}
    return subprocess.run([program, "triage", "run", "--recipe", recipe_path, "--out", folder / "out", "--executor", "ray", "--json", *more],
                          env=variables, capture_output=True, text=True, timeout=LIMIT)


def test_a_matrix_on_two_machines_is_the_matrix_of_one_and_goes_on_where_it_was(cluster, tmp_path):
    done = triage(cluster, tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    baseline, fixed = result["cells"]
    assert (baseline["failed"], baseline["valid"], fixed["failed"], fixed["valid"]) == (3, 3, 0, 3)
    assert result["ray"] == {"nodes": 2, "slots": 2, "lost": 0} and (result["ran"], result["resumed"]) == (6, 0)
    local = tmp_path / "local"
    here = subprocess.run([PROGRAM, "triage", "run", "--recipe", tmp_path / "matrix.yaml", "--out", local, "--json"], capture_output=True, text=True, timeout=LIMIT)
    assert [(cell["failed"], cell["valid"]) for cell in json.loads(here.stdout)["cells"]] == [(3, 3), (0, 3)]
    for cell in ("baseline", "fixed"):
        for index in range(3):
            one, other = (json.loads((folder / "trials" / cell / f"{index:04}.json").read_text()) for folder in (tmp_path / "out", local))
            assert one["seed"] == other["seed"] and one["verdict"] == other["verdict"] and one["result"]["evidence"] and one["outcome"] == other["outcome"]
    again = json.loads(triage(cluster, tmp_path).stdout)
    assert (again["ran"], again["resumed"]) == (0, 6)


def test_a_worker_that_dies_loses_its_task_which_can_be_asked_again(cluster, tmp_path):
    # A program that ends the worker above it, twice, before it does its work. Asking again is the runner's (Runner.* in C++).
    killer = tmp_path / "program"
    counter = tmp_path / "kills"
    killer.write_text(f"""#!{sys.executable}
import os, pathlib, signal, sys
counter = pathlib.Path({str(counter)!r})
kills = len(counter.read_text()) if counter.exists() else 0
if sys.argv[1] == "race" and kills < 2:
    counter.write_text("x" * (kills + 1))
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
os.execv({str(PROGRAM)!r}, [{str(PROGRAM)!r}, *sys.argv[1:]])
""")
    killer.chmod(0o755)
    script = pathlib.Path(faultline.__file__).with_name("ray_executor.py")
    travels = tmp_path / "travels"
    travels.mkdir()
    write(travels, "request.json", {"nonce": "n", "config": {"mode": "nonsense"}, "seed": "1", "ranks": 1, "transport": "threads", "device": "cpu"})
    task = {"folder": str(travels), "arguments": ["race", "--trial", "{folder}"], "input": "", "output": "", "wanted": ["response.json"], "directory": "", "variables": {}, "inherits": {"names": ["PATH"], "prefixes": [], "secrets": [], "no_secrets": []}, "processors": 1, "timeout": 300}
    helper = subprocess.Popen([sys.executable, script, killer], env={**os.environ, "RAY_ADDRESS": cluster.address}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(helper.stdout.readline())["nodes"] == 2
        answers = []
        for number in (5, 6, 7):
            helper.stdin.write(json.dumps({"id": number, **task}) + "\n")
            helper.stdin.flush()
            answers.append(json.loads(helper.stdout.readline()))
    finally:
        helper.stdin.close()
        assert helper.wait(timeout=LIMIT) == 0
    assert [(answer["id"], answer.get("lost", False), "status" in answer) for answer in answers] == [(5, True, False), (6, True, False), (7, False, True)]
    assert counter.read_text() == "xx"
    assert (travels / "log.txt").exists()


def test_no_cluster_and_no_ray_are_sentences(cluster, tmp_path):
    done = triage(cluster, tmp_path, address="127.0.0.1:1")
    assert done.returncode == 2 and "the Ray cluster cannot be reached (RAY_ADDRESS=127.0.0.1:1)" in done.stderr and done.stdout == ""
    variables = {**os.environ, "FAULTLINE_PYTHON": "/nonexistent/python"}
    done = subprocess.run([PROGRAM, "triage", "run", "--recipe", tmp_path / "matrix.yaml", "--out", tmp_path / "none", "--executor", "ray"], env=variables, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and "the Ray helper ended before it answered" in done.stderr
    done = subprocess.run([PROGRAM, "triage", "run", "--recipe", tmp_path / "matrix.yaml", "--executor", "rai"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 64 and "wanted local or ray, got 'rai'" in done.stderr


# --- campaigns and experiments ------------------------------------------------------------------------------------------
def on(cluster, *arguments, timeout=LIMIT, **variables):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "FAULTLINE_PYTHON": sys.executable, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([PROGRAM, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=timeout)


def test_a_campaign_on_two_machines_is_the_campaign_of_one_and_goes_on_where_it_was(cluster, tmp_path):
    import tiny_folder

    model = tmp_path / "model"
    tiny_folder.make(model, layers=2)

    def records(store, *arguments):
        recipe_path = write(tmp_path, "campaign.yaml", f"model: {model}\nseed: 1\ndiagnose: {{campaign: smoke, methods: [self], healthy: 2, rare: 0, store: {store}}}\n")
        done = on(cluster, "run", recipe_path, "--out", tmp_path, "--quiet", "--json", "--records", tmp_path / "records.jsonl", *arguments)
        assert done.returncode == 0, done.stderr
        found = {}
        for line in map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines()):
            line["outcome"]["self"].pop("seconds")
            found[line["cell"], line["index"]] = (line["seed"], line["outcome"], line["evidence"])
        return json.loads(done.stdout), found

    _, here = records("here.sqlite")
    _, few = records("there.sqlite", "--executor", "ray", "--time-limit", "0.001s")
    summary, there = records("there.sqlite", "--executor", "ray")
    assert there == here and len(here) == 11 and summary["ray"] == {"nodes": 2, "slots": 2, "lost": 0} and len(few) < len(here)
    refused = on(cluster, "run", tmp_path / "campaign.yaml", "--executor", "ray", "--jobs", "2")
    assert refused.returncode == 64 and "--jobs counts processes of this machine" in refused.stderr


def test_a_machine_with_other_weights_under_the_same_name_refuses(cluster, tmp_path):
    """As if the machines of the cluster had another model there: it is exchanged when the driver has read its own."""
    import tiny_folder

    model, other = tmp_path / "model", tmp_path / "other"
    tiny_folder.make(model, layers=2)
    tiny_folder.make(other, layers=2, seed=7)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncp {other}/model.safetensors {model}/new && mv {model}/new {model}/model.safetensors\nexec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    recipe_path = write(tmp_path, "campaign.yaml", f"model: {model}\nseed: 1\ndiagnose: {{campaign: smoke, methods: [self], healthy: 2, rare: 0, store: store.sqlite}}\n")
    done = on(cluster, "run", recipe_path, "--out", tmp_path, "--quiet", "--executor", "ray", FAULTLINE_PYTHON=str(python))
    assert done.returncode == 2 and f"{os.uname().nodename}: model '{model}' has other weights there than where the campaign was started" in done.stderr, done.stderr
    assert "11 trials could not be run" in done.stderr, "not one of them was counted"
    again = on(cluster, "run", recipe_path, "--out", tmp_path, "--quiet", "--json", "--executor", "ray")  # now both have the other model
    assert again.returncode == 0, again.stderr


EXPERIMENT = """
seed: 1
phases: {eval: both}
faults:
  - {name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}
train: {algorithm: grpo, lr: 1.0e-4}
experiment:
  question: does noise matter?
  control: clean
  seeds: 2
  arms:
    clean: {phases: {rollout: false, actor_forward: false, actor_backward: false, eval: both}}
    noisy: {}
"""


def stored(record):
    """What must be equal in equal experiments: no times, no folder names."""
    import sqlite3

    with sqlite3.connect(pathlib.Path(record) / "campaign.sqlite") as store:
        rows = store.execute("SELECT cell, trial_index, status, outcome, body FROM trial JOIN evidence ON evidence.trial = trial.id").fetchall()
    outcomes = [(cell, index, status, json.loads(outcome), json.loads(body)) for cell, index, status, outcome, body in rows]
    return {(cell, index): (status, outcome["results"], outcome["curves"]["reward"], evidence) for cell, index, status, outcome, evidence in outcomes}


def runs_of(record):
    import sqlite3

    with sqlite3.connect(record / "campaign.sqlite") as store:
        return [(status, json.loads(outcome)["run"]) for status, outcome in store.execute("SELECT status, outcome FROM trial")]


def test_an_experiment_on_two_machines_is_the_experiment_of_one_and_goes_on_where_it_was(cluster, tmp_path):
    recipe_path = write(tmp_path, "small.yaml", EXPERIMENT)
    common = ("run", recipe_path, "--scale", "tiny", "--json", "--quiet", "--out")
    here = on(cluster, *common, tmp_path / "here")
    assert here.returncode == 0, here.stderr
    part = on(cluster, *common, tmp_path / "there", "--executor", "ray", "--arms", "noisy", "--seeds", "1")
    assert part.returncode == 0, part.stderr
    assert len(stored(json.loads(part.stdout)["record"])) == 1
    whole = on(cluster, *common, tmp_path / "there", "--executor", "ray")
    assert whole.returncode == 0, whole.stderr
    result = json.loads(whole.stdout)
    with_runs = pathlib.Path(result["record"])
    for status, run in runs_of(with_runs):
        assert status == "pass" and (with_runs / "trials" / run / "manifest.json").exists(), run
        events = [json.loads(line) for line in (with_runs / "trials" / run / "events.jsonl").read_text().splitlines()]
        assert [event["step"] for event in events if event["kind"] == "step"] == [1, 2]
        assert json.loads((with_runs / "trials" / run / "summary.json").read_text())["complete"]
    assert result["left"] == 0 and result["analysis"]["ray"] == {"nodes": 2, "slots": 2, "lost": 0}
    one, other = stored(json.loads(here.stdout)["record"]), stored(result["record"])
    assert set(one) == {(arm, seed) for arm in ("clean", "noisy") for seed in (0, 1)} and other == one
    wrong = on(cluster, *common, tmp_path / "wrong", "--executor", "ray", "++experiment.arms.noisy={train.steps: 0}")
    assert wrong.returncode == 64 and "arm 'noisy'" in wrong.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupted_experiment_leaves_nothing_behind(cluster, tmp_path, how):
    recipe_path, scratch = write(tmp_path, "small.yaml", EXPERIMENT), tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "FAULTLINE_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    command = [PROGRAM, "run", recipe_path, "--scale", "tiny", "--quiet", "--out", tmp_path / "out", "--executor", "ray", "train.steps=100000"]
    process = subprocess.Popen([*map(str, command)], env=environment, stderr=subprocess.PIPE, text=True)
    here, there = (lambda: list(scratch.glob("faultline-*"))), (lambda: list(cluster.tasks.glob("faultline-task-*")))
    while process.poll() is None and not (here() and len(there()) >= 2):
        time.sleep(0.05)
    process.send_signal(how)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 2 and "interrupted; 0 trials of this call are kept in " in errors and "the same command goes on" in errors, errors
    assert here() == []
    while any(os.path.exists(f"/proc/{folder.name.split('-')[2]}") for folder in there()):  # Ray is ending its workers
        time.sleep(0.05)
    after = on(cluster, "run", recipe_path, "--scale", "tiny", "--quiet", "--out", tmp_path / "after", "--executor", "ray")
    assert after.returncode == 0 and there() == [], after.stderr
