"""Weights that a trainer sends into a vLLM worker. After every load the packed copies are named anew and the norms get their noise
again. And the step of the plan follows where nobody else tells it: the weights come in rounds, by one call or by hundreds, a name
that comes again begins a new round, and a round that follows on a generation is a step."""

from __future__ import annotations

import functools

from faultline import environment
from faultline.steps import NOBODY, WEIGHT_UPDATES
from faultline.norms import NormNoise

# Methods of vLLM's worker that may write weights past the model's load_weights, or leave the last of them to the end.
_WRITERS = ("reload_weights", "update_weights", "finish_weight_update", "update_weights_from_ipc")  # the last is verl's


class Updates:
    """tell: what else is to be done when weights have come."""

    def __init__(self, own: environment.Armed, noise: NormNoise | None, tell):
        self._own, self._noise, self._tell = own, noise, tell
        self._names: set[str] = set()  # of this round
        self._loads = self._generated = 0

    def load_weights(self, original):
        @functools.wraps(original)
        def load_weights(weights, *arguments, **keywords):
            names: set[str] = set()
            self._loads += 1
            self._before()
            result = original(_named(weights, names), *arguments, **keywords)
            self._after(names)
            return result

        return load_weights

    def writer(self, original):
        @functools.wraps(original)
        def write(*arguments, **keywords):
            loads = self._loads
            self._before()
            result = original(*arguments, **keywords)
            names = next((value["names"] for value in (*arguments, *keywords.values()) if isinstance(value, dict) and "names" in value), [original.__name__])
            self._after(set(names) if self._loads == loads else set())  # otherwise load_weights has seen them
            return result

        return write

    def _before(self) -> None:
        if self._noise is not None:
            self._noise.look()

    def _after(self, names: set[str]) -> None:
        self._tell()
        if self._noise is not None:
            self._noise.remember()
        if names:
            self._saw(names)
        if self._noise is not None:
            self._noise.put()

    def _saw(self, names: set[str]) -> None:
        if self._names and self._names.isdisjoint(names):
            self._names |= names
            return
        self._names = names
        generated = self._own.work.get("rollout", 0)
        if generated == self._generated:  # nobody has sampled from what is replaced now, as at the start of a training
            return
        self._generated = generated
        steps = self._own.plan.steps
        steps.rounds += 1
        if steps.told_by in (NOBODY, WEIGHT_UPDATES):
            self._own.plan.begin_step(steps.now + 1, told_by=WEIGHT_UPDATES)


def watch(worker, own: environment.Armed, noise: NormNoise | None, tell) -> None:
    model = worker.model_runner.get_model()
    updates = Updates(own, noise, tell)
    model.load_weights = updates.load_weights(model.load_weights)
    for name in _WRITERS:
        if hasattr(worker, name):
            setattr(worker, name, updates.writer(getattr(worker, name)))
    if noise is not None and next(model.parameters()).is_cuda:  # elsewhere vLLM ignores the calls
        worker.sleep, worker.wake_up = _falling_asleep(noise, worker.sleep), _waking_up(noise, worker.wake_up)


def _falling_asleep(noise: NormNoise, original):
    @functools.wraps(original)
    def sleep(*arguments, **keywords):
        noise.sleep()
        return original(*arguments, **keywords)

    return sleep


def _waking_up(noise: NormNoise, original):
    @functools.wraps(original)
    def wake_up(tags=None):
        result = original(tags)
        if tags is None or "weights" in tags:
            noise.wake()
        return result

    return wake_up


def _named(weights, names: set[str]):
    for name, tensor in weights:
        names.add(name)
        yield name, tensor
