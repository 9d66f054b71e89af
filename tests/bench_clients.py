"""What an armed 5 % matmul plan costs in other people's engines: tokens decoded by vLLM on a CPU, and GRPO steps of TRL. Every arm is a
process of its own that waits for its turn, so that arms alternate on one machine; "clean again" is a second process without
a plan, and its ratio is the drift that the others must be read against. Seconds of processor time of the whole
process tree (user and system), because a shared machine's clock measures its other users; wall time beside them.

    python tests/bench_clients.py trl smollm2            # an environment with trl
    python tests/bench_clients.py vllm smollm2           # an environment with vLLM and faultline installed
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

RECIPE = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.05}}]}
ARMS = {"clean": False, "clean again": False, "5 % on matmul": True}


# --- one arm ----------------------------------------------------------------------------------------------------------
def tree_seconds(pid):
    """Processor time of a process and all its descendants, the dead ones included."""
    ticks = os.sysconf("SC_CLK_TCK")
    total, stack = 0.0, [pid]
    while stack:
        one = stack.pop()
        try:
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15])) / ticks
            for thread in pathlib.Path(f"/proc/{one}/task").iterdir():
                stack += map(int, (thread / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total


def wait_for_turn():
    return sys.stdin.readline().strip() == "go"


def measured(run):
    wall, own = time.monotonic(), tree_seconds(os.getpid())
    run()
    print("measured", json.dumps([tree_seconds(os.getpid()) - own, time.monotonic() - wall]), flush=True)


def be_vllm(model, tokens):
    import vllm

    engine = vllm.LLM(model, enforce_eager=True, max_model_len=512, dtype="bfloat16", max_num_seqs=4, disable_log_stats=True, enable_prefix_caching=False, gpu_memory_utilization=0.2)
    settings = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    generate = lambda: engine.generate(["The capital of France is"] * 4, settings, use_tqdm=False)
    generate()
    print("ready", flush=True)
    while wait_for_turn():
        measured(generate)


def be_trl(model, tokens):
    import datasets
    import transformers
    import trl

    class Turns(transformers.TrainerCallback):
        def on_step_begin(self, _arguments, state, control, **_):
            if state.global_step == 1:
                print("ready", flush=True)
            self.is_timed = state.global_step >= 1
            if self.is_timed and not wait_for_turn():
                control.should_training_stop = True
                self.is_timed = False
            self.wall, self.own = time.monotonic(), tree_seconds(os.getpid())

        def on_step_end(self, *_, **__):
            if self.is_timed:
                print("measured", json.dumps([tree_seconds(os.getpid()) - self.own, time.monotonic() - self.wall]), flush=True)

    prompts = datasets.Dataset.from_dict({"prompt": ["Count to five:", "Name a colour:"] * 64})
    settings = trl.GRPOConfig(output_dir=f"/tmp/bench-trl-{os.getpid()}", per_device_train_batch_size=4, num_generations=2, max_completion_length=tokens, max_steps=100,
                              report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True)
    trainer = trl.GRPOTrainer(model=model, args=settings, train_dataset=prompts, callbacks=[Turns()], reward_funcs=lambda completions, **_: [float(len(text)) for text in completions])
    trainer.train()


# --- all of them ------------------------------------------------------------------------------------------------------
def start(engine, model, tokens, recipe):
    variables = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launcher = []
    if recipe is not None:
        variables["FAULTLINE_RECIPE"] = str(recipe)
        launcher = ["-m", "faultline"]
    return subprocess.Popen([sys.executable, *launcher, __file__, engine, model, "--tokens", str(tokens), "--arm"], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process, word):
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise SystemExit(f"bench_clients: a process ended with status {process.wait()} before it was {word}")


def one_repeat(options, recipe):
    """A process of each arm, which take turns. -> [processor seconds, wall seconds] of every turn, by arm"""
    processes = {name: start(options.engine, options.model, options.tokens, recipe if armed else None) for name, armed in ARMS.items()}
    for process in processes.values():
        answer(process, "ready")
    values = {name: [] for name in ARMS}
    for _ in range(options.rounds):
        for name, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            values[name].append(json.loads(answer(process, "measured")))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "trl"])
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=4, help="processes of each arm, one after the other: where a process's memory lies makes one up to a tenth slower than its twin")
    parser.add_argument("--rounds", type=int, default=5, help="turns of a process")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", help="write the values there")
    parser.add_argument("--arm", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        return {"vllm": be_vllm, "trl": be_trl}[options.engine](options.model, options.tokens)
    recipe = pathlib.Path(f"/tmp/bench-clients-{os.getpid()}.json")
    recipe.write_text(json.dumps(RECIPE))
    values = {name: [] for name in ARMS}  # an arm's processes' medians
    for _ in range(options.repeats):
        for name, rows in one_repeat(options, recipe).items():
            values[name].append([statistics.median(column) for column in zip(*rows, strict=True)])
    load = os.getloadavg()[0]
    recipe.unlink()
    base = [statistics.median(column) for column in zip(*values["clean"], strict=True)]
    print(f"{options.engine}: medians over {options.repeats} processes of their medians of {options.rounds} rounds, {options.tokens} tokens, {os.cpu_count()} cores, load {load:.1f}")
    for name, rows in values.items():
        seconds = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"  {name:14} {seconds[0]:8.2f} s of processors ({seconds[0] / base[0] - 1:+.1%}) {seconds[1]:8.2f} s wall ({seconds[1] / base[1] - 1:+.1%})")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"engine": options.engine, "repeats": options.repeats, "rounds": options.rounds, "tokens": options.tokens, "load": load, "values": values}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
