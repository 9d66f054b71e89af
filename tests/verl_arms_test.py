"""What a run of main_ppo leaves becomes a record: counts are held against forwards, and a call that is missing is seen."""

import json

import pytest

import verl_arms
import verl_arms_record
import verl_tables

COMMAND = ["python", "data.train_batch_size=16", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"]


def row(calls, phase, **more):
    return {"rule": "noise", "operator": "aten::mm", "place": "model.layers.0.q_proj", "layer": 0, "phase": phase, "strength": 0.05, "ledger": {"calls": calls, "sampled": 100, "relative_rms": 0.05}, **more}


def entry(*rows, forwards, work):
    return {"role": "worker", "ended": True, "work": work, "notes": {}, "report": {"rows": list(rows), "forwards_by_kind": forwards, "rules": [], "complaints": [], "log": []}}


def test_calls_of_a_backward_are_held_against_the_micro_batches_that_learnt():
    made = verl_arms_record.process(entry(row(8, "actor_forward"), row(8, "actor_backward"), forwards={"actor_forward": {"whole": 8}}, work={"update_actor": 2, "old_log_prob": 2}), COMMAND)
    forward, backward = made["phases"]["actor_forward"], made["phases"]["actor_backward"]
    assert (forward["calls"], forward["expected"], forward["exact"]) == (8, 8, True)
    assert (backward["calls"], backward["expected"], backward["exact"], dict(backward["per_forward"])) == (8, 8, True, {"2 a forward": 1}) and backward["strength"] == pytest.approx(0.05)


def test_a_call_that_is_missing_or_a_rehearsal_that_was_not_kept_is_not_exact():
    missing = verl_arms_record.counts([row(8, "actor_forward"), row(7, "actor_forward")], {"whole": 8})
    assert not missing["exact"] and (missing["calls"], missing["expected"]) == (15, 16)
    rehearsed = verl_arms_record.counts([row(30, "rollout", rehearsed={"body": 1}), row(20, "rollout", rehearsed={"head": 1})], {"body": 30, "head": 21})
    assert not rehearsed["exact"] and rehearsed["expected"] == 51
    assert not verl_arms_record.counts([row(0, "rollout")], {"body": 3})["exact"]


def test_what_belongs_to_no_module_is_counted_apart():
    made = verl_arms_record.counts([row(8, "rollout"), row(62, "rollout", place="", operator="aten::_log_softmax")], {"body": 8})
    assert made["exact"] and (made["sites"], made["calls"], dict(made["outside"])) == (1, 8, {"aten::_log_softmax": 62})


def test_a_record_has_the_steps_the_lines_and_every_process(tmp_path):
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/process-a-1.json").write_text(json.dumps(entry(row(4, "rollout"), forwards={"rollout": {"body": 4}}, work={"rollout": 4})))
    (tmp_path / "evidence/process-a-2.json").write_text(json.dumps({**entry(forwards={}, work={}), "role": "main"}))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"critic/score/mean": 0.25, "timing_s/step": 3.0, "perf/mfu": 1.0}}) + "\n")
    (tmp_path / "log.txt").write_text("\x1b[36m(Worker pid=7)\x1b[0m [AQN] Applied noise to 61 RMSNorm layers\n(W pid=8) [AQN] Applied noise to 61 RMSNorm layers\nother\n")
    made = verl_arms_record.make(tmp_path, arm="noisy", seed=1, exit=0, command=COMMAND, seconds=1.0)
    assert made["steps"] == [{"step": 1, "critic/score/mean": 0.25, "timing_s/step": 3.0}] and made["norms_of_applications"] == {"61": 2} and made["without_work"] == {"main": 1}
    assert made["lines"] == ["[AQN] Applied noise to 61 RMSNorm layers"] and [one["phases"]["rollout"]["exact"] for one in made["processes"]] == [True]


def test_what_is_published_keeps_every_step_and_every_process():
    steps = [{"step": number, "critic/score/mean": 0.1 * number, "timing_s/step": 2.0, **({"val-core/x/reward/mean@1": 0.5, "timing_s/testing": 1.0} if number == 2 else {}), "faultline/complaints": 0.0} for number in (1, 2)]
    process = verl_arms_record.process(entry(row(8, "actor_forward"), forwards={"actor_forward": {"whole": 8}}, work={"update_actor": 2, "old_log_prob": 2}), COMMAND)
    record = {"arm": "noisy", "seed": 1, "exit": 0, "seconds": 9.0, "recipe": None, "command": COMMAND, "steps": steps, "processes": [process], "norms_of_applications": {}, "without_work": {}, "verdict": [], "lines": [], "end": ""}
    made = verl_arms_record.published(record)
    assert made["columns"] == {"reward": [0.1, 0.2], "complaints": [0.0, 0.0]} and made["step_seconds"] == {"step": [2.0, 2.0], "testing": [None, 1.0]} and made["validation"] == {"2": 0.5}
    assert made["processes"][0]["phases"]["actor_forward"]["exact"] and made["last"] == {"faultline/complaints": 0.0} and made["settings"] == COMMAND[1:]


