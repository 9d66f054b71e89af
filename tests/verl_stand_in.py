"""A stand-in for verl's main_ppo: its modules, classes and methods by name and nothing of their work, so that what faultline does in each
of its processes runs where verl is not installed. As a script it is the process that was started and the driver in one; `--train`
is a worker with a linear layer, `--serve` vLLM's worker, processes of their own that answer lines.

    python verl_stand_in.py '{"steps": 2, "total": 2, …}'      see main()"""

import functools
import json
import os
import subprocess
import sys
import types

import torch

MAGIC = "attrs_3141562937"
STEPS_BEFORE_VALIDATION = 2


class Config(dict):
    __getattr__ = dict.__getitem__


def config(**changes):
    rollout = Config(name="vllm", calculate_log_probs=True)
    trainer = {"v1": Config(trainer_mode="sync"), "test_freq": STEPS_BEFORE_VALIDATION, "val_before_train": False, "default_local_dir": "checkpoints", "resume_mode": "auto"}
    return Config(trainer=Config(trainer | changes.get("trainer", {})), reward=Config(reward_model=Config(enable=False)),
                  algorithm=Config(), actor_rollout_ref=Config(rollout=Config(rollout, **changes.get("rollout", {}))), critic=changes.get("critic", False), reference=changes.get("reference", True))


def module(name, **names):
    made = types.ModuleType(name)
    vars(made).update(names)
    sys.modules[name] = made
    return made


# --- verl.workers.engine_workers ----------------------------------------------------------------------------------------
def register(dispatch_mode):
    def decorate(function):
        @functools.wraps(function)
        def inner(*arguments, **keywords):
            return function(*arguments, **keywords)

        setattr(inner, MAGIC, dispatch_mode)
        return inner

    return decorate


class ActorRolloutRefWorker:
    def __init__(self):
        self.model, self.ref = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @register(dispatch_mode="actor")
    def compute_log_prob(self, data):
        with torch.no_grad():
            self.model(torch.ones(2, 4))

    @register(dispatch_mode="ref")
    def compute_ref_log_prob(self, data):
        with torch.no_grad():
            self.ref(torch.ones(2, 4))

    @register(dispatch_mode="actor")
    def update_actor(self, data):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()


# --- processes that answer lines ----------------------------------------------------------------------------------------
class Process:
    """Another process of the run: --train or --serve. environment: what verl would give it."""

    def __init__(self, mode, environment):
        self.process = subprocess.Popen([sys.executable, __file__, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})

    def ask(self, method, *arguments):
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


def answer_lines(known):
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answer = {"result": known(method)(*arguments)} if known(method) is not None else {"error": f"AttributeError: the worker has no {method}"}
        print(json.dumps(answer), flush=True)


def train():
    install()
    import faultline_verl  # noqa: F401

    worker = ActorRolloutRefWorker()
    batch = types.SimpleNamespace(extra_info={})
    own = {name: functools.partial(getattr(worker, name), batch) for name in ("compute_log_prob", "compute_ref_log_prob", "update_actor")}
    answer_lines(lambda name: own.get(name) or (method if hasattr(method := getattr(worker, name, None), MAGIC) else None))


def serve():
    import faultline
    from faultline import armed, vllm_serving

    layer, own = torch.nn.Linear(4, 4), armed.armed()

    def generate():
        with faultline.phase("rollout"):
            layer(torch.ones(2, 4))
        if own is not None:
            own.note_work("rollout")

    known = {"generate": generate}
    if own is not None:
        armed.take_role("vllm")
        own.notes["worker"] = {"engine": "one", "rank": 0, "world": 1}
        known |= {"faultline_evidence": own.snapshot, "faultline_finish": armed.finish, "faultline_begin_step": lambda step, told_by: own.plan.begin_step(step, told_by=told_by), "faultline_validate": vllm_serving.Validation(own, None).serve}
    answer_lines(known.get)


class Engine:
    def __init__(self, process):
        self.process = process

    async def collective_rpc(self, method, args=()):
        return [self.process.ask(method, *args)]


class vLLMHttpServer:  # noqa: N801  verl's name
    def __init__(self, environment):
        self.engine = Engine(Process("--serve", environment))


# --- the driver ---------------------------------------------------------------------------------------------------------
class Remote:
    """A Ray actor that is not far away."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        import asyncio

        def remote(*arguments):
            return asyncio.run(getattr(self._actor, name)(*arguments))

        return types.SimpleNamespace(remote=remote)


class WorkerGroup:
    """verl's: what was registered is called once for every rank."""

    def __init__(self, process):
        self._process = process

    def kill(self):
        self._process.process.kill()

    def __getattr__(self, name):
        assert hasattr(getattr(ActorRolloutRefWorker, name), MAGIC), name
        return lambda *arguments: [self._process.ask(name, *arguments)]


