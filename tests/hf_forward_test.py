"""Taps on Hugging Face models going forward: what a census finds, which sites a rule reaches, how often it acts, which
bits change and which do not. Counts are those of Qwen2.5-1.5B (28 layers) at toy widths."""

import pytest
import torch

import faultline
from faultline.attach import Attachment
from tap_models import calls, calls_by_layer, llama, logits, qwen2, qwen3_moe, recipe, refused, rows, rule, same_bits, tokens, training_step

LAYERS = 28
LINEARS = 7 * LAYERS + 1  # q, k, v, o, gate, up, down of each layer, and the head
NORMS = 2 * LAYERS + 1


@pytest.fixture(scope="module")
def deep():
    return qwen2(LAYERS)


@pytest.fixture(scope="module")
def small():
    return qwen2(2)


def run(model, a_recipe, ids=None, **options):
    """-> logits and report of one forward under a plan"""
    with faultline.plan(a_recipe, model=model, **options) as plan:
        result = logits(model, tokens() if ids is None else ids)
    return result, plan.report


# --- census and counts ------------------------------------------------------------------------------------------------
def test_a_census_finds_57_norms_and_197_linears_in_28_layers(deep):
    entries = faultline.census(lambda: logits(deep, tokens()), model=deep)
    linears = [entry for entry in entries if entry["family"] == "matmul"]
    assert len({entry["place"] for entry in linears}) == LINEARS == 197
    assert len({entry["place"] for entry in linears if entry["place"] != "lm_head"}) == 196
    assert sum(entry["calls"] for entry in linears) == LINEARS
    norms = {entry["place"] for entry in entries if entry["operator"] == "aten::rsqrt"}
    assert len(norms) == NORMS == 57 and "model.norm" in norms
    assert sum(entry["calls"] for entry in entries if entry["family"] == "attention") == LAYERS


def test_a_census_has_one_phase_though_rotary_embeddings_switch_gradients_off(deep):
    entries = faultline.census(lambda: deep(tokens()), model=deep)
    assert {entry["phase"] for entry in entries} == {"actor_forward"}


def test_flops_of_the_linears_are_those_of_their_shapes(deep):
    entries = faultline.census(lambda: logits(deep, tokens(2, 8)), model=deep)
    weights = sum(module.weight.numel() for module in deep.modules() if isinstance(module, torch.nn.Linear))
    assert sum(entry["flops"] for entry in entries if entry["family"] == "matmul") == 2 * 2 * 8 * weights


def test_a_matmul_rule_acts_once_on_every_linear_of_the_right_layer(deep):
    _, report = run(deep, recipe())
    assert calls(report) == LINEARS and report["rules"][0]["sites"] == LINEARS
    assert calls_by_layer(report) == {-1: 1, **{layer: 7 for layer in range(LAYERS)}}
    assert {row["phase"] for row in report["rows"]} == {"rollout"}
    assert report["forwards"] == {"rollout": 1}


def test_elements_in_the_ledger_are_those_of_the_outputs(deep):
    _, report = run(deep, recipe(), tokens(2, 8))
    outputs = sum(module.out_features for module in deep.modules() if isinstance(module, torch.nn.Linear))
    assert report["rules"][0]["elements"] == 2 * 8 * outputs


def test_fused_attention_is_a_family_of_its_own(deep):
    _, report = run(deep, recipe(rule(where={"operator": "attention"})))
    assert calls_by_layer(report) == {layer: 1 for layer in range(LAYERS)}
    assert {row["place"].split(".")[-1] for row in report["rows"]} == {"self_attn"}


def test_eager_attention_adds_two_matrix_products_a_layer():
    model = qwen2(3, attn_implementation="eager")
    _, report = run(model, recipe())
    assert calls(report, operator="aten::bmm") == 2 * 3 and calls(report) == 9 * 3 + 1
    assert calls_by_layer(report) == {-1: 1, 0: 9, 1: 9, 2: 9}


