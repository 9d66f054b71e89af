"""Which steps a process has seen, and who told them. A schedule is nothing without a step that moves: a trainer in this process
tells it (trainer.py), or a call does (plan.begin_step, faultline_begin_step of vLLM's workers), or, where nobody does, the
weights that a trainer sends from elsewhere (vllm_updates.py). A schedule that should have moved and did not is a complaint."""

from __future__ import annotations

from typing import Any

from faultline.complaints import complaint

NOBODY, CALL, TRAINER, WEIGHT_UPDATES = "nobody", "call", "trainer", "weight_updates"


class Steps:
    """The steps of one plan: `total` of its schedules, the step `now` and who told it (`told_by`), how often an optimizer of this
    process has stepped (`optimizer_steps`) and how many `rounds` of weights came from elsewhere."""

    def __init__(self, total: int) -> None:
        """Takes how many steps the schedules have."""
        self.total = total  # of the schedules
        self.now, self.told_by = 0, NOBODY
        self.optimizer_steps = self.rounds = 0  # rounds of weights that came from elsewhere
        self._seen = {0}

    def saw(self, step: int, told_by: str) -> None:
        """Notes a step, and who told it: CALL, TRAINER or WEIGHT_UPDATES."""
        if told_by == TRAINER and self.told_by != TRAINER:  # from here on the steps are its own; a resumed one begins late
            self._seen = set()
        self.now, self.told_by = step, told_by
        self._seen.add(step)

    def record(self) -> dict[str, str | int]:
        """For the report: who told the steps, which one it is, how many were seen, how many there are."""
        return {"from": self.told_by, "now": self.now, "seen": len(self._seen), "total": self.total}

    def why_still(self, *, must_be_told: bool) -> str:
        """Why a schedule whose strength changes had one strength only; "": it had not. must_be_told: even in a process that
        has not learnt anything."""
        learnt = max(self.optimizer_steps, self.rounds)
        if len(self._seen) > 1:
            return "" if self.total > 1 else f"it was laid over 1 step, and {len(self._seen)} were seen: say how many there are (total_steps, FAULTLINE_TOTAL_STEPS)"
        if learnt > 1:
            return f"the step stayed {self.now} through {learnt} updates of the weights"
        if must_be_told and self.told_by == NOBODY:
            return f"nobody told the step, which stayed {self.now} of {self.total}: no trainer in this process, no weights from another, no call (faultline_begin_step)"
        return ""

    def complaints(self, rules: list[dict[str, Any]]) -> list[dict[str, str]]:
        """Takes the rules of a report; returns a complaint for each whose schedule should have moved and did not."""
        why = self.why_still(must_be_told=False)
        return [complaint("still", f"the schedule of rule '{rule['name']}' never moved: {why}", rule=rule["name"]) for rule in rules if why and rule.get("schedule_changes") and rule["calls"]]
