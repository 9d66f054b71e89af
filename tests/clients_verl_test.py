"""verl on a CPU, in an environment of its own (`./dev test-clients`; skipped elsewhere): a step of its SFT trainer, of two FSDP2 workers too, and three steps of
main_ppo with vLLM's server, an FSDP2 actor and a reference, each in its processes. verl imports faultline_verl, whose plan acts in
them. Results are others with the plan and the same without it, and every linear is found in every phase of every process. A run
whose worker is killed is resumed."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import clients_vllm_test
import pytest

import faultline

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is tested in an environment of its own: ./dev test-clients")

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "libfaultline.so"
LAYERS, ROWS = 2, 4
LINEARS = 7 * LAYERS + 1
NOISE = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import pandas
    import tiny_folder

    folder = tmp_path_factory.mktemp("verl")
    tiny_folder.make(folder / "tiny", layers=LAYERS)
    rows = [[{"role": "user", "content": f"{number} + 1 ="}, {"role": "assistant", "content": str(number + 1)}] for number in range(ROWS)]
    pandas.DataFrame({"messages": rows}).to_parquet(folder / "train.parquet")
    return folder


def step(files, place, *, modules="verl_on_cpu,faultline_verl", recipe=NOISE, workers=1):
    """One step of ROWS conversations. -> the finished process; of several workers, their launcher"""
    place.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FAULTLINE_")}
    variables |= {"VERL_USE_EXTERNAL_MODULES": modules, "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "FAULTLINE_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1",
                  "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests")]), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if recipe is not None:
        (place / "recipe.json").write_text(json.dumps(recipe))
        variables |= {"FAULTLINE_RECIPE": str(place / "recipe.json"), "FAULTLINE_EVIDENCE": str(place / "evidence")}
    settings = [f"data.train_files={files / 'train.parquet'}", f"data.train_batch_size={ROWS}", f"data.micro_batch_size_per_gpu={ROWS // workers}", "data.use_dynamic_bsz=False", "data.num_workers=0", "data.max_length=128",
                "data.pad_mode=no_padding", f"model.path={files / 'tiny'}", "model.use_remove_padding=False", "model.enable_gradient_checkpointing=False", "+model.override_config.attn_implementation=sdpa", "engine.strategy=fsdp2", "engine.use_torch_compile=False",
                "+engine.mixed_precision.param_dtype=fp32", "trainer.device=cpu", "trainer.total_epochs=1", "trainer.total_training_steps=1", "trainer.logger=[console]", "trainer.resume_mode=disable", "trainer.save_freq=-1",
                f"trainer.default_local_dir={place / 'checkpoints'}"]
    launcher = [] if workers == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    return subprocess.run([sys.executable, *launcher, ROOT / "tests/verl_on_cpu.py", *settings], cwd=place, env=variables, capture_output=True, text=True)


def loss_of(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    [loss] = re.findall(r"train/loss:([-\d.e]+)", done.stdout)
    return loss


def test_a_step_of_verl_is_faulty_under_the_plan_and_the_same_without_it(files, tmp_path):
    clean, ours = loss_of(step(files, tmp_path / "clean", modules="verl_on_cpu", recipe=None)), loss_of(step(files, tmp_path / "ours", recipe=None))
    faulty = loss_of(step(files, tmp_path / "faulty"))
    assert clean == ours != faulty
    [file] = (tmp_path / "faulty/evidence").glob("process-*.json")
    entry = json.loads(file.read_text())
    # These transformers multiply matrices in the rotary embedding, too.
    rows = [row for row in entry["report"]["rows"] if row["place"] != "model.rotary_emb"]
    calls = {phase: sum(row["ledger"]["calls"] for row in rows if row["phase"] == phase) for phase in ("actor_forward", "actor_backward")}
    assert calls == {"actor_forward": LINEARS, "actor_backward": 2 * LINEARS} and len({row["place"] for row in rows}) == LINEARS
    assert {row["layer"] for row in rows} == {-1, *range(LAYERS)} and entry["role"] == "worker" and entry["work"]["actor_forward"] == 1
    assert entry["ended"] and entry["report"]["complaints"] == []


def test_two_workers_of_verl_share_a_model_and_each_is_held_to_its_own_forwards(files, tmp_path):
    fp32 = {"name": "norm_input", "where": {"module": "rmsnorm", "surface": "input"}, "what": {"kind": "relative_gaussian", "strength": 1e-5}}  # bf16 would not show it
    done = step(files, tmp_path / "two", recipe={**NOISE, "faults": [*NOISE["faults"], fp32]}, workers=2)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    entries = [entry for file in (tmp_path / "two/evidence").glob("process-*.json") if (entry := json.loads(file.read_text()))["work"]]
    assert len(entries) == 2 and len({entry["run"] for entry in entries}) == 1
    for entry in entries:
        rows = [row for row in entry["report"]["rows"] if row["place"] != "model.rotary_emb"]
        calls = {(row["rule"], row["phase"]): 0 for row in rows}
        for row in rows:
            calls[row["rule"], row["phase"]] += row["ledger"]["calls"]
        assert calls == {("noise", "actor_forward"): LINEARS, ("noise", "actor_backward"): 2 * LINEARS, ("norm_input", "actor_forward"): 2 * LAYERS + 1}
        ledgers = [row["ledger"] for row in rows if row["rule"] == "norm_input"]
        assert all(one["changed"] > 0.9 * one["elements"] and one["relative_rms"] == pytest.approx(1e-5, rel=0.1) for one in ledgers)
        assert entry["ended"] and entry["report"]["complaints"] == [] and entry["work"]["actor_forward"] == 1
    joined = faultline.collect(tmp_path / "two/evidence")
    assert joined["complaints"] == [] and joined["rules"]["noise"]["processes"] == 2


def test_a_plan_that_meets_nothing_or_cannot_be_armed_ends_verl(files, tmp_path):
    gelu = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "aten::gelu"}, "what": {"kind": "gain", "strength": 0.1}}]}
    silent = step(files, tmp_path / "silent", recipe=gelu)
    assert silent.returncode != 0 and "none of the plan's rules ('noise') met a single call" in silent.stderr
    wrong = step(files, tmp_path / "wrong", recipe={**NOISE, "sed": 1})
    assert wrong.returncode == 64 and "verl would have gone on without it" in wrong.stderr


# --- main_ppo -------------------------------------------------------------------------------------------------------------
PPO_STEPS, PROMPTS, SAMPLES, MICRO = 3, 2, 2, 2
PATIENT = {"RAY_raylet_start_wait_time_s": "600", "RAY_worker_register_timeout_seconds": "600", "RAY_gcs_server_request_timeout_seconds": "600", "RAY_gcs_rpc_server_reconnect_timeout_s": "600", "RAY_health_check_initial_delay_ms": "600000"}  # on a busy machine
PPO = {"seed": 7, "phases": {"rollout": True, "actor_forward": True, "actor_backward": True, "ref": False, "eval": "clean"}, "faults": NOISE["faults"],
       "aqn": {"schedule": "linear", "sigma_start": 0.05, "sigma_end": 0.01, "sigma_scale": "relative"}}
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return float(len(set(solution_str)) % 3)\n"
NORMS = 2 * LAYERS + 1
VLLM_LINEARS = 4 * LAYERS + 1  # vLLM fuses q, k, v and gate, up


@pytest.fixture(scope="module")
def ppo_files(files):
    import pandas

    metadata = {"faultline_lab-0.1.0": ("faultline-lab", "0.1.0", "[vllm.general_plugins]\nfaultline = faultline_vllm:register\n"), "vllm-0.22.1": ("vllm", "0.22.1+cpu", "")}  # verl asks for vllm by that name
    for folder, (name, version, entry_points) in metadata.items():
        place = files / "installed" / f"{folder}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (place / "entry_points.txt").write_text(entry_points)
    (files / "reward.py").write_text(REWARD)
    clients_vllm_test.make_model(files / "ppo-tiny")
    for split, count in {"train": PROMPTS * PPO_STEPS, "test": 2}.items():
        rows = [{"data_source": "arithmetic", "prompt": [{"role": "user", "content": f"{i}+1="}], "ability": "math", "reward_model": {"style": "rule", "ground_truth": str(i + 1)}, "extra_info": {"index": i, "split": split}} for i in range(count)]
        pandas.DataFrame(rows).to_parquet(files / f"ppo-{split}.parquet")
    return files


def begin(files, place, recipe=None, *, steps=PPO_STEPS, workers=1, changes=(), **environment):
    """-> main_ppo as a process that runs in `place`; its output is in out.txt there"""
    place.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FAULTLINE_", "RAY_"))}
    variables |= {"VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,faultline_verl", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "FAULTLINE_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                  "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", **PATIENT, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "python", ROOT / "tests", files / "installed")))}
    if recipe is not None:
        (place / "recipe.json").write_text(json.dumps(recipe))
        variables |= {"FAULTLINE_RECIPE": str(place / "recipe.json"), "FAULTLINE_EVIDENCE": str(place / "evidence")}
    variables |= environment
    actor, rollout, ref = ("actor_rollout_ref." + name for name in ("actor", "rollout", "ref"))
    settings = ["algorithm.adv_estimator=grpo", f"data.train_files={files / 'ppo-train.parquet'}", f"data.val_files={files / 'ppo-test.parquet'}", f"data.train_batch_size={PROMPTS}", "data.max_prompt_length=48", "data.max_response_length=8", "data.dataloader_num_workers=0",
                "data.filter_overlong_prompts=False", f"actor_rollout_ref.model.path={files / 'ppo-tiny'}", "actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.model.enable_gradient_checkpointing=False", "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
                f"{actor}.strategy=fsdp2", f"{actor}.ppo_mini_batch_size={PROMPTS}", f"{actor}.ppo_micro_batch_size_per_gpu={MICRO}", f"{actor}.use_dynamic_bsz=False", f"{actor}.optim.lr=1e-2", f"{actor}.fsdp_config.use_torch_compile=False", f"{actor}.fsdp_config.dtype=float32", f"{actor}.use_kl_loss=True",
                f"{ref}.strategy=fsdp2", f"{ref}.log_prob_micro_batch_size_per_gpu={MICRO}", f"{ref}.fsdp_config.use_torch_compile=False", f"{rollout}.name=vllm", f"{rollout}.n={SAMPLES}", f"{rollout}.dtype=float32", f"{rollout}.tensor_model_parallel_size=1",
                f"{rollout}.log_prob_micro_batch_size_per_gpu={MICRO}", f"{rollout}.enforce_eager=True", f"{rollout}.free_cache_engine=False", f"+{rollout}.enable_sleep_mode=False", f"{rollout}.max_model_len=128", f"{rollout}.max_num_seqs=4", f"{rollout}.enable_prefix_caching=False",
                f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16", f"{rollout}.agent.num_workers=1", f"{rollout}.ignore_eos=True", "reward.num_workers=1", f"reward.custom_reward_function.path={files / 'reward.py'}", "trainer.device=cpu", f"trainer.n_gpus_per_node={workers}", "trainer.nnodes=1",
                "trainer.logger=[console]", f"trainer.total_training_steps={steps}", "trainer.total_epochs=4", "trainer.val_before_train=False", f"trainer.test_freq={steps}", "trainer.save_freq=-1", "trainer.resume_mode=disable", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
                f"+ray_kwargs.ray_init.num_gpus={workers}", "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.include_dashboard=False"]
    with open(place / "out.txt", "w") as out:
        return subprocess.Popen([sys.executable, "-m", "verl.trainer.main_ppo", *settings, *changes], cwd=place, env=variables, stdout=out, stderr=subprocess.STDOUT, text=True)


def train(files, place, recipe=None, **options):
    """-> status, output"""
    return begin(files, place, recipe, **options).wait(), (place / "out.txt").read_text()


def logged(output, name):
    return [float(value) for value in re.findall(rf"{re.escape(name)}:(?:np\.float64\()?([-+\d.e]+)", output)]


def computed(folder):
    """-> by role, the processes that computed: their evidence with their calls by phase; products of the rotary embedding left out"""
    found = {}
    for file in folder.glob("process-*.json"):
        entry = json.loads(file.read_text())
        if not entry["work"]:
            continue
        entry["calls"] = {}
        for row in entry["report"]["rows"]:
            if row["place"] != "model.rotary_emb" and row["rule"] == "noise":
                entry["calls"][row["phase"]] = entry["calls"].get(row["phase"], 0) + row["ledger"]["calls"]
        found.setdefault(entry["role"], []).append(entry)
    return found


def test_main_ppo_is_faulted_and_proven_from_rollout_to_optimizer(ppo_files, tmp_path):
    status, output = train(ppo_files, tmp_path / "run", PPO)
    assert status == 0, output[-9000:]
    found = computed(tmp_path / "run/evidence")
    [trained], [served] = found["worker"], found["vllm"]
    batches = PROMPTS * SAMPLES // MICRO * PPO_STEPS
    assert trained["calls"] == {"actor_forward": 2 * batches * LINEARS, "actor_backward": 2 * batches * LINEARS}
    assert [trained["work"][name] for name in ("old_log_prob", "ref", "update_actor")] == [PPO_STEPS] * 3
    forwards = served["report"]["forwards_by_kind"]["rollout"]
    assert served["calls"] == {"rollout": forwards["body"] * (VLLM_LINEARS - 1) + forwards["head"]} and served["notes"]["eval"] == {"clean": 1, "faulty": 0}
    aqn = served["notes"]["aqn"]
    assert aqn["norms"] == aqn["asked"] == NORMS and aqn["step_from"] == "trainer" and aqn["sigmas"]["first"] == pytest.approx(0.05) and aqn["sigmas"]["last"] == pytest.approx(0.01)
    for entry in (trained, served):
        assert entry["ended"] and entry["report"]["complaints"] == [] and entry["report"]["steps"] == {"from": "trainer", "now": PPO_STEPS - 1, "seen": PPO_STEPS, "total": PPO_STEPS}
    calls = logged(output, "faultline/noise/calls")
    assert len(calls) == PPO_STEPS and calls == sorted(calls) and len(logged(output, "faultline/mismatch/kl_k3")) == len(logged(output, "critic/score/mean")) == PPO_STEPS
    assert f"[AQN] Applied noise to {NORMS} RMSNorm layers" in output and "[HW Error] Registered" in output


def test_main_ppo_is_refused_before_the_first_step(ppo_files, tmp_path):
    status, output = train(ppo_files, tmp_path / "run", PPO, FAULTLINE_TOTAL_STEPS=str(PPO_STEPS + 1))
    assert status == 64 and f"verl's trainer has {PPO_STEPS} steps" in output and "critic/score/mean" not in output


# --- killed and resumed -----------------------------------------------------------------------------------------------------
SAVED = ("trainer.save_freq=1", "trainer.resume_mode=auto", "trainer.default_local_dir=checkpoints")


def killed_after_a_checkpoint(process, place, whom):
    """Kills what whom() finds as soon as a checkpoint is whole. -> status, output"""
    while process.poll() is None and not (place / "checkpoints/latest_checkpointed_iteration.txt").exists():
        time.sleep(0.1)
    assert process.poll() is None, (place / "out.txt").read_text()[-6000:]
    os.kill(whom(), signal.SIGKILL)
    return process.wait(), (place / "out.txt").read_text()


def worker_that_trains(place):
    [entry] = [entry for entry in computed(place / "evidence")["worker"] if "update_actor" in entry["work"]]
    return entry["pid"]


def test_a_killed_worker_leaves_its_evidence_and_a_resumed_run_goes_on_with_the_counts(ppo_files, tmp_path):
    steps, place = 4, tmp_path / "run"
    status, output = killed_after_a_checkpoint(begin(ppo_files, place, PPO, steps=steps, changes=SAVED), place, lambda: worker_that_trains(place))
    assert status not in (0, 64) and "the training failed, its evidence is as far as it came" in output
    [killed] = computed(place / "evidence")["worker"]
    assert not killed["ended"] and killed["work"]["update_actor"] >= 1
    with pytest.raises(faultline.CollectionError, match="killed or left"):
        faultline.collect(place / "evidence")
    done = int((place / "checkpoints/latest_checkpointed_iteration.txt").read_text())
    assert 1 <= done < steps
    status, output = train(ppo_files, place, PPO, steps=steps, changes=SAVED, FAULTLINE_EVIDENCE=str(place / "resumed"))
    assert status == 0, output[-9000:]
    found = computed(place / "resumed")
    [trained], [served] = found["worker"], found["vllm"]
    for entry in (trained, served):
        assert entry["ended"] and entry["report"]["steps"] == {"from": "trainer", "now": steps - 1, "seen": steps - done, "total": steps}
    of_a_step = PROMPTS * SAMPLES // MICRO * LINEARS
    assert trained["calls"] == dict.fromkeys(("actor_forward", "actor_backward"), 2 * of_a_step * (steps - done))
    [before] = [entry for run in (place / "resumed/before").iterdir() for entry in computed(run)["worker"]]
    assert before["calls"] == dict.fromkeys(("actor_forward", "actor_backward"), 2 * of_a_step * done)
    # Products of the rotary embedding are counted, too: one for every forward of the actor.
    assert logged(output, "faultline/noise/actor_backward/calls")[-1] == 2 * of_a_step * steps
    joined = faultline.collect(place / "resumed")
    assert joined["complaints"] == [] and joined["aqn"]["norms"] == NORMS
    sigmas = logged(output, "faultline/aqn/sigma")
    assert sigmas == pytest.approx([0.05 - 0.04 * step / (steps - 1) for step in range(done, steps)])
