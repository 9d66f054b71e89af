"""What a TRL run leaves behind: the ledger's numbers in the trainer's log, at every step, and the evidence beside the
checkpoints. The phases themselves are tested in hf_trl_test.py."""

import pytest

import faultline
from tap_models import calls, recipe

pytest.importorskip("trl")
from hf_trl_test import trainer  # noqa: E402


def test_the_ledger_is_in_the_log_and_the_evidence_beside_the_checkpoints(tmp_path):
    run = trainer(tmp_path)
    with faultline.plan(recipe(), model=run.model, total_steps=2) as plan, faultline.follow(run, plan):
        run.train()
    logged = [line for line in run.state.log_history if "faultline/fault/calls" in line]
    assert len(logged) >= 2 and logged[0]["faultline/fault/calls"] < logged[1]["faultline/fault/calls"] == calls(plan.report)
    assert all(0.03 < line["faultline/fault/relative_error"] < 0.07 for line in logged)
    [process] = faultline.collect(tmp_path / "faultline")["processes"]
    assert process["report"]["forwards"] == plan.report["forwards"]
    assert process["work"] == {"actor_forward": 2} and "log" not in vars(run)


def test_a_run_that_fails_leaves_its_evidence_too(tmp_path):
    run = trainer(tmp_path)
    with pytest.raises(RuntimeError, match="planted"), faultline.plan(recipe(), model=run.model) as plan, faultline.follow(run, plan):
        run.train()
        raise RuntimeError("planted")
    assert faultline.collect(tmp_path / "faultline")["rules"]["fault"]["calls"] > 0