def test_a_norm_rule_registers_57_sites(deep):
    _, report = run(deep, recipe(rule("norms", where={"module": "rmsnorm"})))
    assert "[fault norms] registered 57 sites (excluded 0)" in report["log"]
    assert calls(report) == NORMS
    _, report = run(deep, recipe(rule("norms", where={"module": "rmsnorm", "layer": "3-5"})))
    assert calls_by_layer(report) == {3: 2, 4: 2, 5: 2}


def test_a_dry_run_predicts_what_then_happens(deep):
    plan = faultline.plan(recipe(rule(where={"operator": "matmul", "except": ["lm_head"]})), model=deep)
    with plan:
        prediction = plan.dry_run(lambda: logits(deep, tokens()))
        for _ in range(3):
            logits(deep, tokens())
    assert prediction["rules"] == [{"rule": "fault", "sites": LINEARS - 1, "calls_per_forward": {"whole": {"rollout": LINEARS - 1}}}]
    assert calls(plan.report) == 3 * (LINEARS - 1)
    assert plan.report["coverage"]["rollout"]["reached"] == LINEARS - 1


def test_a_call_outside_of_any_forward_breaks_the_predicted_count(small):
    plan = faultline.plan(recipe(), model=small)
    with refused("counts", place="lm_head", match="16 calls in rollout where 1 forwards make 15"), plan, torch.no_grad():
        plan.dry_run(lambda: logits(small, tokens()))
        logits(small, tokens())
        small.lm_head(torch.randn(1, 32))


# --- bits -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_seed_repeats_every_bit_and_another_does_not(small, dtype):
    model = qwen2(2).to(dtype)
    clean = logits(model, tokens())
    first, second, other = (run(model, recipe(seed=seed))[0] for seed in (7, 7, 8))
    assert same_bits(first, second)
    assert not same_bits(first, clean) and not same_bits(first, other)
    assert same_bits(logits(model, tokens()), clean)


def test_strength_zero_leaves_every_bit_and_must_be_asked_for(small):
    clean = logits(small, tokens())
    silent = rule(what={"kind": "relative_gaussian", "strength": 0}, expect="invisible")
    faulty, report = run(small, recipe(silent))
    assert same_bits(faulty, clean)
    assert calls(report) == 15 and report["rules"][0]["changed"] == 0
    with pytest.raises((ValueError, faultline.EvidenceError)):
        run(small, recipe(rule(what={"kind": "relative_gaussian", "strength": 0})))


def test_a_rule_on_one_layer_changes_nothing_before_it(small):
    hidden = {}

    def states(name):
        with torch.no_grad():
            hidden[name] = small(tokens(), output_hidden_states=True).hidden_states

    states("clean")
    with faultline.plan(recipe(rule(where={"operator": "matmul", "layer": 1})), model=small) as plan:
        states("faulty")
    assert calls_by_layer(plan.report) == {1: 7}
    assert same_bits(hidden["clean"][0], hidden["faulty"][0]) and same_bits(hidden["clean"][1], hidden["faulty"][1])
    assert not same_bits(hidden["clean"][2], hidden["faulty"][2])


