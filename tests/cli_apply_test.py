"""`faultline apply` end to end: the ledger it reports, how it replays, and what it refuses."""

import json
import subprocess

import pytest

from program import PROGRAM, SMALL, as_json, cases, ok, refused, run


def test_apply_reports_a_ledger_that_replays():
    first = as_json("apply", "relative_gaussian(strength=0.05)", "--dtype", "bf16", "--seed", "9")
    rule = first["rules"][0]
    assert rule["ledger"]["elements"] == 1024 * 1024 and rule["complaints"] == [] and first["evidence"] == "present"
    band = rule["expected_strength"]
    assert band["low"] <= rule["ledger"]["relative_rms"] <= band["high"] and 0.049 < band["expected"] < 0.051
    assert len(first["digest_before"]) == 16 and first["digest_before"] != first["digest_after"]
    replay = subprocess.run(
        first["replay"].replace("faultline", str(PROGRAM), 1), shell=True, capture_output=True, text=True
    )
    assert json.loads(replay.stdout) == first
    other = as_json("apply", "relative_gaussian(strength=0.05)", "--dtype", "bf16", "--seed", "10")
    assert other["digest_after"] != first["digest_after"]


def test_apply_in_words_names_every_figure():
    text = ok("apply", "zero(extent.fraction=0.25, extent.structure=channel)", *SMALL)
    for word in ("elements", "selected", "changed", "zeroed", "survival", "non-finite", "saturated", "mean |e|", "rms e",
                 "max |e|", "SQNR", "strength", "digest before", "digest after", "seed 0", "replay: faultline apply"):
        assert word in text
    assert "replay" not in ok("apply", "zero", *SMALL, "--quiet")


def test_a_chain_has_a_ledger_for_each_rule_and_its_own_survival():
    report = as_json("apply", "deadzone(threshold=0.5, relative_to=none)", "relative_gaussian(strength=0.1)",
                     "relative_gaussian(strength=0.1)", *SMALL)
    names = [rule["name"] for rule in report["rules"]]
    assert names == ["deadzone", "relative_gaussian", "relative_gaussian_2"]
    assert report["chain"]["survival"] == pytest.approx(0.617, abs=0.03)  # P(|x| >= 0.5)
    assert report["chain"]["survival"] == report["rules"][0]["ledger"]["survival"]  # noise cannot revive a zero


def test_the_identity_matters():
    digests = {
        as_json("apply", "absolute_gaussian(strength=0.1)", *SMALL, *more)["digest_after"]
        for more in ([], ["--site", "b"], ["--step", "3"], ["--calls", "2"], ["--seed", "4"])
    }
    assert len(digests) == 5


def test_calls_are_counted_and_flow_maps_accepted():
    report = as_json("apply", "{kind: bitflip, field: exponent, count: 3}", *SMALL, "--calls", "4", "--dtype", "fp16")
    ledger = report["rules"][0]["ledger"]
    assert ledger["calls"] == 4 and ledger["changed"] == 12 and ledger["elements"] == 4 * 64 * 96


def test_empty_tensors_are_fine():
    assert as_json("apply", "zero", "--shape", "0x5")["rules"][0]["ledger"]["elements"] == 0


@pytest.mark.parametrize(
    "arguments, says",
    cases([
        (["relative_gaussian(strength=nan)"], "strength"),
        (["relative_gaussian(strength=.inf)"], "strength"),
        (["relative_gaussian(strength=-1)"], "strength"),
        (["relative_gaussian(strenght=1)"], "did you mean 'strength'?"),
        (["relative_gausian(strength=1)"], "did you mean 'relative_gaussian'?"),
        (["deadzone(threshold=2)"], "threshold"),
        (["zero(extent.fraction=0)"], "fraction"),
        (["quantize(format=nvfp5)"], "did you mean 'nvfp4'?"),
        (["zero("], "parenthesis"),
        (["zero @ operator=matmul"], "leave out what follows"),
        (["deadzone(rule.gradient=masked)"], "cannot honour"),
        (["stuck_at(bit=16)", "--dtype", "bf16"], "bit 16"),
        (["relative_gaussian(strength=0.00001)", "--dtype", "bf16"], "expect: invisible"),
        (["gain(strength=0)"], "expect: invisible"),
        (["zero", "--dtype", "int8"], "--dtype"),
        (["zero", "--shape", "4x-1"], "--shape"),
        (["zero", "--shape", ""], "--shape"),
        (["zero", "--shape", "x".join(["1"] * 17)], "dimensions"),
        (["zero", "--shape", "9000000000x9000000000"], "more elements than 64 bits count"),
        (["zero", "--shape", "99999999999999999999"], "--shape"),
        (["zero", "--shape", "1000000x1000000"], "this machine has"),
        (["zero", "--std", "nan"], "--std"),
        (["zero", "--std", "-1"], "--std"),
        (["zero", "--calls", "0"], "--calls"),
        (["zero", "--tensor", "a"], "--input"),
        (["zero", "--output", "x.bin"], ".safetensors"),
        (["zero", "--input", "a.npy", "--shape", "3"], "--shape"),
        (["{kind: zero"], "fault"),
        (["deadzone(relative_to=none, axis=tensor)"], "with relative_to: none nothing is measured; leave axis out"),
        (["zero(extent.structure=channel)"], "structure: channel has no effect with fraction: 1"),
    ], ("apply",)),
)
def test_apply_refuses(arguments, says):
    refused(64, "apply", *arguments, says=says)


def test_missing_evidence_is_exit_3_and_writes_nothing(tmp_path):
    output = tmp_path / "y.npy"
    never = "zero(lifetime.kind=window, lifetime.from=5, lifetime.to=6)"
    done = run("apply", never, *SMALL, "--json", "--output", output)
    assert done.returncode == 3 and not output.exists()
    report = json.loads(done.stdout)
    [complaint] = report["rules"][0]["complaints"]
    assert report["evidence"] == "missing" and (complaint["code"], complaint["rule"], complaint["place"]) == ("asleep", "zero", "")
    assert f"evidence missing: {complaint['sentence']}\n" in done.stderr
    refused(3, "apply", "quantize(format=mxfp4)", "quantize(format=mxfp4)", *SMALL, says="changed not one bit")
    assert run("apply", never, *SMALL, "--step", "5").returncode == 0


@pytest.mark.parametrize("strength, deviation", [("0.05", "3e-7"), ("0.01", "1e-6"), ("0.003", "1e-5")])
def test_subnormal_fp16_data_are_no_false_alarm(strength, deviation):
    report = as_json("apply", f"relative_gaussian(strength={strength})", "--dtype", "fp16", "--std", deviation)
    assert report["evidence"] == "present"


def test_a_gpu_that_is_not_there_is_exit_2():
    done = run("apply", "zero", *SMALL, "--device", "cuda")
    if done.returncode != 0:  # there may be one
        assert done.returncode == 2 and "--device cuda" in done.stderr
