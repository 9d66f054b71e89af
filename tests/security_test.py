"""The claims of docs/security.md, one by one: recipes, records and model files are data; nothing leaves the output folder;
nothing listens where another machine could reach it; children and records get no secret."""

import functools
import json
import pathlib
import pickle
import re
import shutil
import subprocess

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
# The Python that the user's PATH or PYTHON names, for --executor ray; no recipe can name one.
ALLOWED = {("src/cluster/ray_cluster.cpp", "execvp(")}
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


# --- environments and secrets ---------------------------------------------------------------------------------------------
AMBIENT = {"HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "NCCL_MY_PASSWORD": SECRET, "SOMETHING_ELSE": SECRET, "NCCL_DEBUG": "WARN", "FAULTLINE_TEST_TOKEN": SECRET}


def child_environment(lines):
    assert any(kind == "child" for kind, _ in lines)
    return dict(text.split("=", 1) for kind, text in lines if kind == "env" and "=" in text)


def test_trials_and_ranks_get_a_listed_environment(probe, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text((TRIAGE % 1).replace(", {name: fixed, mitigations: [no-drill]}, {name: unread, mitigations: [ll-protocol]}", "").replace("{name: baseline}", "{name: baseline, extra_env: {NCCL_PROTO: LL}}"))
    trial = child_environment(probed(probe, tmp_path / "trial", "triage", "run", "--recipe", recipe, "--out", tmp_path / "out", env=AMBIENT))
    assert trial["NCCL_PROTO"] == "LL" and trial["NCCL_DEBUG"] == "WARN" and "PATH" in trial
    rank = child_environment(probed(probe, tmp_path / "rank", "race", "--ranks", "2", "--transport", "gloo", "verify_iterations=2", "timeout_seconds=60", env=AMBIENT))
    assert rank["MASTER_ADDR"] == "127.0.0.1" and rank["NCCL_DEBUG"] == "WARN"
    for environment in (trial, rank):
        assert SECRET not in "".join(environment.values()) and "SOMETHING_ELSE" not in environment


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LD_PRELOAD", "/tmp/x.so", "must not choose code"),
        ("PATH", "/tmp", "must not choose code"),
        ("PYTHONPATH", "/tmp", "must not choose code"),
        ("NCCL_NET_PLUGIN", "/tmp/x.so", "would load code"),
        ("CUDA_INJECTION64_PATH", "/tmp/x.so", "would load code"),
        ("NCCL_API_KEY", "x", "looks like a secret"),
        ("MASTER_ADDR", "1.2.3.4", "belongs to the launcher"),
    ],
)
def test_a_recipe_sets_runtime_settings_and_no_code(tmp_path, variable, value, says):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TRIAGE % 1)
    for change in (f"+cells.0.extra_env={{{variable}: '{value}'}}", f"+mitigations={{mine: {{env: {{{variable}: '{value}'}}}}}}"):
        done = launch("triage", "run", "--recipe", recipe, "--dry-run", change)
        assert done.returncode == 64 and says in done.stderr, done.stderr


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