def hooks_of(model):  # transformers leaves some of its own
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_inside_a_step_leaves_the_process_as_it_was(small, error):
    clean, hooks = logits(small, tokens()), hooks_of(small)

    def fail(*_):
        raise error("planted")

    handle = small.model.layers[1].mlp.register_forward_hook(fail)
    try:
        with pytest.raises(error, match="planted"), faultline.plan(recipe(rule(), rule("norms", where={"module": "rmsnorm"})), model=small):
            logits(small, tokens())
    finally:
        handle.remove()
    assert hooks_of(small) == hooks and not torch.ops.faultline.plan_is_armed() and torch.ops.faultline.get_phase() == "auto"
    assert same_bits(logits(small, tokens()), clean)
    _, report = run(small, recipe())  # and the next plan finds every layer
    assert calls_by_layer(report) == {-1: 1, 0: 7, 1: 7}
    probe = faultline.census(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert {entry["place"] for entry in probe} == {""}


def test_scopes_that_forwards_open_name_what_hooks_name_and_are_closed_by_an_exception(small):
    def seen(is_eager):
        with Attachment(small, is_eager=is_eager):
            return faultline.census(lambda: logits(small, tokens()))

    assert seen(is_eager=True) == seen(is_eager=False)
    with Attachment(small, is_eager=True):
        assert "forward" in vars(small.model.layers[1].mlp)
        with pytest.raises(TypeError):
            small.model.layers[1].mlp(None)
        probe = faultline.census(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
        assert {entry["place"] for entry in probe} == {""}
    assert not any("forward" in vars(module) for module in small.modules())


def test_faults_stop_when_the_block_ends_and_torchs_generator_is_not_used(small):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    clean, hooks = logits(small, tokens()), hooks_of(small)
    run(small, recipe())
    assert same_bits(torch.rand(4), expected)
    assert same_bits(logits(small, tokens()), clean) and hooks_of(small) == hooks


# --- routers ----------------------------------------------------------------------------------------------------------
def router_inputs_and_outputs(model):
    seen = []
    handles = [module.register_forward_hook(lambda _m, inputs, output: seen.append((inputs[0].clone(), output[0].clone() if isinstance(output, tuple) else output.clone())))
               for path, module in model.named_modules() if path.endswith("mlp.gate")]
    logits(model, tokens())
    for handle in handles:
        handle.remove()
    return seen


def test_a_generic_rule_leaves_routers_alone():
    model = qwen3_moe(2)
    with faultline.plan(recipe(), model=model) as plan:
        router_inputs_and_outputs(model)
    reached = {row["place"].split(".")[-1] for row in plan.report["rows"]}
    assert reached == {"q_proj", "k_proj", "v_proj", "o_proj", "experts", "lm_head"}
    assert plan.report["rules"][0]["unreached"] == {"a router is faulted only by a rule that names it (module: router)": 2}
    with faultline.plan(recipe(rule(where={"operator": "matmul", "layer": 1})), model=model) as plan:
        faulty = router_inputs_and_outputs(model)
    clean = router_inputs_and_outputs(model)
    assert same_bits(clean[0][1], faulty[0][1])  # layer 0's router met clean inputs and gave clean outputs
    gate = model.model.layers[1].mlp.gate
    with torch.no_grad():
        again = gate(faulty[1][0])
    assert same_bits(faulty[1][1], again[0] if isinstance(again, tuple) else again)  # layer 1's: faulty inputs, right arithmetic


def test_a_generic_rule_leaves_the_routers_gradients_alone_too():
    model = qwen3_moe(2)
    with faultline.plan(recipe(), model=model) as plan:
        training_step(model, tokens())
    # Each router: one product forward, two backward. Each layer: attention's four linears and two grouped products.
    assert plan.report["rules"][0]["unreached"] == {"a router is faulted only by a rule that names it (module: router)": 2 * 3}
    assert calls_by_layer(plan.report, phase="actor_backward") == {-1: 2, 0: 12, 1: 12} and calls(plan.report, place="") == 0


def test_a_rule_that_names_the_router_reaches_it():
    model = qwen3_moe(2)
    clean = router_inputs_and_outputs(model)
    with faultline.plan(recipe(rule(where={"module": "router"}, what={"kind": "relative_gaussian", "strength": 0.3})), model=model) as plan:
        faulty = router_inputs_and_outputs(model)
    assert calls_by_layer(plan.report) == {0: 1, 1: 1}
    assert not same_bits(clean[0][1], faulty[0][1])


@pytest.mark.parametrize("build", [qwen2, llama])
def test_a_dense_model_with_a_gate_proj_has_no_router(build):
    model = build(2)
    _, report = run(model, recipe())
    assert report["rules"][0]["unreached"] == {}
    assert len({row["place"] for row in rows(report) if row["place"].endswith("gate_proj")}) == 2
    with pytest.raises(ValueError, match="no module matches 'router'"):
        run(model, recipe(rule(where={"module": "router"})))
