"""vLLM on a CPU, in an environment of its own (`./dev test-clients`; skipped elsewhere): the plug-in arms the plan in the worker
and nowhere else computes it; every packed matrix product is found in its layer; text changes with the plan and is the
same without it; the norms carry AQN, after an update too; a dead zone sits at one decoder layer's output and zeroes what it
would in our own rollout; compilation hides what the coverage says. An engine takes a minute to start: each test asks one
engine several things, and where processes do not matter it has only one (ALONE)."""

import ast
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
LIMIT = 7200  # seconds; a busy machine needs many
LINEARS = 4 * LAYERS + 1  # vLLM fuses q, k, v and gate, up

SCRIPT = """
import json, os, signal, sys

def ask(engine):
    import vllm
    # One prompt: two may share a step or not, as they happen to arrive, and meet other noise then.
    answers = engine.generate(["hello there"], vllm.SamplingParams(temperature=0, max_tokens=%d, ignore_eos=True, logprobs=1))
    return {"text": [list(answer.outputs[0].token_ids) for answer in answers], "logprobs": [answer.outputs[0].cumulative_logprob for answer in answers]}

if __name__ == "__main__":
    import vllm
    options = json.loads(sys.argv[2])
    actions = options.pop("actions")
    engine = vllm.LLM(sys.argv[1], max_model_len=128, dtype="bfloat16", max_num_seqs=2, disable_log_stats=True, enable_prefix_caching=False,
                      worker_extension_cls="clients_vllm_worker.Extension", **options)
    if "watch" in actions:
        engine.collective_rpc("watch_layer", args=(1,))
    if "recapture" in actions:
        engine.collective_rpc("recapture_without_the_plan")
    result = {**ask(engine), "main": os.getpid()}
    if "rescale" in actions:
        engine.collective_rpc("rescale_layers", args=(0.0,))
        result["rescaled"] = ask(engine)
    if "watch" in actions:
        [result["watched"]] = engine.collective_rpc("watched")
    if "steps" in actions:
        for step in (1, 0):
            engine.collective_rpc("faultline_begin_step", args=(step,))
            result[f"step {step}"] = ask(engine)
    if "send" in actions:
        [result["norms"]] = engine.collective_rpc("send_norms")
    if "faultline" in sys.modules:
        result["collection"] = sys.modules["faultline"].collect(engine, on_missing="warn")
    if "overwrite" in actions:
        engine.collective_rpc("overwrite_norm")
        result["overwritten"] = sys.modules["faultline"].collect(engine, on_missing="warn")
    if "coverage" in actions:
        from faultline import vllm_coverage
        result["coverage"] = vllm_coverage.coverage(engine, lambda: ask(engine))
    print("result", json.dumps(result), flush=True)
    if "crash" in actions:
        os.kill(result["collection"]["processes"][0]["pid"], signal.SIGKILL)
        ask(engine)
        print("answered", flush=True)
""" % NEW


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What pip would install: the package's folder and its entry points, as pyproject.toml declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = tmp_path_factory.mktemp("installed")
    metadata = place / "faultline_lab-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faultline-lab\nVersion: 0.1.0\n")
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


ALONE = {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "FAULTLINE_TOTAL_STEPS": "2"}, "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor"}


def variables_of(path):
    return {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT / "tests"), os.environ.get("FAULTLINE_TEST_SITE")])), "FAULTLINE_LIBRARY": str(LIBRARY)}


def run(tmp_path, model, path, a_recipe, *actions, launcher=(), environment=None, **options):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {**variables_of(path), **(environment or {})}
    if a_recipe is not None:
        recipe_file = tmp_path / "recipe.json"
        recipe_file.write_text(json.dumps(a_recipe))
        variables = {"FAULTLINE_RECIPE": str(recipe_file), "FAULTLINE_EVIDENCE": str(tmp_path / "evidence"), **variables}
    options = {"enforce_eager": True, "actions": actions, **options}
    return subprocess.run([sys.executable, *launcher, script, model, json.dumps(options)], env=variables, capture_output=True, text=True, timeout=LIMIT)


