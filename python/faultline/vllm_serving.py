"""What a vLLM worker serves, and what it only tries. Profiling, warm-up and capture run silenced: their graphs hold the faults and
act once the silence ends (Note [Silence] in src/tap/plan.h). The first of these runs is the rehearsal: it tells each site's calls in
one forward (`body`: the layers, `head`: the logits), so that the ledger can be held against the forwards executed, replays of graphs
included. Before the first request a canary goes through every graph that will serve: clean twice, then armed and loud."""

from __future__ import annotations

import contextlib
import functools

import torch

from faultline import environment
from faultline.compiled import silence
from faultline.complaints import complaint
from faultline.launches import proof_window
from faultline.plan import phase
from faultline.norms import NormNoise

_OPS = torch.ops.faultline


def follow_worker(worker, own: environment.Armed, noise: NormNoise | None) -> None:
    """Wraps the methods of one worker that has its model. noise: on its norms."""
    runner, model = worker.model_runner, worker.model_runner.get_model()
    config = worker.vllm_config
    own.notes["worker"] = {"engine": str(config.instance_id), "rank": int(worker.rank), "world": int(config.parallel_config.world_size)}
    worker.execute_model = _as_rollout(worker.execute_model, own)
    worker.faultline_validate = Validation(own, noise).serve
    worker.determine_available_memory = _silently("profiling", worker.determine_available_memory)
    worker.compile_or_warm_up_model = _warmed_up(worker, own)
    worker.execute_dummy_batch = _silently("dummy batches", worker.execute_dummy_batch)
    runner._dummy_run = _rehearsed("body", runner._dummy_run)
    model.compute_logits = _counted("head", _rehearsed("head", model.compute_logits))


def _as_rollout(execute, own: environment.Armed):
    @functools.wraps(execute)
    def execute_model(scheduler_output, *arguments, **keywords):
        computes = scheduler_output.total_num_scheduled_tokens > 0 and not _OPS.is_silenced()
        with phase("rollout"):
            if computes:
                _OPS.count_forwards("rollout", 1, "body")
            result = execute(scheduler_output, *arguments, **keywords)
        if computes:
            own.note_work("rollout")
        return result

    return execute_model


class Validation:
    """Generations that a trainer validates with. Captured graphs hold the sites of rollouts and of nothing else, so a validation under
    the faults counts with the rollouts, and a clean one runs silenced; `notes.eval` says how many were begun of each. Noise on norms is
    the sampler's way to explore: it is off."""

    def __init__(self, own: environment.Armed, noise: NormNoise | None):
        self._own, self._noise, self._silence = own, noise, contextlib.ExitStack()

    def serve(self, how: str) -> None:
        """how: clean or faulty, until "" ends it."""
        self._silence.close()
        if how:
            note = self._own.notes.setdefault("eval", {"clean": 0, "faulty": 0})
            note[how] += 1
        if how == "clean":
            self._silence.enter_context(silence("validation"))
        if self._noise is not None:
            self._noise.rest() if how else self._noise.go_on()


def _silently(reason: str, method):
    """Nobody's rollout: neither faulted nor counted. In the phase of what will be served, whose sites it registers."""

    @functools.wraps(method)
    def call(*arguments, **keywords):
        with phase("rollout"), silence(reason):
            return method(*arguments, **keywords)

    return call


def _rehearsed(kind: str, method):
    @functools.wraps(method)
    def call(*arguments, **keywords):
        is_rehearsal = _OPS.is_silenced() and _OPS.rehearse(kind)
        try:
            return method(*arguments, **keywords)
        finally:
            if is_rehearsal:
                _OPS.rehearse("")

    return call


def _counted(kind: str, method):
    @functools.wraps(method)
    def call(*arguments, **keywords):
        if not _OPS.is_silenced():
            _OPS.count_forwards("rollout", 1, kind)
        return method(*arguments, **keywords)

    return call


