"""Arms of verl's main_ppo on one GPU, several at a time, each with its own recipe, Ray and folder: what docs/results/clients.md says of them
comes from here. An arm that has a record is passed over, so a second call goes on; at the limit every run is ended, and what it left is
its record. Raw evidence stays beside it, all of it in one archive.

    python tests/verl_arms.py data PARQUETS                                        needs libfaultline_testing.so: arithmetic in verl's schema
    python tests/verl_arms.py run OUT --model M --data PARQUETS --arms clean,noisy,clean@101,norm_input_fp32@101:4 [--seeds 100 --steps 20 --together 4 --limit 560] [--archive FILE]
    python tests/verl_arms.py list"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import verl_arms_record

ROOT = pathlib.Path(__file__).resolve().parents[1]
EPOCHS, LAYER, SFT_PROBLEMS = 2, 15, 2048
EVERYWHERE = {"rollout": True, "actor_forward": True, "actor_backward": True, "ref": False, "eval": "faulty"}
NOISE = {"name": "npu_noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}
DEAD_ZONE = {"name": "dead_zone", "where": {"module": "layer_output", "layer": LAYER}, "what": {"kind": "deadzone", "threshold": 0.0387}, "gradient": "masked"}
NORM_INPUT = {"name": "norm_input", "where": {"module": "rmsnorm", "surface": "input"}, "what": {"kind": "relative_gaussian", "strength": 1e-5}}
GLOBAL = {"schedule": "global_decay", "sigma_start": 0.05, "sigma_end": 0.005, "num_stages": 10, "sigma_scale": "relative"}
BY_EPOCH = {"schedule": "epoch_aware", "boundaries": [0.05, 0.01, 0.005], "sigma_scale": "relative"}
LINEAR = {"schedule": "linear", "sigma_start": 0.05, "sigma_end": 0.005, "sigma_scale": "relative"}
ALL = {**NOISE, "where": {"operator": "all_ops"}}
SOFTMAX = ["+actor_rollout_ref.model.override_config.attn_implementation=eager"]  # in sdpa it is inside of one kernel, as it is in vLLM
GSM8K = ["data.max_prompt_length=256", "data.max_response_length=160", "actor_rollout_ref.rollout.max_model_len=416"]
ONE_PROCESS = ["+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=uni"]  # vLLM's own default; verl asks for a process more, which takes half a minute to start
# Without mixed_precision verl's engine computes in bf16 whatever the weights are.
FP32 = ["actor_rollout_ref.rollout.dtype=float32", *(f"{one}.fsdp_config.dtype=float32" for one in ("actor_rollout_ref.actor", "actor_rollout_ref.ref")),
        *(f"+{one}.fsdp_config.mixed_precision.param_dtype=fp32" for one in ("actor_rollout_ref.actor", "actor_rollout_ref.ref"))]  # fmt: skip

# name: (what the recipe says beside its seed; None: no recipe, settings beside those of all arms)
ARMS = {
    "clean": (None, []),
    "noisy": ({"faults": [NOISE]}, []),
    "aqn_global": ({"faults": [NOISE], "aqn": GLOBAL}, []),
    "aqn_epoch": ({"faults": [NOISE], "aqn": BY_EPOCH}, []),
    "all_ops": ({"faults": [ALL]}, SOFTMAX),
    "all_ops_aqn": ({"faults": [ALL], "aqn": BY_EPOCH}, SOFTMAX),
    "model_a": ({"faults": [DEAD_ZONE], "aqn": {**LINEAR, "layers": LAYER}}, []),
    "model_b": ({"faults": [DEAD_ZONE], "aqn": LINEAR}, []),
    "aqn_published": ({"faults": [NOISE], "aqn": {**GLOBAL, "sigma_end": 0.0005}}, []),  # refused: bf16 does not show its last stages
    "norm_input_bf16": ({"faults": [NORM_INPUT]}, []),  # refused: bf16 does not show it
    "norm_input_fp32": ({"faults": [NORM_INPUT]}, FP32),
    "gsm8k": ({"faults": [NOISE]}, GSM8K),
}
INSTALLED = {"faultline_lab-0.1.0": ("faultline-lab", "0.1.0", "[vllm.general_plugins]\nfaultline = faultline_vllm:register\n")}


# --- data -----------------------------------------------------------------------------------------------------------------
def write_data(folder):
    """Arithmetic and GSM8K in verl's schema, both scored by verl's own scorer of GSM8K, which is our `strict`. The first problems of arithmetic are
    left out: supervised steps learn from them. So are long ones of GSM8K."""
    import pandas
    from testing_ops import OPS

    folder.mkdir(parents=True, exist_ok=True)
    problems = lambda task, split, count: json.loads(OPS.task_problems(task, split, count, 0, 2))  # noqa: E731
    chosen = {"train": problems("arithmetic", "train", 2 * SFT_PROBLEMS)[SFT_PROBLEMS:], "test": problems("arithmetic", "test", 256)}
    chosen |= {f"gsm8k-{split}": [one for one in problems("gsm8k", split, -1) if len(one["question"]) < 600][:512] for split in ("train", "test")}
    for split, some in chosen.items():
        rows = [{"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": one["question"]}], "ability": "math", "reward_model": {"style": "rule", "ground_truth": one["answer"]},
                 "extra_info": {"index": i, "split": split, "answer": one["solution"]}} for i, one in enumerate(some)]
        pandas.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # for our trainer, where no Arrow fits its library


def take(source, target, count):
    """The first so many rows."""
    import pandas

    pandas.read_parquet(source).head(count).to_parquet(target)


# --- one run --------------------------------------------------------------------------------------------------------------
def settings_of(wish, place, slot, seed, steps):
    """verl's settings, the same for all arms."""
    actor, rollout, ref = ("actor_rollout_ref." + name for name in ("actor", "rollout", "ref"))
    sizes = [1, 2, 4, 8, 16, 32, 64, 128]
    return [
        "algorithm.adv_estimator=grpo", f"data.train_files={place / 'train.parquet'}", f"data.val_files={place / 'test.parquet'}", f"data.train_batch_size={wish.prompts}", f"data.max_prompt_length={wish.prompt_tokens}",
        f"data.max_response_length={wish.response_tokens}", "data.dataloader_num_workers=0", "data.filter_overlong_prompts=False", f"data.seed={seed}", f"actor_rollout_ref.model.path={wish.model}",
        "actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{actor}.strategy=fsdp2", f"{actor}.ppo_mini_batch_size={wish.prompts}", f"{actor}.ppo_micro_batch_size_per_gpu={wish.micro}", f"{actor}.use_dynamic_bsz=False", f"{actor}.optim.lr={wish.lr}", f"{actor}.fsdp_config.use_torch_compile=False",
        f"{actor}.use_torch_compile=False", f"{actor}.use_kl_loss=True", f"{actor}.kl_loss_coef=0.001", f"{actor}.kl_loss_type=low_var_kl", f"{actor}.data_loader_seed={seed}", f"{actor}.fsdp_config.seed={seed}",
        f"{ref}.strategy=fsdp2", f"{ref}.log_prob_micro_batch_size_per_gpu={wish.micro}", f"{ref}.fsdp_config.use_torch_compile=False",
        f"{rollout}.name=vllm", f"{rollout}.n={wish.samples}", f"{rollout}.seed={seed}", f"{rollout}.temperature=1.0", f"{rollout}.tensor_model_parallel_size=1", f"{rollout}.log_prob_micro_batch_size_per_gpu={wish.micro}",
        f"{rollout}.max_model_len={wish.prompt_tokens + wish.response_tokens}", f"{rollout}.max_num_seqs={wish.slots}", f"{rollout}.enable_prefix_caching=False",
        f"{rollout}.agent.num_workers=1", "reward.num_workers=1", "trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.logger=[console,file]", f"trainer.total_training_steps={steps}", f"trainer.total_epochs={EPOCHS}",
        "trainer.val_before_train=False", f"trainer.test_freq={wish.validate_every}", "trainer.save_freq=-1", "trainer.resume_mode=disable", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.include_dashboard=False", "+ray_kwargs.ray_init.address=local", f"+ray_kwargs.ray_init._temp_dir=/tmp/r{slot}", "+ray_kwargs.ray_init.object_store_memory=2000000000",
        *(_of_cpu(rollout, actor) if wish.device == "cpu" else [f"{rollout}.gpu_memory_utilization=0.12", f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes={1 << 30}", f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=256", f"{rollout}.cudagraph_capture_sizes=[{','.join(str(size) for size in sizes if size <= wish.slots)}]"]),
        # vLLM's sleep holds the whole device's memory against what it freed, which runs beside it change.
        f"{rollout}.free_cache_engine=False", f"+{rollout}.enable_sleep_mode=False",
        f"trainer.v1.sampler.custom_sampler.path={ROOT / 'tests/verl_sampler.py'}", "trainer.v1.sampler.custom_sampler.name=Quick",
    ]  # fmt: skip


