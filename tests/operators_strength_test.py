"""The random identity of a fault (seed, site, step, call, row key), its strength, the resolution rule, and the axis."""

import math

import pytest
import torch

import faultline
from operator_cases import FAULTS, normal, refused, same_bits


# --- random identity --------------------------------------------------------------------------------------------------
def test_torchs_own_random_numbers_are_untouched():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for fault in FAULTS:
        faultline.apply(normal(33, 72), fault)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("change", [dict(seed=1), dict(seed=-1), dict(seed=2**62), dict(step=1), dict(call=1), dict(site="layers.1.mlp")], ids=str)
def test_seed_site_step_and_call_each_change_the_draw(change):
    x = torch.ones(64, 64)
    common = dict(seed=0, site="layers.0.mlp", step=0, call=0)
    a = faultline.apply(x, "relative_gaussian(strength=0.05)", **common) - 1
    b = faultline.apply(x, "relative_gaussian(strength=0.05)", **{**common, **change}) - 1
    correlation = float((a * b).mean() / (a.std() * b.std()))
    assert abs(correlation) < 5 / 64


def test_the_rules_name_is_part_of_the_identity():
    x = torch.ones(64, 64)
    a = faultline.apply(x, "relative_gaussian(strength=0.05, rule.name=first)")
    b = faultline.apply(x, "relative_gaussian(strength=0.05, rule.name=second)")
    assert not torch.equal(a, b)


def test_a_row_meets_the_same_noise_in_any_batch():
    keyed = "relative_gaussian(strength=0.05, rule.keyed_by=row)"
    rows = normal(12, 40)
    keys = torch.arange(1000, 1012)
    together = faultline.apply(rows, keyed, row_keys=keys)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))[:5]
    apart = faultline.apply(rows[order].clone(), keyed, row_keys=keys[order].clone())
    assert same_bits(apart, together[order])
    moved = faultline.apply(rows, keyed, row_keys=keys + 1)
    assert not torch.equal(moved, together)
    default = faultline.apply(rows, keyed)  # without keys the row's position counts
    assert same_bits(default[3:4], faultline.apply(rows[:4].clone(), keyed)[3:4])


def test_extents_stay_fixed_over_calls_steps_and_batches():
    """Lesson 41: a broken unit is the same unit in every call."""
    for structure in ("channel", "element", "lane"):
        fault = f"zero(extent.fraction=0.2, extent.structure={structure})"
        dead = faultline.apply(torch.ones(8, 96), fault, seed=6) == 0
        assert 0 < dead[0].sum() < 96
        assert (dead == dead[0]).all()
        for call, step, rows in ((1, 0, 8), (0, 5, 8), (3, 9, 2), (0, 0, 31)):
            again = faultline.apply(torch.ones(rows, 96), fault, seed=6, call=call, step=step) == 0
            assert (again == dead[0]).all()
        other = faultline.apply(torch.ones(8, 96), fault, seed=7) == 0
        assert not torch.equal(other, dead)
    noise = "absolute_gaussian(strength=1, extent.fraction=0.2, extent.structure=channel)"
    hit = [faultline.apply(torch.zeros(64, 96), noise, call=call).ne(0).any(0) for call in range(4)]
    assert all(torch.equal(h, hit[0]) for h in hit)


