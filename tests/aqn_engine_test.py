"""AQN in somebody else's sampler, on modules shaped like vLLM's (clients_aqn_test.py asks a real engine): which norms, when they get
their noise and from whom the step comes, what is noticed that was done behind our back, and every way to have the section
aqn and no noise ends in a complaint with its code."""

import json
import types

import pytest
import torch

import faultline
from clients_process import python, write
from faultline import noise, vllm_updates
from faultline.environment import Armed
from faultline.steps import CALL, TRAINER
from faultline.norms import NormNoise
from faultline.vllm_updates import Updates
from tap_models import llama, qwen3_moe, recipe, rule

OPS = torch.ops.faultline
CONSTANT = {"schedule": "constant", "sigma_start": 0.05}
LINEAR = {"schedule": "linear", "sigma_start": 0.05, "sigma_end": 0.01}
DECAY = {"schedule": "global_decay", "sigma_start": 0.05, "sigma_end": 0.01}


class Engine:
    """What a worker has: a model whose load_weights a trainer calls, and the noise on it."""

    def __init__(self, own, model):
        self.own, self.model = own, model
        self.noise = NormNoise(model, own._recipe, own)
        updates = Updates(own, self.noise, lambda: None)
        self.load_weights = updates.load_weights(self._load)
        self.reload = updates.writer(self.reload_weights)

    def _load(self, weights):
        parameters = dict(self.model.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)

    def reload_weights(self):
        """Past load_weights, as weights in an engine's own format are."""
        for parameter in self.model.parameters():
            parameter.data.copy_(torch.ones_like(parameter))

    def norms(self):
        return {name: parameter for name, parameter in self.model.named_parameters() if "norm" in name}

    def generate(self):
        self.own.note_work("rollout")

    def notes(self):
        return self.own.snapshot()["notes"]["aqn"]

    def codes(self, **options):
        return [one["code"] for one in noise.complaints(self.own.snapshot()["notes"], self.own.work, **options)]


@pytest.fixture
def engine(monkeypatch):
    """engine(section, steps): a sampler under a plan of the section alone."""
    plans = []

    def make(section, steps=1, model=None, on_missing="raise"):
        monkeypatch.setenv("FAULTLINE_TOTAL_STEPS", str(steps))
        monkeypatch.setenv("FAULTLINE_ON_MISSING", on_missing)
        monkeypatch.delenv("FAULTLINE_EVIDENCE", raising=False)
        own = Armed(json.dumps({"seed": 7, "aqn": section}))
        plans.append(own)
        return Engine(own, model or llama(2))

    yield make
    for own in plans:
        own._optimizer_steps.remove()
        own.plan.disarm()


def noisy(name, clean, engine, step):
    layer_count, steps = 2, engine.own.plan.steps.total
    return OPS.norm_noise(clean, engine.own._recipe, name.removesuffix(".weight"), layer_count, step, steps)[0]


def ones(engine, names=None):
    return [(name, torch.ones_like(parameter)) for name, parameter in engine.model.named_parameters() if names is None or name in names]


def carry_noise_of(engine, step, clean=None):
    """Every norm is 1 (or as given) with the noise of that step, to the bit."""
    return all(torch.equal(weight, noisy(name, torch.ones_like(weight) if clean is None else clean[name], engine, step)) for name, weight in engine.norms().items())


# --- which norms ------------------------------------------------------------------------------------------------------
def test_a_dense_models_norms_all_carry_noise_and_of_a_mixture_those_that_the_router_reads(engine):
    model = llama(2)
    clean = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    dense = engine(CONSTANT, model=model)
    assert len(dense.norms()) == 5 and carry_noise_of(dense, 0, clean) and dense.notes()["norms"] == dense.notes()["asked"] == 5
    assert all(torch.equal(parameter, clean[name]) for name, parameter in model.named_parameters() if "norm" not in name)
    dense.own.plan.disarm()
    model = qwen3_moe(2)
    clean = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mixture = engine(CONSTANT, model=model)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, clean[name])}
    assert changed == {f"model.layers.{layer}.post_attention_layernorm.weight" for layer in range(2)} and mixture.notes()["asked"] == 2


def test_a_norm_that_would_be_left_out_is_an_error(engine):
    model = llama(2)
    model.model.layers[1].scale = type(model.model.norm)(32)
    with pytest.raises(ValueError, match="model.layers.1.scale is a norm by its class and not by its name"):
        engine(CONSTANT, model=model)


def test_noise_that_the_dtype_cannot_show_at_some_step_is_refused_before_the_first(engine):
    model = llama(2).bfloat16()
    with pytest.raises(ValueError, match="below half a step of its numbers"):
        engine({"schedule": "linear", "sigma_start": 0.05, "sigma_end": 0.0005}, 100, model=model)


