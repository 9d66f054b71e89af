"""verl's main_ppo and `faultline train` side by side: the same start (SmolLM2 after a short SFT), the same problems, GRPO with the same settings.

    python tests/verl_beside_ours.py start OUT --program F --gguf FILE            the model that both begin with: prints its folder
    python tests/verl_beside_ours.py ours OUT --program F --model M --data PARQUETS --seeds 100,101,102,103
    python tests/verl_beside_ours.py compare RECORDS OURS                         both reward curves and step times, as JSON
    python tests/verl_beside_ours.py lora OUT --program F --gguf FILE             recipes/train/lora-7b.yaml: what was predicted, what was measured

verl's half are the arms `clean` of tests/verl_arms.py. What differs is in DIFFERS."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SFT = {"seed": 100, "task": {"name": "arithmetic", "difficulty": 2, "train": 2048, "test": 256}, "train": {"algorithm": "sft", "steps": 25, "prompts": 32, "lr": 1e-4, "save_model": True, "checkpoint_every": 0, "validation_problems": 256}}
GRPO = {"algorithm": "grpo", "steps": 20, "prompts": 16, "n": 8, "lr": 1e-5, "micro_batch": 64, "slots": 128, "max_new_tokens": 48, "use_kl_loss": True, "kl_loss_coef": 0.001, "kl_loss_type": "k3", "validate_every": 10, "validation_problems": 64, "checkpoint_every": 0}
DIFFERS = {
    "order of the problems": "each has its own shuffle; a seed is the same number, not the same numbers drawn",
    "sampling": "vLLM and our generation draw other tokens from the same distribution; both at temperature 1, at most 48 new tokens",
    "old log-probabilities": "verl computes them with the actor before the update; ours are those of the same forward (one update a step: the ratio is 1 in both)",
    "padding": "verl pads every row to 112 + 48 tokens, ours to the widest of its micro-batch",
    "weights": "fp32 masters in both; verl computes under FSDP2's mixed precision in bf16, ours in bf16 weights",
}


def program(wish, *arguments):
    done = subprocess.run([wish.program, *map(str, arguments), "--json", "--quiet", "--device", wish.device], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{wish.program} {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def start(wish):
    wish.out.mkdir(parents=True, exist_ok=True)
    recipe = wish.out / "sft.json"
    recipe.write_text(json.dumps({"model": str(wish.gguf), **SFT, "train": {**SFT["train"], **wish.train}}))
    made = program(wish, "train", recipe, "--out", wish.out / "sft")
    events = (pathlib.Path(made["record"]) / "events.jsonl").read_text().splitlines()
    (wish.out / "start.json").write_text(json.dumps({"recipe": json.loads(recipe.read_text()), "last": json.loads(events[-1]), "steps": [json.loads(line)["metrics"] for line in events if json.loads(line)["kind"] == "step"][-1:]}))
    print(pathlib.Path(made["record"]) / "model")


def ours(wish):
    for seed in wish.seeds:
        target = wish.out / f"ours-{seed}.json"
        if target.exists():
            continue
        wish.out.mkdir(parents=True, exist_ok=True)
        recipe = {"model": str(wish.model), "seed": seed, "task": {"name": "gsm8k", "train_file": str(wish.data / "train.jsonl"), "test_file": str(wish.data / "test.jsonl"), "train": wish.problems}, "train": {**GRPO, **wish.train}}
        (wish.out / f"ours-{seed}.recipe.json").write_text(json.dumps(recipe))
        made = program(wish, "train", wish.out / f"ours-{seed}.recipe.json", "--out", wish.out / "runs")
        events = [json.loads(line) for line in (pathlib.Path(made["record"]) / "events.jsonl").read_text().splitlines()]
        steps = [{"step": event["step"], **event["metrics"], **event["times"]} for event in events if event["kind"] == "step"]
        target.write_text(json.dumps({"seed": seed, "recipe": recipe, "steps": steps}))
        print(f"ours-{seed}: {len(steps)} steps, reward {statistics.mean(step['critic/score/mean'] for step in steps):.3f}", flush=True)


def lora(wish):
    """Two steps of a 7B shape with adapters. The GGUF file lends its tokenizer."""
    os.environ["FAULTLINE_MODEL"] = str(wish.gguf)
    recipe = ROOT / "recipes/train/lora-7b.yaml"
    changes = [f"train.{name}={json.dumps(value)}" for name, value in wish.train.items()] + wish.set
    predicted = program(wish, "train", recipe, *changes, "--dry-run")["prediction"]
    made = program(wish, "train", recipe, *changes, "--out", wish.out / "lora-7b")
    steps = [json.loads(line) for line in (pathlib.Path(made["record"]) / "events.jsonl").read_text().splitlines()]
    rules = [{name: rule.get(name) for name in ("name", "sites", "calls", "elements", "changed")} for rule in made["evidence"]["rules"]]
    record = {"recipe": "recipes/train/lora-7b.yaml", "changes": changes, "predicted": {name: predicted[name] for name in ("parameters", "memory_bytes", "seconds_a_step", "sequences_a_step", "flops_a_step")}, "costs": made["costs"], "rules": rules, "joined": made["joined"], "complaints": made["complaints"],
              "steps": [{"step": one["step"], **one["metrics"], **one["times"]} for one in steps if one["kind"] == "step"]}  # fmt: skip
    (wish.out / "lora-7b.json").write_text(json.dumps(record))
    print(f"lora-7b: memory {predicted['memory_bytes']['total'] / 2**30:.2f} GiB predicted, {made['costs']['peak_memory_gib']:.2f} measured; {len(record['steps'])} steps, complaints {made['complaints']}", flush=True)


def curve(record):
    steps = record["steps"]
    return {"seed": record["seed"], "reward": [step["critic/score/mean"] for step in steps], "seconds": [step["timing_s/step"] for step in steps], "tokens": [step["response_length/mean"] for step in steps],
            "validation": {str(step["step"]): value for step in steps for name, value in step.items() if name.startswith("val-core/") and isinstance(value, (int, float))}}  # fmt: skip


def compare(wish):
    of_verl = [curve(json.loads(path.read_text())) for path in sorted(wish.records.glob("clean-*/record.json"))]
    of_ours = [curve(json.loads(path.read_text())) for path in sorted(wish.out.glob("ours-[0-9]*.json")) if "recipe" not in path.stem]
    print(json.dumps({"verl": of_verl, "ours": of_ours, "differs": DIFFERS}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    path = lambda text: pathlib.Path(text).resolve()  # noqa: E731
    begin, own, both, large = (commands.add_parser(name) for name in ("start", "ours", "compare", "lora"))
    both.add_argument("records", type=path)
    for one in (begin, own, both, large):
        one.add_argument("out", type=path)
    for one in (begin, own, large):
        one.add_argument("--program", required=True)
        one.add_argument("--device", default="cuda")
        one.add_argument("--train", type=json.loads, default={}, help="settings of train: that go before the ones here, as JSON")
    for one in (begin, large):
        one.add_argument("--gguf", type=path, required=True)
    large.add_argument("--set", nargs="*", default=[], help="keys of the recipe, such as model=random:FOLDER in a rehearsal")
    own.add_argument("--model", type=path, required=True)
    own.add_argument("--data", type=path, required=True)
    own.add_argument("--problems", type=int, default=160, help="the first so many of the training file: 16 prompts x 20 steps are 2 epochs")
    own.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[100, 101, 102, 103])
    wish = parser.parse_args()
    {"start": start, "ours": ours, "compare": compare, "lora": lora}[wish.command](wish)


if __name__ == "__main__":
    main()
