"""`faultline convert`: keys of verl, flags of the dead-zone scripts and environment variables as recipes that `check` accepts;
what is not known is refused with the nearest, and nothing is ignored in silence."""

import json
import os
import re

import pytest
from program import ROOT, as_json, launch, ok, refused

OPS = ["trainer.noisy_ops.enabled=True", "trainer.noisy_ops.error_scale=0.05"]


def convert(*settings, **environment):
    done = launch("convert", "--json", *settings, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_noisy_operators_become_one_rule_forward_and_backward():
    [rule] = convert(*OPS, "trainer.noisy_ops.error_type=gaussian")["recipe"]["faults"]
    assert rule == {"name": "noisy_ops", "where": {"operator": "matmul", "layer": "all"}, "what": {"kind": "relative_gaussian", "strength": 0.05},
                    "phases": {"rollout": True, "actor_forward": True, "actor_backward": True, "eval": "both"}}
    [rule] = convert(*OPS, "trainer.noisy_ops.all_ops=True")["recipe"]["faults"]
    assert rule["where"]["operator"] == "all_ops"
    rules = convert(*OPS, "trainer.noisy_ops.target_operators=[matmul,softmax,silu]", "trainer.noisy_ops.target_layers=[3,4]")["recipe"]["faults"]
    assert [rule["where"] for rule in rules] == [{"operator": name, "layer": [3, 4]} for name in ("activation", "matmul", "softmax")]


def test_variables_of_the_environment_mean_the_same():
    wanted = convert(*OPS)["recipe"]
    assert convert("VERL_NOISY_OPS_ENABLED=1", "VERL_NOISY_OPS_ERROR_SCALE=0.05")["recipe"] == wanted
    assert convert("--environment", VERL_NOISY_OPS_ENABLED="1", VERL_NOISY_OPS_SCALE="0.05")["recipe"] == wanted


def test_hardware_errors_become_module_rules_with_visible_rounding():
    result = convert("trainer.hw_error_injection.enabled=True", "trainer.hw_error_injection.error_scale=1e-5", "trainer.hw_error_injection.target_modules=[rmsnorm,down_proj]",
                     "trainer.hw_error_injection.injection_point=input", "trainer.hw_error_injection.apply_during=rollout")
    rules = result["recipe"]["faults"]
    assert [rule["where"]["module"] for rule in rules] == ["rmsnorm", "down_proj"] and all(rule["rounding"] == "stochastic" for rule in rules)
    assert rules[0]["phases"] == {"rollout": True, "actor_forward": False, "actor_backward": False, "eval": "both"}
    assert any("changes nothing in bf16" in note for note in result["notes"])


def test_noise_on_norms_becomes_the_section_aqn():
    keys = ["trainer.noise_injection.enabled=True", "trainer.noise_injection.sigma_start=0.05", "trainer.noise_injection.sigma_end=0.0005"]
    assert convert(*keys, "trainer.noise_injection.num_stages=10")["recipe"]["aqn"] == {"schedule": "global_decay", "sigma_start": 0.05, "sigma_end": 0.0005, "num_stages": 10, "layers": "all"}
    by_epoch = convert(*keys, "trainer.noise_injection.epoch_aware=True", "trainer.noise_injection.stages_per_epoch=4")["recipe"]["aqn"]
    assert by_epoch == {"schedule": "epoch_aware", "stages_per_epoch": 5, "warmup_interval": True, "boundaries": [0.05, 0.01, 0.0005], "layers": "all"}
    each = convert(*keys, "trainer.noise_injection.layer_sigma_config={'0': 0.05, '1': 0.025}")["recipe"]["aqn"]
    assert each["layer_multipliers"] == [1.0, 0.5]
    assert convert("aqn.enabled=true", "aqn.sigma=0.02", "aqn.target_layers=[15]")["recipe"]["aqn"] == {"schedule": "constant", "sigma_start": 0.02, "sigma_scale": "relative", "layers": [15]}


def test_flags_of_the_dead_zone_scripts(tmp_path):
    result = convert("--", "--deadzone_enabled", "--deadzone_layer", "15", "--deadzone_threshold=0.04", "--deadzone_sparsity", "0.1")
    [rule] = result["recipe"]["faults"]
    assert rule["where"] == {"module": "layer_output", "layer": 15, "surface": "output"} and rule["extent"] == {"fraction": 0.1, "structure": "channel"} and rule["gradient"] == "masked"
    [rule] = convert("--", "--fault_type", "saturation", "--ground_truth_layer", "10", "--fault_magnitude", "0.3")["recipe"]["faults"]
    assert rule["what"] == {"kind": "saturate", "margin": 0.3, "axis": "tensor"} and rule["where"]["layer"] == 10


def test_a_whole_configuration_keeps_what_is_verls_own(tmp_path):
    file = tmp_path / "verl.yaml"
    file.write_text("data: {train_files: a.parquet}\nactor_rollout_ref: {rollout: {name: vllm}}\ntrainer:\n  total_epochs: 2\n  noisy_ops: {enabled: true, error_scale: 0.05}\n"
                    "  noise_injection: {enabled: false, sigma_start: 0.05}\n")
    result = convert(str(file))
    assert result["recipe"]["faults"] == convert(*OPS)["recipe"]["faults"]
    assert result["recipe"]["task"] == {"name": "gsm8k", "train_file": "a.parquet"} and result["command"] == "train"
    assert result["left_to_verl"] == ["actor_rollout_ref.rollout.name"]
    text = ok("convert", str(file))
    assert "# left to verl: 1 of its keys, which say nothing about faults" in text
    written = tmp_path / "recipe.yaml"
    written.write_text(text)
    assert as_json("check", str(written))["faults"][0]["name"] == "noisy_ops"


@pytest.mark.parametrize("settings, message", [
    (["trainer.noisy_ops.eror_scale=0.05"], "trainer.noisy_ops.eror_scale: this key is not known; did you mean 'trainer.noisy_ops.error_scale'?"),
    (["trainer.noise_injektion.sigma_start=0.05"], "did you mean 'trainer.noise_injection.sigma_start'?"),
    (["deadzone.leyer=15"], "did you mean 'deadzone.layer'?"),
    (["something=1"], "something: this key is not known"),
    (["trainer.total_epochs=2"], "nothing about faults or noise is switched on"),
    ([*OPS, "trainer.noisy_ops.error_type=gausian"], "trainer.noisy_ops.error_type: 'gausian' is not known; did you mean 'gaussian'?"),
    ([*OPS, "trainer.noisy_ops.target_layers=20-10"], "counts downwards"),
    ([*OPS, "VERL_NOISY_OPS_ERROR_SCALE=0.1"], "which one is meant?"),
    (["deadzone.enabled=maybe", "deadzone.layer=3"], "deadzone.enabled: wanted true or false"),
    (["deadzone.enabled=true"], "deadzone.layer is missing"),
    (["--", "--fault_type", "noise"], "a planted fault needs --ground_truth_layer"),
    (["trainer.noise_injection.enabled=true", "trainer.noise_injection.target_modules=[q_proj]"], "trainer.noise_injection.target_modules: 'q_proj' is not known"),
    (["trainer.noise_injection.enabled=true", "trainer.noise_injection.layer_sigma_config={'3': 0.1}"], "the sigma of every layer"),
    (["word"], "'word' is neither a file, key=value nor a --flag"),
    ([*OPS, os.fsdecode(b"trainer.noisy_ops.target_layers=\xc2x")], "is not valid UTF-8 text"),
    (["missing.yaml"], "missing.yaml"),
    ([], "give a file, key=value, or --environment"),
])
def test_what_is_not_known_or_contradicts_itself_is_refused(settings, message):
    refused(64, "convert", *settings, says=message)


def test_the_known_keys_are_listed():
    keys = {entry["key"]: entry["becomes"] for entry in as_json("convert", "--keys")}
    assert len(keys) == 125 and keys["trainer.hw_error_injection.error_scale"] == "what.strength"
    assert "trainer.noise_injection.num_stages" in ok("convert", "--keys")


def test_the_document_has_every_old_key_with_its_new_place():
    document = (ROOT / "docs/from-verl.md").read_text(encoding="utf-8")
    documented = {}
    for title, rows in re.findall(r"^\| [^|`]*`([\w.]+)…` \| in the recipe \|\n\|---\|---\|\n((?:\|.*\n)+)", document, re.MULTILINE):
        for names, becomes in re.findall(r"^\| (.*?) \| (.*) \|$", rows, re.MULTILINE):
            documented |= {title + name: becomes for name in re.findall(r"`([^`]+)`", names)}
    keys = {entry["key"]: entry["becomes"] for entry in as_json("convert", "--keys")}
    in_tables = ("trainer.noise_injection.", "actor_rollout_ref.rollout.noise_injection_", "trainer.hw_error_injection.", "trainer.noisy_ops.", "deadzone.")
    assert documented == {key: becomes for key, becomes in keys.items() if key.startswith(in_tables)} and len(documented) > 50
    # Those that the document says in a sentence.
    configured = "actor_rollout_ref.rollout.hw_error_injection_config."
    for key, becomes in keys.items():
        if key.startswith(configured):
            assert becomes == documented["trainer.hw_error_injection." + key.removeprefix(configured)]
        elif key.startswith("actor_rollout_ref.rollout.deadzone_") and not key.endswith("enabled"):
            assert becomes == documented["deadzone." + key.removeprefix("actor_rollout_ref.rollout.deadzone_")]


@pytest.mark.parametrize("key", ["-=x", "+=x", "--=1"])
def test_a_setting_without_a_name_is_refused(key):
    assert "names no setting" in refused(64, "convert", "--", key)


def test_a_variable_that_is_not_text_is_refused():
    done = launch("convert", "--environment", env={"VERL_NOISY_OPS_SCALE": os.fsdecode(b"\xff")})
    assert done.returncode == 64 and r"'VERL_NOISY_OPS_SCALE=\xff' is not valid UTF-8 text" in done.stderr