# --- the step ---------------------------------------------------------------------------------------------------------
def test_a_trainer_in_this_process_moves_the_noise(engine):
    sampler = engine(LINEAR, 10)
    sampler.load_weights(ones(sampler))
    for step in (0, 1, 2):
        sampler.own.plan.begin_step(step, told_by=TRAINER)  # as follow() does
        assert carry_noise_of(sampler, step)
        sampler.generate()
        sampler.load_weights(ones(sampler))  # a trainer sends what it learnt, and tells the next step by itself
        assert carry_noise_of(sampler, step)
    notes = sampler.notes()
    assert notes["step_from"] == "trainer" and notes["step"] == 2 and notes["steps"] == 3
    assert notes["sigmas"] == {"first": 0.05, "last": pytest.approx(0.05 - 0.08 / 9), "highest": 0.05} and sampler.codes() == []


def test_where_nobody_tells_the_step_a_round_of_weights_after_a_generation_is_one(engine):
    sampler = engine(LINEAR, 10)
    for update in range(3):
        for weight in ones(sampler):  # one by one, as TRL's server gets them
            sampler.load_weights([weight])
            assert sampler.notes()["norms"] == 5 and sampler.codes() == []
        # The first ones replace weights that nobody has sampled from.
        assert carry_noise_of(sampler, update) and OPS.plan_report(False) and sampler.own.plan.report["step"] == update
        sampler.generate(), sampler.generate()
    notes = sampler.notes()
    assert notes["step_from"] == "weight_updates" and notes["steps"] == 3 and sampler.codes() == []
    # Requests in flight while the weights come do not make a step of each.
    for weight in ones(sampler):
        sampler.load_weights(weights=[weight])
        sampler.generate()
    assert sampler.notes()["step"] == 3


def test_an_explicit_call_is_not_overruled_by_weights(engine):
    sampler = engine(LINEAR, 10)
    sampler.own.plan.begin_step(4)
    sampler.generate()
    sampler.load_weights(ones(sampler))
    assert sampler.notes()["step_from"] == "call" and sampler.notes()["step"] == 4 and carry_noise_of(sampler, 4)


def test_an_engines_own_way_to_write_weights_is_an_update_too(engine):
    sampler = engine(LINEAR, 10)
    for update in range(1, 3):
        sampler.generate()
        sampler.reload()
        assert carry_noise_of(sampler, update) and sampler.notes()["step_from"] == "weight_updates" and sampler.codes() == []


class Worker:
    """vLLM's methods that write weights, as far as they concern us."""

    def __init__(self, model):
        self.model_runner = types.SimpleNamespace(get_model=lambda: model)
        self.rank, self.tags = 0, []

    def update_weights(self, update_info):
        for name in update_info["names"]:
            self.model_runner.get_model().get_parameter(name).data.fill_(1)

    def sleep(self, level=1):
        self.tags.append(level)

    def wake_up(self, tags=None):
        self.tags.append(tags)


def test_a_workers_methods_are_watched_and_a_sleep_that_vllm_ignores_is_none(engine):
    sampler = engine(LINEAR, 10)
    model, worker, told = sampler.model, Worker(sampler.model), []
    model.load_weights = lambda weights: [model.get_parameter(name).data.copy_(tensor) for name, tensor in weights]
    vllm_updates.watch(worker, sampler.own, sampler.noise, lambda: told.append(None))
    names = [name for name, _ in model.named_parameters()]
    for update in range(3):
        for part in (names[:4], names[4:]):  # requests in flight between the parts
            worker.update_weights({"names": part})
            sampler.generate()
        assert carry_noise_of(sampler, update) and sampler.notes()["step"] == update
    model.load_weights(weights=iter(ones(sampler)))
    assert carry_noise_of(sampler, 3) and len(told) == 7 and sampler.codes() == []
    worker.sleep(2)  # on a CPU
    sampler.own.plan.begin_step(5)
    assert carry_noise_of(sampler, 5) and worker.tags == [2]


def test_norms_that_were_not_sent_keep_their_clean_weights(engine):
    model = llama(2)
    clean = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sampler = engine(LINEAR, 10, model=model)
    sampler.generate()
    sampler.load_weights(ones(sampler, ["model.norm.weight", "lm_head.weight"]))
    assert carry_noise_of(sampler, 1, {**clean, "model.norm.weight": torch.ones(32)})