def _of_cpu(rollout, actor):
    return ["trainer.device=cpu", f"{rollout}.dtype=bfloat16", f"{rollout}.enforce_eager=True", f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16", "+ray_kwargs.ray_init.num_gpus=1"]


def variables_of(wish, place, slot):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FAULTLINE_", "RAY_")) or name == "FAULTLINE_LIBRARY"}
    own |= {"VERL_USE_EXTERNAL_MODULES": "faultline_verl", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_DEDUP_LOGS": "0", "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0", "RAY_raylet_start_wait_time_s": "300", "RAY_agent_register_timeout_ms": "240000", "RAY_USAGE_STATS_ENABLED": "0", "VERL_FILE_LOGGER_PATH": str(place / "metrics.jsonl"),
            "TOKENIZERS_PARALLELISM": "false", "TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "2", "VLLM_CACHE_ROOT": str(wish.out.parent / f"cache-{slot}"), "TRITON_CACHE_DIR": str(wish.out.parent / f"cache-{slot}/triton"), "TORCHINDUCTOR_CACHE_DIR": str(wish.out.parent / f"cache-{slot}/inductor"),
            "PYTHONPATH": os.pathsep.join([str(wish.out / "installed"), str(ROOT / "python"), str(ROOT / "tests"), *own.get("PYTHONPATH", "").split(os.pathsep)])}  # fmt: skip
    if wish.device == "cpu":
        own |= {"VERL_USE_EXTERNAL_MODULES": "verl_on_cpu,faultline_verl", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    if (place / "recipe.json").exists():
        own |= {"FAULTLINE_RECIPE": str(place / "recipe.json"), "FAULTLINE_EVIDENCE": str(place / "evidence")}
    return own


def own_tmp(place):
    """verl names the socket of its weight sync /tmp/rl-colocate-zmq-JOB…, and every Ray of its own has the same first job: runs beside each other
    need a /tmp each. -> the words before a command"""
    (place / "tmp").mkdir()
    words = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"', str(place / "tmp")]
    return words if subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []


class Run:
    """One main_ppo, from its start to its record."""

    def __init__(self, wish, name, seed, steps, slot):
        self.name, self.seed, self.slot, self.place = name, seed, slot, wish.out / f"{name}-{seed}"
        recipe, more = ARMS[name]
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        if recipe is not None:
            # A model that has fewer layers than the arm names is a rehearsal: its last one stands for it.
            text = json.dumps({"seed": seed, "phases": EVERYWHERE, **recipe}).replace(f'"layer": {LAYER}', f'"layer": {min(LAYER, wish.layers - 1)}').replace(f'"layers": {LAYER}', f'"layers": {min(LAYER, wish.layers - 1)}')
            (self.place / "recipe.json").write_text(text)
        one_process = ONE_PROCESS if name in wish.one_process else []
        data = "gsm8k-" if more is GSM8K else ""
        take(wish.data / f"{data}train.parquet", self.place / "train.parquet", wish.prompts * -(-steps // EPOCHS))
        take(wish.data / f"{data}test.parquet", self.place / "test.parquet", wish.validation)
        more = more if any("attn_implementation" in one for one in more) else [*more, "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
        self.command = [sys.executable, "-m", "verl.trainer.main_ppo", *settings_of(wish, self.place, slot, seed, steps), *more, *one_process]
        self.began = time.time()
        with open(self.place / "log.txt", "w") as log:
            self.process = subprocess.Popen([*own_tmp(self.place), *self.command], cwd=self.place, env=variables_of(wish, self.place, slot), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def end(self):
        """With all that it started: Ray's processes have sessions of their own."""
        import psutil

        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        for one in [self.process, *children]:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def record(self, exit_status):
        made = verl_arms_record.make(self.place, exit=exit_status, arm=self.name, seed=self.seed, command=["python", *self.command[1:]], seconds=time.time() - self.began)
        (self.place / "record.json").write_text(json.dumps(made))
        print(f"{self.name}-{self.seed}: exit {exit_status} after {made['seconds']:.0f} s, {len(made['steps'])} steps", flush=True)


# --- all of them ------------------------------------------------------------------------------------------------------------
def archive(wish):
    """What is there, in one file: never half of it."""
    if wish.archive is None:
        return
    unfinished = wish.archive.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w:gz") as file:
        for place in sorted(path.parent for path in wish.out.glob("*/log.txt")):
            for path in sorted([*place.glob("*.json*"), *place.glob("evidence/*.json"), *place.glob("log.txt")]):
                file.add(path, path.relative_to(wish.out))
    unfinished.replace(wish.archive)


def parsed(one):
    """NAME[@SEED][:STEPS] -> name, seed, steps, those that are not said None; None for something else"""
    found = re.fullmatch(r"(\w+)(?:@(\d+))?(?::([1-9]\d*))?", one)
    return (found[1], *(int(number) if number else None for number in found.groups()[1:])) if found and found[1] in ARMS else None


def run_all(wish):
    deadline = time.time() + wish.limit
    for folder, (name, version, entry_points) in INSTALLED.items():
        place = wish.out / "installed" / f"{folder}.dist-info"
        place.mkdir(parents=True, exist_ok=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (place / "entry_points.txt").write_text(entry_points)
    wish.layers = json.loads((wish.model / "config.json").read_text())["num_hidden_layers"]
    wanted = [(name, seed or default, steps or wish.steps) for default in wish.seeds for name, seed, steps in map(parsed, wish.arms)]
    waiting = [one for one in dict.fromkeys(wanted) if not (wish.out / f"{one[0]}-{one[1]}/record.json").exists()]
    slots, running = list(range(wish.together)), []
    while (waiting or running) and time.time() < deadline:
        while waiting and slots and time.time() < deadline - wish.least:
            running.append(Run(wish, *waiting.pop(0), slots.pop(0)))
            time.sleep(wish.apart)
        if not running:
            break
        time.sleep(1)
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            slots.append(run.slot)
            run.end()
            run.record(run.process.returncode)
            archive(wish)
    for run in running:
        run.end()
        run.record("limit")
    archive(wish)
    for name, seed, _ in waiting:
        print(f"{name}-{seed}: not begun", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    data = commands.add_parser("data")
    data.add_argument("folder", type=pathlib.Path)
    run = commands.add_parser("run")
    run.add_argument("out", type=lambda text: pathlib.Path(text).resolve())
    run.add_argument("--model", type=lambda text: pathlib.Path(text).resolve(), required=True)
    run.add_argument("--data", type=lambda text: pathlib.Path(text).resolve(), required=True)
    run.add_argument("--archive", type=pathlib.Path)
    run.add_argument("--arms", type=lambda text: text.split(","), default=["clean", "noisy"])
    run.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[100])
    run.add_argument("--one-process", type=lambda text: text.split(","), default=[], help="arms whose vLLM worker lives in the engine's process")
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    numbers = {"steps": 20, "together": 4, "limit": 560, "least": 150, "apart": 1, "prompts": 16, "samples": 8, "micro": 64, "slots": 128, "validation": 64, "validate-every": 10, "prompt-tokens": 112, "response-tokens": 48}
    for name, value in numbers.items():
        run.add_argument(f"--{name}", type=int, default=value)
    run.add_argument("--lr", type=float, default=1e-5)
    wish = parser.parse_args()
    if wish.command == "list":
        print("\n".join(f"{name}: {json.dumps(recipe)}" for name, (recipe, _) in ARMS.items()))
    elif wish.command == "data":
        write_data(wish.folder)
    else:
        if unknown := [one for one in wish.arms if parsed(one) is None]:
            parser.error(f"no such arm: {', '.join(unknown)}; NAME[@SEED][:STEPS], and names are {', '.join(ARMS)}")
        run_all(wish)


if __name__ == "__main__":
    main()
