"""The driver of verl's main_ppo: the Ray actor in which its trainer lives. It refuses what cannot be proven before the first step, tells the
step to the workers that train and to vLLM's, says when a validation begins and ends, adds the evidence to what verl logs at
every step, and judges it when the training has ended, well or not."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any

import torch

from faultline import armed, environment, evidence, verl_checkpoints, verl_metrics, verl_recipe, verl_workers
from faultline.complaints import sentences
from faultline.steps import TRAINER

_TOTAL = "FAULTLINE_TOTAL_STEPS"


class Refused(ValueError):
    """A run that could not be proven, or is not what the recipe asks for: refused before its first step."""


def wrap(module: Any) -> None:
    """verl.trainer.ppo.v1.trainer_base, as soon as it is imported."""
    trainer = module.PPOTrainer
    trainer.__init__ = _with_driver(trainer.__init__)
    trainer._init_dataloader = _around(trainer._init_dataloader, after=lambda driver: driver.learn_total())
    trainer._load_checkpoint = _around(trainer._load_checkpoint, after=lambda driver: driver.take_up())
    trainer._save_checkpoint = _around(trainer._save_checkpoint, before=lambda driver: driver.keep())
    trainer.init = _around(trainer.init, after=lambda driver: driver.check_workers())
    trainer.step = _around(trainer.step, before=lambda driver: driver.begin_step())
    trainer._validate = _around(trainer._validate, before=lambda driver: driver.validate(True), after=lambda driver: driver.validate(False))
    trainer.fit = _judged(trainer.fit)
    trainer.init = _judged(trainer.init, is_whole=False)
    trainer._compute_metrics = _measured(trainer._compute_metrics, module)


def refuse_legacy(module: Any) -> None:
    """verl.trainer.ppo.ray_trainer, whose trainer tells nobody what is followed here."""

    def fit(self: Any) -> None:
        error = Refused("trainer.use_v1=False is verl's old trainer, which faultline does not follow: leave use_v1 as it is (True), in verl 0.9.1 or newer")
        if (own := armed.armed()) is not None:
            _write_failure(own, error)
        raise error

    module.RayPPOTrainer.fit = fit


def _write_failure(own: environment.Armed, error: BaseException) -> None:
    own.script_error = type(error).__name__
    own.write_verdict(evidence.cut_short(evidence.own_entries()), whole=True)


def _with_driver(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self, config, *arguments, **keywords):
        if (own := armed.armed()) is not None:
            self._faultline = Driver(self, config, own)
        original(self, config, *arguments, **keywords)

    return __init__


def _around(original: Any, *, before: Any = None, after: Any = None) -> Any:
    @functools.wraps(original)
    def method(self, *arguments, **keywords):
        driver = getattr(self, "_faultline", None)
        if driver is not None and before is not None:
            before(driver)
        result = original(self, *arguments, **keywords)
        if driver is not None and after is not None:
            after(driver)
        return result

    return method


def _judged(original: Any, *, is_whole: bool = True) -> Any:
    """The training; or, not whole, its beginning, which is judged where it fails."""

    @functools.wraps(original)
    def method(self, *arguments, **keywords):
        driver: Driver | None = getattr(self, "_faultline", None)
        if driver is None:
            return original(self, *arguments, **keywords)
        try:
            result = original(self, *arguments, **keywords)
        except BaseException as error:
            driver.judge_failed(error)
            raise
        if is_whole:
            driver.judge()
        return result

    return method


def _measured(original: Any, module: Any) -> Any:
    @functools.wraps(original)
    def method(self, batch, metrics, timing_raw, *arguments, **keywords):
        result = original(self, batch, metrics, timing_raw, *arguments, **keywords)
        if (driver := getattr(self, "_faultline", None)) is not None:
            metrics.update(driver.metrics(batch, module.tq))
        return result

    return method


class Driver:
    """What faultline does in the trainer's process. trainer: verl's PPOTrainer, config: verl's."""

    def __init__(self, trainer: Any, config: Any, own: environment.Armed) -> None:
        self._trainer, self._config, self._own = trainer, config, own
        self._recipe = own.plan.recipe or {}
        self._before: list[dict[str, Any]] = []  # evidence of the runs that this one resumes
        self._kept_at = -1
        self._check_config()
        try:
            self._validation = verl_recipe.validation_of(self._recipe)
            verl_recipe.check_entered(self._recipe, self._entered())
        except ValueError as error:
            raise self._refused(str(error)) from None
        # What the trainer computes by itself are statistics (a correlation is a product), and no model's hardware does that.
        torch.ops.faultline.silence("the driver")

    # --- refusals -------------------------------------------------------------------------------------------------------
    def _refused(self, sentence: str) -> Refused:
        """Written down at once: the process that was started ends with the status of a user's mistake."""
        error = Refused(sentence)
        _write_failure(self._own, error)
        print(f"faultline: refused before the first step: {sentence}", file=sys.stderr, flush=True)
        return error

    def _check_config(self) -> None:
        config, rollout = self._config, self._config.actor_rollout_ref.rollout
        if (mode := config.trainer.v1.trainer_mode) != "sync":
            raise self._refused(f"trainer.v1.trainer_mode={mode}: rollouts of one step run while another is learnt, so neither a step nor a phase could be told; sync is followed")
        if rollout.name != "vllm":
            raise self._refused(f"actor_rollout_ref.rollout.name={rollout.name}: only vLLM's workers have a plug-in of ours; what another engine samples would be clean")
        if config.reward.reward_model.enable:
            raise self._refused("reward.reward_model.enable: a reward model in vLLM would be faulted as a rollout; score by a function")
        if self._trainer_uses_critic():
            raise self._refused("a critic's backward could not be told from the actor's; take an estimator without one (algorithm.adv_estimator=grpo)")

    def _trainer_uses_critic(self) -> bool:
        from verl.trainer.ppo.utils import need_critic

        return bool(need_critic(self._config))

    def _entered(self) -> set[str]:
        from verl.trainer.ppo.utils import need_reference_policy

        config = self._config
        entered = {"rollout", "actor_forward", "actor_backward"}
        correction = config.algorithm.get("rollout_correction", None)
        scores_old = not (correction and correction.get("bypass_mode", False))
        if need_reference_policy(config) or (scores_old and verl_workers.old_log_probs() == "ref"):
            entered.add("ref")
        if config.trainer.test_freq > 0 or config.trainer.get("val_before_train", True):
            entered.add("eval")
        return entered

    def learn_total(self) -> None:
        """How many steps there are, for every worker that is created from now on."""
        total, given = int(self._trainer.total_training_steps), os.environ.get(_TOTAL)
        if given is not None and int(given) != total:
            raise self._refused(f"{_TOTAL}={given}, and verl's trainer has {total} steps: a schedule would end elsewhere; leave the variable out, the workers are told")
        os.environ[_TOTAL] = str(total)
        _pass_on_to_servers()

    def check_workers(self) -> None:
        """Every process that computes has this plan, before the first step."""
        try:
            entries = self._entries("faultline_evidence")
        except Exception as error:  # Ray's and vLLM's own classes, by which of them a method is missing
            raise self._refused(f"a worker of verl does not know faultline, and would compute without the plan; is the package installed by pip (vLLM finds plug-ins that were) in the environment of every machine? {type(error).__name__}: {str(error)[-300:]}") from error
        if None in entries:
            raise self._refused(f"{entries.count(None)} of {len(entries)} workers have no plan armed: they import no faultline_verl (VERL_USE_EXTERNAL_MODULES) or have no FAULTLINE_RECIPE")
        if other := [entry for entry in entries if entry["recipe"] != self._own.recipe_digest]:
            raise self._refused(f"process {other[0]['pid']} on {other[0]['host']} has armed another recipe: the file changed, or is another one there")
        if wrong := [entry for entry in entries if entry["report"]["steps"]["total"] != int(os.environ[_TOTAL])]:
            raise self._refused(f"process {wrong[0]['pid']} on {wrong[0]['host']} has schedules of {wrong[0]['report']['steps']['total']} steps, and the trainer has {os.environ[_TOTAL]}")
        print(f"[faultline] {len(entries)} processes compute under the plan, {os.environ[_TOTAL]} steps, validation {self._validation}", file=sys.stderr, flush=True)
        self._tell_step(int(self._trainer.global_steps))

    # --- checkpoints ----------------------------------------------------------------------------------------------------
    def take_up(self) -> None:
        """The run goes on from a checkpoint: its evidence is the beginning of ours."""
        step = int(self._trainer.global_steps)
        if step == 0:
            return
        place = verl_checkpoints.resumed_from(self._config.trainer, step)
        self._before = verl_checkpoints.read(place)
        if not self._before:
            raise self._refused(f"{place} was trained without a plan, or keeps no evidence: what its {step} steps were trained under could not be said; resume from a checkpoint of a run under this recipe, or begin a new training with its weights as the model")
        if any(entry["recipe"] != self._own.recipe_digest for entry in self._before):
            raise self._refused(f"{place} was trained under another recipe: resume it with that one")
        if (folder := evidence.folder()) is not None:
            evidence.write_parts(folder / evidence.BEFORE, self._before)
        print(f"[faultline] resumed at step {step}: the counts of {len(self._before)} processes before go on", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """A checkpoint is about to be written, and gets the evidence so far: when verl calls it whole, it is."""
        self._kept_at = int(self._trainer.global_steps)
        verl_checkpoints.write(verl_checkpoints.folder_of(self._config.trainer, self._kept_at), [*self._before, *self._entries("faultline_evidence")])

    # --- during the run -------------------------------------------------------------------------------------------------
    def _ask_servers(self, method: str, *arguments: Any) -> list[Any]:
        import ray

        answers = ray.get([server.faultline_ask.remote(method, *arguments) for server in self._trainer.llm_server_manager.server_handles])
        return [one for answer in answers for one in answer]

    def _entries(self, method: str) -> list[Any]:
        return [*getattr(self._trainer.actor_rollout_wg, method)(), *self._ask_servers(method)]

    def _tell_step(self, step: int) -> None:
        self._trainer.actor_rollout_wg.faultline_begin_step(step)
        self._ask_servers("faultline_begin_step", step, TRAINER)
        self._own.plan.steps.saw(step, TRAINER)

    def begin_step(self) -> None:
        """verl counts from 1, schedules from 0."""
        self._tell_step(int(self._trainer.global_steps) - 1)

    def validate(self, is_begin: bool) -> None:
        self._ask_servers("faultline_validate", self._validation if is_begin else "")
        if not is_begin and self._kept_at == int(self._trainer.global_steps):  # verl saves first, and does not validate again
            self.keep()

    def metrics(self, batch: Any, queue: Any) -> dict[str, float]:
        entries = self._entries("faultline_evidence")
        whole = evidence.merge(entries, self._before)
        return {**verl_metrics.of_evidence([*self._before, *entries], whole["complaints"]), **self._mismatch(batch, queue)}

    def _mismatch(self, batch: Any, queue: Any) -> dict[str, float]:
        correction = self._config.algorithm.get("rollout_correction", None)
        if not self._config.actor_rollout_ref.rollout.calculate_log_probs or (correction and correction.get("bypass_mode", False)):
            return {}  # the sampler's log-probabilities were not asked for, or stand for the actor's
        data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rollout_log_probs", "old_log_probs", "response_mask"])
        counts = [mask.bool() for mask in data["response_mask"].unbind()]
        sampled, learning = (torch.cat([row[mask] for row, mask in zip(data[name].unbind(), counts, strict=True)]) for name in ("rollout_log_probs", "old_log_probs"))
        return verl_metrics.of_mismatch(sampled, learning)

    # --- the end --------------------------------------------------------------------------------------------------------
    def judge(self) -> None:
        """All processes' evidence in one folder, and what it is worth. Raises CollectionError where it is missing."""
        entries = self._entries("faultline_finish")
        if (place := evidence.folder()) is not None:
            for entry in entries:
                evidence.write(place, entry)
        collection = evidence.merge(entries, self._before)
        complaints = collection["complaints"] = [*collection["complaints"], *verl_recipe.complaints(self._recipe, [*self._before, *entries])]
        self._own.write_verdict(complaints, whole=True)
        self._say(collection)
        if complaints:
            print("faultline: the evidence is missing: " + sentences(complaints), file=sys.stderr, flush=True)
            if self._own.on_missing == "raise":
                raise evidence.CollectionError(complaints, collection)

    def judge_failed(self, error: BaseException) -> None:
        """The training did not come to its end; what its processes had written until then is their evidence."""
        if isinstance(error, (Refused, evidence.CollectionError)):
            return
        print(f"faultline: the training failed, its evidence is as far as it came: {''.join(traceback.format_exception_only(error)).strip()}", file=sys.stderr, flush=True)
        _write_failure(self._own, error)

    def _say(self, collection: dict[str, Any]) -> None:
        for name, rule in collection["rules"].items():
            print(f"[HW Error] '{name}': {rule['calls']} calls in {rule['processes']} processes, {rule['changed']} of {rule['elements']} elements changed", file=sys.stderr)
        for entry in collection["processes"]:
            for line in entry["report"]["log"]:
                print(f"[HW Error] {entry['role']} {entry['pid']} {line}", file=sys.stderr)
        if (aqn := collection["aqn"]) is not None:
            print(f"[AQN] {aqn['norms']} norm weights carry noise in {aqn['processes']} processes, put on {aqn['applications']} times", file=sys.stderr)
        sys.stderr.flush()


def _pass_on_to_servers() -> None:
    """Servers get their variables from verl's platform."""
    from verl.plugin.platform import get_platform

    from faultline.verl_plugin import variables

    platform = get_platform()
    if "rollout_env_vars" in vars(platform):
        return
    original = platform.rollout_env_vars
    platform.rollout_env_vars = lambda: {**variables(), **original()}
