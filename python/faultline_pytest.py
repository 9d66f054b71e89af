"""pytest's way in (entry point pytest11): the fixture `faultline_plan`, with which a project tests its own model under faults. The plan
acts until its test ends, and a test whose faults did not happen as asked fails, even where its assertions hold. Nothing of
faultline or torch is imported before a test asks for the fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    import faultline

_ARMED: pytest.StashKey[list[Any]] = pytest.StashKey()


@pytest.fixture
def faultline_plan(request: pytest.FixtureRequest) -> Iterator[Callable[..., faultline.Plan]]:
    """faultline_plan(recipe, model=None, overrides=(), total_steps=1) arms a recipe (a path, a YAML text or a dict) and returns the plan. It is
    disarmed when the test ends; the test fails if the evidence of a fault is missing. A second call first ends and judges the plan before it."""
    import faultline

    armed = request.node.stash.setdefault(_ARMED, [])

    def arm(recipe: Any, *, model: torch.nn.Module | None = None, overrides: Iterable[str] = (), total_steps: int = 1) -> faultline.Plan:
        _judge(armed)
        plan = faultline.plan(recipe, model=model, overrides=overrides, total_steps=total_steps)
        plan.__enter__()
        armed.append(plan)
        return plan

    yield arm
    _disarm(armed)


def _judge(armed: list[Any]) -> None:
    while armed:
        armed.pop().__exit__(None, None, None)


def _disarm(armed: list[Any]) -> None:
    while armed:
        armed.pop().disarm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Judges within the test's own call, so that missing evidence is a failure of the test and not an error beside it."""
    armed = item.stash.get(_ARMED, [])
    try:
        result = yield
        _judge(armed)
        return result
    finally:  # of a test that failed by itself nothing else is said
        _disarm(armed)
