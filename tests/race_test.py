"""`faultline race` from the command line: it just works, a planted fault is named with layer, rank and bit, bad input is
refused, and ranks as processes over Gloo end in time, whatever happens to one of them."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from program import PROGRAM, ROOT, free_port, launch, ok, refused, run

SMALL = ["mode=fsdp", "fsdp_shard_size=600", "h2d_tensor_size=500", "num_layers=4", "model_dim=32", "num_heads=2", "seq_len=4", "warmup_iterations=0", "verify_iterations=5"]
GLOO = ["race", "--transport", "gloo", "--json", *SMALL]


def result_of(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_it_just_works():
    assert "PASSED: No corruption in 20 iterations" in ok("race", "--ranks", "4")


def test_a_planted_fault_is_named_with_layer_rank_and_bit():
    done = run("race", "--ranks", 4, "inject={target: all_gather, kind: bitflip, layer: 7, rank: 2, iteration: 3, element: 11, bit: 6}")
    assert done.returncode == 1
    assert "LAYER_CHECKSUM_MISMATCH (comm_output): rank=2 iter=3 reference=" in done.stdout
    assert " layer_7=" in done.stdout
    assert "ALL_GATHER CORRUPTION: rank=2 iter=3 layer=7 phase=forward source=0 first=11 last=11 count=1 bits=[6]" in done.stdout
    assert "cause=collective rank=2 iter=3 layer=7" in done.stdout
    assert "VERDICT: fail (stopped_at_first_corruption)" in done.stdout


def test_json_holds_the_evidence_of_every_rank():
    result = result_of(run("race", "--ranks", 3, "--json"))
    assert result["verdict"] == "pass" and result["ranks"] == 3
    assert [rank["rank"] for rank in result["evidence"]] == [0, 1, 2]
    assert all(rank["canary"] == {"ran": True, "detected": True, "attributed": True} for rank in result["evidence"])
    assert all(rank["step_seconds"]["count"] == 20 for rank in result["evidence"])  # lesson 54: verified iterations alone


def test_every_rank_speaks_for_itself():
    """Lesson 28: what happened to one rank is in its own evidence and in no other's."""
    done = run("race", "--ranks", 3, "--json", *SMALL, "stop_on_first_corruption=false", "inject={target: all_gather, kind: bitflip, layer: 2, rank: 2, iteration: 3, element: 11, bit: 6}")
    result = result_of(done)
    assert done.returncode == 1 and [rank["rank"] for rank in result["evidence"]] == [0, 1, 2]
    assert [rank["mismatches"]["count"] for rank in result["evidence"]] == [0, 0, 1]
    assert [rank["deviations"]["count"] > 0 for rank in result["evidence"]] == [False, False, True]
    assert len({json.dumps(rank["step_seconds"]) for rank in result["evidence"]}) == 3, "no rank's times are another's"


def test_help_names_every_key_with_default_and_range():
    text = ok("race", "--help")
    for part in ["Run:", "Output:", "1 to 256", "timeout_seconds (60", "fsdp_shard_size (100000)", "dtype (bf16)", "inject ([])"]:
        assert part in text, part
    documented = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in (ROOT / "docs/race.md").read_text(encoding="utf-8").split("## Configuration")[1].split("`inject`:")[0].splitlines() if line.startswith("| `"))))
    assert documented == set(re.findall(r"^  (\w+) \(", text.split("Keys of the configuration")[1].split("Examples:")[0], re.M))


def test_lesson_54_times_are_of_verified_steps_alone():
    result = json.loads(launch("race", "--ranks", 2, "--json", *SMALL, "warmup_iterations=7").stdout)
    for rank in result["evidence"]:
        times = rank["step_seconds"]
        assert times["count"] == result["iterations"] == 5, "no warm-up among them"
        assert times["count"] * times["mean"] <= result["seconds"] and times["min"] > 0


def test_lesson_54_a_long_warm_up_is_in_no_time():
    """A hundred times as many steps of warming up as are verified: a total with them in it would be most of the run."""
    result = json.loads(launch("race", "--ranks", 2, "--json", *SMALL[:-2], "warmup_iterations=400", "verify_iterations=4").stdout)
    for rank in result["evidence"]:
        times = rank["step_seconds"]
        assert times["count"] == 4 and times["count"] * times["mean"] < 0.5 * result["seconds"], (times, result["seconds"])


