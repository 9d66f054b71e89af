"""Ten runs at once share nothing by accident: ports, temporary names, folders. Two on one run directory: the second is
refused while the first lives."""

import concurrent.futures
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import tiny_folder
import program
from program import PROGRAM, ROOT

sys.path.insert(0, str(pathlib.Path(__file__).parent / "crash"))
import harness  # noqa: E402

launch = functools.partial(program.launch, timeout=600)  # a busy machine may be slow
EVAL = ["--dtype", "fp32", "--limit", "4", "--shots", "0", "--max-new-tokens", "6", "--slots", "4", "--fault", "relative_gaussian(strength=0.3) @ operator=matmul", "--json", "--quiet"]
TRAIN = ["train.steps=2", "train.sft.steps=1", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.validation_problems=2", "--dtype", "fp32", "--json", "--quiet"]
GLOO = ["race", "--ranks", "2", "--transport", "gloo", "verify_iterations=3", "stop_on_first_corruption=false", "timeout_seconds=120", "inject={kind: bitflip, layer: 1, rank: 1, iteration: 1}", "--json"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("concurrency") / "model")


def answers(record):
    return [{key: value for key, value in json.loads(line).items() if key not in ("crc", "times")} for line in (pathlib.Path(record) / "events.jsonl").read_text().splitlines()]


def test_ten_runs_at_once_are_ten_runs_alone(model, tmp_path):
    evaluation = ["eval", "--model", model, *EVAL]
    training = ["train", ROOT / "recipes/train/tiny.yaml", f"model={model}", *TRAIN]
    alone = [launch(*evaluation, "--out", tmp_path / "alone"), launch(*training, "--out", tmp_path / "alone")]
    assert all(done.returncode == 0 for done in alone), alone
    evaluated, trained = (json.loads(done.stdout)["record"] for done in alone)
    together = tmp_path / "together"  # one folder for all of them, and the same second: names must still differ
    commands = [[*evaluation, "--out", together]] * 4 + [[*training, "--out", together]] * 3 + [GLOO] * 3
    with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
        done = list(pool.map(lambda words: launch(*words), commands))
    assert [one.returncode for one in done] == [0] * 7 + [1] * 3, [one.stderr for one in done]
    results = [json.loads(one.stdout) for one in done]
    records = [one["record"] for one in results[:7]]
    assert len(set(records)) == 7 and {pathlib.Path(record).parent for record in records} == {together}
    assert sorted(path.name for path in together.iterdir()) == sorted(pathlib.Path(record).name for record in records), "nothing else is left there"
    assert all(answers(record) == answers(evaluated) for record in records[:4])
    assert all(answers(record) == answers(trained) for record in records[4:])
    for race in results[7:]:
        assert race["verdict"] == "fail" and race["iterations"] == 3 and len(race["evidence"]) == 2 and race["failures"] == []


def test_a_run_directory_in_use_is_refused(model, tmp_path):
    library, out, count = harness.build_library(tmp_path), tmp_path / "out", tmp_path / "count"
    words = ["train", ROOT / "recipes/train/tiny.yaml", f"model={model}", *TRAIN, "--out"]
    assert harness.run([*words, tmp_path / "alone"], tmp_path / "alone", library, count=count).code == 0
    half = int(count.read_text()) // 2
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAULTLINE_CRASH_FOLDER": str(out), "FAULTLINE_CRASH_HOW": "stop", "FAULTLINE_CRASH_AT": str(half)}
    first = subprocess.Popen([PROGRAM, *map(str, [*words, out])], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    _, status = os.waitpid(first.pid, os.WUNTRACED)  # it stands still in the middle of its run, without any clock
    try:
        assert os.WIFSTOPPED(status), "the run was over before half of its writes"
        (run,) = [path for path in out.iterdir() if not path.name.startswith(".")]
        second = launch("train", "--resume", run, "--json", "--quiet")
        assert second.returncode == 2 and f"in use by process {first.pid}" in second.stderr
        assert launch("report", run, "-o", tmp_path / "page.html").returncode == 0, "a run in progress may be read"
    finally:
        os.kill(first.pid, signal.SIGCONT)
        _, error = first.communicate(timeout=600)
    assert first.returncode == 0, error
