"""A run of main_ppo as a record of some kilobytes: verl's own metrics of every step, and the evidence of every process held against the forwards
that it made. Read by tests/verl_arms.py and by nothing that decides: what is not there is left out."""

import collections
import json
import math
import re

KEPT = re.compile(r"^(critic/(score|rewards)/mean|timing_s/|val-|response_length/mean|actor/(grad_norm|pg_loss|kl_loss|ppo_kl|pg_clipfrac)|faultline/|training/(epoch|global_step))")
PREFIX = re.compile(r"^(\x1b\[\d+m)*(\([^)]*\)\s*)+(\x1b\[\d+m)*\s*")
SAID = re.compile(r"\[AQN\]|\[HW Error\]|\[faultline\]|faultline: |below half a")
LINES = 60


def make(place, **facts):
    """place: the folder of a run (verl_arms.py); facts stand in the record as they are. -> the record"""
    steps = read_steps(place / "metrics.jsonl")
    recipe = json.loads((place / "recipe.json").read_text()) if (place / "recipe.json").exists() else None
    entries = [json.loads(path.read_text()) for path in sorted(place.glob("evidence/process-*.json"))]
    verdicts = [json.loads(path.read_text()) for path in sorted(place.glob("evidence/verdict-run-*.json"))]
    return {**facts, "recipe": recipe, "steps": steps, "processes": [process(entry, facts["command"]) for entry in entries if entry["work"]], "without_work": collections.Counter(entry["role"] for entry in entries if not entry["work"]),
            "verdict": [{"complaints": one["complaints"], "script_error": one["script_error"]} for one in verdicts], **said(place / "log.txt")}  # fmt: skip


def read_steps(path):
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        found.append({"step": entry["step"], **{name: rounded(value) for name, value in entry["data"].items() if KEPT.match(name) and isinstance(value, (int, float))}})
    return found


def rounded(value):
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def said(path):
    """What faultline printed, once each, and how often the noise went onto how many norms."""
    lines, applied = {}, collections.Counter()
    text = path.read_text(errors="replace") if path.exists() else ""
    for line in text.splitlines():
        line = PREFIX.sub("", line).strip()
        if match := re.search(r"\[AQN\] Applied noise to (\d+) RMSNorm", line):
            applied[match[1]] += 1
        if SAID.search(line):
            lines.setdefault(re.sub(r"\b\d+ (calls|of)\b", "", line), line[:400])
    return {"lines": list(lines.values())[:LINES], "norms_of_applications": applied, "end": "" if "Training Progress: 100%" in text else text[-1500:]}


# --- what is published ----------------------------------------------------------------------------------------------------
COLUMNS = {"reward": "critic/score/mean", "tokens": "response_length/mean", "gradient": "actor/grad_norm", "sigma": "faultline/aqn/sigma", "sigma_realised": "faultline/aqn/realised", "norms": "faultline/aqn/norms", "complaints": "faultline/complaints",
           "kl_k1": "faultline/mismatch/kl_k1", "kl_k3": "faultline/mismatch/kl_k3", "ratio_p50": "faultline/mismatch/ratio_p50", "effective_sample_share": "faultline/mismatch/effective_sample_share"}  # fmt: skip
SECONDS = ("step", "gen", "reward", "old_log_prob", "ref", "update_actor", "update_weights", "testing")
OF_PROCESS = ("role", "ended", "work", "steps", "forwards", "phases", "apart", "complaints", "rules", "aqn", "eval")


def bare(text):
    """Without the folders of a machine."""
    return re.sub(r"(?<![\w/])/[\w./-]*/", "", text)


