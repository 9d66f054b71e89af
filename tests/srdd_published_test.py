"""`diagnose --method srdd` against the published SRDD, made again in published_srdd.py: every statistic, z-score, score and reason of
every layer, on the same weights, tokens and probes, clean and under planted faults. Both run in fp32 on the CPU; their forwards are
two programs', so what is compared is held to 1e-5. Faults that act by chance are planted in both by the same plan, whose draws
depend on the call: they are equal because both run the same 11 forwards a layer in the same order."""

import contextlib
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import faultline
import published_srdd as srdd
import tiny_folder
from program import launch

PROMPT, LAYERS, FAULTY, BOUND = "What is 2 + 2? Answer:", 12, 6, 1e3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve layers that do something, each another thing, with channels that stand out as those of trained models do: z-scores
    of differences between layers that hardly differ would be made of rounding."""
    made = tiny_folder.make(tmp_path_factory.mktemp("srdd") / "model", layers=LAYERS)
    tensors = load_file(made / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("embed_tokens.weight"):
            tensor *= 20
            tensor[:, ::11] *= 3
        elif not name.endswith("norm.weight"):
            tensor *= 3
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            layer = int(name.split(".")[2])
            tensor[layer % 7 :: 11] *= 5 * (1 + layer % 3)
    save_file(tensors, str(made / "model.safetensors"), metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def published(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = transformers.AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    return model, ids


def diagnosed(folder, *arguments, method="srdd"):
    """-> the verdict, and what --fault or --recipe did"""
    done = launch("diagnose", "--model", folder, "--dtype", "fp32", "--method", method, "--prompt", PROMPT, "--json", *arguments)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    (verdict,) = answer["verdicts"]
    return verdict, answer.get("planted")


def same_probes(verdict):
    """The normal numbers that the program drew: torch's generator with the seed that the verdict tells."""
    seeds = [layer["noise_seed"] for layer in verdict["layers"]]
    return lambda layer, x: torch.randn(x.shape, generator=torch.Generator().manual_seed(seeds[layer]), dtype=x.dtype)


def differences(verdict, statistics):
    """-> how far every number of every layer is from the published one, in units of 1 + its size. A z-score divides by the spread
    between layers, which can enlarge the rounding of two programs; it may also be the published formula of the program's own
    statistics, ten times as exactly."""
    scores = srdd.scored(statistics, BOUND)
    own = srdd.scored([{name: layer[name] for name in statistics[0]} for layer in verdict["layers"]], BOUND)
    assert len(verdict["layers"]) == len(scores)
    for layer, values, scored, from_own in zip(verdict["layers"], statistics, scores, own):
        assert layer["reasons"] == scored["reasons"], layer["layer"]
        numbers = {**values, **{name: value for name, value in scored.items() if name != "reasons"}}
        assert numbers.keys() == layer.keys() - {"layer", "kind", "reasons", "noise_seed"} and len(numbers) == 16
        for name, value in numbers.items():
            difference = abs(layer[name] - value) / (1 + abs(value))
            if name in from_own:
                difference = min(difference, 10 * abs(layer[name] - from_own[name]) / (1 + abs(from_own[name])))
            yield difference, f"layer {layer['layer']}, {name}: {layer[name]} instead of {value}"


def hold(verdict, statistics):
    found = sorted(differences(verdict, statistics), reverse=True)
    assert found[0][0] < 1e-5, found[:8]
    print(f"largest difference {found[0][0]:.1e} of {len(found)}: {found[0][1]}")
    ranked = sorted((layer for layer in verdict["layers"] if layer["score"] > 0), key=lambda layer: -layer["score"])
    assert [candidate["layer"] for candidate in verdict["candidates"]] == [layer["layer"] for layer in ranked]


CASES = [
    ("clean", None, 0, None),
    ("a dead zone", "dead_zone", 0.2, "deadzone(threshold=0.2, axis=tensor)"),
    ("a small dead zone", "dead_zone", 0.02, "deadzone(threshold=0.02, axis=tensor)"),
    ("a saturation", "saturation", 0.3, "saturate(margin=0.3, axis=tensor)"),
    ("a bias", "bias", 0.3, "offset(strength={:.9g}, axis=tensor)"),
]


@pytest.mark.parametrize("kind, magnitude, fault", [case[1:] for case in CASES], ids=[case[0].replace(" ", "-") for case in CASES])
def test_every_score_is_the_published_one(folder, published, kind, magnitude, fault):
    model, ids = published
    elements = ids.numel() * model.config.hidden_size  # the script's standard deviation divides by one less, ours by all
    planted = ["--fault", fault.format(magnitude * (elements / (elements - 1)) ** 0.5) + f" @ module=layer_output,layer={FAULTY}"] if fault else []
    verdict, _ = diagnosed(folder, *planted)
    assert verdict["forward_equivalents"] == 11 * LAYERS
    with srdd.broken(model, FAULTY, kind, magnitude) if kind else contextlib.nullcontext():
        hold(verdict, srdd.measured(model, ids, same_probes(verdict)))


# As `convert` writes them from the script's flags: noise of half the mean magnitude, spikes of ten times the value.
CHANCES = [
    {"kind": "scaled_gaussian", "strength": 0.5, "scale": "mean_abs", "axis": "tensor"},
    {"kind": "spike", "probability": 0.003, "factor": 10.0, "axis": "tensor"},
]


@pytest.mark.parametrize("what", CHANCES, ids=lambda what: what["kind"])
def test_every_score_is_the_published_one_under_a_fault_that_acts_by_chance(folder, published, tmp_path, what):
    model, ids = published
    recipe = {"seed": 7, "phases": {"diagnose": True}, "faults": [{"name": "planted", "where": {"module": "layer_output", "layer": 3, "surface": "output"}, "what": what}]}
    file = tmp_path / "planted.json"
    file.write_text(json.dumps(recipe))
    verdict, planted = diagnosed(folder, "--recipe", file, "--seed", "7")
    with faultline.plan(recipe, model=model, on_missing="warn") as plan, faultline.phase("diagnose"):
        statistics = srdd.measured(model, ids, same_probes(verdict))
    (rule,) = plan.report["rules"]
    assert (planted["calls"], planted["changed"]) == (rule["calls"], rule["changed"]) and rule["calls"] == 11 * LAYERS
    hold(verdict, statistics)
    assert verdict["layers"][3]["reasons"][0] == "NOISE_SOURCE"
    assert sum(layer["instability"] > 0 for layer in verdict["layers"]) == LAYERS - 3  # the layers behind it read what it spoilt


def test_cached_inputs_give_the_same_scores_where_the_machine_repeats_itself(folder):
    (whole, _), (few, _) = diagnosed(folder), diagnosed(folder, method="classic")
    assert few["layers"] == whole["layers"] and few["forward_equivalents"] < LAYERS < whole["forward_equivalents"]