def test_norms_on_the_way_are_given_their_noise_when_they_are_there(engine):
    """vLLM replaces a layer's parameters by ones without memory while it loads them, and puts the old ones back in the end."""
    sampler = engine(LINEAR, 10)
    sampler.load_weights(ones(sampler))
    sampler.generate()
    norm = sampler.model.model.norm
    kept, norm.weight = norm.weight, torch.nn.Parameter(torch.empty(32, device="meta"))
    sampler.load_weights(ones(sampler, ["lm_head.weight"]))
    assert sampler.notes()["step"] == 1 and sampler.notes()["norms"] == 4
    norm.weight = kept
    sampler.load_weights(ones(sampler, ["model.embed_tokens.weight"]))
    assert carry_noise_of(sampler, 1) and sampler.codes() == []


@pytest.mark.parametrize("step", [0, 3])
def test_weights_that_were_away_carry_their_noise_when_they_come_back(engine, step):
    sampler = engine(LINEAR, 10)
    sampler.load_weights(ones(sampler))
    sampler.noise.sleep()
    for parameter in sampler.norms().values():
        parameter.data.fill_(float("nan"))  # memory that was given away
    if step:
        sampler.own.plan.begin_step(step)
    assert sampler.own.snapshot() and all(parameter.isnan().all() for parameter in sampler.norms().values())
    sampler.noise.wake()
    sampler.generate()
    assert carry_noise_of(sampler, step) and sampler.codes(at_end=False) == []


# --- complaints -------------------------------------------------------------------------------------------------------
def test_a_schedule_that_nobody_moves_is_silent_and_still(engine):
    sampler = engine(DECAY, 116)
    sampler.generate()  # the first generation may be silent
    assert sampler.notes()["sigmas"] == {"first": 0.0, "last": 0.0, "highest": 0.0} and sampler.notes()["step_from"] == "nobody"
    assert sampler.codes(at_end=False) == [] and sampler.codes() == ["noise_silent", "still"]
    # Noise at a step at which nothing is generated changes nothing about it.
    sampler.own.plan.begin_step(60)
    assert sampler.codes() == ["noise_silent"]
    sampler.generate()
    assert sampler.codes() == [] and sampler.notes()["sigmas"]["highest"] > 0


@pytest.mark.parametrize("section, steps, codes", [(LINEAR, 10, ["still"]), (LINEAR, 1, []), (CONSTANT, 10, []), (DECAY, 1, [])])
def test_a_schedule_with_one_strength_need_not_move(engine, section, steps, codes):
    sampler = engine(section, steps)
    sampler.generate()
    assert sampler.codes() == codes


@pytest.mark.parametrize("step, told_by", [(0, CALL), (5, TRAINER)], ids=["call", "resumed trainer"])
def test_a_step_that_is_told_and_never_changes_is_still_once_weights_have_come(engine, step, told_by):
    sampler = engine(LINEAR, 10)
    for told in range(3):
        sampler.own.plan.begin_step(step, told_by=told_by)
        sampler.generate()
        assert sampler.codes() == ["still"] * (told > 1)
        sampler.load_weights(ones(sampler))


def test_a_schedule_laid_over_one_step_does_not_follow_many(engine):
    sampler = engine(LINEAR)  # FAULTLINE_TOTAL_STEPS was forgotten
    for step in range(3):
        sampler.own.plan.begin_step(step, told_by=TRAINER)
        sampler.generate()
    assert sampler.codes() == ["still"]


@pytest.mark.parametrize("then", ["nothing", "update", "step", "sleep"])
def test_a_norm_that_somebody_overwrites_is_noticed_whatever_comes_after(engine, then):
    sampler = engine(CONSTANT, 10)
    sampler.load_weights(ones(sampler))
    sampler.generate()
    sampler.model.model.norm.weight.data.fill_(1)
    if then == "update":
        sampler.load_weights(ones(sampler))
    elif then == "step":
        sampler.own.plan.begin_step(1)
    elif then == "sleep":
        sampler.noise.sleep()
        sampler.noise.wake()
    [complaint] = noise.complaints(sampler.own.snapshot()["notes"], sampler.own.work)
    assert complaint["code"] == "noise_overwritten" and complaint["place"] == "model.norm"
    assert sampler.notes()["norms"] == (4 if then == "nothing" else 5)


def test_two_engines_of_a_process_answer_each_for_itself(engine):
    first = engine(CONSTANT)
    second = Engine(first.own, llama(2))
    first.generate()
    assert second.codes() == [] and noise.of_all([second.own.snapshot()])["norms"] == 10
    first.model.model.norm.weight.data.fill_(1)
    assert first.codes() == second.codes() == ["noise_overwritten"]