def published(record):
    """The same, a column for each metric, and the last step's faultline metrics."""
    steps = record["steps"]
    columns = {name: [step[key] for step in steps] for name, key in COLUMNS.items() if steps and all(key in step for step in steps)}
    seconds = {name: [step.get(f"timing_s/{name}") for step in steps] for name in SECONDS if any(f"timing_s/{name}" in step for step in steps)}
    validation = {str(step["step"]): value for step in steps for name, value in step.items() if name.startswith("val-core/")}
    canary = lambda one: {"canary": {name: value for name, value in one["canary"].items() if isinstance(value, (int, float, str, bool))}} if isinstance(one.get("canary"), dict) else {"canary": one.get("canary")}  # noqa: E731
    return {**{name: record[name] for name in ("arm", "seed", "exit", "seconds", "recipe", "norms_of_applications", "without_work", "verdict")}, "settings": [bare(one) for one in record["command"] if "=" in one], "columns": columns, "step_seconds": seconds,
            "validation": validation, "last": {name: value for name, value in (steps[-1] if steps else {}).items() if name.startswith("faultline/")}, "processes": [{**{name: one.get(name) for name in OF_PROCESS}, **canary(one)} for one in record["processes"]],
            "lines": [bare(line) for line in record["lines"] if len(line) < 300][:20]}  # fmt: skip


# --- evidence -------------------------------------------------------------------------------------------------------------
def process(entry, command):
    report = entry["report"]
    forwards = report.get("forwards_by_kind", {})
    scored = entry["work"].get("old_log_prob", 0) * batches(command)  # without gradients; the other forwards of the actor learn
    learnt = {"whole": forwards.get("actor_forward", {}).get("whole", 0) - scored}
    phases = {phase: counts([row for row in report["rows"] if row["phase"] == phase], learnt if phase == "actor_backward" else forwards.get(phase, {})) for phase in sorted({row["phase"] for row in report["rows"]})}
    notes = entry["notes"]
    return {"role": entry["role"], "ended": entry["ended"], "work": entry["work"], "steps": report.get("steps"), "forwards": forwards, "phases": phases, "apart": report.get("apart"), "complaints": report["complaints"],
            "rules": [{name: rule.get(name) for name in ("name", "sites", "calls", "elements", "changed", "survival", "families", "unreached")} for rule in report["rules"]],
            "aqn": notes.get("aqn"), "eval": notes.get("eval"), "canary": notes.get("canary"), "launches": notes.get("launches"), "worker": notes.get("worker"), "log": report.get("log", [])[:LINES]}  # fmt: skip


def batches(command):
    """Forwards of a step in each of its passes: a batch is cut into micro-batches."""
    values = dict(one.lstrip("+").split("=", 1) for one in command if "=" in one)
    return math.ceil(int(values["data.train_batch_size"]) * int(values["actor_rollout_ref.rollout.n"]) / int(values["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]))


def counts(rows, forwards):
    """Calls of a phase, and what they must be: of a site that was rehearsed as often as it was then, a forward; of others equally often in
    every forward. What belongs to no module (the loss, the choice of a token) comes as often as there is something to score: apart, as `outside`."""
    outside = collections.Counter()
    for row in rows:
        if not row["place"]:
            outside[row["operator"]] += row["ledger"]["calls"]
    rows = [row for row in rows if row["place"]]
    calls = sum(row["ledger"]["calls"] for row in rows)
    expected, per_forward = 0, collections.Counter()
    for row in rows:
        if "rehearsed" in row:
            expected += sum(often * forwards.get(kind, 0) for kind, often in row["rehearsed"].items())
            per_forward[" + ".join(f"{often} a {kind}" for kind, often in sorted(row["rehearsed"].items()))] += 1
        elif total := sum(forwards.values()):
            often = max(round(row["ledger"]["calls"] / total), 1)
            expected += often * total
            per_forward[f"{often} a forward"] += 1
    measured = [row["ledger"] for row in rows if row["ledger"].get("relative_rms") is not None]
    sampled = sum(ledger["sampled"] for ledger in measured)
    return {"sites": len(rows), "calls": calls, "expected": expected, "exact": calls == expected, "outside": outside, "forwards": forwards, "per_forward": per_forward,
            "strength": rounded(math.sqrt(sum(ledger["sampled"] * ledger["relative_rms"] ** 2 for ledger in measured) / sampled)) if sampled else None,
            "operators": collections.Counter(row["operator"] for row in rows), "told": sorted({rounded(row["strength"]) for row in rows})[:8]}  # fmt: skip
