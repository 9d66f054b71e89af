"""Settings as they stand in the published systems (a verl fork with noise, SRDD's scripts, QeRL), literally, and exactly what each
becomes; launch scripts, read and never run; random settings, whose recipes `check` reads back to the same plan."""

import json
import os
import random

import pytest
from program import as_json, launch, refused

HW = "trainer.hw_error_injection."
NOISE = "trainer.noise_injection."
OPS = "trainer.noisy_ops."
ROLLOUT = "actor_rollout_ref.rollout."
CFG = ROLLOUT + "hw_error_injection_config."
LAYERS = NOISE + "layer_sigma_config."
DEAD = {"kind": "deadzone", "axis": "tensor"}
TRAINING = {"rollout": False, "actor_forward": True, "actor_backward": False, "eval": "both"}
ROLLOUTS = {"rollout": True, "actor_forward": False, "actor_backward": False, "eval": "both"}
FORWARD = {"rollout": True, "actor_forward": True, "actor_backward": False, "eval": "both"}
EVERYWHERE = {"rollout": True, "actor_forward": True, "actor_backward": True, "eval": "both"}


def convert(*settings, **environment):
    done = launch("convert", "--json", *settings, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def at(tree, path):
    for name in path.split("."):
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    return tree


def hw(*more):
    return [HW + "enabled=True", *more]


def noise(*more):
    return ["++" + NOISE + "enabled=True", *more]


# (settings, {path in the recipe: value, …}, a word of a note or None)
TABLE = [
    # errors in modules
    (hw(), {"faults.0.where.module": "rmsnorm", "faults.0.where.surface": "input", "faults.0.what": {"kind": "relative_gaussian", "strength": 1e-05}, "faults.0.phases": ROLLOUTS}, "stochastic"),
    (hw(HW + "error_type=absolute_gaussian", HW + "error_scale=0.01"), {"faults.0.what": {"kind": "absolute_gaussian", "strength": 0.01}}, None),
    (hw(HW + "error_type=systematic_bias", HW + "error_scale=0.01"), {"faults.0.what": {"kind": "systematic_bias", "strength": 0.01}}, None),
    (hw(HW + "error_scale=1e-4"), {"faults.0.what.strength": 0.0001, "faults.0.rounding": "stochastic"}, "stochastic"),
    (hw(HW + "error_scale=0.05", HW + "apply_during=both"), {"faults.0.phases": FORWARD}, None),
    (hw(HW + "error_scale=0.05", HW + "apply_during=training"), {"faults.0.phases": TRAINING}, None),
    (hw(HW + "error_scale=0.05", HW + "apply_during=rollout"), {"faults.0.phases": ROLLOUTS}, None),
    (hw(HW + "error_scale=0.05", HW + "injection_point=output"), {"faults.0.where.surface": "output"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=['rmsnorm']"), {"faults.0.where.module": "rmsnorm"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=['linear']"), {"faults.0.where.module": "*_proj", "faults.0.where.except": ["lm_head"]}, "_proj"),
    (hw(HW + "error_scale=0.05", HW + "target_modules=['rmsnorm','down_proj']"), {"faults.0.where.module": "rmsnorm", "faults.1.where.module": "down_proj"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=['rmsnorm','linear']"), {"faults.0.name": "hw_error_rmsnorm", "faults.1.where.module": "*_proj"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_operators=['linear','rmsnorm']"), {"faults.0.where.module": "*_proj", "faults.1.where.module": "rmsnorm"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=[o_proj]"), {"faults.0.where.module": "o_proj"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=[layernorm]"), {"faults.0.where.module": "*layernorm"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=minimal"), {"faults.0.where.module": "rmsnorm"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=mlp"), {"faults.0.where.module": "rmsnorm", "faults.1.where.module": "down_proj"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_modules=both"), {"faults.0.where.module": "rmsnorm", "faults.1.where.module": "*_proj"}, None),
    (hw(HW + "error_scale=0.05", HW + "target_layers=[15]"), {"faults.0.where.layer": [15]}, None),
    (hw(HW + "error_scale=0.05", HW + "target_layers=null"), {"faults.0.where.layer": "all"}, None),
    (hw(HW + "error_scale=0.05", HW + "seed=9"), {"seed": 9}, None),
    (hw(HW + "error_scale=0.05", HW + "exclude_modules=[\"lm_head\",\"layers.0\",\"layers.27\",\"base_layer\",\"lora_A\"]"), {"faults.0.where.except": ["lm_head", "0", "27"]}, "wraps"),
    (hw(HW + "error_scale=0.05", HW + "exclude_modules=['layers.2']"), {"faults.0.where.except": ["2"]}, "layers 20 to 29"),
    (hw(HW + "error_type=deadzone", HW + "injection_point=output", HW + "target_layers=[15]", HW + "deadzone_threshold=0.01"),
     {"faults.0.where": {"module": "layer_output", "layer": [15], "surface": "output"}, "faults.0.what": {**DEAD, "threshold": 0.01}, "faults.0.gradient": "masked"}, "left those runs clean"),
    # number formats
    (hw(HW + "error_type=mxfp4", HW + "injection_point=weight", HW + "apply_during=both", "trainer.hw_error_injection.target_modules=[\"linear\"]"),
     {"faults.0.where": {"operator": "matmul", "surface": "weight", "layer": "all", "except": ["lm_head"]}, "faults.0.what": {"kind": "quantize", "format": "mxfp4"}, "faults.0.phases": EVERYWHERE}, "half way"),
    (hw(HW + "error_type=mxfp4", HW + "injection_point=both", HW + "target_modules=[linear]"), {"faults.0.where.surface": "weight", "faults.1.where.surface": "input", "faults.1.where.module": "*_proj"}, None),
    (hw(HW + "error_type=mxfp4", HW + "injection_point=input"), {"faults.0.where.module": "*_proj"}, None),
    (hw(HW + "error_type=mxfp4", HW + "mxfp4_stochastic_rounding=True", HW + "injection_point=weight"), {"faults.0.what.rounding": "stochastic"}, None),
    (hw(HW + "error_type=nvfp4", HW + "injection_point=weight"), {"faults.0.what.format": "nvfp4_single"}, "down its columns"),
    (hw(HW + "error_type=nvfp4", HW + "injection_point=both", HW + "apply_during=training"), {"faults.0.phases": {**TRAINING, "actor_backward": True}, "faults.1.phases": TRAINING}, None),
    (hw(HW + "error_type=fp8", HW + "injection_point=weight"), {"faults.0.what.format": "fp8_e4m3"}, None),
    (hw(HW + "error_type=mxfp4", HW + "injection_point=weight", "++" + HW + "use_ste=False"), {"faults.0.what.format": "mxfp4"}, "use_ste"),
    # the rollout's own
    ([ROLLOUT + "hw_error_injection_enabled=true", CFG + "error_type=deadzone", CFG + "injection_point=output", CFG + "target_layers=[15]", CFG + "deadzone_threshold=0.05", CFG + "apply_during=rollout"],
     {"faults.0.name": "rollout_hw_error", "faults.0.what": {**DEAD, "threshold": 0.05}, "faults.0.phases": ROLLOUTS}, None),
    (hw(HW + "error_type=deadzone", HW + "injection_point=output", HW + "apply_during=both", ROLLOUT + "hw_error_injection_enabled=true", CFG + "error_type=deadzone"), {"faults.0.phases": FORWARD}, None),
    ([ROLLOUT + "deadzone_enabled=true", ROLLOUT + "deadzone_layer=15", ROLLOUT + "deadzone_threshold=0.02"], {"faults.0.what.threshold": 0.02, "faults.0.phases": ROLLOUTS}, None),
    # operators
    ([OPS + "enabled=True", OPS + "error_scale=5e-2"], {"faults.0.where.operator": "matmul", "faults.0.what.strength": 0.05, "faults.0.phases": EVERYWHERE}, "reached some of them"),
    ([OPS + "enabled=True"], {"faults.0.what.strength": 1e-05}, "old default, 1e-05"),
    (["VERL_NOISY_OPS_ENABLED=1"], {"faults.0.what.strength": 0.0001}, "old default, 0.0001"),
    ([OPS + "enabled=True", OPS + "error_scale=0.05", OPS + "error_type=absolute_gaussian"], {"faults.0.what": {"kind": "absolute_gaussian", "strength": 0.05}}, None),
    ([OPS + "enabled=True", OPS + "error_scale=0.05", "++" + OPS + "all_ops_mode=True"], {"faults.0.where.operator": "all_ops"}, None),
    (["VERL_NOISY_OPS_ENABLED=yes", "VERL_NOISY_OPS_SCALE=0.05", "VERL_NOISY_OPS_ALL_OPS=1"], {"faults.0.where.operator": "all_ops"}, None),
    (["VERL_NOISY_OPS_ENABLED=1", "VERL_NOISY_OPS_SCALE=0.05", "VERL_NOISY_OPS_FORWARD_ONLY=1"], {"faults.0.phases": FORWARD}, None),
    (["VERL_NOISY_OPS_ENABLED=1", "VERL_NOISY_OPS_SCALE=0.05", "VERL_NOISY_OPS_BACKWARD_ONLY=1"], {"faults.0.phases": {**TRAINING, "actor_forward": False, "actor_backward": True}}, None),
    (["VERL_NOISY_OPS_ENABLED=1", "VERL_NOISY_OPS_SCALE=0.05", "VERL_NOISY_OPS_FORWARD_ONLY=1", "VERL_NOISY_OPS_BACKWARD_ONLY=1"], {"faults.0.phases": EVERYWHERE}, None),
    (["VERL_NOISY_OPS_ENABLED=1", "VERL_NOISY_OPS_SCALE=0.05", "VERL_NOISY_OPS_TRAINING_ONLY=1"], {"faults.0.phases": {**TRAINING, "actor_backward": True}}, None),
    ([OPS + "enabled=True", OPS + "error_type=deadzone", OPS + "deadzone_threshold=0.04", OPS + "target_layers=[15]"],
     {"faults.0.what": {**DEAD, "threshold": 0.04}, "faults.0.gradient": "masked", "faults.0.where": {"operator": "matmul", "layer": [15], "surface": "output"}}, "axis"),
    # noise on norms
    (noise(NOISE + "sigma_start=0.05", NOISE + "sigma_end=0.0005", NOISE + "num_stages=10"), {"aqn": {"schedule": "global_decay", "sigma_start": 0.05, "sigma_end": 0.0005, "num_stages": 10, "layers": "all"}}, "absolute"),
    (noise(NOISE + "epoch_aware=True", NOISE + "stages_per_epoch=5", "trainer.total_epochs=2"), {"aqn.boundaries": [0.05, 0.01, 0.0005], "aqn.stages_per_epoch": 6, "aqn.warmup_interval": True}, "0.005"),
    (noise(NOISE + "epoch_aware=True", NOISE + "sigma_start=0.08", NOISE + "sigma_end=0.01", "trainer.total_epochs=3"), {"aqn.boundaries": [0.08, pytest.approx(0.04), pytest.approx(0.02), 0.01]}, None),
    (noise(ROLLOUT + "noise_injection_epoch_aware=True", ROLLOUT + "noise_injection_epoch_ranges=[[0.05,0.02],[0.02,0.001]]"), {"aqn.boundaries": [0.05, 0.02, 0.001]}, None),
    (noise("++" + NOISE + "layer_types=[\"rmsnorm\"]"), {"aqn.schedule": "global_decay"}, None),
    (noise("++" + NOISE + "layer_types=[\"linear\"]", NOISE + "sigma_start=0.01"), {"faults.0.where": {"operator": "matmul", "layer": "all", "surface": "weight", "except": ["lm_head"]}, "faults.0.what": {"kind": "absolute_gaussian", "strength": 0.01}, "faults.0.schedule.kind": "global_decay"}, "as a rule"),
    (noise("+" + NOISE + "target_modules=[\"post_attention_layernorm\"]"), {"aqn.norms": ["post_attention_layernorm"]}, None),
    (noise("+" + NOISE + "exclude_patterns=[\"input_layernorm\"]"), {"aqn.except": ["input_layernorm"]}, None),
    (noise("++" + NOISE + "exclude_patterns=[\"lm_head\",\"embed_tokens\",\"lora_\"]"), {"aqn.layers": "all"}, "no norm"),
    (noise(NOISE + "target_layers=[10,11,12]"), {"aqn.layers": [10, 11, 12]}, None),
    (noise(LAYERS + "enabled=True", LAYERS + "default_multiplier=0.0", LAYERS + "layer_multipliers={14: 1.0, 15: 1.0, 16: 1.0, 17: 1.0}"),
     {"aqn.zones": [{"first_layer": 14, "last_layer": 17, "early": 1.0, "late": 1.0}], "aqn.elsewhere": 0.0}, None),
    (noise(LAYERS + "enabled=True", LAYERS + "layer_multipliers={10: 1.2, 11: 1.2, 14: 1.5}"), {"aqn.zones.1": {"first_layer": 14, "last_layer": 14, "early": 1.5, "late": 1.5}}, None),
    (noise(LAYERS + "enabled=False", LAYERS + "layer_multipliers={14: 1.5}"), {"aqn.schedule": "global_decay"}, "not enabled"),
    (noise(LAYERS + "enabled=True", LAYERS + "zone_schedule.enabled=True", LAYERS + "zone_schedule.edge_layers=[0,1,4,5]", LAYERS + "zone_schedule.middle_layers=[2,3]", LAYERS + "zone_schedule.phase_boundary_ratio=0.25", LAYERS + "zone_schedule.late_middle_mult=0.5"),
     {"aqn.late_from": 0.25, "aqn.zones.1": {"first_layer": 2, "last_layer": 3, "early": 1.0, "late": 0.5}}, None),
    # dead zones with noise, SRDD
    (["--", "--model_path", "Qwen2.5-1.5B", "--deadzone_enabled", "true", "--deadzone_layer", "15", "--deadzone_threshold", "0.01", "--aqn_enabled", "true", "--aqn_target_layers", "15", "--aqn_sigma", "0.05"],
     {"model": "Qwen2.5-1.5B", "faults.0.what": {**DEAD, "threshold": 0.01}, "faults.0.where.layer": 15, "aqn": {"schedule": "constant", "sigma_start": 0.05, "sigma_scale": "relative", "layers": 15}, "train.algorithm": "grpo"}, "gamma"),
    (["--", "--deadzone_enabled", "true", "--deadzone_layer", "15", "--aqn_enabled", "true", "--aqn_target_layers", "all", "--aqn_sigma", "0.05"], {"aqn.layers": "all"}, None),
    (["--", "--model_path", "m", "--ground_truth_layer", "15", "--fault_type", "dead_zone", "--fault_magnitude", "0.01"], {"model": "m", "faults.0.what": {**DEAD, "threshold": 0.01}, "faults.0.where.layer": 15}, "axis"),
    (["--", "--ground_truth_layer", "10"], {"faults.0.what": {**DEAD, "threshold": 0.3}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "saturation", "--fault_magnitude", "0.3"], {"faults.0.what": {"kind": "saturate", "margin": 0.3, "axis": "tensor"}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "bias", "--fault_magnitude", "0.1"], {"faults.0.what": {"kind": "offset", "strength": 0.1, "axis": "tensor"}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "noise", "--fault_magnitude", "0.1"], {"faults.0.what": {"kind": "scaled_gaussian", "strength": 0.1, "scale": "mean_abs", "axis": "tensor"}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "spike", "--fault_magnitude", "0.3"], {"faults.0.what": {"kind": "spike", "probability": 0.003, "factor": 10.0, "axis": "tensor"}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "non_determinism", "--variance_factor", "5"], {"faults.0.what": {"kind": "nondeterministic", "axis": "tensor", "factor": 5.0}}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "non_determinism", "--nondeterminism_mode", "suppressed", "--variance_factor", "4"], {"faults.0.what.factor": 0.25}, None),
    (["--", "--ground_truth_layer", "10", "--fault_type", "non_determinism", "--nondeterminism_mode", "biased"], {"faults.1.what": {"kind": "offset", "strength": 0.25, "axis": "tensor"}}, None),
    (["--", "--ground_truth_layer", "10", "--sparsity", "0.01"], {"faults.0.extent": {"fraction": 0.01, "structure": "channel"}}, None),
    # the training around them
    (["data.train_batch_size=128", "trainer.total_epochs=2", ROLLOUT + "n=5", "actor_rollout_ref.actor.optim.lr=5e-7", "actor_rollout_ref.actor.ppo_mini_batch_size=32", "actor_rollout_ref.actor.kl_loss_type=low_var_kl"],
     {"train": {"algorithm": "grpo", "steps": 116, "prompts": 128, "n": 5, "lr": 5e-07, "kl_loss_type": "k3", "updates": 4}}, "a clean run"),
    (["actor_rollout_ref.model.path=q", "data.train_files=a.parquet", "data.val_files=b.parquet", "actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.lora_alpha=16"],
     {"model": "q", "task": {"name": "gsm8k", "train_file": "a.parquet", "test_file": "b.parquet"}, "train.lora": {"rank": 32, "alpha": 16.0}}, None),
]


@pytest.mark.parametrize("settings, wanted, note", TABLE, ids=range(len(TABLE)))
def test_a_published_setting_keeps_its_meaning(settings, wanted, note):
    result = convert(*settings)
    assert {path: at(result["recipe"], path) for path in wanted} == wanted
    assert note is None or any(note in text for text in result["notes"]), result["notes"]


def test_there_are_sixty_of_them():
    assert len(TABLE) >= 60


@pytest.mark.parametrize("settings, message", [
    (hw(HW + "error_type=mxfp4", HW + "mxfp4_block_2d=True"), "blocks of 32x32 are not known here"),
    (hw(HW + "error_scale=0.05", HW + "injection_point=weight"), "was for mxfp4 and nvfp4 alone"),
    (hw(HW + "error_type=deadzone", HW + "injection_point=both"), "a dead zone acts on what a layer gives or takes"),
    (hw(HW + "error_type=deadzone", ROLLOUT + "hw_error_injection_enabled=true", CFG + "error_type=mxfp4"), "which one is meant"),
    ([ROLLOUT + "deadzone_leyer=15"], "did you mean 'actor_rollout_ref.rollout.deadzone_layer'?"),
    ([ROLLOUT + "noise_injection_enabled=true", ROLLOUT + "noise_injection_sigma_trend=[0.05,0.01]"], "hand over sigma_start, sigma_end and num_stages"),
    (noise("++" + NOISE + "exclude_patterns=[\"layers.3\"]"), "give names of norms"),
    (noise(LAYERS + "enabled=True", LAYERS + "zone_schedule.enabled=True"), "give edge_layers and middle_layers"),
    (["--", "--ground_truth_layer", "10", "--fault_type", "saturation", "--absolute_saturation"], "saturate(limit="),
    (["data.train_batch_size=128", "actor_rollout_ref.actor.ppo_mini_batch_size=48"], "a divisor of data.train_batch_size"),
])  # fmt: skip
def test_what_cannot_be_meant_here_is_refused_with_the_way_out(settings, message):
    refused(64, "convert", *settings, says=message)


SCRIPT = """#!/bin/bash
set -x
SCALE=${1:-1e-4}
N_GPUS=${2:-8}   # a comment; with $(things) in it
export VERL_NOISY_OPS_ENABLED=1
export VERL_NOISY_OPS_SCALE=${SCALE}
LENGTH=$((1024 * 2))
COMMON_ARGS="
    data.train_batch_size=128
    data.max_response_length=${LENGTH}
    trainer.n_gpus_per_node=${N_GPUS}
"
if [ ! -f verl/trainer.py ]; then
  echo "not here"; exit 1
fi
echo "python3 -m verl.trainer.main_ppo trainer.noisy_ops.all_ops=True"
python3 -m verl.trainer.main_ppo --config-name=ppo_trainer \\
    ${COMMON_ARGS} \\
    '++trainer.noisy_ops.target_operators=["matmul", "softmax"]' \\
    trainer.experiment_name=ops_${SCALE}_$(date +%s) \\
    2>&1 | tee /tmp/ops.log
"""


def test_a_launch_script_is_read_with_its_arguments_and_not_run(tmp_path):
    script = tmp_path / "test_noisy_ops.sh"
    script.write_text(SCRIPT + f"touch {tmp_path}/it_ran\n")
    result = convert(str(script), "5e-2", "8")
    assert [rule["where"]["operator"] for rule in result["recipe"]["faults"]] == ["matmul", "softmax"]
    assert result["recipe"]["faults"][0]["what"]["strength"] == 0.05
    assert result["recipe"]["train"] == {"algorithm": "grpo", "prompts": 128, "max_new_tokens": 2048}
    assert result["left_to_verl"] == ["trainer.n_gpus_per_node", "trainer.experiment_name"]
    assert convert(str(script))["recipe"]["faults"][0]["what"]["strength"] == 1e-4, "the script's own default"
    assert not (tmp_path / "it_ran").exists()


def test_a_mode_chooses_the_function_that_runs(tmp_path):
    script = tmp_path / "modes.sh"
    script.write_text("""MODE=${1:-linear}
run_minimal() {
  python3 -m verl.trainer.main_ppo trainer.hw_error_injection.enabled=True "trainer.hw_error_injection.target_modules=['rmsnorm']"
}
run_linear() {
  python3 -m verl.trainer.main_ppo trainer.hw_error_injection.enabled=True "trainer.hw_error_injection.target_modules=['linear']"
}
case "$MODE" in
  minimal) run_minimal ;;
  linear|all)
    run_linear
    ;;
  *) echo usage; exit 1 ;;
esac
""")
    for mode, module in (("minimal", "rmsnorm"), ("linear", "*_proj"), ("all", "*_proj")):
        assert convert(str(script), mode)["recipe"]["faults"][0]["where"]["module"] == module
    assert convert(str(script))["recipe"]["faults"][0]["where"]["module"] == "*_proj"
    refused(64, "convert", str(script), "none", says="no Python command with settings")


@pytest.mark.parametrize("text, arguments, message", [
    ("python -m x deadzone.layer=3\npython -m x deadzone.layer=4\n", [], "stand in the lines 1, 2; say which one with --command 1 to 2"),
    ("python -m x deadzone.layer=3\n", ["--command", "2"], "--command 2: "),
    ("for L in 1 2; do\n  python -m x deadzone.layer=$L\ndone\n", [], ":2: whether this command runs is decided by"),
    ("echo 'never closed\n", [], ":1: a quote that nothing closes"),
    ("f() {\n f\n}\nf\n", [], "functions call each other more than"),
    ("A=" + "${a:-" * 40 + "}" * 40 + "\n", [], ":1: more than 16 expansions in each other"),
    ("A=xx\n" + "A=$A$A\n" * 40, [], "add up to more than 16 MiB"),
    ("echo nothing\n", [], "no Python command with settings"),
])  # fmt: skip
def test_a_script_that_cannot_be_known_is_refused_with_its_line(tmp_path, text, arguments, message):
    script = tmp_path / "launch.sh"
    script.write_text(text)
    refused(64, "convert", str(script), *arguments, says=message)


def test_one_of_several_commands_is_chosen(tmp_path):
    script = tmp_path / "launch.sh"
    script.write_text("python -m x deadzone.layer=3\npython -m x deadzone.layer=4\n")
    assert convert(str(script), "--command", "2")["recipe"]["faults"][0]["where"]["layer"] == 4


def test_a_planted_fault_is_found_by_diagnose_at_once(tmp_path):
    text = launch("convert", "--", "--ground_truth_layer", "1", "--fault_type", "dead_zone", "--fault_magnitude", "0.2").stdout
    assert text.startswith("# faultline diagnose --recipe RECIPE\n")
    recipe = tmp_path / "planted.yaml"
    recipe.write_text(text)
    import tiny_folder

    model = tiny_folder.make(tmp_path / "model")
    done = launch("diagnose", "--recipe", str(recipe), "--model", model, "--method", "self", "--dtype", "fp32", "--json")
    verdict = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert verdict["verdicts"][0]["candidates"][0]["layer"] == 1 and verdict["planted"]["changed"] > 0
    named = json.loads(launch("diagnose", "--recipe", str(recipe), "--model", model, "--method", "srdd", "--dtype", "fp32", "--json").stdout)
    assert named["verdicts"][0]["method"] == "classic"
    refused(64, "diagnose", "--recipe", str(recipe), "--fault", "zero @ module=layer_output", says="give one of them")


def some_settings(draw):
    """Random settings of one part each, as somebody might write them."""
    number = lambda low, high: f"{draw.uniform(low, high):.4g}"  # noqa: E731
    layers = draw.choice(["null", "[3]", "[1,2,5]"])
    parts = [
        [HW + "enabled=True", HW + "error_scale=" + number(0.001, 0.1), HW + "error_type=" + draw.choice(["relative_gaussian", "absolute_gaussian", "systematic_bias"]),
         HW + "injection_point=" + draw.choice(["input", "output"]), HW + "apply_during=" + draw.choice(["both", "rollout", "training"]), HW + "target_layers=" + layers,
         HW + "target_modules=" + draw.choice(["[rmsnorm]", "[linear]", "[rmsnorm,down_proj]", "[o_proj]"])],
        [HW + "enabled=True", HW + "error_type=" + draw.choice(["mxfp4", "nvfp4", "fp8"]), HW + "injection_point=" + draw.choice(["weight", "both", "input"]), HW + "target_modules=[linear]", HW + "target_layers=" + layers],
        [OPS + "enabled=1", OPS + "error_scale=" + number(0.001, 0.1), OPS + "target_layers=" + layers, draw.choice([OPS + "all_ops=True", OPS + "all_ops=False"])],
        [NOISE + "enabled=True", NOISE + "sigma_start=" + number(0.01, 0.1), NOISE + "sigma_end=" + number(0.0001, 0.009), draw.choice([NOISE + "epoch_aware=True", NOISE + f"num_stages={draw.randint(3, 20)}"]), f"trainer.total_epochs={draw.randint(1, 5)}"],
        ["deadzone.layer=" + str(draw.randint(0, 20)), "deadzone.threshold=" + number(0.001, 0.3), "deadzone.sparsity=" + number(0.01, 1)],
    ]  # fmt: skip
    return [setting for part in draw.sample(parts[1:] if draw.random() < 0.5 else [parts[0], *parts[2:]], draw.randint(1, 3)) for setting in part]


def test_random_settings_read_back_to_the_same_plan(tmp_path):
    """Converted, checked, checked again. FAULTLINE_CONVERT_SETTINGS says how many."""
    draw = random.Random(20261119)
    for number in range(int(os.environ.get("FAULTLINE_CONVERT_SETTINGS", "25"))):
        settings = some_settings(draw)
        converted = convert(*settings)["recipe"]
        recipe = tmp_path / f"{number}.json"
        recipe.write_text(json.dumps(converted))
        read = as_json("check", str(recipe))
        again = tmp_path / f"{number}-again.json"
        again.write_text(json.dumps(read))
        assert as_json("check", str(again)) == read, settings
        for name in ("faults", "aqn"):  # what was written is what a plan is made of
            assert contains(read.get(name), converted.get(name)), settings


def contains(whole, part):
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contains(whole.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part