class PPOTrainer:
    def __init__(self, config):
        self.config, self.global_steps, self.logged = config, 0, []

    def init(self):
        self._init_dataloader()
        platform = sys.modules["verl.plugin.platform"].get_platform()
        created = RayClassWithInitArgs()
        created.update_options({"name": "one", "runtime_env": {"env_vars": {"RANK": "0"}}})
        self.created = {"worker": created.options, "server": platform.rollout_env_vars()}
        self.server = vLLMHttpServer({**self.created["server"], **({"FAULTLINE_RECIPE": ""} if self.config.trainer.clean_server else {})})
        self.actor_rollout_wg = WorkerGroup(Process("--train", created.options["runtime_env"]["env_vars"]))
        self.llm_server_manager = types.SimpleNamespace(server_handles=[Remote(self.server)])
        self._load_checkpoint()

    def _init_dataloader(self):
        self.total_training_steps = self.config.trainer.total

    def _load_checkpoint(self):
        self.global_steps = self.config.trainer.resumed

    def _save_checkpoint(self):
        os.makedirs(f"checkpoints/global_step_{self.global_steps}/actor", exist_ok=True)

    def fit(self, _):
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            metrics = {}
            batch = self.step(metrics, {})
            if self.config.trainer.saves:
                self._save_checkpoint()
            if self.global_steps % STEPS_BEFORE_VALIDATION == 0:
                self._validate()
            self._compute_metrics(batch, metrics, {}, global_steps=self.global_steps, epoch=0)
            self.logged.append(metrics)
            if self.global_steps == self.config.trainer.dies:
                raise KeyError("a mistake of the script")
            if self.global_steps == self.config.trainer.kills:
                self.actor_rollout_wg.kill()
            if self.global_steps == self.config.trainer.killed:
                os.kill(os.getpid(), 9)

    def step(self, metrics, timing_raw):
        for _ in range(3):
            self.server.engine.process.ask("generate")
        self.actor_rollout_wg.compute_log_prob()
        if self.config.reference:
            self.actor_rollout_wg.compute_ref_log_prob()
        self.actor_rollout_wg.update_actor()
        return types.SimpleNamespace(keys=["a"], partition_id="train")

    def _validate(self):
        self.server.engine.process.ask("generate")

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics["critic/score/mean"] = 0.5
        metrics["training/corr"] = torch.corrcoef(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]]))[0, 1].item()  # a product, as verl's has


def log_probs(*, keys, partition_id, select_fields):
    rows = {"rollout_log_probs": [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])], "old_log_probs": [torch.tensor([-1.5, -2.0]), torch.tensor([-9.0])], "response_mask": [torch.tensor([1, 1]), torch.tensor([0])]}
    return {name: types.SimpleNamespace(unbind=lambda own=rows[name]: own) for name in select_fields}


class Platform:
    def rollout_env_vars(self):
        return {"OF_THE_PLATFORM": "1"}


class RayClassWithInitArgs:
    def __init__(self):
        self.options = {}

    def update_options(self, options):
        self.options.update(options)


def install():
    platform = Platform()
    module("ray", get=lambda answers: answers)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.v1", "verl.single_controller", "verl.single_controller.ray", "verl.workers", "verl.workers.rollout", "verl.workers.rollout.vllm_rollout", "verl.plugin"):
        module(name)
    module("verl.trainer.constants_ppo", get_ppo_ray_runtime_env=lambda: {"env_vars": {"OF_VERL": "1"}})
    module("verl.trainer.ppo.utils", need_critic=lambda config: config.critic, need_reference_policy=lambda config: config.reference)
    module("verl.single_controller.ray.base", RayClassWithInitArgs=RayClassWithInitArgs)
    module("verl.workers.engine_workers", ActorRolloutRefWorker=ActorRolloutRefWorker, register=register, Dispatch=types.SimpleNamespace(ONE_TO_ALL="one to all"))
    module("verl.workers.rollout.vllm_rollout.vllm_async_server", vLLMHttpServer=vLLMHttpServer)
    module("verl.plugin.platform", get_platform=lambda: platform)
    module("verl.trainer.ppo.v1.trainer_base", PPOTrainer=PPOTrainer, tq=types.SimpleNamespace(kv_batch_get=log_probs))
    module("verl.trainer.ppo.ray_trainer", RayPPOTrainer=type("RayPPOTrainer", (), {"fit": lambda self: print("trained")}))


def main(wish):
    """wish: total (steps), test_freq, resumed (at), saves (every step), dies, kills (the worker), killed (after a step), legacy, clean_server, and
    changes of the config."""
    install()
    import faultline_verl  # noqa: F401  as verl does
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    environment = get_ppo_ray_runtime_env()["env_vars"]
    if wish.get("legacy"):
        sys.modules["verl.trainer.ppo.ray_trainer"].RayPPOTrainer().fit()
        return
    trainer = PPOTrainer(config=config(trainer={name: wish.get(name, default) for name, default in {"total": 2, "test_freq": STEPS_BEFORE_VALIDATION, "resumed": 0, "saves": False, "dies": -1, "kills": -1, "killed": -1, "clean_server": False}.items()}, **wish.get("changes", {})))
    trainer.init()
    trainer.fit(None)
    print("result", json.dumps({"logged": trainer.logged, "environment": environment, **trainer.created}), flush=True)


if __name__ == "__main__":
    modes = {"--serve": serve, "--train": train}
    modes[sys.argv[1]]() if sys.argv[1] in modes else main(json.loads(sys.argv[1]))
