"""`faultline diagnose`, `scan` and `compare` from the command line, on a random model of a few layers: a clean model is
healthy, a planted fault is found where it was planted, verdicts follow their schema, a campaign continues where it was
stopped."""

import gzip
import json

import jsonschema
import pytest
import tiny_folder
from program import ROOT, as_json, launch, ok, refused

METHODS = ["self", "shadow"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_folder.make(tmp_path_factory.mktemp("diagnose") / "tiny", layers=6))


def diagnosed(model, *arguments):
    done = launch("diagnose", "--model", model, "--json", *arguments)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def check(schema, verdict):
    jsonschema.validate(verdict, schema)


@pytest.fixture(scope="module")
def schema():
    return json.loads(ok("diagnose", "--schema"))


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


def test_a_fault_in_front_of_a_product_repeats_and_is_not_called_noise(model):
    """A module is faulted at its input unless the rule says more: the line about the planted fault names the surface."""
    done = launch("diagnose", "--model", model, "--fault", "deadzone(threshold=0.05) @ module=mlp.down_proj,layer=1")
    assert done.returncode == 1, done.stderr
    assert "model.layers.1.mlp.down_proj  linear  unexplained (repeatable; perhaps in its input; median error" in done.stdout, done.stdout
    assert "noise" not in done.stdout
    assert "planted: at the input of model.layers.1.mlp.down_proj: " in done.stdout
    # What differs from call to call is noise still, at an input, too.
    done = launch("diagnose", "--model", model, "--fault", "relative_gaussian(strength=0.5) @ module=mlp.down_proj,layer=1")
    assert "model.layers.1.mlp.down_proj  linear  noise (fresh at every call; median error" in done.stdout, done.stdout


def test_every_planted_rule_has_its_line(model):
    done = launch("diagnose", "--model", model, "--fault", "gain(strength=0.05) @ operator=matmul,layer=0-1", "--fault", "gain(strength=0.05) @ module=layer_output,layer=3", "--json")
    planted = json.loads(done.stdout)["planted"]
    assert [(rule["rule"], rule["surface"], rule["place"]) for rule in planted["rules"]] == [("gain", "output", "matmul at 8 places"), ("gain_2", "output", "model.layers.3")]
    assert sum(rule["changed"] for rule in planted["rules"]) == planted["changed"]


def test_explain_shows_the_residuals(model):
    done = launch("diagnose", "--model", model, "--explain", "--fault", "gain(strength=0.05) @ module=layer_output,layer=3")
    assert done.returncode == 1
    assert "infinity" in done.stdout and "expected" in done.stdout and "observed" in done.stdout
    assert "|expected|/largest" in done.stdout and "####" in done.stdout


def test_the_verdict_is_written_to_a_file(model, schema, tmp_path):
    file = tmp_path / "verdict.json"
    launch("diagnose", "--model", model, "--out", file, "--fault", "gain(strength=0.05) @ module=layer_output,layer=3")
    verdict = json.loads(file.read_text())
    check(schema, verdict)
    assert verdict["candidates"][0]["layer"] == 3 and verdict["planted"]["changed"] > 0 and verdict["evidence"]["complaints"] == []


def test_the_file_keeps_the_verdict_of_every_method(model, schema, tmp_path):
    file = tmp_path / "verdict.json"
    launch("diagnose", "--model", model, "--out", file, "--method", "all")
    verdict = json.loads(file.read_text())
    check(schema, verdict)
    for one in verdict["verdicts"]:
        check(schema, one)
    assert [one["method"] for one in verdict["verdicts"]] == ["classic", "self", "shadow"] and verdict["method"] == "shadow"


def test_an_intermittent_fault_is_waited_for(model):
    fault = "gain(strength=0.05,lifetime.kind=transient,lifetime.probability=0.1) @ module=layer_output,layer=2"
    code, json_ = diagnosed(model, "--passes", "64", "--fault", fault)
    assert code == 1 and json_["verdicts"][0]["candidates"][0]["layer"] == 2


SMOKE_TRIALS = 9 + 3 + 1  # kinds x site classes, healthy, intermittent


def test_a_smoke_campaign_continues_where_it_was(model, tmp_path):
    store, records = tmp_path / "trials.sqlite", tmp_path / "records.jsonl"
    arguments = ["diagnose", "--model", model, "--campaign", "smoke", "--method", "all", "--store", store, "--quiet"]
    first = launch(*arguments, "--time-limit", "0.001s", "--json")
    assert first.returncode == 0, first.stderr
    done = launch(*arguments, "--records", records, "--json")
    summary = json.loads(done.stdout)["summary"]
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == SMOKE_TRIALS and len({(line["cell"], line["index"]) for line in lines}) == SMOKE_TRIALS
    assert summary["planted"] + summary["inactive"] == SMOKE_TRIALS - 3
    for method in METHODS:
        one = summary["methods"][method]
        assert (one["healthy"]["all"]["flagged"], one["healthy"]["all"]["runs"]) == (0, 3)
        assert one["healthy"]["fp16"]["runs"] == 1
        place = one["pools"]["all"]["layer_and_operator"]
        assert place["right"] == place["trials"] > 0
        assert one["intermittent"]["all"]["layer"]["right"] == 1
    again = launch(*arguments, "--json")
    assert json.loads(again.stdout)["summary"] == summary  # nothing was left to do
    for stored in (store, records):
        assert as_json("diagnose", "--summarise", stored)["summary"] == summary
    assert "| pool | layer |" in launch("diagnose", "--summarise", records, "--markdown").stdout
    other = launch(*arguments, "--seed", "5")
    assert other.returncode == 64 and "another campaign" in other.stderr