def result_of(done, *, code=0):
    assert done.returncode == code or code is None, done.stdout[-2000:] + done.stderr[-6000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    assert len(lines) == 1, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(lines[0].removeprefix("result "))


def rule(where, what, **more):
    return {"seed": 7, "faults": [{"name": "noise", "where": where, "what": what, **more}]}


NOISE = rule({"operator": "matmul"}, {"kind": "relative_gaussian", "strength": 0.3})


@pytest.fixture(scope="module")
def clean(tmp_path_factory, model):
    """Without us: vLLM alone."""
    return result_of(run(tmp_path_factory.mktemp("clean"), model, "", None))


def calls_by_place(report):
    places = {}
    for row in report["rows"]:
        places[row["place"]] = places.get(row["place"], 0) + int(row["ledger"]["calls"])
    return places


def entries_in(folder):
    return [json.loads(path.read_text()) for path in folder.glob("process-*.json")]


def test_without_a_plan_nothing_changes(tmp_path, model, installed, clean):
    ours = result_of(run(tmp_path, model, installed, None))
    assert ours["text"] == clean["text"] and ours["logprobs"] == clean["logprobs"] and "collection" not in ours


@pytest.fixture(scope="module")
def noisy(tmp_path_factory, model, installed):
    folder = tmp_path_factory.mktemp("noisy")
    return {**result_of(run(folder, model, installed, NOISE)), "files": entries_in(folder / "evidence")}


def test_every_matrix_product_is_found_in_its_layer_and_only_the_worker_computes(noisy, clean):
    assert noisy["logprobs"] != clean["logprobs"]
    [process] = noisy["collection"]["processes"]
    report = process["report"]
    assert process["pid"] != noisy["main"] and process["role"] == "vllm"
    places = calls_by_place(report)
    assert len(places) == LINEARS and "" not in places and set(places.values()) == {NEW}, places
    assert {row["phase"] for row in report["rows"]} == {"rollout"} and {row["layer"] for row in report["rows"]} == {-1, *range(LAYERS)}
    # The main process and the engine core have nothing to compute, and are not blamed for it.
    files = {entry["pid"]: entry for entry in noisy["files"]}
    assert files[noisy["main"]]["report"]["rows"] == [] and [pid for pid, entry in files.items() if entry["report"]["rows"]] == [process["pid"]]


def test_the_same_seed_gives_the_same_text_and_a_worker_that_is_killed_leaves_its_evidence(tmp_path, model, installed, noisy):
    done = run(tmp_path, model, installed, NOISE, "crash")
    again = result_of(done, code=None)
    assert again["logprobs"] == noisy["logprobs"] and again["text"] == noisy["text"]
    assert done.returncode not in (0, 3) and "answered" not in done.stdout
    [left] = [entry for entry in entries_in(tmp_path / "evidence") if entry["report"]["rows"]]
    assert left["ended"] is False and left["pid"] == again["collection"]["processes"][0]["pid"] and left["report"]["rules"][0]["calls"] > 0


def test_a_dead_zone_at_one_layers_output_zeroes_what_it_would_in_our_own_rollout(tmp_path, model, installed):
    import torch

    import faultline

    zone = rule({"module": "layer_output", "layer": 1}, {"kind": "deadzone", "threshold": 0.2}, extent={"fraction": 0.5, "structure": "channel"})
    result = result_of(run(tmp_path, model, installed, zone, "watch", **ALONE))
    [row] = result["collection"]["processes"][0]["report"]["rows"]
    assert row["place"].endswith("layers.1") and row["ledger"]["zeroed"] > 0 and row["phase"] == "rollout"
    came, went = (torch.tensor(bits, dtype=torch.int16).view(torch.bfloat16) for bits in result["watched"])
    # Our model passes its layers' outputs through this same operator, under the same name.
    with faultline.plan(zone, on_missing="warn"), faultline.phase("rollout"):
        ours = torch.ops.faultline.boundary(came.clone(), torch.ops.faultline.place("model.layers.1"), "output")
    assert torch.equal(ours.view(torch.int16), went.view(torch.int16))
    zeroed = (went == 0) & (came != 0)
    channels = zeroed.any(0)
    assert zeroed.any() and not channels.all() and torch.equal(came[:, ~channels], went[:, ~channels])


def test_norms_carry_the_noise_of_the_section_aqn_and_carry_it_again_after_an_update(tmp_path, model, installed):
    both = {**rule({"operator": "matmul", "layer": 0}, {"kind": "relative_gaussian", "strength": 0.05}), "aqn": {"schedule": "constant", "sigma_start": 0.05}}
    result = result_of(run(tmp_path, model, installed, both, "send", "overwrite", **{**ALONE, "environment": {**ALONE["environment"], "FAULTLINE_ON_MISSING": "warn"}}))
    norms = result["norms"]
    assert len(norms) == 2 * LAYERS + 1 and all(0.03 < distance < 0.07 for distance in norms.values()), norms
    collection = result["collection"]
    assert collection["aqn"] == {"asked": 2 * LAYERS + 1, "norms": 2 * LAYERS + 1, "applications": 2, "processes": 1} and collection["complaints"] == []
    aqn = collection["processes"][0]["notes"]["aqn"]
    assert aqn["sigma"] == 0.05 and 0.04 < aqn["realised"] < 0.06
    # A weight that was written past load_weights is clean: the count tells.
    [complaint] = result["overwritten"]["complaints"]
    assert result["overwritten"]["aqn"]["norms"] == 2 * LAYERS and complaint["code"] == "noise_overwritten"


def test_compiled_code_keeps_matrix_products_in_sight_and_the_coverage_names_what_it_hides(tmp_path, model, installed):
    later = rule({"operator": "matmul"}, {"kind": "relative_gaussian", "strength": 0.3}, lifetime={"kind": "window", "from": 1, "to": 2})
    result = result_of(run(tmp_path, model, installed, later, "steps", "coverage", enforce_eager=False, **ALONE))
    assert result["step 0"]["logprobs"] == result["logprobs"] != result["step 1"]["logprobs"]
    places = calls_by_place(result["collection"]["processes"][0]["report"])
    assert len(places) == LINEARS and "" not in places and len(set(places.values())) == 1, places
    coverage = result["coverage"]
    assert coverage["compiled"] and {"matmul", "attention"} <= set(coverage["operators"]) and {"norm", "activation"} <= set(coverage["hidden"]), coverage
    assert any("norm is hidden: 5 modules" in sentence and "enforce_eager=True" in sentence for sentence in coverage["sentences"]), coverage["sentences"]


def test_the_example_as_it_stands(model, installed):
    done = subprocess.run([sys.executable, "-m", "faultline", "--recipe", ROOT / "examples/noise.yaml", ROOT / "examples/vllm_generate.py", model],
                          env=variables_of(installed), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    [rules] = (ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("{'npu_noise'"))
    assert rules["npu_noise"]["processes"] == 1 and rules["npu_noise"]["calls"] % LINEARS == 0 and rules["npu_noise"]["calls"] > 0


def test_a_family_that_meets_nothing_stops_the_engine(tmp_path, model, installed):
    done = run(tmp_path, model, installed, rule({"operator": "aten::gelu"}, {"kind": "gain", "strength": 0.1}), **ALONE)
    assert done.returncode != 0 and "none of the plan's rules ('noise') met a single call" in done.stderr + done.stdout


@pytest.mark.parametrize("launcher", [(), ("-m", "faultline")], ids=["plug-in", "launcher"])
@pytest.mark.parametrize(
    "environment, sentence",
    [({"FAULTLINE_TOTAL_STEPS": "none"}, "FAULTLINE_TOTAL_STEPS is a number of steps"), ({"FAULTLINE_RECIPE": "/nowhere/recipe.yaml"}, "/nowhere/recipe.yaml"), ({"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS='other' leaves out 'faultline'")],
    ids=["steps", "missing", "excluded"],
)
def test_a_plan_that_cannot_be_armed_stops_the_run_before_it_starts(tmp_path, model, installed, launcher, environment, sentence):
    if not launcher and "VLLM_PLUGINS" in environment:
        pytest.skip("vLLM is told to leave us out and nobody else loads us: there is nobody to notice")
    done = run(tmp_path, model, installed, NOISE, launcher=launcher, environment=environment)
    assert done.returncode != 0 and sentence in done.stderr + done.stdout and "result" not in done.stdout
    assert not launcher or done.returncode == 64
