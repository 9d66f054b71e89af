"""Counts: what a dry run sees of one forward of each kind, and of one routed call of an expert, times what then ran, is what
the ledger counted, in every phase and place; anything else fails the run."""

import pytest
import torch

import faultline
from tap_models import calls, logits, qwen2, qwen2_moe, qwen3_moe, recipe, refused, rule, tokens, training_step

LAYERS = 2
LINEARS = 7 * LAYERS + 1


@pytest.fixture(scope="module")
def model():
    return qwen2(LAYERS)


def generate(model, ids, new, **options):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, **options)


# --- kinds of forward -------------------------------------------------------------------------------------------------
def test_a_generation_is_a_prefill_and_a_decoding_for_each_further_token(model):
    with faultline.plan(recipe(), model=model) as plan:
        generate(model, tokens(), 4)
        logits(model, tokens())
    assert plan.report["forwards_by_kind"] == {"rollout": {"whole": 1, "prefill": 1, "decode": 3}}


def test_a_dry_run_of_each_kind_predicts_any_number_of_them(model):
    plan = faultline.plan(recipe(rule(), rule("attention", where={"operator": "attention"})), model=model)

    def each_kind():
        generate(model, tokens(), 3)
        training_step(model, tokens())

    with plan:
        prediction = plan.dry_run(each_kind)
        generate(model, tokens(1, 5), 7)
        for _ in range(3):
            training_step(model, tokens(3, 4))
        with faultline.phase("eval"):  # as the census's forwards, in a phase that it has not seen
            logits(model, tokens())
    noise, attention = prediction["rules"]
    assert noise["calls_per_forward"] == {"whole": {"actor_forward": LINEARS, "actor_backward": 2 * LINEARS}, "prefill": {"rollout": LINEARS}, "decode": {"rollout": LINEARS}}
    # Attention's backward gives three gradients, and each of them is faulted and counted.
    assert attention["calls_per_forward"] == {"whole": {"actor_forward": LAYERS, "actor_backward": 3 * LAYERS}, "prefill": {"rollout": LAYERS}, "decode": {"rollout": LAYERS}}
    assert calls(plan.report, rule="fault", phase="rollout") == 7 * LINEARS and calls(plan.report, rule="attention", phase="actor_backward") == 3 * 3 * LAYERS


class TwoPaths(torch.nn.Module):
    """Prefill has one product more than decoding: no mean of both predicts a generation of another length."""

    def __init__(self):
        super().__init__()
        self.first, self.both = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, inputs_embeds, past_key_values=None):
        x = inputs_embeds if past_key_values else self.first(inputs_embeds)
        return self.both(x)

    def generate(self, new):
        with torch.no_grad():
            for length in range(new):
                self(torch.ones(1, 1 if length else 3, 16), past_key_values=[0] * length)


def test_kinds_that_run_other_operators_are_predicted_apart():
    two = TwoPaths()
    plan = faultline.plan(recipe(), model=two)
    with plan:
        prediction = plan.dry_run(lambda: two.generate(3))
        two.generate(9)
    assert prediction["rules"][0]["calls_per_forward"] == {"prefill": {"rollout": 2}, "decode": {"rollout": 1}}
    assert calls(plan.report) == 10 and plan.report["forwards_by_kind"] == {"rollout": {"prefill": 1, "decode": 8}}


def test_a_kind_that_the_dry_run_has_not_seen_cannot_be_predicted(model):
    plan = faultline.plan(recipe(), model=model)
    with refused("unpredicted", match="3 decode forwards ran in rollout, and the census has none of that kind"), plan:
        plan.dry_run(lambda: logits(model, tokens()))
        generate(model, tokens(), 4)


def test_a_backward_that_the_dry_run_has_not_seen_is_too_many(model):
    plan = faultline.plan(recipe(), model=model)
    with refused("counts", match=f"{2 * LINEARS} calls in actor_backward where 1 forwards make 0"), plan:
        plan.dry_run(lambda: logits(model, tokens()))
        training_step(model, tokens())


