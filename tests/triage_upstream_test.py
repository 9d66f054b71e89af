"""Recipes in the form of the AORTA project, as docs/from-aorta.md says it: each of its keys once, what a dry run says of
it, and what is refused; and commands of the user's own as trials. The recipes here are ours, in that form."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from program import PROGRAM, ROOT, as_json, launch

RACE = """
schema_version: 1
ticket: OURS-1
workload: race
trials: 2
steps: 3
save_logs: true
confound: {threshold: 1.15, baseline_cell: baseline-plain}
workload_config:
  mode: fsdp
  warmup_iterations: 0
  verify_iterations: 3
  stop_on_first_corruption: false
  log_interval: 1
  dtype: bfloat16
  fsdp_shard_size: 200
  h2d_tensor_size: 100
  h2d_prefetch: true
  reuse_buffers: false
  pin_memory: true
  same_stream_mode: false
  simulate_compute: true
  compute_type: gemm
  gemm_size: 16
  gemm_layers: 2
  include_backward_compute: true
  optimizer: adamw
  optimizer_lr: 0.0001
  optimizer_weight_decay: 0.1
  optimizer_betas: [0.9, 0.95]
  optimizer_eps: 1.0e-6
  gpu_max_hw_queues: 4
cells:
  - name: baseline-plain
    mitigations: [none]
    environment: local
    extra_env: {NCCL_PROTO: "Simple", MY_DEBUG_FLAG: "1"}
  - name: two-queues
    mitigations: [gpu_max_hw_queues_2]
    environment: local
    workload_config: {same_stream_mode: true}
"""
BLOCK = """
schema_version: 1
workload: race
trials: 1
steps: 2
workload_config: {mode: fsdp, warmup_iterations: 0, fsdp_shard_size: 200, h2d_tensor_size: 100, compute_type: transformer, model_dim: 16, num_heads: 2,
  num_layers: 2, seq_len: 4, shared_layer_weights: true, real_backward: true, include_backward_compute: true}
cells: [{name: smoke, mitigations: [none], environment: local}]
"""
DETERMINISM = """
schema_version: 1
workload: llm_determinism
trials: 1
steps: 1
workload_config: {hidden_size: 16, ffn_size: 32, num_heads: 2, seq_len: 4, batch_size: 1, dtype: bf16, seed: 7, checksum_mode: per_rank, model_label: x, vocab_size: 9}
cells:
  - {name: baseline-small, mitigations: [none], environment: local, workload_config: {num_layers: 2, capture_dir: ./here}}
  - {name: experts, mitigations: [none], environment: local, workload_config: {num_layers: 2, num_experts: 4}}