def test_noise_of_another_strength_is_a_complaint(engine, monkeypatch):
    def half(clean, *arguments):
        weight, sigma, wanted, _ = original(clean, *arguments)
        return weight, sigma, wanted, 0.1 * wanted

    original = OPS.norm_noise
    sampler = engine(CONSTANT, 10, on_missing="warn")
    sampler.generate()
    monkeypatch.setattr("faultline.norms._OPS", type("Ops", (), {"__getattr__": lambda _, name: half if name == "norm_noise" else getattr(OPS, name)})())
    sampler.own.plan.begin_step(1)
    assert sampler.codes() == ["noise_strength"]
    sampler.own.on_missing = "raise"
    with pytest.raises(faultline.EvidenceError):
        sampler.own.plan.begin_step(2)


def test_zones_that_are_silent_at_first_are_no_mistake(engine):
    sampler = engine({"schedule": "zones", "sigma_start": 0.05, "zones": [{"first_layer": 0, "last_layer": 1, "early": 0, "late": 1}], "elsewhere": 0}, 10)
    sampler.generate()
    assert sampler.codes() == ["noise_silent", "still"] and sampler.notes()["asked"] == 0
    sampler.own.plan.begin_step(9)
    sampler.generate()
    assert sampler.codes() == [] and sampler.notes()["asked"] == sampler.notes()["norms"] == 4


# --- the section alone ------------------------------------------------------------------------------------------------
GENERATE = "import faultline, torch\nfrom tap_models import llama, tokens\nllama(1).generate(tokens(), max_new_tokens=2)\n"


@pytest.mark.parametrize("script", [GENERATE, "import faultline\n"], ids=["generates", "computes nothing"])
@pytest.mark.parametrize("launcher", [(), ("-m", "faultline")], ids=["import", "launcher"])
def test_a_recipe_of_noise_alone_is_a_plan_that_must_be_proven_by_its_noise(tmp_path, script, launcher):
    alone = write(tmp_path, "alone.json", {"aqn": CONSTANT})
    done = python(*launcher, write(tmp_path, "script.py", script), FAULTLINE_RECIPE=str(alone))
    assert done.returncode in ((3,) if script is not GENERATE else (1, 3)) and "on no norm" in done.stderr, done.stderr


def test_a_recipe_of_nothing_is_still_no_plan(tmp_path):
    with pytest.raises(ValueError, match="at least one rule"), faultline.plan({"seed": 1}):
        pass


# --- schedules of rules -----------------------------------------------------------------------------------------------
def learn(plan, steps, tell=lambda plan, step: None):
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(steps):
        tell(plan, step)
        (torch.ones(4, 4) @ weight).sum().backward()
        optimizer.step()


def test_a_rules_schedule_that_ran_and_never_moved_is_a_complaint():
    scheduled = recipe(rule("decaying", schedule={"kind": "linear", "sigma_start": 0.1, "sigma_end": 0.01}))
    with pytest.raises(faultline.EvidenceError, match="the step stayed 0 through 3 updates") as error, faultline.plan(scheduled, total_steps=3) as plan:
        learn(plan, 3)
    assert [(one["code"], one["rule"]) for one in error.value.complaints] == [("still", "decaying")]
    with faultline.plan(scheduled, total_steps=3) as plan:
        learn(plan, 3, faultline.Plan.begin_step)
    assert plan.report["steps"] == {"from": "call", "now": 2, "seen": 3, "total": 3}
    with faultline.plan(scheduled, total_steps=3) as plan:
        learn(plan, 1)  # one step is the first of three
    with pytest.raises(faultline.EvidenceError, match="laid over 1 step"), faultline.plan(scheduled) as plan:
        learn(plan, 3, faultline.Plan.begin_step)
    constant = recipe(rule(schedule={"kind": "constant", "sigma_start": 0.1}))
    with faultline.plan(constant, total_steps=3) as plan:
        learn(plan, 3)


def test_compiled_code_is_kept_apart_by_plan():
    """vLLM keeps compiled code by a hash of its configuration: a plan's boundaries are in that code, or are not."""
    import types

    from faultline.vllm_plugin import _keep_compiled_code_apart

    def hash_of(recipe_digest, *names_modules):
        class Config:
            def compute_hash(self):
                return "0123456789"

        rules = [{"names_modules": one} for one in names_modules]
        own = types.SimpleNamespace(recipe_digest=recipe_digest, plan=types.SimpleNamespace(report={"rules": rules}))
        _keep_compiled_code_apart(Config, own)
        return Config().compute_hash()

    products, zone, other_zone = hash_of("a", False), hash_of("a", False, True), hash_of("b", True)
    assert len({"0123456789", products, zone, other_zone}) == 4 and all(len(one) == 10 for one in (products, zone))
    assert hash_of("b", False) == products and hash_of("a", True) == zone  # products are operators in any code that is compiled under a plan