def test_calls_in_the_wrong_place_are_found_though_their_number_is_right(model):
    lost, doubled = model.model.layers[1].mlp.gate_proj, model.model.layers[0].mlp.gate_proj
    plan = faultline.plan(recipe(), model=model)
    with refused("counts", match="15 calls in rollout are as many as expected, but not where: 2 at model.layers.0.mlp.gate_proj instead of 1, 0 at model.layers.1.mlp.gate_proj instead of 1"), plan:
        plan.dry_run(lambda: logits(model, tokens()))
        lost.forward, doubled.forward = (lambda x: x.new_zeros(*x.shape[:-1], 48)), (lambda x: torch.nn.functional.linear(x, doubled.weight) + torch.nn.functional.linear(x, doubled.weight))
        try:
            logits(model, tokens())
        finally:
            del lost.forward, doubled.forward


# --- phases, told from what runs --------------------------------------------------------------------------------------
def test_a_model_in_training_mode_is_the_actor_though_no_gradients_are_kept(model):
    model.train()
    plan = faultline.plan(recipe(), model=model)
    try:
        with plan:
            plan.dry_run(lambda: training_step(model, tokens()))
            logits(model, tokens())  # old log-probabilities: the actor's forward, and no backward follows
            training_step(model, tokens())
    finally:
        model.eval()
    assert plan.report["forwards"] == {"actor_forward": 2}
    assert calls(plan.report, phase="actor_forward") == 2 * LINEARS and calls(plan.report, phase="actor_backward") == 2 * LINEARS


@pytest.mark.parametrize("options", [{}, {"use_cache": False}])
def test_a_generation_is_a_rollout_in_training_mode_too(model, options):
    model.train()
    try:
        with faultline.plan(recipe(), model=model) as plan:
            generate(model, tokens(), 3, **options)
    finally:
        model.eval()
    assert plan.report["forwards"] == {"rollout": 3} and calls(plan.report) == 3 * LINEARS
    assert "generate" not in vars(model)


# --- routed experts ---------------------------------------------------------------------------------------------------
EXPERTS = dict(num_experts=8, num_experts_per_tok=2)


def chosen(model, run):
    """-> experts chosen in all forwards of run(), as the model's own modules are called, by layer"""
    counts = [0] * LAYERS
    handles = [layer.mlp.experts.register_forward_pre_hook(lambda _m, inputs, index=index: counts.__setitem__(index, counts[index] + len(set(inputs[1].flatten().tolist()))))
               for index, layer in enumerate(model.model.layers)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return counts


def expert_calls(report, phase):
    return [calls(report, place=f"model.layers.{layer}.mlp.experts", phase=phase) for layer in range(LAYERS)]


@pytest.mark.parametrize("build", [qwen2_moe, qwen3_moe])
def test_experts_run_as_often_as_they_were_routed_to(build):
    """Each chosen expert has two products forward and four backward; how many are chosen is in the data."""
    model = build(LAYERS, experts="eager", **EXPERTS)
    plan = faultline.plan(recipe(), model=model)

    def census():
        generate(model, tokens(1, 2), 2)
        training_step(model, tokens(1, 3))

    with plan:
        prediction = plan.dry_run(census)
        hits = {"rollout": chosen(model, lambda: generate(model, tokens(3, 6, seed=5), 6))}
        hits["actor_forward"] = chosen(model, lambda: [training_step(model, tokens(2, 9, seed=6)), training_step(model, tokens(1, 2, seed=7))])
    assert prediction["rules"][0]["calls_per_routed_call"]["whole"] == {"actor_forward": 2, "actor_backward": 4}
    assert expert_calls(plan.report, "rollout") == [2 * n for n in hits["rollout"]]
    assert expert_calls(plan.report, "actor_forward") == [2 * n for n in hits["actor_forward"]]
    assert expert_calls(plan.report, "actor_backward") == [4 * n for n in hits["actor_forward"]]
    in_census = chosen(model, census)
    assert hits["rollout"][0] / 6 != in_census[0] / 3  # a number for each forward would not have done


@pytest.mark.parametrize("build", [qwen2_moe, qwen3_moe])
def test_an_expert_that_is_skipped_is_missed(build):
    model = build(LAYERS, experts="eager", **EXPERTS)
    experts = model.model.layers[1].mlp.experts
    original = type(experts).forward

    def skip_one(hidden_states, top_k_index, top_k_weights):
        """The expert with the highest number is left out, as by a fault of the loop."""
        kept = torch.where(top_k_index == top_k_index.max(), top_k_index.min(), top_k_index)
        return original(experts, hidden_states, kept, top_k_weights)

    plan = faultline.plan(recipe(), model=model)
    with refused("counts", place="model.layers.1.mlp.experts", match=r"calls in rollout where 1 forwards and \d+ routed calls make \d+: \d+ at model.layers.1.mlp.experts instead of"), plan:
        plan.dry_run(lambda: logits(model, tokens()))
        experts.forward = skip_one
        try:
            logits(model, tokens(2, 8, seed=3))
        finally:
            del experts.forward


def test_experts_computed_at_once_are_two_products_whatever_was_chosen():
    model = qwen3_moe(LAYERS, **EXPERTS)
    plan = faultline.plan(recipe(), model=model)
    with plan:
        prediction = plan.dry_run(lambda: logits(model, tokens(1, 2)))
        logits(model, tokens(3, 9, seed=5))
    assert "calls_per_routed_call" not in prediction["rules"][0]
    assert expert_calls(plan.report, "rollout") == [2] * LAYERS


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_experts_are_counted_in_their_recomputation(reentrant):
    model = qwen3_moe(LAYERS, experts="eager", **EXPERTS)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    # Noise would be drawn anew in the recomputation, and another choice of experts be refused by torch.
    plan = faultline.plan(recipe(rule(what={"kind": "gain", "strength": 0.1})), model=model)
    with plan:
        plan.dry_run(lambda: training_step(model, tokens(1, 3)))
        hits = chosen(model, lambda: training_step(model, tokens(2, 9, seed=6)))  # forward and recomputation
    assert expert_calls(plan.report, "actor_forward") == expert_calls(plan.report, "recompute") == hits
    assert expert_calls(plan.report, "actor_backward") == [2 * n for n in hits]


class Mixture(torch.nn.Module):
    """Experts that are modules of their own, and a router that sends each token to one of them."""

    def __init__(self, number=6):
        super().__init__()
        self.gate = torch.nn.Linear(16, number, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.SiLU(), torch.nn.Linear(8, 16)) for _ in range(number))

    def forward(self, x):
        choice, y = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number in choice.unique().tolist():
            y[choice == number] = self.experts[number](x[choice == number])
        return y


