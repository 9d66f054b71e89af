"""`faultline triage` from the command line: shipped recipes, a matrix with a drill that one mitigation removes, the search,
bad input, and a runner that is killed again and again without losing or repeating a trial."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import time

import pytest
from program import PROGRAM, ROOT, as_json, launch, ok, refused, run

RECIPES = ["recipes/race-smoke.yaml", "recipes/ainic-gdr-flush-sdc.yaml"]
TINY = """
schema_version: 1
workload: race
ranks: 2
trials: %d
steps: 3
warmup_trial: false
timeout_per_trial: 300
workload_config: {mode: fsdp, warmup_iterations: 0, fsdp_shard_size: 200, h2d_tensor_size: 100, compute_type: transformer,
  model_dim: 16, num_heads: 2, num_layers: 2, seq_len: 4, stop_on_first_corruption: false, timeout_seconds: 120,
  inject: {kind: bitflip, layer: 1, rank: 1, iteration: 1}}
cells: [{name: baseline}, {name: fixed, mitigations: [no-drill]}, {name: unread, mitigations: [ll-protocol]}]
"""


def recipe(tmp_path, trials=4, text=TINY):
    path = tmp_path / "recipe.yaml"
    path.write_text(text % trials if "%d" in text else text)
    return path


@pytest.mark.parametrize("path", RECIPES)
def test_a_dry_run_of_every_shipped_recipe_is_silent(path):
    done = launch("triage", "run", "--recipe", path, "--dry-run")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "95 % confidence" in done.stdout


def test_the_shipped_hardware_recipe_says_what_the_ticket_asks_for():
    plan = as_json("triage", "run", "--recipe", RECIPES[1], "--dry-run")
    cells = {cell["name"]: cell for cell in plan["cells"]}
    assert list(cells) == ["baseline", "gdr-flush", "strict-pcie-ordering", "ll-protocol-control"]
    assert all(cell["trials"] == 16 for cell in cells.values())
    assert cells["gdr-flush"]["variables"]["NCCL_GDR_FLUSH_DISABLE"] == "0" and cells["ll-protocol-control"]["variables"]["NCCL_PROTO"] == "LL"
    assert cells["strict-pcie-ordering"]["variables"]["NCCL_IB_PCI_RELAXED_ORDERING"] == "0"
    config = cells["baseline"]["workload_config"]
    wanted = {"mode": "fsdp", "verify_iterations": 200, "warmup_iterations": 0, "dtype": "bf16", "fsdp_shard_size": 1000000, "compute_type": "transformer",
              "model_dim": 1024, "num_layers": 24, "shared_layer_weights": True, "real_backward": True, "stop_on_first_corruption": False, "log_interval": 10}
    assert {key: config[key] for key in wanted} == wanted


def test_bundles_are_listed():
    assert "gdr-flush" in ok("triage", "list-mitigations")
    assert {bundle["name"] for bundle in as_json("triage", "list-environments")} >= {"default", "nccl-log"}


def test_a_matrix_shows_which_mitigation_removed_the_failure(tmp_path):
    out = tmp_path / "out"
    result = json.loads(launch("triage", "run", "--recipe", recipe(tmp_path, 5), "--out", out, "--json").stdout)
    baseline, fixed, unread = result["cells"]
    assert (baseline["failed"], baseline["valid"]) == (5, 5)
    assert fixed["failed"] == 0 and "removes the failure" in fixed["finding"] and fixed["notes"] == []
    assert fixed["text"] == "0/5: <=45.1 % at 95 %"
    assert unread["failed"] == 5 and any("NCCL_PROTO" in note for note in unread["notes"])
    page = (out / "matrix.html").read_text()
    assert "removes the failure" in page and "no-drill" in page and "Trials that did not pass (10)" in page and "<script" not in page
    assert "removes the failure" in (out / "matrix.md").read_text()
    assert json.loads((out / "matrix.json").read_text())["cells"][1]["p_holm"] < 0.05
    trial = json.loads((out / "trials" / "baseline" / "0003.json").read_text())
    assert trial["verdict"] == "fail" and len(trial["result"]["evidence"]) == 2
    assert "VERDICT: fail" in (out / "trials" / "baseline" / "0003.log").read_text()
    # The same command again has nothing left to do; a damaged copy of a trial is made again from the store.
    (out / "trials" / "baseline" / "0003.json").write_text("{")
    again = json.loads(launch("triage", "run", "--recipe", recipe(tmp_path, 5), "--out", out, "--json").stdout)
    assert (again["ran"], again["resumed"]) == (0, 15)
    assert again["cells"] == result["cells"]
    assert json.loads((out / "trials" / "baseline" / "0003.json").read_text()) == trial


def test_stop_after_ends_a_cell_early(tmp_path):
    result = json.loads(launch("triage", "run", "--recipe", recipe(tmp_path, 4), "--out", tmp_path / "out", "--json", "stop_after.events=1").stdout)
    assert [cell["valid"] for cell in result["cells"]] == [1, 4, 1]


def test_a_trial_that_crashes_or_hangs_is_an_error_and_the_matrix_goes_on(tmp_path):
    text = TINY % 2 + "\n"
    text = text.replace("cells: [{name: baseline}", "cells: [{name: baseline}, {name: broken, extra_env: {FAULTLINE_CPU_ISA: none}},"
                        " {name: stuck, workload_config: {timeout_seconds: 5, inject: {kind: delay, target: comm_output, delay_ms: 600000, rank: 0, layer: 1, iteration: 1}}}")
    result = json.loads(launch("triage", "run", "--recipe", recipe(tmp_path, text=text), "--out", tmp_path / "out", "--json").stdout)
    cells = {cell["name"]: cell for cell in result["cells"]}
    assert cells["broken"]["valid"] == 0 and cells["broken"]["confound"] == "did_not_run"  # lesson 51
    assert cells["stuck"]["valid"] == 0 and cells["stuck"]["errors"] == 2
    assert cells["baseline"]["failed"] == 2 and cells["fixed"]["passed"] == 2
    hang = json.loads((tmp_path / "out" / "trials" / "stuck" / "0000.json").read_text())
    assert hang["outcome"] == "hang" and hang["result"]["blamed"] == [0]


def test_a_baseline_that_does_not_run_disqualifies_the_matrix(tmp_path):
    done = launch("triage", "run", "--recipe", recipe(tmp_path, 1), "--out", tmp_path / "out", "+cells.0.extra_env={FAULTLINE_CPU_ISA: none}")
    assert done.returncode == 2 and "Disqualified" in done.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("trails=3", "did you mean 'trials'"),
        ("+cells.0.mitigations=[gdr-flsh]", "did you mean 'gdr-flush'"),
        ("+cells.0.mitigations=[ll-protocol, simple-protocol]", "cell 'baseline': NCCL_PROTO"),
        ("cells.0.name=../up", "no safe name"),
        ("extra_env={MASTER_PORT: '1'}", "belongs to the launcher"),
        ("schema_version=99", "update faultline"),
        ("ranks=0", "ranks"),
        ("workload_config.mode=ddp", "not read here"),
        ("+workload_config.dtyp=bf16", "did you mean 'dtype'"),
    ],
)
def test_bad_recipes_are_refused(tmp_path, change, says):
    done = launch("triage", "run", "--recipe", recipe(tmp_path), "--dry-run", change)
    assert done.returncode == 64, done.stdout
    assert says in done.stderr


def test_folders_that_belong_to_others_are_refused(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    done = launch("triage", "run", "--recipe", recipe(tmp_path, 1), "--out", full)
    assert done.returncode == 64 and "something else" in done.stderr
    out = tmp_path / "out"
    assert launch("triage", "run", "--recipe", recipe(tmp_path, 1), "--out", out).returncode == 0
    changed = launch("triage", "run", "--recipe", recipe(tmp_path, 1), "--out", out, "steps=4")
    assert changed.returncode == 64 and "another request" in changed.stderr


def start(*arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def test_a_folder_in_use_is_refused(tmp_path):
    out = tmp_path / "out"
    with start("triage", "run", "--recipe", recipe(tmp_path, 50), "--out", out, "--quiet") as first:
        while not (out / "campaign.sqlite").exists():
            time.sleep(0.02)
        second = launch("triage", "run", "--recipe", recipe(tmp_path, 50), "--out", out)
        first.kill()
    assert second.returncode == 64 and "in use by" in second.stderr


def recorded(out):
    with sqlite3.connect(f"file:{out / 'campaign.sqlite'}?mode=ro", uri=True) as store:
        table = next((name for (name,) in store.execute("select name from sqlite_master where type='table'") if "trial" in name), None)
        if table is None:  # killed between the file and its tables
            return []
        return store.execute(f"select * from {table} order by 1, 2").fetchall()


def test_killed_again_and_again_no_trial_is_lost_or_repeated(tmp_path):
    kills = int(os.environ.get("FAULTLINE_TRIAGE_KILLS", "8"))
    generator = random.Random(1)
    out, path = tmp_path / "out", recipe(tmp_path, max(4, kills // 2))
    killed, before = 0, {}
    while killed < kills:
        with start("triage", "run", "--recipe", path, "--out", out, "--quiet") as runner:
            try:
                runner.wait(timeout=generator.uniform(0.3, 1.6))
                break
            except subprocess.TimeoutExpired:
                runner.send_signal(signal.SIGKILL)
                killed += 1
        if (out / "campaign.sqlite").exists():
            rows = {row[:2]: row for row in recorded(out)}
            assert all(rows.get(key) == row for key, row in before.items())  # what was recorded stays as it was
            before = rows
    with start("triage", "run", "--recipe", path, "--out", out, "--json", "--quiet") as runner:
        result = json.loads(runner.communicate(timeout=600)[0])
    trials = max(4, kills // 2)
    assert [cell["valid"] + cell["errors"] for cell in result["cells"]] == [trials] * 3
    keys = [row[:2] for row in recorded(out)]
    assert len(keys) == len(set(keys)) == 3 * trials
    assert [cell["errors"] for cell in result["cells"]] == [0, 0, 0]
    assert not list((out / "trials").glob(".running*"))


def test_a_folder_that_a_kill_left_after_its_trial_was_recorded_is_cleared(tmp_path):
    out, command = tmp_path / "out", ["triage", "run", "--recipe", recipe(tmp_path, 1), "--quiet", "--json", "--out"]
    assert launch(*command, out).returncode == 0
    left = out / "trials" / ".running-baseline-0"
    left.mkdir()
    (left / "rank-0.log").write_text("of the trial before")
    assert launch(*command, out).returncode == 0
    assert not left.exists()


def test_damaged_copies_are_made_again_and_a_damaged_record_is_refused(tmp_path):
    out, command = tmp_path / "out", ["triage", "run", "--recipe", recipe(tmp_path, 1), "--quiet", "--json", "--out"]
    first = launch(*command, out)
    assert first.returncode == 0, first.stderr
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "campaign.sqlite" and not path.name.startswith("campaign.sqlite-")]
    # provenance.json is no copy: who answered the first time cannot be made again (`reproduce` refuses a damaged one)
    copies = [path for path in files if path.suffix in (".json", ".md", ".html", ".yaml") and path.name != "provenance.json"]
    assert len(copies) >= 5
    before = {path: path.read_bytes() for path in copies}
    for i, path in enumerate(copies):
        path.write_bytes([b"", b"{", before[path][: len(before[path]) // 2]][i % 3])
    again = launch(*command, out)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["cells"] == json.loads(first.stdout)["cells"]
    unlike = [str(path.relative_to(out)) for path in copies if path.read_bytes() != before[path]]
    assert not unlike
    store = (out / "campaign.sqlite").read_bytes()
    (out / "campaign.sqlite").write_bytes(store[:100] + bytes(len(store) - 100))
    broken = launch(*command, out)
    assert broken.returncode in (2, 64) and "campaign.sqlite" in broken.stderr and "please report" not in broken.stderr, broken.stderr


def test_help_groups_options_with_their_ranges():
    text = ok("triage", "bisect", "--help")
    assert "Search:" in text and "1e-6 to 0.5" in text and "1 to 100000" in text
    assert "Run:" in ok("triage", "run", "--help")


def test_bisect_finds_the_mitigation(tmp_path):
    result = json.loads(launch("triage", "bisect", "--recipe", recipe(tmp_path), "--mitigation", "ll-protocol", "--mitigation", "no-drill", "--baseline-trials", 6, "--json").stdout)
    assert result["found"] and result["mitigations"] == ["no-drill"]
    assert result["trials_each"] >= 2
    refused(64, "triage", "bisect", "--recipe", recipe(tmp_path), "--mitigation", "nodrill", says="did you mean 'no-drill'")
    assert run("triage").returncode == 64