"""
PROBE = """
schema_version: 1
mode: probe
ticket: OURS-2
trials: 2
mitigation_axis: [none, tf32_off]
diagnostic_axis: [none]
timeout_per_trial: 60
env_passthrough_mode: inherit
"""


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def dry(tmp_path, text, *more):
    done = launch("triage", "run", "--recipe", write(tmp_path, text), "--dry-run", *more)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def result_of(tmp_path, text, *more, code=0):
    done = launch("triage", "run", "--recipe", write(tmp_path, text), "--out", tmp_path / "out", "--json", *more)
    assert done.returncode == code, done.stderr
    return {cell["name"]: cell for cell in json.loads(done.stdout)["cells"]}


def trial(tmp_path, cell, index=0):
    return json.loads((tmp_path / "out" / "trials" / cell / f"{index:04}.json").read_text())


def test_a_race_recipe_of_that_form_is_taken_as_it_is(tmp_path):
    text = dry(tmp_path, RACE)
    for line in ("2 cells, 4 trials", "baseline 'baseline-plain'", "  MY_DEBUG_FLAG=1", "  NCCL_PROTO=Simple", "  GPU_MAX_HW_QUEUES=4", "  GPU_MAX_HW_QUEUES=2",
                 "  optimizer_lr: 0.0001", "  same_stream_mode: true", "note: gpu_max_hw_queues is the variable GPU_MAX_HW_QUEUES of the trial",
                 "note: NCCL_* and RCCL_* are read over transports nccl and torch alone"):  # fmt: skip
        assert line in text, line
    cells = result_of(tmp_path, RACE)
    assert all(cell["passed"] == 2 for cell in cells.values())
    plan = json.loads((tmp_path / "out" / "matrix.json").read_text())["plan"]
    assert plan["cells"][0]["variables"] == {"GPU_MAX_HW_QUEUES": "4", "MY_DEBUG_FLAG": "1", "NCCL_PROTO": "Simple"}
    assert plan["notes"] and plan["ticket"] == "OURS-1"


@pytest.mark.parametrize(("text", "passed"), [(BLOCK, 1), (DETERMINISM, 1)], ids=["block", "determinism"])
def test_recipes_of_the_other_workloads_run(tmp_path, text, passed):
    cells = result_of(tmp_path, text)
    assert next(iter(cells.values()))["passed"] == passed
    if "experts" in cells:
        assert cells["experts"]["valid"] == 0 and cells["experts"]["confound"] == "did_not_run" and "no experts" in cells["experts"]["notes"][0]


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (DETERMINISM, ["hidden_size is model_dim here", "seed is deterministic_seed here", "checksum_mode does nothing here", "capture_dir does nothing here", "model_label does nothing here",
                       "vocab_size does nothing here", "steps: 1 is 2 here"]),
        (PROBE + "step_time_regex: 'ms'\ncollect_paths: [x]\nhang_window_sec: 5\nhang_grace_period_at_start: 0\ntier3_vram_growth: false\nredaction: {scrub_paths: true}\n",
         [f"{key} does nothing here" for key in ("step_time_regex", "collect_paths", "hang_window_sec", "hang_grace_period_at_start", "tier3_vram_growth", "redaction")]),
    ],
    ids=["determinism", "probe"],
)  # fmt: skip
def test_what_is_renamed_or_does_nothing_is_said(tmp_path, text, notes):
    out = dry(tmp_path, text, *(["--", "true"] if "probe" in text else []))
    for note in notes:
        assert f"note: {note}" in out, note


def test_steps_that_are_typed_decide_over_those_of_the_recipe(tmp_path):
    text = RACE.replace("steps: 3", "steps: 4")
    assert "3 iterations: verify_iterations at" in dry(tmp_path, text) and " x 3 iterations" in dry(tmp_path, text)
    assert " x 2 iterations" in dry(tmp_path, text, "steps=2")


REFUSED = [
    (RACE.replace("gemm_layers", "gemm_layrs"), "did you mean 'gemm_layers'"),
    (RACE.replace("optimizer: adamw", "optimizer: shampoo"), "optimizer"),
    (RACE.replace("optimizer: adamw", "optimizer: none"), "'optimizer_lr' is not read here"),
    (RACE.replace("environment: local", "environment: {docker: image}"), "starts no container"),
    (RACE.replace("environment: local", "environment: locl"), "did you mean 'local'"),
    (RACE.replace("gpu_max_hw_queues_2", "gpu_max_hw_queue_2"), "did you mean 'gpu_max_hw_queues_2'"),
    (RACE.replace("gpu_max_hw_queues: 4", "gpu_max_hw_queues: many"), "wanted an integer from 1 to 1024"),
    (RACE.replace("MY_DEBUG_FLAG", "LD_PRELOAD"), "must not choose code"),
    (RACE.replace("MY_DEBUG_FLAG", "LD_LIBRARY_PATH"), "must not choose code"),
    (RACE.replace("MY_DEBUG_FLAG", "PYTHONPATH"), "must not choose code"),
    (RACE.replace("MY_DEBUG_FLAG", "MASTER_ADDR"), "belongs to the launcher"),
    (RACE.replace("MY_DEBUG_FLAG", "RANK"), "belongs to the launcher"),
    (RACE.replace('MY_DEBUG_FLAG: "1"', 'MY_DEBUG_FLAG: "1; reboot"'), "no plain setting"),
    (RACE + "custom_patterns: []\n", "workload: command only"),
    (DETERMINISM.replace("hidden_size", "hiden_size"), "hiden_size"),
    (PROBE, "give it behind --"),
    (PROBE.replace("tf32_off", "tf32_of"), "did you mean 'tf32_off'"),
    (PROBE.replace("mitigation_axis", "mitigation_axs"), "did you mean 'mitigation_axis'"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_taken_is_refused_with_a_sentence(tmp_path, text, says):
    command = ["--", "true"] if "probe" in text and "behind" not in says else []
    done = launch("triage", "run", "--recipe", write(tmp_path, text), "--dry-run", *command)
    assert done.returncode == 64 and says in done.stderr, done.stderr


COMMAND_REFUSED = [
    (PROBE + "custom_patterns: [{id: a, match: {regex: a, condition: 'exit_code == 1'}}]\n", "conditions are not evaluated here"),
    (PROBE + "custom_patterns: [{id: a, match: {regex: '('}}]\n", "no expression that this program reads"),
    (PROBE + "command: [reboot]\n", "command"),
    (PROBE + "workload_config: {mode: fsdp}\n", "workload_config"),
    ("workload: command\nsteps: 3\ncells: [{name: baseline}]\n", "a command reads neither workload_config nor steps"),
    (BLOCK, "the race, which takes no command"),
]


@pytest.mark.parametrize(("text", "says"), COMMAND_REFUSED, ids=range(len(COMMAND_REFUSED)))
def test_a_command_is_refused_where_the_recipe_does_not_fit(tmp_path, text, says):
    done = launch("triage", "run", "--recipe", write(tmp_path, text), "--dry-run", "--", "true")
    assert done.returncode == 64 and says in done.stderr, done.stderr


# --- commands
@pytest.mark.parametrize(
    ("command", "outcome", "verdict", "sentence"),
    [
        (["bash", "-c", "echo hi; echo no >&2"], "clean", "pass", "exited with status 0"),
        (["bash", "-c", "exit 3"], "crashed", "fail", "exited with status 3"),
        (["bash", "-c", "kill -SEGV $$"], "crashed", "fail", "ended by signal 11 (Segmentation fault)"),
        (["bash", "-c", "echo loss=nan"], "wrong", "fail", "pattern 'nan' met: loss=nan"),
        (["/nowhere/to/be/found"], "did_not_run", "error", "could not be started: No such file or directory"),
        (["sleep", "100"], "hung", "fail", "took longer than 1 s and was ended"),
    ],
    ids=["clean", "exit", "signal", "wrong", "did-not-run", "hung"],
)
def test_a_command_ends_in_one_of_the_tiers(tmp_path, command, outcome, verdict, sentence):
    text = PROBE.replace("tf32_off", "none").replace("[none, none]", "[none]") + "custom_patterns: [{id: nan, match: {regex: 'loss=nan'}, on_match: fail}]\n"
    cells = result_of(tmp_path, text, "trials=1", f"timeout_per_trial={1 if outcome == 'hung' else 60}", "--", *command, code=2 if outcome == "did_not_run" else 0)
    recorded = trial(tmp_path, "none-none")
    assert (recorded["outcome"], recorded["verdict"]) == (outcome, verdict) and sentence in recorded["sentence"]
    assert cells["none-none"]["outcomes"] == {outcome: 1}
    if outcome == "clean":
        folder = tmp_path / "out" / "trials" / "none-none"
        assert (folder / "0000.stdout.log").read_text() == "hi\n" and (folder / "0000.stderr.log").read_text() == "no\n"
    assert (tmp_path / "out" / "matrix.html").exists() and f"1 {outcome}" in (tmp_path / "out" / "matrix.md").read_text()


def test_a_command_is_run_as_it_was_typed_with_the_callers_environment_and_the_cells(tmp_path):
    script = 'import json,os,sys; print(json.dumps([sys.argv[1:], os.environ.get("DISABLE_TF32"), os.environ["OF_THE_CALLER"], os.getcwd(), os.getpgid(0) == os.getpid()]))'
    words = ["a b", "$HOME", "--json", "*", "--", "x=1"]
    done = launch("triage", "run", "--recipe", write(tmp_path, PROBE), "--out", tmp_path / "out", "--quiet", "--", "python3", "-c", script, *words, env={"OF_THE_CALLER": "yes"})
    assert done.returncode == 0, done.stderr
    said = {cell: json.loads((tmp_path / "out/trials" / cell / "0001.stdout.log").read_text()) for cell in ("none-none", "tf32_off-none")}
    assert said["none-none"] == [words, None, "yes", str(ROOT), True]
    assert said["tf32_off-none"] == [words, "1", "yes", str(ROOT), True]


def test_the_environment_also_goes_to_a_file_where_that_is_asked_for(tmp_path):
    script = 'stat -c %a "$AORTA_ENV_FILE"; cat "$AORTA_ENV_FILE"'
    result_of(tmp_path, PROBE.replace("inherit", "file"), "--", "bash", "-c", script)
    assert (tmp_path / "out/trials/tf32_off-none/0000.stdout.log").read_text() == "600\nDISABLE_TF32=1\n"


def test_a_mitigation_that_helps_a_command_is_named_and_the_same_command_goes_on(tmp_path):
    words = ["trials=6", "--", "bash", "-c", "exit $((1 - ${DISABLE_TF32:-0}))"]
    cells = result_of(tmp_path, PROBE, *words)
    assert cells["none-none"]["failed"] == 6 and "removes the failure" in cells["tf32_off-none"]["finding"]
    again = launch("triage", "run", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "--json", *words)
    assert json.loads(again.stdout)["resumed"] == 12 and json.loads(again.stdout)["ran"] == 0
    other = launch("triage", "run", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "trials=6", "--", "true")
    assert other.returncode == 64 and "another request" in other.stderr
    record = launch("reproduce", tmp_path / "out", "--out", tmp_path / "again")
    assert record.returncode == 64 and "a record chooses none" in record.stderr


def alive(mark):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes() and (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(int(process.name))
        except OSError:
            pass
    return found


LEAVES_OTHERS = "import os,subprocess,time; subprocess.Popen(['sleep','300'], start_new_session=True); print('started', flush=True); time.sleep(300)"


@pytest.mark.parametrize("how", ["time-limit", "interrupt", "kill"])
def test_nothing_that_a_command_started_outlives_its_trial(tmp_path, how):
    mark = f"MARK_OF_TRIAGE={tmp_path}"
    text = PROBE.replace("[none, tf32_off]", "[none]").replace("timeout_per_trial: 60", f"timeout_per_trial: {2 if how == 'time-limit' else 'null'}")
    environment = {**os.environ, **dict([mark.split("=", 1)])}
    words = [PROGRAM, "triage", "run", "--recipe", write(tmp_path, text), "--out", tmp_path / "out", "--quiet", "trials=1", "--", "python3", "-c", LEAVES_OTHERS]
    with subprocess.Popen(list(map(str, words)), env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as runner:
        if how != "time-limit":
            output = tmp_path / "out/trials/.running-none-none-0/stdout.log"
            until(lambda: output.exists() and "started" in output.read_text())
            runner.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        runner.wait(timeout=60)
    until(lambda: not alive(mark))


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_command_stays_on_this_machine(tmp_path):
    done = launch("triage", "run", "--recipe", write(tmp_path, PROBE), "--out", tmp_path / "out", "--executor", "ray", "--", "true")
    assert done.returncode == 64 and "runs on this machine" in done.stderr


# --- the int16 sum
SWAP = ["race", "--ranks", "2", "warmup_iterations=0", "verify_iterations=4", "num_layers=2"]


@pytest.mark.parametrize(("checksum", "kind", "code"), [("digest", "swap", 1), ("int16", "swap", 0), ("digest", "bitflip", 1), ("int16", "bitflip", 1), ("int16", "stale", 1), ("int16", None, 0)])
def test_the_int16_sum_misses_exchanged_elements_and_the_digest_does_not(checksum, kind, code):
    fault = [f"inject={{target: comm_input, kind: {kind}, layer: 1, rank: 1, iteration: 2}}"] if kind else []
    done = launch(*SWAP, "patterns=false", f"checksum={checksum}", *fault)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("int16 sums of" if checksum == "int16" else "digests of") in done.stderr


def test_a_sum_where_no_record_is_summed_is_refused():
    done = launch(*SWAP, "digest=off", "checksum=int16")
    assert done.returncode == 64 and "'checksum' is not read here" in done.stderr


# --- our own recipe of that failure
def test_every_cell_of_the_shipped_recipe_differs_from_its_baseline_in_one_thing():
    plan = as_json("triage", "run", "--recipe", "recipes/ainic-gdr-flush-sdc.yaml", "--dry-run")
    assert (plan["device"], plan["transport"], plan["ranks"]) == ("cuda", "nccl", 8)
    baseline, *others = plan["cells"]
    exposes = {"NCCL_GDR_FLUSH_DISABLE": "1", "NCCL_PROTO": "Simple", "NCCL_NET_GDR_LEVEL": "SYS", "NCCL_DMABUF_ENABLE": "1", "NCCL_NET_GDR_READ": "1"}
    assert baseline["name"] == plan["baseline_cell"] == "baseline" and exposes.items() <= baseline["variables"].items()
    for cell in others:
        names = set(cell["variables"]) | set(baseline["variables"])
        differences = [name for name in names if cell["variables"].get(name) != baseline["variables"].get(name)]
        differences += [key for key in cell["workload_config"] if cell["workload_config"][key] != baseline["workload_config"][key]]
        assert len(differences) == 1, (cell["name"], differences)