def test_experts_that_are_modules_are_counted_by_their_own_calls():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Mixture()).eval()
    x, y = torch.randn(3, 16), torch.randn(40, 16)
    plan = faultline.plan(recipe(rule(where={"operator": "matmul", "except": ["*.experts.0.*"]})), model=model)
    with plan, torch.no_grad():
        prediction = plan.dry_run(lambda: model(x))
        model(y)
        model(x)
    with torch.no_grad():
        choice = [set(model[0].gate(values).argmax(-1).tolist()) - {0} for values in (x, y)]
    assert len(choice[1]) > len(choice[0])  # the run meets experts that the census has not seen
    assert prediction["rules"][0]["calls_per_routed_call"] == {"whole": {"rollout": 1}}  # at each of an expert's two places
    assert calls(plan.report) == 2 * (len(choice[0]) + len(choice[1]))


# --- modules ----------------------------------------------------------------------------------------------------------
def test_module_rules_are_predicted_and_counted_by_kind_too(model):
    rules = [rule("norms", where={"module": "rmsnorm"}), rule("outputs", where={"module": "layer_output", "layer": 1})]
    plan = faultline.plan(recipe(*rules), model=model)
    with plan:
        prediction = plan.dry_run(lambda: [generate(model, tokens(), 2), training_step(model, tokens())])
        generate(model, tokens(), 5)
        training_step(model, tokens())
    norms, outputs = (each["calls_per_forward"] for each in prediction["rules"])
    each = 2 * LAYERS + 1
    assert norms == {"whole": {"actor_forward": each}, "prefill": {"rollout": each}, "decode": {"rollout": each}}
    assert outputs == {"whole": {"actor_forward": 1}, "prefill": {"rollout": 1}, "decode": {"rollout": 1}}
    assert calls(plan.report, rule="norms", phase="rollout") == 5 * each
    with refused("counts", rule="norms", place="model.norm", match="rule 'norms': 6 calls in rollout where 1 forwards make 5: 2 at model.norm instead of 1"), plan, torch.no_grad():
        plan.dry_run(lambda: logits(model, tokens()))
        logits(model, tokens())
        model.model.norm(torch.randn(1, 32))  # outside of any forward