# --- canary -----------------------------------------------------------------------------------------------------------
_HEADS = 8  # tokens whose logits are computed


def _warmed_up(worker, own: environment.Armed):
    warm_up = _silently("warm-up", worker.compile_or_warm_up_model)

    @functools.wraps(worker.compile_or_warm_up_model)
    def call(*arguments, **keywords):
        result = warm_up(*arguments, **keywords)
        _try_all(worker, own)
        return result

    return call


def _paths(runner) -> list[tuple[str, dict]]:
    """Every way in which a batch will be computed: a name for people, and what _dummy_run takes."""
    dispatcher = getattr(runner, "cudagraph_dispatcher", None)
    graphs = dispatcher.get_capture_descs() if dispatcher is not None else []
    ways = [(f"the {mode.name} graph of {batch.num_tokens} tokens", {"num_tokens": batch.num_tokens, "cudagraph_runtime_mode": mode, "uniform_decode": batch.uniform,
             "num_active_loras": batch.num_active_loras, "remove_lora": False}) for mode, batches in graphs for batch in batches]
    # Without its metadata attention on a CPU returns memory as it finds it: two clean runs would differ.
    plain = {"num_tokens": min(16, runner.max_num_tokens), "is_profile": True, "force_attention": runner.device.type == "cpu"}
    return [("a batch without a graph", plain), *ways]


@torch.inference_mode()
def _try_all(worker, own: environment.Armed) -> None:
    runner, model = worker.model_runner, worker.model_runner.get_model()
    report = own.plan.read()
    if not report["rules"]:
        return
    if not any("rehearsed" in row for row in report["rows"]):
        own.notes["canary"] = {"ways": 0, "absent": "no forward could be rehearsed"}
        return  # every rule will be judged by what it met
    complaints: list[dict] = []
    ways = _paths(runner)

    def forward(arguments):
        """What a batch goes through: the layers, and the head for a few of its tokens."""
        result = _tensors(runner._dummy_run(skip_eplb=True, **arguments))
        has_head = result and not runner.is_pooling_model
        return (*result, *_tensors((model.compute_logits(result[-1][:_HEADS]),))) if has_head else tuple(result)

    with phase("rollout"):
        for name, arguments in ways:
            complaints += _try(own, name, functools.partial(forward, arguments))
    _OPS.forget_evidence()
    own.notes["canary"] = {"ways": len(ways), "absent": None}
    own.require([*complaints, *proof_window.complaints(report)], report)


def _try(own: environment.Armed, name: str, run) -> list[dict]:
    with silence("canary"):
        first, second = _digest(run()), _digest(run())
    if first != second:
        return [complaint("repeats", f"canary: {name} gives other bits for the same input, clean, twice: what a fault changes cannot be told from chance")]
    _OPS.set_loud(True)
    _OPS.forget_evidence()
    with proof_window.of(name):
        result = run()
    armed, report = _digest(result), own.plan.read()
    _OPS.set_loud(False)
    rows = report["rows"]
    silent = [row for row in rows if row.get("rehearsed", {}).get("body", 0) > row["ledger"]["calls"]]
    if silent:
        return [complaint("canary", f"canary: {name} leaves {len(silent)} of {len(rows)} sites clean, {silent[0]['place'] or silent[0]['operator']} among them", place=silent[0]["place"], rule=silent[0]["rule"])]
    loud = {rule["name"] for rule in report["rules"] if rule["grows_with_strength"]}
    if armed == first and any(row["rule"] in loud and row["ledger"]["changed"] > 0 for row in rows):
        return [complaint("canary", f"canary: the ledger says that {name} was faulted, and its result has the bits of the clean one")]
    return []


def _tensors(result) -> list[torch.Tensor]:
    return [tensor for tensor in result if isinstance(tensor, torch.Tensor) and tensor.numel() > 0] if isinstance(result, tuple) else []


def _digest(result) -> list[int]:
    return [int(_OPS.digest(tensor.contiguous()).item()) for tensor in _tensors(result)]