def test_lifetimes_let_a_fault_act_when_they_say():
    x = torch.ones(4, 8)
    window = "zero(lifetime.kind=window, lifetime.from=3, lifetime.to=5)"
    acts = [bool((faultline.apply(x, window, step=step) == 0).all()) for step in range(7)]
    assert acts == [False, False, False, True, True, False, False]
    ledger = faultline.new_ledger()
    for call in range(1000):
        faultline.apply(x, "zero(lifetime.kind=transient, lifetime.probability=0.3)", call=call, ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["calls"] == 1000
    assert 300 - 5 * 14.5 < numbers["active_calls"] < 300 + 5 * 14.5


def test_lesson_14_a_thousand_applications_leave_the_master_bit_identical():
    master = normal(64, 64, dtype=torch.bfloat16)
    before, digest = master.clone(), faultline.digest(master)
    for step in range(1000):
        faultline.apply(master, "relative_gaussian(strength=0.05)", step=step)
    assert same_bits(master, before)
    assert faultline.digest(master) == digest
    walked = before.clone()  # the mistake itself: noise in place, never removed, is a random walk
    for step in range(100):
        faultline.apply_(walked, "relative_gaussian(strength=0.05)", step=step)
    drift = ((walked.double() - before.double()) / before.double()).square().mean().sqrt()
    assert drift > 0.3


# --- strength, resolution, axis ---------------------------------------------------------------------------------------
def test_lesson_55_a_strength_that_bf16_cannot_show_is_refused_with_a_way_out():
    x = normal(256, 256, dtype=torch.bfloat16)
    for strength in ("1e-5", "1e-4"):
        refused(["bf16", "strength", "rounding: stochastic", "expect: invisible"], faultline.apply, x, f"relative_gaussian(strength={strength})")
    faultline.apply(x.float(), "relative_gaussian(strength=1e-4)")
    ledger = faultline.new_ledger()
    faultline.apply(x, "relative_gaussian(strength=1e-4, rule.rounding=stochastic)", ledger=ledger)
    assert 0 < faultline.read_ledger(ledger)["changed"] < 0.1 * x.numel()
    silent = faultline.apply(x, "relative_gaussian(strength=1e-4, rule.expect=invisible)", ledger=ledger)
    assert same_bits(silent, x)


@pytest.mark.parametrize("strength, ratio", [(1e-3, 0.50), (3e-3, 1.12), (1e-2, 1.01)])
def test_the_strength_realised_in_bf16_is_the_one_the_rounding_leaves(strength, ratio):
    x = normal(1024, 2048, dtype=torch.bfloat16)
    x = torch.where(x == 0, torch.ones_like(x), x)
    y = faultline.apply(x, f"relative_gaussian(strength={strength})")
    relative = ((y.double() - x.double()) / x.double()).square().mean().sqrt().item()
    assert relative / strength == pytest.approx(ratio, abs=0.02)


def test_stochastic_rounding_of_the_result_keeps_the_expected_value():
    x = torch.full((512, 512), 1.0, dtype=torch.bfloat16)
    y = faultline.apply(x, "gain(strength=0.001, rule.rounding=stochastic)").double()
    ulp = 2.0**-7
    assert set(y.unique().tolist()) == {1.0, 1.0 + ulp}
    share = 0.001 / ulp
    assert y.mean().item() - 1 == pytest.approx(0.001, abs=5 * ulp * math.sqrt(share * (1 - share)) / 512)


def test_relative_noise_is_a_standard_normal_times_x():
    x = normal(2048, 512, seed=12)
    x = torch.where(x == 0, torch.ones_like(x), x)
    e = ((faultline.apply(x, "relative_gaussian(strength=0.05)") - x).double() / x.double() / 0.05).flatten()
    n = e.numel()
    assert abs(e.mean()) < 5 / math.sqrt(n)
    assert abs(e.square().mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((e**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((e**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((e[1:] * e[:-1]).mean()) < 5 / math.sqrt(n)


def test_lesson_60_one_outlier_token_does_not_move_the_other_tokens_dead_zone():
    x = normal(8, 256)
    outlier = x.clone()
    outlier[0, 0] = 23890.0
    for kind in ("deadzone(threshold=0.05{})", "saturate(margin=0.3{})", "spike(probability=0.1{})", "scaled_gaussian(strength=0.1{})", "offset(strength=0.1{})"):
        token, tensor = kind.format(", axis=token"), kind.format(", axis=tensor")
        assert same_bits(faultline.apply(outlier, token)[1:], faultline.apply(x, token)[1:]), kind
        assert not same_bits(faultline.apply(outlier, tensor)[1:], faultline.apply(x, tensor)[1:]), kind
        assert same_bits(faultline.apply(x, kind.format("")), faultline.apply(x, token)), "token is the default"
    assert (faultline.apply(outlier, "deadzone(threshold=0.05, axis=tensor)")[1:] == 0).all()


def test_lesson_61_one_huge_element_leaves_the_realised_strength_alone():
    x = normal(512, 512)
    x[100, 100] = 1e18
    ledger = faultline.new_ledger()
    faultline.apply(x, "relative_gaussian(strength=0.05)", ledger=ledger)
    numbers = faultline.read_ledger(ledger)
    assert numbers["relative_rms"] == pytest.approx(0.05, rel=0.05)
    naive = math.sqrt(numbers["sum_squared_error"] / numbers["sum_squared_value"])
    assert abs(naive / 0.05 - 1) > 0.05  # what the lesson warns of: one sample decides


def test_analytic_faults_do_what_their_formula_says():
    x = normal(16, 40)
    std = x.std(1, keepdim=True, correction=0)
    assert torch.allclose(faultline.apply(x, "gain(strength=0.25)"), x * 1.25, rtol=1e-6)
    assert torch.equal(faultline.apply(x, "systematic_bias(strength=0.25)"), x + x.sign() * 0.25)
    assert torch.allclose(faultline.apply(x, "offset(strength=0.5)"), x + 0.5 * std, rtol=1e-5, atol=1e-6)
    assert torch.equal(faultline.apply(x, "offset(strength=0.5, scale=absolute)"), x + 0.5)
    limit = torch.tensor(0.7) * x.abs().max(1, keepdim=True).values
    assert torch.allclose(faultline.apply(x, "saturate(margin=0.3)"), x.clamp(-limit, limit), rtol=1e-6)
    assert torch.equal(faultline.apply(x, "inf()"), torch.copysign(torch.tensor(math.inf), x))
    assert faultline.apply(x, "nan()").isnan().all()
    flipped = faultline.apply(x, "bitflip(field=sign, count=5)")
    assert int((flipped == -x).sum()) == 5 and int((flipped == x).sum()) == x.numel() - 5
    stuck = faultline.apply(x, "stuck_at(bit=31, value=0)")
    assert torch.equal(stuck, x.abs())
    zero = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    for fault in ("relative_gaussian(strength=0.1)", "gain(strength=0.1)", "systematic_bias(strength=0.1)", "truncate(bits=4)"):
        assert same_bits(faultline.apply(zero, fault), zero), fault
