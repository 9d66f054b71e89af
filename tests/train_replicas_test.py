"""`faultline train` in two processes that share a step's shards, over Gloo: the rollouts and faults of one process to the
bit, its weights up to the rounding of the gradients' sum, and what is refused."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

import tiny_folder
from program import PROGRAM, ROOT, free_port, launch

TINY = ROOT / "recipes/train/tiny.yaml"
NOISE = "{name: noise, where: {operator: matmul}, what: {kind: relative_gaussian, strength: 0.05}}"
COMMON = ["train.shards=2", "train.save_model=true", f"++faults=[{NOISE}]",
          "++aqn={schedule: constant, sigma_start: 0.05, sigma_scale: relative, force: true}"]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder.make(tmp_path_factory.mktemp("tiny") / "model")


def words(model, out, *arguments):
    return ["train", TINY, f"model={model}", *arguments, "--json", "--quiet", "--dtype", "fp32", "--out", out]


def places(own=lambda number: {}):
    """The environments of two ranks; `own` changes that of each."""
    port = free_port()
    of = [{"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, **own(number)} for number in (0, 1)]
    return [{key: str(value) for key, value in place.items()} for place in of]


def in_two_processes(model, out, first, second, **changes):
    environments = places(**changes)

    def rank(number, arguments):
        return launch(*words(model, out, *arguments), env=environments[number])

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [one.result() for one in (pool.submit(rank, 0, first), pool.submit(rank, 1, second))]


def events(record):
    return [json.loads(line) for line in (pathlib.Path(record) / "events.jsonl").read_text().splitlines()]


def steps(record, stage):
    return [event["metrics"] for event in events(record) if event.get("stage") == stage]


@pytest.fixture(scope="module")
def both(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    alone = launch(*words(model, folder / "alone", *COMMON), env={"OMP_NUM_THREADS": "1"})
    assert alone.returncode == 0, alone.stderr
    ranks = in_two_processes(model, folder / "together", COMMON, COMMON)
    assert [one.returncode for one in ranks] == [0, 0], [one.stderr for one in ranks]
    first = json.loads(ranks[0].stdout)
    assert ranks[1].stdout == "", "the first rank speaks for all"
    (second,) = (pathlib.Path(first["record"]) / "rank-1").glob("*/events.jsonl")
    return json.loads(alone.stdout), first, second.parent


def test_the_noise_of_later_steps_is_that_of_one_process(both):
    alone, first, _ = both  # after supervised steps whose sums have rounded differently
    for one, two in zip(steps(alone["record"], "grpo"), steps(first["record"], "grpo"), strict=True):
        for name in ("faultline/aqn/sigma", "faultline/aqn/weights", "faultline/aqn/elements"):
            assert one[name] == two[name], name
        assert two["faultline/aqn/measured"] == pytest.approx(one["faultline/aqn/measured"], rel=1e-6)


def test_all_ranks_make_the_same_update(both):
    _, first, second = both
    for stage in ("sft", "grpo"):
        for mine, theirs in zip(steps(first["record"], stage), steps(second, stage), strict=True):
            own = {key: value for key, value in mine.items() if not key.startswith("faultline/layer")}
            assert own == {key: value for key, value in theirs.items() if not key.startswith("faultline/layer")}


def test_the_end_says_how_many_processes_trained_and_what_carried_their_gradients(both):
    alone, first, _ = both
    assert (alone["processes"], alone["exchange"]) == (1, None)
    assert (first["processes"], first["exchange"], first["why_gloo"]) == (2, "gloo", "--device cpu")


def survivor(model, out, *arguments, **changes):
    """How the first of two processes ends, and what it says, when the other is killed in the middle of training."""
    long = words(model, out, *COMMON, "train.steps=10000", "train.save_model=false", *arguments)
    ranks = [subprocess.Popen([PROGRAM, *map(str, long)], env={**os.environ, **place}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for place in places(**changes)]
    try:
        while not any(event.get("stage") == "grpo" for record in out.glob("*/events.jsonl") for event in events(record.parent)):
            assert ranks[0].poll() is None, "nothing trains"
            time.sleep(0.1)
        ranks[1].kill()
        _, said = ranks[0].communicate()  # waits for the exchange's hour where nobody notices, and the suite's limit ends that
        return ranks[0].returncode, said
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            process.stderr.close()


def test_a_process_whose_partner_is_killed_ends_with_an_error(model, tmp_path):
    code, said = survivor(model, tmp_path)
    assert code == 2 and "error: the exchange with the other processes failed" in said, (code, said)


def test_the_evidence_is_of_all_ranks(both):
    alone, first, _ = both
    (one, two) = (done["joined"]["faults"] for done in (alone, first))
    assert two["ranks"] == 2 and one["forwards"] == two["forwards"]
    of = [{(row["rule"], row["phase"]): row["calls"] for row in joined["counts"]} for joined in (one, two)]
    assert of[0] == of[1], "calls of all ranks together are those of one process"


def test_ranks_that_hold_other_weights_are_refused(model, tmp_path):
    other = tiny_folder.make(tmp_path / "other", seed=99)
    for name, folder in (("a", model), ("b", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").symlink_to(folder)
    environments = places()

    def rank(number, folder):
        return subprocess.run([PROGRAM, *map(str, words("model", tmp_path / "runs", *COMMON))], cwd=tmp_path / folder, capture_output=True, text=True,
                              timeout=300, env={**os.environ, **environments[number]})  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor() as pool:
        ranks = [one.result() for one in (pool.submit(rank, 0, "a"), pool.submit(rank, 1, "b"))]
    assert [one.returncode for one in ranks] == [64, 64] and all("different models" in one.stderr for one in ranks), [one.stderr for one in ranks]


def test_two_processes_end_where_one_does_up_to_rounding(both):
    import torch
    from safetensors.torch import load_file

    alone, first, _ = both
    one, two = (load_file(pathlib.Path(done["model"]) / "model.safetensors") for done in (alone, first))
    start = load_file(pathlib.Path(json.loads((pathlib.Path(alone["record"]) / "manifest.json").read_text())["recipe"]["model"]) / "model.safetensors")
    moved = max((one[name] - start[name]).abs().max().item() for name in one)
    apart = max((one[name] - two[name]).abs().max().item() for name in one)
    assert moved > 1e-3 and apart < 1e-2 * moved, (moved, apart)


def counted(evidence):
    return {(row["rule"], row["phase"]): (row["calls"], row["elements"], row["changed"]) for row in evidence["faults"]["counts"]}


def counted_rows(rows):
    sums = {}
    for row in rows:
        before = sums.get((row["rule"], row["phase"]), (0, 0, 0))
        sums[row["rule"], row["phase"]] = tuple(a + row["ledger"][b] for a, b in zip(before, ("calls", "elements", "changed")))
    return sums


def test_a_step_of_grpo_alone_has_the_same_faults_to_the_bit(model, tmp_path):
    arguments = [*COMMON, "~train.sft", "train.steps=1", "train.validation_problems=0", "train.save_model=false"]
    alone = launch(*words(model, tmp_path / "alone", *arguments), env={"OMP_NUM_THREADS": "1"})
    assert alone.returncode == 0, alone.stderr
    ranks = in_two_processes(model, tmp_path / "together", arguments, arguments)
    assert [one.returncode for one in ranks] == [0, 0], [one.stderr for one in ranks]
    one, first = json.loads(alone.stdout), json.loads(ranks[0].stdout)
    (second,) = (pathlib.Path(first["record"]) / "rank-1").glob("*/ledger.json")
    files = (pathlib.Path(first["record"]) / "ledger.json", second)
    parts = [counted_rows(json.loads(file.read_text())["ledger"]["rows"]) for file in files]
    whole = counted(one["joined"])
    for key, expected in whole.items():
        assert tuple(map(sum, zip(parts[0][key], parts[1][key]))) == expected, (key, "each rank did half, and changed the same elements")
    assert counted(first["joined"]) == whole, "what the first rank reports is of both"
    (mine,), (theirs,) = steps(one["record"], "grpo"), steps(first["record"], "grpo")
    exact = [key for key in mine if key.startswith(("critic/", "response_length/", "rollout_corr/", "faultline/importance", "faultline/aqn/", "training/"))]
    assert len(exact) > 10 and {key: mine[key] for key in exact} == {key: theirs[key] for key in exact}
    assert theirs["actor/grad_norm"] == pytest.approx(mine["actor/grad_norm"], rel=1e-5)


def test_shards_that_cannot_be_shared_and_ranks_that_differ_are_refused(model, tmp_path):
    ranks = in_two_processes(model, tmp_path, ["train.shards=1"], ["train.shards=1"])
    for one in ranks:
        assert one.returncode == 64 and "2 processes cannot share 1 shards equally; say train.shards=2" in one.stderr, one.stderr
    ranks = in_two_processes(model, tmp_path, ["train.shards=2"], ["train.shards=2", "seed=9"])
    for one in ranks:
        assert one.returncode == 64 and "different recipes" in one.stderr, one.stderr
    odd = launch(*words(model, tmp_path, "train.shards=3"))
    assert odd.returncode == 64 and "cannot be cut into 3 shards" in odd.stderr, odd.stderr


def test_torchrun_starts_it(model, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port", str(free_port()), PROGRAM, *words(model, tmp_path, "train.shards=2")]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout[done.stdout.index("{") :])["record"]