def test_a_campaign_is_not_continued_with_other_weights_under_the_same_name(tmp_path):
    folder = tiny_folder.make(tmp_path / "model", layers=2)
    arguments = ["diagnose", "--model", folder, "--campaign", "smoke", "--method", "self", "--store", tmp_path / "trials.sqlite", "--quiet"]
    assert launch(*arguments).returncode == 0
    (tmp_path / "model/model.safetensors").write_bytes((tiny_folder.make(tmp_path / "other", layers=2, seed=7) / "model.safetensors").read_bytes())
    other = launch(*arguments)
    assert other.returncode == 64 and "another campaign (model, its weights" in other.stderr, other.stderr


def test_a_campaign_in_worker_processes_gives_the_same_trials(model, tmp_path):
    recipe = tmp_path / "campaign.yaml"

    def trials(store, *arguments):
        recipe.write_text(f"model: {model}\nseed: 1\ndiagnose: {{campaign: smoke, methods: [self], healthy: 2, rare: 0, store: {store}}}\n")
        records = tmp_path / "records.jsonl"
        done = launch("run", recipe, "--quiet", "--out", tmp_path, "--records", records, *arguments)
        assert done.returncode == 0, done.stderr
        found = {}
        for line in map(json.loads, records.read_text().splitlines()):
            line["outcome"]["self"].pop("seconds")
            found[line["cell"], line["index"]] = (line["seed"], line["outcome"], line["evidence"])
        return found

    assert trials("one.sqlite") == trials("two.sqlite", "--jobs", "2")
    assert "pool" in launch("run", recipe, "--out", tmp_path, "--summarise").stdout


def test_flips_at_the_edges_of_the_range_accuse_their_layer_alone(model, tmp_path):
    """Each kind of flip in each class of places once, in every type; the whole campaign is recipes/diagnose-edges.yaml."""
    done = launch("run", "recipes/diagnose-edges.yaml", f"model={model}", "diagnose.trials=1", "diagnose.healthy=3", "--out", tmp_path, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    for method in METHODS:
        pool = summary["methods"][method]["pools"]["all"]
        assert pool["accused_others"] == 0
        assert pool["layer"]["right"] == pool["layer"]["trials"] > 40
        assert summary["methods"][method]["healthy"]["all"]["flagged"] == 0


def test_what_is_out_of_range_is_said_and_never_healthy(model):
    code, json_ = diagnosed(model, "--method", "shadow", "--fault", "inf(extent.fraction=0.5,extent.structure=row) @ module=layer_output,layer=2")
    assert code == 1
    (verdict,) = json_["verdicts"]
    assert {candidate["layer"] for candidate in verdict["candidates"]} == {2}
    assert {layer["layer"] for layer in verdict["untested"]["layers"]} >= {3, 4, 5} and verdict["untested"]["share"] > 0.1
    assert any("beyond the range" in sentence for sentence in verdict["not_tested"])


def test_the_published_table_is_what_the_records_say(tmp_path):
    records = tmp_path / "records.jsonl"
    records.write_bytes(gzip.decompress((ROOT / "docs/results/diagnosis.jsonl.gz").read_bytes()))
    table = launch("diagnose", "--summarise", records, "--markdown").stdout
    assert table.strip() and table.strip() in (ROOT / "docs/results/diagnosis.md").read_text()


def test_the_published_figures_of_flips_are_what_their_records_say(tmp_path):
    records = tmp_path / "records.jsonl"
    records.write_bytes(gzip.decompress((ROOT / "docs/results/diagnosis-edges.jsonl.gz").read_bytes()))
    figures = launch("diagnose", "--summarise", records, "--markdown").stdout.partition("## self")[0].strip()
    assert "guilty layer first" in figures and figures in (ROOT / "docs/results/diagnosis.md").read_text()


def test_scan_sorts_the_worst_first(model):
    done = launch("scan", "--model", model, "--formats", "mxfp4", "--json")
    rows = json.loads(done.stdout)["rows"]
    values = [row["sqnr_db"] for row in rows]
    assert values == sorted(values) and {"weight", "input", "layer_output"} == {row["surface"] for row in rows}
    assert all(5 < value < 40 for value in values)


def test_compare_finds_a_machine_equal_to_itself_and_types_different(model, tmp_path):
    same = as_json("compare", "--model", model, "--a", "cpu:bf16", "--b", "cpu:bf16")
    assert all(one["share_equal"] == 1 for one in same["operators"])
    folder = tmp_path / "profiles"
    done = launch("compare", "--model", model, "--a", "cpu:bf16", "--b", "cpu:fp16", "--json", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert any(one["share_equal"] < 1 for one in json.loads(done.stdout)["operators"])
    assert (folder / "recipe.yaml").exists()
    checked = launch("check", folder / "recipe.yaml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--method", "magic"], "magic"),
        (["--passes", "0"], "--passes"),
        (["--rarity", "2"], "--rarity"),
        (["--campaign", "huge"], "--campaign"),
        (["--campaign", "smoke", "--jobs", "0"], "--jobs"),
        (["--campaign", "smoke", "--time-limit", "soon"], "--time-limit"),
        (["--summarise", "/nowhere/at.all"], "cannot be read"),
        (["--fault", "gain(strength=0.05) @ module=layer_output,layer=77"], "layer 77 does not exist"),
    ],
)
def test_mistakes_are_refused(model, arguments, says):
    refused(64, "diagnose", "--model", model, *arguments, says=says)
