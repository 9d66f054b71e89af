"""What a recipe says about phases, held against what a run of verl's trainer will enter: before the first step, where a phase is named
that never comes, and at the end, where one that is named got no fault. Phases that a recipe does not name are nobody's promise."""

from __future__ import annotations

from typing import Any

from faultline.complaints import complaint

_PHASES = ("rollout", "actor_forward", "actor_backward", "ref", "critic", "diagnose", "race")
_FAULTY = ("faulty", "both")  # verl validates once


def phases_of(recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By rule, the phases that the recipe names, its own and the rule's. recipe: resolved, as a plan has it."""
    return {rule["name"]: {**recipe.get("phases", {}), **rule.get("phases", {})} for rule in recipe.get("faults", [])}


def named(recipe: dict[str, Any]) -> dict[str, list[str]]:
    """By phase that the recipe names, the rules that are to act there; a faulty validation is eval."""
    found: dict[str, list[str]] = {}
    for rule, phases in phases_of(recipe).items():
        for name in _PHASES:
            if phases.get(name) is True:
                found.setdefault(name, []).append(rule)
        if phases.get("eval") in _FAULTY:
            found.setdefault("eval", []).append(rule)
    return found


def validation_of(recipe: dict[str, Any]) -> str:
    """-> clean or faulty. Not said, a validation follows the rollouts, from whose graphs it is served. Raises ValueError where it
    would have to be faulted otherwise than they are."""
    rollout = {rule for rule, phases in phases_of(recipe).items() if phases.get("rollout", True)}
    faulty = {rule for rule, phases in phases_of(recipe).items() if (phases["eval"] in _FAULTY if "eval" in phases else rule in rollout)}
    if not faulty:
        return "clean"
    if faulty != rollout:
        raise ValueError(f"phases: {_list(faulty ^ rollout)} would act in rollout or in eval and not in both; vLLM serves verl's validation from the graphs of the rollouts, with all of their faults or (eval: clean) with none")
    return "faulty"


def check_entered(recipe: dict[str, Any], entered: set[str]) -> None:
    """Raises ValueError for a phase that the recipe names and the run never enters, or a rule all of whose phases are such."""
    for name, rules in named(recipe).items():
        if name not in entered:
            raise ValueError(f"phases: {_list(rules)} name {name}, which this run of verl never enters ({_ways_in(name)}); it enters {', '.join(sorted(entered))}")


def _ways_in(name: str) -> str:
    return {"ref": "a reference needs actor.use_kl_loss or algorithm.use_kl_in_reward, old log-probabilities FAULTLINE_OLD_LOG_PROBS=ref",
            "eval": "a validation needs trainer.test_freq above 0 or trainer.val_before_train"}.get(name, "nothing of it runs there")


def complaints(recipe: dict[str, Any], entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Of phases that the recipe names and in which no fault acted, in any process. A rule on modules acts in no backward."""
    calls: dict[str, float] = {}
    for entry in entries:
        for row in entry["report"]["rows"]:
            calls[row["phase"]] = calls.get(row["phase"], 0) + row["ledger"]["calls"]
        calls["eval"] = calls.get("eval", 0) + entry["notes"].get("eval", {}).get("faulty", 0)
    on_operators = {rule["name"] for rule in recipe.get("faults", []) if "operator" in rule["where"]}
    return [complaint("never_fired", f"the recipe names {name}, and no fault acted there in any process", rule=rules[0])
            for name, rules in named(recipe).items() if not calls.get(name) and (name != "actor_backward" or on_operators.intersection(rules))]


def _list(rules: Any) -> str:
    names = sorted(rules)
    return f"rule{'s' if len(names) > 1 else ''} {', '.join(repr(name) for name in names)}"
