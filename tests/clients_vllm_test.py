"""vLLM on a CPU, in an environment of its own (`./dev test-clients`; skipped elsewhere): the plug-in arms the plan in the engine's
process and nowhere else computes it; every packed matrix product is found in its layer; text
changes with the plan and is the same without it; the norms carry AQN; a dead zone sits at one decoder layer's output."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is tested in an environment of its own: ./dev test-clients")

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "libfaultline.so"
LAYERS, NEW = 2, 4
LIMIT = 1500
LINEARS = 4 * LAYERS + 1  # vLLM fuses q, k, v and gate, up

SCRIPT = """
import json, os, sys

if __name__ == "__main__":
    import vllm
    options = json.loads(sys.argv[2])
    engine = vllm.LLM(sys.argv[1], max_model_len=128, dtype=options.pop("dtype", "bfloat16"), max_num_seqs=2, disable_log_stats=True, **options)
    answers = engine.generate(["abc", "hello there"], vllm.SamplingParams(temperature=0, max_tokens=%d, ignore_eos=True, logprobs=1))
    result = {"text": [list(answer.outputs[0].token_ids) for answer in answers], "logprobs": [answer.outputs[0].cumulative_logprob for answer in answers], "main": os.getpid()}
    if "faultline" in sys.modules:
        result["collection"] = sys.modules["faultline"].collect(engine, on_missing="warn")
    print("result", json.dumps(result))
""" % NEW


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What pip would install: the package's folder and its entry points, as pyproject.toml declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = tmp_path_factory.mktemp("installed")
    metadata = place / "faultline-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faultline\nVersion: 0.1.0\n")
    groups = project["entry-points"].items()
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items()) for group, names in groups))
    return os.pathsep.join([str(place), str(ROOT / "python")])


def make_model(folder):
    """tiny_folder's tokenizer, with a model whose heads are as wide as vLLM's attention wants them."""
    import tiny_folder
    import torch
    import transformers

    tiny_folder.make(folder, layers=LAYERS)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=256)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=words, eos_token_id=2, tie_word_embeddings=False, dtype="bfloat16", **sizes)).bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


def run(tmp_path, model, installed, a_recipe, *, launcher=(), environment=None, **options):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "PYTHONPATH": installed, "FAULTLINE_LIBRARY": str(LIBRARY), **(environment or {})}
    if a_recipe is not None:
        path = tmp_path / "recipe.json"
        path.write_text(json.dumps(a_recipe))
        variables["FAULTLINE_RECIPE"] = str(path)
        variables["FAULTLINE_EVIDENCE"] = str(tmp_path / "evidence")
    options.setdefault("enforce_eager", True)
    return subprocess.run([sys.executable, *launcher, script, model, json.dumps(options)], env=variables, capture_output=True, text=True, timeout=LIMIT)


def result_of(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    return json.loads(line.removeprefix("result "))


NOISE = {"seed": 7, "faults": [{"name": "noise", "where": {"operator": "matmul"}, "what": {"kind": "relative_gaussian", "strength": 0.3}}]}


@pytest.fixture(scope="module")
def clean(tmp_path_factory, model, installed):
    return result_of(run(tmp_path_factory.mktemp("clean"), model, installed, None))


def calls_by_place(report):
    places = {}
    for row in report["rows"]:
        places[row["place"]] = places.get(row["place"], 0) + int(row["ledger"]["calls"])
    return places


def test_every_matrix_product_of_the_engine_is_found_in_its_layer(tmp_path, model, installed, clean):
    result = result_of(run(tmp_path, model, installed, NOISE))
    assert result["logprobs"] != clean["logprobs"]
    [process] = result["collection"]["processes"]
    report = process["report"]
    assert process["pid"] != result["main"] and process["role"] == "vllm"
    places = calls_by_place(report)
    assert len(places) == LINEARS and "" not in places, places
    assert {row["phase"] for row in report["rows"]} == {"rollout"} and {row["layer"] for row in report["rows"]} == {-1, *range(LAYERS)}
    assert len(set(places.values())) == 1 and places.popitem()[1] >= NEW
    # The main process has nothing to compute and is not blamed for it.
    files = {json.loads(path.read_text())["pid"]: json.loads(path.read_text()) for path in (tmp_path / "evidence").glob("process-*.json")}
    assert files[result["main"]]["report"]["rows"] == [] and files[process["pid"]]["report"]["rows"]


def test_without_a_plan_nothing_changes_and_with_one_it_is_the_same_twice(tmp_path, model, installed, clean):
    again = result_of(run(tmp_path, model, installed, None))
    assert again["text"] == clean["text"] and again["logprobs"] == clean["logprobs"] and "collection" not in again
    first, second = (result_of(run(tmp_path, model, installed, NOISE)) for _ in range(2))
    assert first["logprobs"] == second["logprobs"] != clean["logprobs"]


def test_a_dead_zone_at_one_layers_output(tmp_path, model, installed, clean):
    zone = {"seed": 7, "faults": [{"name": "zone", "where": {"module": "layer_output", "layer": 1}, "what": {"kind": "deadzone", "threshold": 0.5}}]}
    result = result_of(run(tmp_path, model, installed, zone))
    assert result["logprobs"] != clean["logprobs"]
    [row] = result["collection"]["processes"][0]["report"]["rows"]
    assert row["place"].endswith("layers.1") and row["ledger"]["zeroed"] > 0 and row["phase"] == "rollout"


def test_norms_carry_the_noise_of_the_section_aqn(tmp_path, model, installed, clean):
    noisy = {**NOISE, "aqn": {"schedule": "constant", "sigma_start": 0.05}}
    noisy["faults"] = [{**NOISE["faults"][0], "where": {"operator": "matmul", "layer": 0}}]
    done = run(tmp_path, model, installed, noisy)
    assert result_of(done)["logprobs"] != clean["logprobs"]
    assert f"[aqn] applied noise to {2 * LAYERS + 1} RMSNorm weights (skipped 0), sigma=0.05" in done.stderr + done.stdout


def test_a_family_that_meets_nothing_stops_the_engine(tmp_path, model, installed):
    wrong = {"seed": 7, "faults": [{"name": "gelu", "where": {"operator": "aten::gelu"}, "what": {"kind": "gain", "strength": 0.1}}]}
    done = run(tmp_path, model, installed, wrong)
    assert done.returncode != 0 and "none of the plan's rules ('gelu') met a single call" in done.stderr + done.stdout


def test_a_plan_that_cannot_be_armed_stops_the_engine_before_it_starts(tmp_path, model, installed):
    done = run(tmp_path, model, installed, NOISE, environment={"FAULTLINE_TOTAL_STEPS": "none"})
    assert done.returncode != 0 and "FAULTLINE_TOTAL_STEPS is a number of steps" in done.stderr + done.stdout and "result" not in done.stdout
    done = run(tmp_path, model, installed, NOISE, launcher=("-m", "faultline"), environment={"VLLM_PLUGINS": "other"})
    assert done.returncode != 0 and "VLLM_PLUGINS='other' leaves out 'faultline'" in done.stderr