def test_every_arm_is_a_recipe_that_names_its_phases():
    for name, (recipe, settings) in verl_arms.ARMS.items():
        assert name == "clean" if recipe is None else recipe["faults"], name
        assert all("=" in one for one in settings)


def test_an_arm_is_named_with_its_seed_and_its_steps():
    assert verl_arms.parsed("clean") == ("clean", None, None) and verl_arms.parsed("noisy@101") == ("noisy", 101, None) and verl_arms.parsed("norm_input_fp32@101:4") == ("norm_input_fp32", 101, 4)
    assert [verl_arms.parsed(wrong) for wrong in ("quiet", "clean@", "clean:0", "clean@x:2")] == [None] * 4


def company(name, seed, seconds, reward=0.2, steps=20):
    columns = {"reward": [reward] * steps, "tokens": [30.0] * steps}
    return {"arm": name, "seed": seed, "exit": 0, "seconds": 9.0, "columns": columns, "step_seconds": {"step": [99.0, *[seconds] * (steps - 1)], "gen": [1.0] * steps}, "validation": {}, "processes": []}


def test_the_cost_of_the_plan_is_that_of_one_company_without_the_first_step():
    record = {"arms": [company("clean", 100, 1.0), company("noisy", 100, 9.0)], "cut_short": [], "ours": []}
    assert list(verl_tables.cost_words(record)) == []
    [said] = verl_tables.cost_words({**record, "beside": [company("clean", seed, seconds) for seed, seconds in ((101, 2.0), (102, 2.5), (103, 8.0))] + [company("noisy", 101, 3.0)]})
    assert "**Cost of the plan: +20.0 %**" in said and "A noisy step took 3.00 s, a clean one 2.00, 2.50, 8.00" in said


def test_spreads_of_seeds_are_compared_where_both_have_four():
    ours = [{"seed": seed, "reward": [0.3] * 20} for seed in range(3)] + [{"seed": 3, "reward": [0.4] * 20}]
    of_verl = [company("clean", seed, 2.0, reward) for seed, reward in enumerate((0.2, 0.25, 0.3, 0.35))]
    [said] = verl_tables.seed_words({"arms": of_verl[:1], "beside": of_verl[1:], "cut_short": [], "ours": ours})
    assert "verl's 0.200 to 0.350 (4 seeds), ours 0.300 to 0.400 (4 seeds)" in said and "overlap from 0.300 to 0.350; 2 of verl's seeds lie within ours, 3 of ours within verl's" in said
    assert list(verl_tables.seed_words({"arms": of_verl[:3], "cut_short": [], "ours": ours})) == []
    [apart] = verl_tables.seed_words({"arms": [company("clean", seed, 2.0, 0.1) for seed in range(4)], "cut_short": [], "ours": ours})
    assert "do not overlap" in apart


def test_noise_that_only_fp32_shows_is_said_with_its_strength():
    ledger = {"calls": 8, "sampled": 100, "relative_rms": 1.003e-5}
    process = verl_arms_record.process(entry(row(8, "actor_forward", ledger=ledger), forwards={"actor_forward": {"whole": 8}}, work={"update_actor": 2, "old_log_prob": 2}), COMMAND)
    process["rules"] = [{"changed": 99.0, "elements": 100.0}]
    arm = {**company("norm_input_fp32", 101, 2.0, steps=4), "recipe": {"faults": [verl_arms.NORM_INPUT]}, "processes": [process]}
    record = {"arms": [company("clean", 101, 2.0)], "beside": [arm], "cut_short": [], "ours": []}
    [said] = verl_tables.fp32_words(record)
    assert "told 1e-05, 4 steps, exit 0" in said and "actor, actor_forward: 8 calls at 1 norms (as they must be), strength 1e-05" in said and "99.0 %; complaints: 0" in said
    assert "in fp32" not in verl_tables.not_run(record) and "clean with more than one seed" in verl_tables.not_run(record)


def test_the_tables_of_the_page_are_those_of_the_record():
    page = verl_tables.PAGE.read_text()
    assert verl_tables.replaced(page, json.loads(verl_tables.RECORD.read_text())) == page
