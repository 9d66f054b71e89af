"""The claims of docs/security.md, one by one: recipes, records and model files are data; nothing leaves the output folder;
nothing listens where another machine could reach it; children and records get no secret."""

import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import pickle
import re
import shutil
import sqlite3
import stat
import subprocess
import sys

import pytest

import tiny_folder
import program
from program import ROOT
from triage_test import TINY as TRIAGE

launch = functools.partial(program.launch, timeout=600)  # a busy machine may be slow
SECRET = "hunter2-of-security-test"
EVAL = ["--dtype", "fp32", "--limit", "2", "--shots", "0", "--max-new-tokens", "4", "--slots", "2", "--json", "--quiet"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("security") / "model")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    path = tmp_path_factory.mktemp("probe") / "libprobe.so"
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", "-O1", "-o", path, ROOT / "tests/security_probe.cpp", "-ldl"], check=True)
    return path


def probed(probe, log, *arguments, env=None):
    done = launch(*arguments, env={"LD_PRELOAD": str(probe), "FAULTLINE_PROBE_LOG": str(log), **(env or {})})
    assert done.returncode in (0, 1), done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split(" ", 1) for line in lines]


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


# --- no shell, no code --------------------------------------------------------------------------------------------------
# (where, what must not be there): a shell, or code that arrives as data
FORBIDDEN = [
    ("src/**/*.cpp", re.compile(r"(?<![\w:.>])(?:std::)?system\s*\(|\bpopen\s*\(|\bexecl[pe]?\s*\(|\bexecvp\s*\(|/bin/sh|\bwordexp\s*\(")),
    ("python/**/*.py", re.compile(r"os\.system|os\.popen|shell\s*=\s*True|pickle\.load|torch\.load|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load\(")),
]
PLANTED = {"src/**/*.cpp": ['std::system("ls");', 'FILE* f = popen(command, "r");', 'execl("/bin/sh", "sh", "-c", x, nullptr);'], "python/**/*.py": ["os.system(x)", "run(x, shell=True)", "torch.load(f)", "eval(text)"]}
# The Python that the user's PATH or PYTHON names, for --executor ray, and the command behind `triage run … --`; no recipe can
# name either.
ALLOWED = {("src/trials/ray_executor.cpp", "execvp("), ("src/triage/command_trial.cpp", "execvp(")}
STRINGS_AND_COMMENTS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')


@pytest.mark.parametrize("pattern, forbidden", FORBIDDEN, ids=["cpp", "python"])
def test_no_source_runs_a_shell_or_code_that_arrives_as_data(pattern, forbidden):
    for planted in PLANTED[pattern]:
        assert forbidden.search(planted), planted
    files = [path for path in ROOT.glob(pattern) if not path.name.endswith(("_test.cpp", "_fuzz.cpp"))]
    assert files
    for path in files:
        text = path.read_text()
        if path.suffix == ".cpp":
            text = STRINGS_AND_COMMENTS.sub('""', text)
        for found in forbidden.finditer(text):
            assert (path.relative_to(ROOT).as_posix(), found.group()) in ALLOWED, f"{path}: {found.group()}"


def test_a_name_is_never_a_command(model, tmp_path):
    marks = [tmp_path / f"mark{i}" for i in range(3)]
    recipe = tmp_path / f"$(touch mark0)`touch mark1`; touch mark2 '\".yaml"
    recipe.write_text(
        f"model: {model}\ntask: {{name: arithmetic, difficulty: 1}}\nevaluate: {{limit: 2, max_new_tokens: 4, slots: 2}}\n"
        "faults: [{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.3}}]\n"
    )
    done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "runs", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    record = pathlib.Path(json.loads(done.stdout)["record"])
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", record.name) and record.parent == tmp_path / "runs"
    assert launch("report", record).returncode == 0
    assert launch("reproduce", record, "--out", tmp_path / "again").returncode == 0
    assert not any(mark.exists() or (ROOT / mark.name).exists() for mark in marks)


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return pathlib.Path.touch, (self.mark,)


def test_a_pickled_checkpoint_is_refused_and_not_run(model, tmp_path):
    folder, mark = tmp_path / "model", tmp_path / "mark"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark)))
    done = launch("eval", "--model", folder, *EVAL)
    assert done.returncode == 64 and "safetensors" in done.stderr
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert mark.exists(), "the planted code does run where pickles are loaded"
    mark.unlink()
    launch("generate", "hello", "--model", folder)
    assert not mark.exists()