def test_the_selftest_prints_its_matrix():
    done = launch("race", "--selftest", "--quiet")
    assert done.returncode == 0, done.stdout
    assert "passed:" in done.stdout and "attributed / detected / planted" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verfy_iterations=3"], "did you mean 'verify_iterations'"),
        (["mode=ddp"], "is not read here"),  # the built-in run is fsdp's
        (["dtype=fp8"], "dtype"),
        (["--ranks", "0"], "--ranks"),
        (["--ranks", "257"], "--ranks"),
        (["--transport", "mpi"], "wanted threads, gloo, nccl or torch"),
        (["--transport", "nccl"], "nccl carries GPU tensors; use --device cuda"),
        (["--measure-overhead", "verify_iterations=7"], "at least 8 verified iterations"),
        (["inject={kind: bitflip, rank: 4}"], "numbered from 0"),
        (["patterns=false", "digest=off"], "nothing that could find"),
        (["--recipe", "recipes/example.yaml"], "unknown key"),
    ],
)
def test_bad_input_is_refused(arguments, says):
    refused(64, "race", *arguments, says=says)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}, "RANK='4'"),
        ({"RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}, "WORLD_SIZE='two'"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "99999"}, "MASTER_PORT"),
    ],
)
def test_a_wrong_world_is_refused(environment, says):
    done = launch("race", env=environment)
    assert done.returncode == 64 and says in done.stderr


def test_a_golden_finds_another_computation_and_refuses_a_damaged_file(tmp_path):
    golden = tmp_path / "golden.json"
    ok("race", "--write-golden", golden)
    ok("race", f"golden={golden}")
    assert launch("race", f"golden={golden}", "seq_len=8").returncode == 64
    golden.write_text(golden.read_text().replace("compute_output", "compute_outpux"))
    assert launch("race", f"golden={golden}").returncode == 2


# --- processes over Gloo ----------------------------------------------------------------------------------------------
def test_gloo_ranks_run_and_find_a_planted_fault():
    clean = result_of(launch(*GLOO, "--ranks", 2))
    assert clean["verdict"] == "pass" and clean["iterations"] == 5
    found = result_of(launch(*GLOO, "--ranks", 2, "inject={kind: bitflip, layer: 1, rank: 1, iteration: 2}"))
    assert found["verdict"] == "fail"
    (event,) = [event for rank in found["evidence"] for event in rank["events"]["items"]]
    assert (event["cause"], event["rank"], event["layer"], event["iteration"]) == ("collective", 1, 1, 2)


# In time: who waited for the stalled rank to its end would see it come, and the run pass; who waited for the timeout where
# the transport says at once that a rank is gone would call it a hang.
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("kind", "timeout", "outcome"), [("exit", 300, "crashed_after_iterations"), ("delay", 8, "hang"), ("skip", 8, "hang")])
def test_a_gloo_rank_that_dies_stalls_or_skips_is_named_in_time(kind, timeout, outcome, ranks):
    result = result_of(launch(*GLOO, "--ranks", ranks, f"timeout_seconds={timeout}", f"inject={{target: comm_output, kind: {kind}, delay_ms: 1000000, layer: 1, rank: 1, iteration: 2}}"))
    assert result["verdict"] != "pass"
    assert (result["blamed"], result["outcome"]) == ([1], outcome), (result["sentence"], result["standings"])
    assert [rank["state"] for rank in result["standings"]].count("waiting") >= ranks - 1, "the others waited"


def rank_processes(parent):
    """RANK -> process id of the ranks that `parent` started."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if int(folder.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                variables = dict(v.split("=", 1) for v in folder.joinpath("environ").read_text().split("\0") if "=" in v)
                found[int(variables["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return found


def at_work(parent):
    """All three ranks have used more processor time than loading torch takes: they have met and iterate."""
    ticks = []
    for process in rank_processes(parent).values():
        try:
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return False
        ticks.append(int(fields[11]) + int(fields[12]))
    return len(ticks) == 3 and min(ticks) > 3 * os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_killed_or_stopped_from_outside_is_named_in_time(how):
    command = [PROGRAM, *map(str, [*GLOO, "--ranks", 3, "timeout_seconds=8", "verify_iterations=1000000"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        deadline = time.monotonic() + 300
        while not at_work(process.pid) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        victim = rank_processes(process.pid)[1]
        os.kill(victim, how)
        output, _ = process.communicate(timeout=300)
    result = json.loads(output)
    assert result["verdict"] == "error"
    assert result["blamed"] == [1], (result["sentence"], result["standings"])
    assert [rank["state"] for rank in result["standings"]][1] == ("failed" if how == signal.SIGKILL else "silent")


@pytest.mark.parametrize(("kind", "state"), [("exit", "silent"), ("delay", "working"), ("skip", "waiting")])
def test_ranks_of_another_launcher_name_the_one_that_dies_stalls_or_skips(kind, state):
    places = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = ["race", "--json", *SMALL, "timeout_seconds=8", f"inject={{target: comm_output, kind: {kind}, delay_ms: 1000000, layer: 1, rank: 1, iteration: 2}}"]
    ranks = [subprocess.Popen([PROGRAM, *words], env={**os.environ, **places, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) for rank in range(3)]
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert said[1:] == ["", ""], "the first rank speaks for all"
    result = json.loads(said[0])
    assert result["blamed"] == [1], (result["sentence"], result["standings"])
    assert [rank["state"] for rank in result["standings"]] == ["waiting", state, "waiting"]


def test_torchrun_starts_it():
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port", str(free_port()), PROGRAM, "race", "--json", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
