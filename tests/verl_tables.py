"""The tables of docs/results/clients.md from their record, docs/results/h200-verl.json, and that record from what came off the GPU.

    python tests/verl_tables.py record FOLDER NAME…          a folder with arms/ and ours/ (tests/verl_on_gpu.sh): these arms (none: all) join the record
    python tests/verl_tables.py beside FOLDER NAME…          the same, but the arms are a company of their own, and the cost of the plan is theirs
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


def joined(record, folder, names, company="arms"):
    """The record with the arms of a folder (a run of the same arm and seed in that company is replaced), and what else there is: our trainer's
    runs, two steps of a 7B shape."""
    new = [arm_of(path.parent) for path in sorted(folder.glob("arms/*/record.json")) if not names or path.parent.name in names]
    known = {(arm["arm"], arm["seed"]): arm for arm in [*record.get(company, []), *new]}
    ours = [verl_beside_ours.curve(json.loads(path.read_text())) for path in sorted(folder.glob("ours/ours-*.json")) if "recipe" not in path.stem] or record.get("ours", [])
    large = {"lora_7b": json.loads(path.read_text()) for path in folder.glob("ours/lora-7b.json")}
    return {**record, company: [known[name] for name in sorted(known, key=lambda one: (list(verl_arms.ARMS).index(one[0]), one[1]))], "ours": ours, **large, "differs": verl_beside_ours.DIFFERS, "recipe_of_ours": verl_beside_ours.GRPO}


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def later(values):
    """Median of the steps after the first."""
    rest = [value for value in values[1:] if value is not None]
    return f"{statistics.median(rest):.1f}" if rest else ""


def small(value):
    return f"{value:.4f}" if value >= 0.001 else f"{value:.3g}"


def mean(values):
    return f"{statistics.mean(values):.3f}" if values else ""


def every(record):
    return [*record["arms"], *record.get("beside", []), *record["cut_short"]]


def trained(record):
    return [arm for arm in every(record) if arm["columns"].get("reward")]


def arm_rows(record):
    for arm in trained(record):
        reward, sigma = arm["columns"]["reward"], arm["columns"].get("sigma")
        kl, share = arm["columns"].get("kl_k3"), arm["columns"].get("effective_sample_share")
        said = ", ".join(f"{value:.3f} ({step})" for step, value in arm["validation"].items())
        yield [arm["arm"], arm["seed"], arm["exit"], len(reward), mean(reward[:10]), mean(reward[10:]), said, f"{sigma[0]:.4g} to {sigma[-1]:.4g} on {arm['columns']['norms'][-1]:.0f}" if sigma else "",
               f"{statistics.median(kl):.3g}" if kl else "", f"{statistics.median(share):.2f}" if share else "", later(arm["step_seconds"]["step"])]  # fmt: skip


def count_rows(record):
    for arm in every(record):
        for process in arm["processes"]:
            for phase, counts in process["phases"].items():
                forwards = " + ".join(f"{often} {kind}" for kind, often in counts["forwards"].items())
                strength = small(counts["strength"]) if counts["strength"] is not None else ""
                yield [arm["arm"], arm["seed"], ROLES.get(process["role"], process["role"]), phase, counts["sites"], ", ".join(f"{often} at {sites}" for often, sites in counts["per_forward"].items()), forwards, f"{counts['calls']:,.0f}", f"{counts['expected']:,.0f}", "yes" if counts["exact"] else "**no**", strength, len(process["complaints"])]


def family_rows(record):
    for arm in every(record):
        for process in arm["processes"]:
            for rule in process["rules"]:
                if rule.get("families"):
                    yield [arm["arm"], ROLES.get(process["role"], process["role"]), *(f"{rule['families'].get(name, 0):,.0f}" if rule["families"].get(name, 0) else "**0**" for name in ("matmul", "softmax", "norm", "activation"))]


def time_rows(record):
    for arm in trained(record):
        seconds = arm["step_seconds"]
        yield [arm["arm"], arm["seed"], *(later(seconds.get(name, [])) for name in ("step", "gen", "old_log_prob", "ref", "update_actor", "update_weights")), f"{arm['seconds']:.0f}"]


def clean_runs(record):
    """-> of verl, of our trainer"""
    of_verl = [{"seed": arm["seed"], "reward": arm["columns"]["reward"], "seconds": arm["step_seconds"]["step"], "tokens": arm["columns"]["tokens"], "validation": arm["validation"]} for arm in trained(record) if arm["arm"] == "clean"]
    return of_verl, record["ours"]


def beside_rows(record):
    for who, runs in zip(("verl", "ours"), clean_runs(record), strict=True):
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


# --- sentences ------------------------------------------------------------------------------------------------------------
GOAL = 15  # per cent, of the plan in a step of main_ppo
PARTS = {"gen": "generation", "old_log_prob": "old log-probabilities", "ref": "reference", "update_actor": "update", "update_weights": "weights"}


def median_later(arm, name):
    return statistics.median(value for value in arm["step_seconds"][name][1:] if value is not None)


def cost_words(record):
    """The noisy runs beside the clean ones of one company."""
    clean, noisy = ([arm for arm in record.get("beside", []) if arm["arm"] == name and len(arm["columns"].get("reward", [])) > 2] for name in ("clean", "noisy"))
    if not clean or not noisy:
        return
    middle = lambda arms, name: statistics.median(median_later(arm, name) for arm in arms)  # noqa: E731
    of_clean = ", ".join(f"{median_later(arm, 'step'):.2f}" for arm in clean)
    over = 100 * (middle(noisy, "step") / middle(clean, "step") - 1)
    parts = ", ".join(f"{words} {middle(noisy, name):.2f} ({middle(clean, name):.2f})" for name, words in PARTS.items() if all(name in arm["step_seconds"] for arm in [*clean, *noisy]))
    yield (f"**Cost of the plan: {over:+.1f} %** (goal +{GOAL} %): 5 % noise on every product beside {len(clean)} clean runs, all of them started together on one GPU. A noisy step took {middle(noisy, 'step'):.2f} s, a clean one {of_clean} "
           f"(each the median of the steps after the first; compared with the median of the clean runs). Its parts, clean in brackets: {parts}.")  # fmt: skip


def seed_words(record):
    """The rewards of verl and of our trainer, clean, over their seeds."""
    of_verl, ours = ({run["seed"]: statistics.mean(run["reward"]) for run in runs if len(run["reward"]) == 20} for runs in clean_runs(record))
    if min(len(of_verl), len(ours)) < 4:
        return
    low, high = max(min(of_verl.values()), min(ours.values())), min(max(of_verl.values()), max(ours.values()))
    within = lambda means, others: sum(min(others.values()) <= value <= max(others.values()) for value in means.values())  # noqa: E731
    yield (f"**Rewards over seeds**, mean of 20 steps: verl's {min(of_verl.values()):.3f} to {max(of_verl.values()):.3f} ({len(of_verl)} seeds), ours {min(ours.values()):.3f} to {max(ours.values()):.3f} ({len(ours)} seeds). "
           + (f"The two spreads overlap from {low:.3f} to {high:.3f}" if low <= high else "The two spreads do not overlap") + f"; {within(of_verl, ours)} of verl's seeds lie within ours, {within(ours, of_verl)} of ours within verl's.")  # fmt: skip


def fp32_words(record):
    """Noise that bf16 does not show."""
    for arm in record.get("beside", []):
        if arm["arm"] == "norm_input_fp32":
            told = f"told {arm['recipe']['faults'][0]['what']['strength']:g}"
            phases = [(ROLES.get(one["role"], one["role"]), phase, counts, one) for one in arm["processes"] for phase, counts in one["phases"].items()]
            said = "; ".join(f"{who}, {phase}: {counts['calls']:,} calls at {counts['sites']} norms ({'as they must be' if counts['exact'] else 'not as they must be'}), strength {small(counts['strength'])}" for who, phase, counts, _ in phases if counts["strength"] is not None)
            changed = [sum(rule["changed"] for rule in one["rules"]) / max(sum(rule["elements"] for rule in one["rules"]), 1) for one in arm["processes"]]
            shares = ", ".join(f"{100 * share:.1f} %" for share in changed)
            yield f"**Noise of 1e-5 at the norms' inputs, in fp32** ({told}, {len(arm['columns'].get('reward', []))} steps, exit {arm['exit']}): {said}. Changed share of the elements by process: {shares}; complaints: {sum(len(one['complaints']) for one in arm['processes'])}."


def large_words(record):
    if (large := record.get("lora_7b")) is not None:
        calls = sum(int(rule["calls"]) for rule in large["rules"])
        realised = statistics.mean(large["steps"][-1]["faultline/layer_error"].values())
        yield (f"**A 7B shape in our trainer** (`{large['recipe']}`, adapters, random weights, {len(large['steps'])} steps): memory {large['predicted']['memory_bytes']['total'] / 2**30:.1f} GiB predicted, {large['costs']['peak_memory_gib']:.1f} measured; "
               f"{large['costs']['median_step_seconds']:.1f} s a step; {calls:,} faulted calls, realised strength {realised:.3f} (mean of the layers, last step); complaints: {len(large['complaints'])}.")  # fmt: skip


def sentences(record):
    return "\n".join(f"- {one}" for words in (cost_words, seed_words, fp32_words, large_words) for one in words(record))


def not_run(record):
    """What no arm of the record was."""
    seeds = {run["seed"] for run in clean_runs(record)[0]}
    wants = {"clean with more than one seed": len(seeds) < 2, "in fp32 with noise of 1e-5 at the norms' inputs": not any(arm["arm"] == "norm_input_fp32" for arm in every(record)), "on GSM8K": not any(arm["arm"] == "gsm8k" for arm in every(record))}
    return "- On a GPU: main_ppo " + ", ".join(["with several workers or nodes", "with LoRA", *(name for name, is_missing in wants.items() if is_missing)]) + "."


def replaced(page, record):
    before, rest = page.split(BEGIN)
    made = "\n\n".join(part for part in (sentences(record), tables(record), "## Not run\n\n" + not_run(record)) if part)
    return before + BEGIN + "\n" + made + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    if sys.argv[1:2] in (["record"], ["beside"]):
        company = "arms" if sys.argv[1] == "record" else "beside"
        RECORD.write_text(json.dumps(joined(json.loads(RECORD.read_text()), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:], company), indent=1) + "\n")
    else:
        PAGE.write_text(replaced(PAGE.read_text(), json.loads(RECORD.read_text())))