def test_a_chat_template_is_recognised_and_never_run(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    template = "{% for m in range(10**9) %}{{ ''.__class__.__mro__[1].__subclasses__() }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    done = launch("eval", "--model", folder, *EVAL)
    assert done.returncode in (0, 64), done.stderr
    assert "__subclasses__" not in done.stdout and "object at" not in done.stdout


def test_temporary_names_cannot_be_foreseen():
    users = [path for path in (ROOT / "src").rglob("*.cpp") if "temp_directory_path()" in path.read_text() and not path.name.endswith(("_test.cpp", "_fuzz.cpp"))]
    assert users
    for path in users:
        text = path.read_text()
        assert text.count("temp_directory_path()") == text.count("-XXXXXX") == text.count("::mkdtemp("), path


# --- paths --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "a/../../escape", "..", ".hidden", "-rf"])
@pytest.mark.parametrize("place", ["name", "cells.0.name"])
def test_names_in_a_recipe_cannot_leave_the_folder(tmp_path, name, place):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TRIAGE % 1)
    done = launch("triage", "run", "--recipe", recipe, "--out", tmp_path / "out", "--dry-run", f"+{place}='{name}'" if place == "name" else f"{place}='{name}'")
    assert done.returncode == 64 and "no safe name" in done.stderr
    assert files_below(tmp_path) == {"recipe.yaml"}


def test_names_of_arms_cannot_leave_the_folder(model, tmp_path):
    recipe = tmp_path / "in" / "arms.yaml"
    recipe.parent.mkdir()
    recipe.write_text(
        f"model: {model}\ntask: {{name: arithmetic, difficulty: 1, train: 8, test: 2}}\n"
        "train: {algorithm: grpo, steps: 1, prompts: 1, n: 2, max_new_tokens: 2, validation_problems: 1, checkpoint_every: 0}\n"
        "experiment: {seeds: 1, arms: {'../../../escape': {}}}\n"
    )
    done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "deep" / "runs", "--json", "--quiet")
    assert done.returncode in (0, 64), done.stderr
    assert {path.split("/")[0] for path in files_below(tmp_path)} <= {"in", "deep"}
    assert {path.split("/")[1] for path in files_below(tmp_path / "deep") if "/" in path} <= {child.name for child in (tmp_path / "deep" / "runs").glob("*")}


CAMPAIGN = "{{model: {model}, seed: 1, diagnose: {{campaign: smoke, methods: [self], healthy: 1, trials: 0, rare: 0, fading: 0, store: '{store}'}}}}"


@pytest.mark.parametrize("name", ["../escape.sqlite", "/tmp/escape.sqlite", "a/b.sqlite", "..", ".bashrc", "-rf", "a b"])
def test_the_store_of_a_recipe_is_a_name_and_no_path(model, tmp_path, name):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(CAMPAIGN.format(model=model, store=name))
    for more in ([], ["--summarise"]):
        done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "out", "--quiet", *more)
        assert done.returncode == 64 and "diagnose.store" in done.stderr and "no plain name" in done.stderr and "--out" in done.stderr, done.stderr
    assert files_below(tmp_path) == {"recipe.yaml"}


def test_the_store_of_a_recipe_lies_in_the_output_folder_or_here(model, tmp_path):
    recipe, here = tmp_path / "recipe.yaml", tmp_path / "here"
    recipe.write_text(CAMPAIGN.format(model=model, store="campaign.sqlite"))
    here.mkdir()
    for out, folder in ([], here), (["--out", tmp_path / "out"], tmp_path / "out"):
        words = [program.PROGRAM, "run", recipe, "--dtype", "fp32", "--quiet", *out]
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 and "campaign.sqlite" in files_below(folder), done.stderr
        assert subprocess.run([*words, "--summarise"], cwd=here, capture_output=True, timeout=600).returncode == 0
    assert "campaign.sqlite" not in files_below(tmp_path)


