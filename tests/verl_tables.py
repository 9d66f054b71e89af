"""The tables of docs/results/clients.md from their record, docs/results/h200-verl.json, and that record from what came off the GPU.

    python tests/verl_tables.py record FOLDER NAME…          a folder with arms/ and ours/ (tests/verl_on_gpu.sh): these arms (none: all) join the record
    python tests/verl_tables.py                              what stands between the page's markers is replaced"""

import json
import pathlib
import statistics
import sys

import verl_arms
import verl_arms_record
import verl_beside_ours

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE, RECORD = ROOT / "docs/results/clients.md", ROOT / "docs/results/h200-verl.json"
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
ROLES = {"worker": "actor", "vllm": "vLLM's worker"}


def arm_of(place):
    """From what the run left, not from what was made of it there."""
    record = json.loads((place / "record.json").read_text())
    facts = {name: record[name] for name in ("arm", "seed", "exit", "command", "seconds")}
    return verl_arms_record.published(verl_arms_record.make(place, **facts))


def joined(record, folder, names):
    """The record with the arms of a folder (a run of the same arm and seed is replaced), and our trainer's runs where there are some."""
    new = [arm_of(path.parent) for path in sorted(folder.glob("arms/*/record.json")) if not names or path.parent.name in names]
    known = {(arm["arm"], arm["seed"]): arm for arm in [*record.get("arms", []), *new]}
    ours = [verl_beside_ours.curve(json.loads(path.read_text())) for path in sorted(folder.glob("ours/ours-*.json")) if "recipe" not in path.stem] or record.get("ours", [])
    return {**record, "arms": [known[name] for name in sorted(known, key=lambda one: (list(verl_arms.ARMS).index(one[0]), one[1]))], "ours": ours, "differs": verl_beside_ours.DIFFERS, "recipe_of_ours": verl_beside_ours.GRPO}


def named(record):
    return {(arm["arm"], arm["seed"]): arm for arm in record["arms"]}


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def later(values):
    """Median of the steps after the first."""
    rest = [value for value in values[1:] if value is not None]
    return f"{statistics.median(rest):.1f}" if rest else ""


def mean(values):
    return f"{statistics.mean(values):.3f}" if values else ""


def trained(record):
    return [arm for arm in [*record["arms"], *record["cut_short"]] if arm["columns"].get("reward")]


def arm_rows(record):
    for arm in trained(record):
        reward, sigma = arm["columns"]["reward"], arm["columns"].get("sigma")
        kl, share = arm["columns"].get("kl_k3"), arm["columns"].get("effective_sample_share")
        said = ", ".join(f"{value:.3f} ({step})" for step, value in arm["validation"].items())
        yield [arm["arm"], arm["seed"], arm["exit"], len(reward), mean(reward[:10]), mean(reward[10:]), said, f"{sigma[0]:.4g} to {sigma[-1]:.4g} on {arm['columns']['norms'][-1]:.0f}" if sigma else "",
               f"{statistics.median(kl):.3g}" if kl else "", f"{statistics.median(share):.2f}" if share else "", later(arm["step_seconds"]["step"])]  # fmt: skip


def count_rows(record):
    for arm in [*record["arms"], *record["cut_short"]]:
        for process in arm["processes"]:
            for phase, counts in process["phases"].items():
                forwards = " + ".join(f"{often} {kind}" for kind, often in counts["forwards"].items())
                strength = f"{counts['strength']:.4f}" if counts["strength"] is not None else ""
                yield [arm["arm"], arm["seed"], ROLES.get(process["role"], process["role"]), phase, counts["sites"], ", ".join(f"{often} at {sites}" for often, sites in counts["per_forward"].items()), forwards, f"{counts['calls']:,.0f}", f"{counts['expected']:,.0f}", "yes" if counts["exact"] else "**no**", strength, len(process["complaints"])]


def family_rows(record):
    for arm in [*record["arms"], *record["cut_short"]]:
        for process in arm["processes"]:
            for rule in process["rules"]:
                if rule.get("families"):
                    yield [arm["arm"], ROLES.get(process["role"], process["role"]), *(f"{rule['families'].get(name, 0):,.0f}" if rule["families"].get(name, 0) else "**0**" for name in ("matmul", "softmax", "norm", "activation"))]


def time_rows(record):
    for arm in trained(record):
        seconds = arm["step_seconds"]
        yield [arm["arm"], arm["seed"], *(later(seconds.get(name, [])) for name in ("step", "gen", "old_log_prob", "ref", "update_actor", "update_weights")), f"{arm['seconds']:.0f}"]


def beside_rows(record):
    of_verl = [{"seed": arm["seed"], "reward": arm["columns"]["reward"], "seconds": arm["step_seconds"]["step"], "tokens": arm["columns"]["tokens"], "validation": arm["validation"]} for arm in trained(record) if arm["arm"] == "clean"]
    for who, runs in {"verl": of_verl, "ours": record["ours"]}.items():
        for run in runs:
            reward = run["reward"]
            yield [who, run["seed"], len(reward), mean(reward), mean(reward[:5]), mean(reward[-5:]), f"{run['tokens'][-1]:.0f}", ", ".join(f"{value:.3f} ({step})" for step, value in run["validation"].items()), f"{statistics.median(run['seconds'][1:]):.2f}"]


def tables(record):
    parts = [
        "**Arms** (reward: mean of the first and of the other steps up to 20; validation after the step in brackets; KL (k3) and effective sample share: medians of the steps; seconds: median of the steps after the first)",
        table(["arm", "seed", "exit", "steps", "reward, steps 1-10", "from 11 on", "validation", "sigma on norms", "KL", "effective share", "seconds"], arm_rows(record)),
        "**Calls** of every process and phase, and what they must be",
        table(["arm", "seed", "process", "phase", "sites", "calls there", "forwards", "calls", "must be", "exact", "strength", "complaints"], count_rows(record)),
        "**Families of `all_ops`** that were met as operators; 0: inside of another kernel or of generated code",
        table(["arm", "process", "matmul", "softmax", "norm", "activation"], family_rows(record)),
        "**Seconds of a step** (medians of the steps after the first; wall: of the whole command)",
        table(["arm", "seed", "step", "generation", "old log-probabilities", "reference", "update", "weights", "wall"], time_rows(record)),
        "**verl's main_ppo and our trainer** on the same problems",
        table(["trainer", "seed", "steps", "reward", "first 5", "last 5", "tokens at the end", "validation", "seconds a step"], beside_rows(record)),
    ]  # fmt: skip
    return "\n\n".join(f"{title}\n\n{made}" for title, made in zip(parts[::2], parts[1::2], strict=True) if made.count("\n") > 1)


def replaced(page, record):
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + tables(record) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        RECORD.write_text(json.dumps(joined(json.loads(RECORD.read_text()), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]), indent=1) + "\n")
    else:
        PAGE.write_text(replaced(PAGE.read_text(), json.loads(RECORD.read_text())))
