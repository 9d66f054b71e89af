"""kill -9 at random moments of a training, then resume: the same final weights and events, bit for bit. FAULTLINE_KILLS sets
how many kills there must be (the suite's default is small; the long version is 50)."""

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import tiny_folder
from program import PROGRAM, ROOT, launch

KILLS = int(os.environ.get("FAULTLINE_KILLS", "4"))
RECIPE = ["train.steps=6", "train.checkpoint_every=1", "train.prompts=2", "train.n=2", "train.micro_batch=4", "train.validation_problems=2"]


def events(record):
    lines = [json.loads(line) for line in (pathlib.Path(record) / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("crc", "times")} for line in lines]


def state(record):
    newest = sorted((pathlib.Path(record) / "checkpoints").iterdir())[-1]
    return newest.name, (newest / "state.safetensors").read_bytes()


def finished(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_run_killed_at_any_moment_resumes_to_the_bit(tmp_path):
    model = tiny_folder.make(tmp_path / "model")
    command = ["train", str(ROOT / "recipes/train/tiny.yaml"), f"model={model}", *RECIPE]
    common = ["--json", "--quiet", "--dtype", "fp32"]
    started = time.monotonic()
    whole = finished(launch(*command, *common, "--out", tmp_path / "whole"))
    lasts = time.monotonic() - started
    chance, kills, rounds = random.Random(3), 0, 0
    while kills < KILLS:
        rounds += 1
        out = tmp_path / f"broken{rounds}"
        next_command = [*command, *common, "--out", str(out)]
        for _ in range(6):
            began = time.monotonic()
            process = subprocess.Popen([PROGRAM, *map(str, next_command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
            try:
                process.wait(timeout=chance.uniform(0.3, 0.9) * lasts)
                assert process.returncode == 0, process.stderr.read().decode()
                lasts = min(lasts, time.monotonic() - began)  # the first was slow: others must not always get through
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            runs = [path for path in out.iterdir() if not path.name.startswith(".")] if out.exists() else []
            if runs:
                next_command = ["train", "--resume", runs[0], *common]
            if process.returncode == 0:
                break
        runs = [path for path in out.iterdir() if not path.name.startswith(".")] if out.exists() else []
        assert len(runs) <= 1
        if not runs:
            continue
        finished(launch("train", "--resume", runs[0], *common))
        assert events(runs[0]) == events(whole["record"]), "no step lost, none repeated"
        assert state(runs[0]) == state(whole["record"])