def resealed(record, manifest):
    """Somebody edits a record and writes the hashes that the refusals tell."""
    for _ in range(4):
        (record / "manifest.json").write_text(json.dumps(manifest))
        done = launch("reproduce", record, "--out", record.parent / "again", "--json")
        seal, recipe = re.search(r"its content has (\w+);", done.stderr), re.search(r"hash: wanted (\w+) for the recipe", done.stderr)
        if recipe:
            manifest["hash"] = recipe.group(1)
        elif seal:
            manifest["seal"] = seal.group(1)
        else:
            break
    return done


@pytest.mark.parametrize("section", ["diagnose", "experiment"])
def test_a_record_makes_reproduce_do_nothing_but_repeat_it(model, tmp_path, section):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model: {model}\ntask: {{name: arithmetic, difficulty: 1}}\nevaluate: {{limit: 2, max_new_tokens: 4, slots: 2}}\n"
        "faults: [{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.3}}]\n"
    )
    done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "runs", "--json", "--quiet")
    record = pathlib.Path(json.loads(done.stdout)["record"])
    manifest = json.loads((record / "manifest.json").read_text())
    manifest["recipe"][section] = {"diagnose": {"campaign": "smoke", "trials": 0, "store": "x.sqlite"}, "experiment": {"seeds": 1, "arms": {"a": {}}}}[section]
    before = files_below(tmp_path)
    done = resealed(record, manifest)
    assert done.returncode == 64 and f"has a section {section}" in done.stderr, done.stderr
    assert files_below(tmp_path) - before <= {"runs/again"}


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "sub/../../outside.safetensors", ""])
def test_shards_of_a_model_cannot_lie_outside_its_folder(model, tmp_path, shard):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    shutil.move(folder / "model.safetensors", tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    done = launch("eval", "--model", folder, *EVAL)
    assert done.returncode == 64 and "weight_map" in done.stderr, done.stderr


def test_what_a_record_says_is_text_on_its_page(model, tmp_path):
    recipe = tmp_path / "<img src=x onerror=alert(1)>.yaml"
    recipe.write_text(
        f"model: {model}\ntask: {{name: arithmetic, difficulty: 1}}\nevaluate: {{limit: 2, max_new_tokens: 4, slots: 2}}\n"
        "faults: [{name: '<script>alert(2)</script>', where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.3}}]\n"
    )
    done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "runs", "--json", "--quiet")
    if done.returncode == 64:  # such a rule's name is refused: nothing reaches a page
        assert "name" in done.stderr
        recipe.write_text(recipe.read_text().replace("'<script>alert(2)</script>'", "noise"))
        done = launch("run", recipe, "--dtype", "fp32", "--out", tmp_path / "runs", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    record = pathlib.Path(json.loads(done.stdout)["record"])
    assert launch("report", record).returncode == 0
    page = (record / "report.html").read_text()
    assert "<img src=x" not in page and "<script>alert" not in page
    assert "&lt;img src=x" in page or "img_src_x" in page


# --- sockets ------------------------------------------------------------------------------------------------------------
def test_nothing_listens_but_ranks_on_loopback(model, probe, tmp_path):
    assert [kind for kind, _ in probed(probe, tmp_path / "eval", "eval", "--model", model, *EVAL)] == []
    assert [kind for kind, _ in probed(probe, tmp_path / "threads", "race", "--ranks", "2", "verify_iterations=2")] == []
    lines = probed(probe, tmp_path / "gloo", "race", "--ranks", "2", "--transport", "gloo", "verify_iterations=2", "timeout_seconds=60")
    bound = [text for kind, text in lines if kind == "bind"]
    assert len(bound) >= 3, "the store and two ranks"
    assert set(bound) <= {"127.0.0.1", "::1"}, bound
    for address in ("127.0.0.1", "localhost"):  # started by somebody else, as torchrun and srun do
        ranked = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": address, "MASTER_PORT": str(program.free_port())}
        lines = probed(probe, tmp_path / f"joined-{address}", "race", "verify_iterations=2", "timeout_seconds=60", env=ranked)
        bound = [text for kind, text in lines if kind == "bind"]
        assert len(bound) >= 2 and set(bound) <= {"127.0.0.1", "::1"}, bound


# --- environments and secrets ---------------------------------------------------------------------------------------------
AMBIENT = {"HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "NCCL_MY_PASSWORD": SECRET, "SOMETHING_ELSE": SECRET, "NCCL_DEBUG": "WARN", "FAULTLINE_TEST_TOKEN": SECRET}


def child_environment(lines):
    assert any(kind == "child" for kind, _ in lines)
    return dict(text.split("=", 1) for kind, text in lines if kind == "env" and "=" in text)


ONE_CELL = (TRIAGE % 1).replace(", {name: fixed, mitigations: [no-drill]}, {name: unread, mitigations: [ll-protocol]}", "")
EXPERIMENT = """
phases: {eval: both}
faults: [{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}]
train: {algorithm: grpo, lr: 1.0e-4}
experiment: {control: clean, seeds: 1, arms: {clean: {phases: {rollout: false, actor_forward: false, actor_backward: false, eval: both}}, noisy: {}}}
"""


def test_trials_and_ranks_get_a_listed_environment(probe, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(ONE_CELL.replace("{name: baseline}", "{name: baseline, extra_env: {NCCL_PROTO: LL}}"))
    trial = child_environment(probed(probe, tmp_path / "trial", "triage", "run", "--recipe", recipe, "--out", tmp_path / "out", env=AMBIENT))
    assert trial["NCCL_PROTO"] == "LL" and trial["NCCL_DEBUG"] == "WARN" and "PATH" in trial
    rank = child_environment(probed(probe, tmp_path / "rank", "race", "--ranks", "2", "--transport", "gloo", "verify_iterations=2", "timeout_seconds=60", env=AMBIENT))
    assert rank["WORLD_SIZE"] == "2" and rank["NCCL_DEBUG"] == "WARN"
    for environment in (trial, rank):
        assert SECRET not in "".join(environment.values()) and "SOMETHING_ELSE" not in environment


def test_workers_get_a_listed_environment(model, probe, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(EXPERIMENT)
    ambient = {**AMBIENT, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    campaign = ["diagnose", "--model", model, "--campaign", "smoke", "--method", "self", "--store", tmp_path / "s.sqlite", "--jobs", "2", "--time-limit", "1s", "--quiet"]
    experiment = ["run", recipe, "--scale", "tiny", "--out", tmp_path / "runs", "--jobs", "2", "--quiet"]
    for name, words in ("campaign", campaign), ("experiment", experiment):
        environment = child_environment(probed(probe, tmp_path / name, *words, env=ambient))
        assert SECRET not in "".join(environment.values()) and "SOMETHING_ELSE" not in environment, name
        needed = {"PATH", "HOME", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "OMP_NUM_THREADS"} | ({"LD_LIBRARY_PATH"} & set(os.environ))
        assert needed <= set(environment), name


# A Ray of one worker without Ray: the helper's own functions, and what a worker could answer instead.
WITHOUT_RAY = """#!{python}
import importlib.util, json, pathlib, sqlite3, sys
spec = importlib.util.spec_from_file_location("ray_executor", sys.argv[1])
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
def answer(text):
    print(json.dumps(text), flush=True)
answer({{"id": 0, "slots": 1, "nodes": 1}})
for line in sys.stdin:
    request = json.loads(line)
    said, files = helper.run_task(sys.argv[2], request, helper.contents(pathlib.Path(request["folder"])))
    {tamper}
    answer({{**helper.take(said, files, request), "id": request["id"]}})
"""


def without_ray(folder, tamper="pass"):
    python = folder / "python"
    python.write_text(WITHOUT_RAY.format(python=sys.executable, tamper=tamper))
    python.chmod(0o755)
    return {"FAULTLINE_PYTHON": str(python)}


def ray_executor():
    spec = importlib.util.spec_from_file_location("ray_executor", ROOT / "python/faultline/ray_executor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_task_of_a_cluster_gets_a_listed_environment(probe, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(ONE_CELL)
    ambient = {**AMBIENT, **without_ray(tmp_path), "RAY_AUTH_TOKEN": SECRET, "MASTER_ADDR": "1.2.3.4", "NCCL_IB_PKEY": "7"}
    task = child_environment(probed(probe, tmp_path / "task", "triage", "run", "--recipe", recipe, "--out", tmp_path / "out", "--executor", "ray", env=ambient))
    assert task["NCCL_DEBUG"] == "WARN" and task["NCCL_IB_PKEY"] == "7" and "PATH" in task
    assert SECRET not in "".join(task.values()) and not {"SOMETHING_ELSE", "MASTER_ADDR"} & set(task)


def test_a_worker_answers_with_what_was_asked_for(tmp_path):
    take, request = ray_executor().take, {"folder": str(tmp_path / "task"), "wanted": ["a/b.json"]}
    for name in ("../escape", "/tmp/escape", "a/../../escape", "other"):
        with pytest.raises(ValueError, match="which nobody asked for"):
            take({"status": 0}, {"log.txt": b"", name: b"x"}, request)
    for answer in ({"id": 5}, {"status": "0"}, {"lost": 3}, {"error": 5}):
        with pytest.raises(ValueError, match="a worker answered"):
            take(answer, {}, request)
    assert files_below(tmp_path) == set()
    assert take({"status": 0, "seconds": 1.5}, {"log.txt": b"", "a/b.json": b"x"}, request) == {"status": 0, "seconds": 1.5}
    assert files_below(tmp_path) == {"task", "task/log.txt", "task/a", "task/a/b.json"}


TAMPER_RUN = """
    place = pathlib.Path({place!r})
    place.write_bytes(files["experiment/campaign.sqlite"])
    store = sqlite3.connect(place)
    (text,) = store.execute("select outcome from trial").fetchone()
    store.execute("update trial set outcome = ?", (json.dumps({{**json.loads(text), "run": {run!r}}}),))
    store.commit()
    store.close()
    files["experiment/campaign.sqlite"] = place.read_bytes()
"""


@pytest.mark.parametrize("name", ["../../escape", "/escape", ""])
def test_a_worker_cannot_choose_where_its_run_is_put(tmp_path, name):
    recipe, scratch = tmp_path / "recipe.yaml", tmp_path / "scratch"
    recipe.write_text(EXPERIMENT)
    scratch.mkdir()
    name = str(scratch / "escape") if name == "/escape" else name
    fake = without_ray(tmp_path, TAMPER_RUN.format(place=str(tmp_path / "store"), run=name).strip())
    done = launch("run", recipe, "--scale", "tiny", "--out", tmp_path / "runs", "--executor", "ray", "--quiet", "--arms", "clean", env={**fake, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2 and "which is no folder below trials/" in done.stderr and "please report" not in done.stderr, done.stderr
    assert files_below(scratch) == set()


def listeners(mark):
    """Addresses where processes listen whose environment holds the mark, as /proc/net writes them."""
    sockets = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                sockets |= {os.readlink(file) for file in (process / "fd").iterdir()}
    rows = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_a_cluster_of_our_own_is_for_nobody_else(tmp_path):
    pytest.importorskip("ray")
    mark = f"FAULTLINE_MARK_OF_SECURITY_TEST={tmp_path}"
    hidden = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_local_fs_capacity_threshold": "1"}
    variables = {**hidden, **quiet, **dict([mark.split("=", 1)])}
    helper = subprocess.Popen([sys.executable, ROOT / "python/faultline/ray_executor.py", "/bin/true"], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        hello = json.loads(helper.stdout.readline())
        assert hello.get("nodes") == 1, hello
        addresses = listeners(mark)
        assert addresses and addresses <= LOOPBACK, addresses
        folders = [path for place in ("/tmp", os.environ.get("TMPDIR", "/tmp")) for path in pathlib.Path(place).glob("faultline-ray-*")]
        assert folders and all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in folders)
        environments = [(process / "environ").read_bytes() for process in pathlib.Path("/proc").glob("[0-9]*") if named(process, mark, b"raylet")]
        assert environments and all(b"RAY_AUTH_MODE=token" in text and re.search(rb"RAY_AUTH_TOKEN=\w{64}", text) for text in environments)
    finally:
        helper.stdin.close()
        assert helper.wait(timeout=300) == 0


def named(process, mark, name):
    with contextlib.suppress(OSError):
        return mark.encode() in (process / "environ").read_bytes() and name in (process / "cmdline").read_bytes().split(b"\0")[0]
    return False


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LD_PRELOAD", "/tmp/x.so", "must not choose code"),
        ("PATH", "/tmp", "must not choose code"),
        ("PYTHONPATH", "/tmp", "must not choose code"),
        ("NCCL_NET_PLUGIN", "/tmp/x.so", "would load code"),
        ("CUDA_INJECTION64_PATH", "/tmp/x.so", "would load code"),
        ("NCCL_CUDA_PATH", "/tmp/evil", "would load code"),
        ("HSA_TOOLS_LIB", "evil.so", "would load code"),
        ("FI_PROVIDER_PATH", "/tmp", "would load code"),
        ("UCX_MODULE_DIR", "/tmp", "would load code"),
        ("OMP_TOOL_LIBRARIES", "/tmp/x.so", "would load code"),
        ("NCCL_DEBUG_FILE", "/tmp/x", "write files"),
        ("CUDA_COREDUMP_FILE", "x", "write files"),
        ("FAULTLINE_LIBRARY", "x.so", "of ours a recipe may set"),
        ("FAULTLINE_PYTHON", "x", "of ours a recipe may set"),
        ("LD_LIBRARY_PATH", "x", "must not choose code"),
        ("ld_audit", "x", "must not choose code"),
        ("BASH_ENV", "x", "must not choose code"),
        ("NODE_OPTIONS", "x", "must not choose code"),
        ("CC", "x", "must not choose code"),
        ("MY_TOOL", "/tmp/x", "would load code"),
        ("MY_MODE", "--exec x", "no plain setting"),
        ("HTTPS_PROXY", "x", "a machine to talk to"),
        ("RAY_ADDRESS", "x", "a machine to talk to"),
        ("NCCL_API_KEY", "x", "looks like a secret"),
        ("NCCL_MYPASSWORD", "x", "looks like a secret"),
        ("NCCL_ApiKey", "x", "looks like a secret"),
        ("MASTER_ADDR", "1.2.3.4", "belongs to the launcher"),
    ],
)
def test_a_recipe_sets_runtime_settings_and_no_code(tmp_path, variable, value, says):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TRIAGE % 1)
    for change in (f"+cells.0.extra_env={{{variable}: '{value}'}}", f"+mitigations={{mine: {{env: {{{variable}: '{value}'}}}}}}"):
        done = launch("triage", "run", "--recipe", recipe, "--dry-run", change)
        assert done.returncode == 64 and says in done.stderr, done.stderr


def test_a_recipe_or_a_record_chooses_no_command(tmp_path):
    recipe, mark = tmp_path / "recipe.yaml", tmp_path / "mark"
    probe = "mode: probe\ntrials: 1\nmitigation_axis: [none]\ndiagnostic_axis: [none]\n"
    for text in (probe, probe + f"command: [touch, {mark}]\n", f"workload: command\ncommand: [touch, {mark}]\ncells: [{{name: a}}]\n"):
        recipe.write_text(text)
        assert launch("triage", "run", "--recipe", recipe, "--out", tmp_path / "out").returncode == 64
    recipe.write_text(probe)
    assert launch("triage", "run", "--recipe", recipe, "--out", tmp_path / "ran", "--quiet", "--", "touch", mark).returncode == 0
    assert mark.exists()
    mark.unlink()
    done = launch("reproduce", tmp_path / "ran", "--out", tmp_path / "again")
    assert done.returncode == 64 and "a record chooses none" in done.stderr and not mark.exists()


def test_no_secret_reaches_a_record(model, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((TRIAGE % 1).replace(", {name: fixed, mitigations: [no-drill]}, {name: unread, mitigations: [ll-protocol]}", ""))
    done = launch("eval", "--model", model, *EVAL, "--out", tmp_path / "runs", env=AMBIENT)
    assert done.returncode == 0, done.stderr
    record = pathlib.Path(json.loads(done.stdout)["record"])
    assert launch("race", "--ranks", "2", "verify_iterations=2", "--out", tmp_path / "race.json", env=AMBIENT).returncode == 0
    assert launch("triage", "run", "--recipe", recipe, "--out", tmp_path / "matrix", env=AMBIENT).returncode == 0
    environment = json.loads((record / "provenance.json").read_text())["environment"]
    assert environment["FAULTLINE_TEST_TOKEN"] == "(redacted)" and environment["NCCL_DEBUG"] == "WARN"
    assert "HF_TOKEN" not in environment
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path


# --- somebody's stores --------------------------------------------------------------------------------------------------
JUNK = [None, 5, "x", [], {}, [{}], {"a": 1}]


def edit(store, statement, *values):
    with contextlib.closing(sqlite3.connect(store)) as database:
        database.execute(statement, values)
        database.commit()


def test_a_damaged_store_of_a_triage_is_a_sentence(tmp_path):
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe.write_text(ONE_CELL)
    words = ["triage", "run", "--recipe", recipe, "--out", out, "--quiet"]
    assert launch(*words).returncode in (0, 1)
    with contextlib.closing(sqlite3.connect(out / "campaign.sqlite")) as database:
        (outcome, body), = database.execute("select outcome, body from trial join evidence on evidence.trial = trial.id").fetchall()
    outcome, body = json.loads(outcome), json.loads(body)
    damaged = [(junk, body) for junk in JUNK] + [({**outcome, "seconds": "x"}, body), (outcome, {"result": 5, "log": ""}), (outcome, {**body, "log": 5})]
    damaged += [(outcome, {**body, "result": {**body["result"], "evidence": junk}}) for junk in (None, 5, [5], [{}], [{"events": {"count": "x"}}])]
    for first, second in damaged:
        edit(out / "campaign.sqlite", "update trial set outcome = ?", json.dumps(first))
        edit(out / "campaign.sqlite", "update evidence set body = ?", json.dumps(second))
        done = launch(*words)
        assert done.returncode == 2 and "campaign.sqlite: trial 0 of cell 'baseline' cannot be read" in done.stderr, (first, done.stderr)
        assert "internal" not in done.stderr and "restore it from a copy" in done.stderr


def test_a_damaged_store_of_a_campaign_is_a_sentence(model, tmp_path):
    store = tmp_path / "s.sqlite"
    done = launch("diagnose", "--model", model, "--campaign", "smoke", "--method", "self", "--store", store, "--time-limit", "0.001s", "--quiet")
    assert done.returncode == 0, done.stderr
    record = {"cell": "a", "index": 0, "seed": "1", "status": "pass", "started": 0, "finished": 1, "fingerprint": "f", "evidence": {}}
    for outcome in ({"self": 5}, {"self": None}, {"self": {"changed": "x"}}, {"inactive": "x"}, {"self": {"found": True, "kind": 7}}, {"planted_kind": 5, "self": {}}):
        edit(store, "update trial set cell = 'a' || id, outcome = ?", json.dumps(outcome))
        (tmp_path / "r.jsonl").write_text(json.dumps({**record, "outcome": outcome}) + "\n")
        for file in (store, tmp_path / "r.jsonl"):
            done = launch("diagnose", "--summarise", file)
            assert done.returncode == 2 and str(file) in done.stderr and "no outcome of a diagnosis" in done.stderr, (outcome, done.stderr)
            assert "please report" not in done.stderr
    edit(store, "update trial set outcome = '[]'")
    done = launch("diagnose", "--summarise", store)
    assert done.returncode == 2 and "please report" not in done.stderr, done.stderr
    (tmp_path / "s.sqlite.provenance.json").write_text((tmp_path / "s.sqlite.provenance.json").read_text().replace('"recipe"', '"receipt"'))
    for words in (["reproduce", store, "--out", tmp_path / "again"], ["diagnose", "--model", model, "--campaign", "smoke", "--method", "self", "--store", store]):
        done = launch(*words)
        assert done.returncode in (2, 64) and "please report" not in done.stderr, done.stderr


def test_reading_changes_nobodys_database(tmp_path):
    cookies = tmp_path / "cookies.sqlite"
    edit(cookies, "create table mine(x)")
    before = cookies.read_bytes()
    for words in (["diagnose", "--summarise", cookies], ["report", cookies, "-o", tmp_path / "page.html"], ["reproduce", cookies, "--out", tmp_path / "again"]):
        launch(*words)
        assert cookies.read_bytes() == before and not {"cookies.sqlite-wal", "cookies.sqlite-shm"} & files_below(tmp_path), words


# --- the document -----------------------------------------------------------------------------------------------------------
def test_every_claim_names_tests_that_exist():
    from lessons_test import existing

    rows = re.findall(r"^\| (\d+) \| (.+) \| ([^|]*) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 16
    names = existing()
    for number, _, tests in rows:
        named = re.findall(r"`([^`]+)`", tests)
        assert named, number
        assert [name for name in named if name not in names] == [], number
