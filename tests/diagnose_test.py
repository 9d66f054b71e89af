"""`faultline diagnose`, `scan` and `compare` from the command line, on a random model of a few layers: a clean model is
healthy, a planted fault is found where it was planted, verdicts follow their schema, a campaign continues where it was
stopped."""

import json

import jsonschema
import pytest
import tiny_folder
from program import launch, refused

METHODS = ["self", "shadow"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnose") / "tiny"
    tiny_folder.make(folder, layers=6)
    return str(folder)


def diagnosed(model, *arguments):
    done = launch("diagnose", "--model", model, "--json", *arguments)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def check(schema, verdict):
    jsonschema.validate(verdict, schema)


@pytest.fixture(scope="module")
def schema():
    return json.loads(launch("diagnose", "--schema").stdout)


def test_a_clean_model_is_healthy(model, schema):
    code, json_ = diagnosed(model, "--method", "all")
    assert code == 0
    for verdict in json_["verdicts"]:
        check(schema, verdict)
        if verdict["method"] != "classic":
            assert verdict["verdict"] == "healthy" and verdict["relations"] > 50


def test_the_schema_refuses_what_is_no_verdict(model, schema):
    _, json_ = diagnosed(model)
    broken = dict(json_["verdicts"][0], verdict="fine")
    with pytest.raises(jsonschema.ValidationError):
        check(schema, broken)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "fault, place, kind",
    [
        ("gain(strength=0.05) @ module=layer_output,layer=3", "model.layers.3", "gain"),
        ("deadzone(threshold=0.05) @ module=down_proj,surface=output,layer=1", "model.layers.1.mlp.down_proj", "deadzone"),
    ],
)
def test_a_planted_fault_is_found(model, schema, method, fault, place, kind):
    code, json_ = diagnosed(model, "--method", method, "--fault", fault)
    assert code == 1 and json_["planted"]["changed"] > 0
    (verdict,) = json_["verdicts"]
    check(schema, verdict)
    assert [(c["place"], c["kind"]) for c in verdict["candidates"]] == [(place, kind)]


def test_explain_shows_the_residuals(model):
    done = launch("diagnose", "--model", model, "--explain", "--fault", "gain(strength=0.05) @ module=layer_output,layer=3")
    assert done.returncode == 1
    assert "infinity" in done.stdout and "expected" in done.stdout and "observed" in done.stdout


def test_the_verdict_is_written_to_a_file(model, schema, tmp_path):
    file = tmp_path / "verdict.json"
    launch("diagnose", "--model", model, "--out", file, "--fault", "gain(strength=0.05) @ module=layer_output,layer=3")
    verdict = json.loads(file.read_text())
    check(schema, verdict)
    assert verdict["candidates"][0]["layer"] == 3


def test_an_intermittent_fault_is_waited_for(model):
    fault = "gain(strength=0.05,lifetime.kind=transient,lifetime.probability=0.1) @ module=layer_output,layer=2"
    code, json_ = diagnosed(model, "--passes", "64", "--fault", fault)
    assert code == 1 and json_["verdicts"][0]["candidates"][0]["layer"] == 2


def test_a_smoke_campaign_continues_where_it_was(model, tmp_path):
    store, records = tmp_path / "trials.sqlite", tmp_path / "records.jsonl"
    arguments = ["diagnose", "--model", model, "--campaign", "smoke", "--method", "all", "--store", store, "--quiet"]
    first = launch(*arguments, "--seconds", "0.001", "--json")
    assert first.returncode == 0, first.stderr
    done = launch(*arguments, "--records", records, "--json")
    summary = json.loads(done.stdout)["summary"]
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == 12 and len({(line["cell"], line["index"]) for line in lines}) == 12
    assert summary["planted"] + summary["inactive"] == 9
    for method in METHODS:
        one = summary["methods"][method]
        assert one["healthy"] == {"flagged": 0, "runs": 3, "upper": one["healthy"]["upper"]}
        place = one["pools"]["all"]["layer_and_operator"]
        assert place["right"] == place["trials"] > 0
    again = launch(*arguments, "--json")
    assert json.loads(again.stdout)["summary"] == summary  # nothing was left to do


def test_scan_sorts_the_worst_first(model):
    done = launch("scan", "--model", model, "--formats", "mxfp4", "--json")
    rows = json.loads(done.stdout)["rows"]
    values = [row["sqnr_db"] for row in rows]
    assert values == sorted(values) and {"weight", "input", "layer_output"} == {row["surface"] for row in rows}
    assert all(5 < value < 40 for value in values)


def test_compare_finds_a_machine_equal_to_itself_and_types_different(model, tmp_path):
    same = json.loads(launch("compare", "--model", model, "--a", "cpu:bf16", "--b", "cpu:bf16", "--json").stdout)
    assert all(one["share_equal"] == 1 for one in same["operators"])
    folder = tmp_path / "profiles"
    done = launch("compare", "--model", model, "--a", "cpu:bf16", "--b", "cpu:fp16", "--json", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert any(one["share_equal"] < 1 for one in json.loads(done.stdout)["operators"])
    assert (folder / "recipe.yaml").exists()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--method", "magic"], "magic"),
        (["--passes", "0"], "--passes"),
        (["--campaign", "huge"], "--campaign"),
        (["--fault", "gain(strength=0.05) @ module=layer_output,layer=77"], "layer 77 does not exist"),
    ],
)
def test_mistakes_are_refused(model, arguments, says):
    refused(64, "diagnose", "--model", model, *arguments, says=says)
