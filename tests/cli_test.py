"""The command line end to end: what it prints, how it fails, recipes, and the output's manners."""

import json
import re
import shutil
import subprocess

import jsonschema
import pytest

from program import PROGRAM, SMALL, as_json, cases, ok, refused, run


@pytest.fixture(scope="module")
def schema():
    return json.loads(ok("schema"))


def test_alone_it_says_where_to_start():
    text = ok()
    assert all(f"faultline {command}" in text for command in ("demo", "list faults", "explain deadzone", "apply"))


def test_version_in_words_and_json():
    assert ok("--version").startswith("faultline ")
    version = json.loads(ok("--version", "--json"))
    assert set(version) == {"version", "commit", "torch", "cuda_kernels", "cpu_instructions"}
    assert version["torch"].startswith("2.11") and version["cpu_instructions"] in ("portable", "avx2", "avx512", "neon")


@pytest.mark.parametrize("command", ["apply", "list", "explain", "check", "schema", "selftest", "demo", "completion"])
def test_help_has_a_purpose_and_two_examples(command):
    text = ok(command, "-h")
    assert text.count(f"\n  faultline {command}") >= 2 and "Examples" in text
    if command == "apply":
        assert "1024x1024" in text and "fp32" in text  # defaults


def test_the_program_does_not_load_cuda():
    listing = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in listing and "libtorch_cuda" not in listing


# --- list and explain -------------------------------------------------------------------------------------------------
def test_list_and_explain_agree():
    names = []
    for topic, count in (("faults", 22), ("formats", 45), ("operators", 10), ("schedules", 6), ("tasks", 3)):
        entries = as_json("list", topic)
        assert len(entries) == count
        names += [entry["name"] for entry in entries]
    assert "relative_gaussian" in ok("list", "faults")
    assert len(set(names)) == len(names)
    for name in ("epoch_aware", "int4", "gsm8k"):
        entry = as_json("explain", name)
        assert entry["name"] == name and entry["formula"] and entry["yaml"]
        assert all({"name", "type", "default", "meaning", "required"} <= set(p) for p in entry["parameters"])


def test_what_explain_shows_is_a_valid_rule(tmp_path):
    rules = ""
    for name in ("nvfp4", "bitflip", "inf", "stuck_at", "deadzone"):  # the last one gets a schedule
        lines = as_json("explain", name)["yaml"].splitlines()
        rules += "  - " + "\n    ".join(lines) + "\n"
    rules += "    " + "\n    ".join(as_json("explain", "zones")["yaml"].splitlines()) + "\n"
    (tmp_path / "r.yaml").write_text("faults:\n" + rules)
    assert len(as_json("check", tmp_path / "r.yaml")["faults"]) == 5


def test_explain_prints_formula_parameters_and_examples():
    text = ok("explain", "deadzone")
    assert "|x| < T" in text and "default 0.01" in text and "deadzone(threshold=0.04)" in text and "kind: deadzone" in text


@pytest.mark.parametrize(
    "typed, meant", cases([("deadzon", "deadzone"), ("nvpf4", "nvfp4"), ("cosin", "cosine")], ("explain",))
)
def test_an_unknown_name_is_answered_with_the_nearest(typed, meant):
    refused(64, "explain", typed, says=f"did you mean '{meant}'?")


@pytest.mark.parametrize(
    "arguments, says",
    cases([
        (["exlpain", "zero"], "did you mean 'explain'?"),
        (["frobnicate"], "unknown command 'frobnicate'"),
        (["list", "fualts"], "did you mean 'faults'?"),
        (["completion", "bsh"], "did you mean 'bash'?"),
        (["list"], "topic"),
        (["explain"], "name"),
        (["apply"], "fault"),
        (["apply", "zero", "--shpae", "3"], "did you mean '--shape'?"),
        (["list", "faults", "extra"], "unexpected argument 'extra'"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "18446744073709551616"], "--seed"),
        (["demo", "--color", "sometimes"], "--color"),
        (["demo", "--device", "tpu"], "--device"),
        (["demo", "--device", "cuda:x"], "--device"),
    ], ()),
)
def test_usage_errors(arguments, says):
    refused(64, *arguments, says=says)


# --- recipes ----------------------------------------------------------------------------------------------------------
def test_the_example_is_valid_under_the_exported_schema(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    recipe = as_json("check", "recipes/example.yaml")
    jsonschema.validate(recipe, schema)
    short = {"faults": [{"name": "a", "where": {"operator": "mm"}, "what": {"kind": "zero"}}]}  # defaults left out
    jsonschema.validate(short, schema)
    for breakage in ({"model": 3}, {"fautls": []}, {"faults": [{"name": "x"}]}, {"seed": -1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**recipe, **breakage}, schema)


def test_check_prints_the_resolved_recipe(tmp_path):
    overrides = ["seed=8", "faults[0].what.strength=0.1"]
    resolved = as_json("check", "recipes/example.yaml", *overrides)
    assert resolved["seed"] == 8 and resolved["faults"][0]["what"]["strength"] == 0.1
    assert resolved["faults"][2]["lifetime"] == {"kind": "permanent"}  # a default written out
    again = tmp_path / "again.yaml"
    again.write_text(ok("check", "recipes/example.yaml", *overrides))
    assert as_json("check", again) == resolved


def test_what_check_prints_of_parameters_without_effect_is_accepted_again(tmp_path):
    recipe, again = tmp_path / "r.yaml", tmp_path / "again.yaml"
    kinds = ("deadzone, relative_to: none", "saturate, limit: 2", "offset, strength: 1, scale: absolute", "deadzone")
    rules = (f"  - {{name: r{i}, where: {{operator: mm}}, what: {{kind: {kind}}}}}\n" for i, kind in enumerate(kinds))
    recipe.write_text("faults:\n" + "".join(rules))
    again.write_text(ok("check", recipe))
    resolved = as_json("check", again)
    assert ["axis" in rule["what"] for rule in resolved["faults"]] == [False, False, False, True]
    assert all(rule["extent"] == {"fraction": 1.0} for rule in resolved["faults"])


@pytest.mark.parametrize(
    "text, says",
    [
        ("fautls: []", "did you mean 'faults'?"),
        ("seed: -1", "seed"),
        ("faults: [{name: a, what: {kind: zero}}]", "where"),
        ("faults: [{name: a, where: {operator: mm}, what: {kind: zro}}]", "did you mean 'zero'?"),
        ("faults: [{name: a, where: {operator: mm}, what: {kind: bitflip}}]", "give count"),
        ("faults: [&r {name: a, where: {operator: mm}, what: {kind: zero}}, *r]", "two rules are named 'a'"),
        ("seed: 1\nseed: 2", "seed"),
        ("{", "bad.yaml"),
        ("", "bad.yaml"),
        ("faults: [{name: a, where: {operator: mm, layer: 20-10}, what: {kind: zero}}]", "'20-10' is empty: it counts downwards; write '10-20'"),
        ("faults: [{name: a, where: {operator: mm}, what: {kind: saturate, limit: 2, axis: token}}]", "leave axis out, or give margin instead of limit"),
        ("faults: [{name: a, where: {operator: mm}, what: {kind: zero}, extent: {structure: row}}]", "structure: row has no effect with fraction: 1"),
    ],
)
def test_check_refuses(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert "bad.yaml" in refused(64, "check", path, says=says)


def test_check_refuses_overrides_and_missing_files():
    refused(64, "check", "recipes/example.yaml", "sede=8", says="did you mean 'seed'?")
    refused(64, "check", "recipes/example.yaml", "~faults.0.rounding", says="'rounding' is not set in 'faults[0]'")
    done = run("check", "recipes/no.yaml")
    assert done.returncode in (2, 64) and "no.yaml" in done.stderr


# --- completion -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """What bash would offer for the last of the words, asked of the function that the script registers."""
    script = tmp_path_factory.mktemp("completion") / "faultline.bash"
    script.write_text(ok("completion", "bash"))
    ask = """
        source "$1" || exit 1; shift
        registered=$(complete -p faultline)
        [[ $registered =~ -F\\ ([^ ]+) ]] || exit 1
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        "${BASH_REMATCH[1]}" faultline
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def offered(*words):
        done = subprocess.run(["bash", "-uc", ask, "bash", script, *words], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout.split()

    return offered


def test_bash_completes_commands_options_and_names(complete):
    shown = run("--help").stdout.split("Subcommands:\n")[1].split("\n\n")[0]
    commands = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert len(commands) >= 17 and complete("faultline", "") == commands
    assert complete("faultline", "--seed", "3", "ex") == ["explain"]
    assert complete("faultline", "list", "f") == ["faults", "formats"]
    assert complete("faultline", "apply", "zero", "--dtype", "bf") == ["bf16"]
    assert complete("faultline", "apply", "zero", "--dtype", "=", "f") == ["fp32", "fp16", "fp64"]
    assert complete("faultline", "list", "faults", "--color", "") == ["auto", "always", "never"]
    assert complete("faultline", "completion", "") == ["bash", "zsh", "fish"]
    assert complete("faultline", "apply", "zero", "--seed", "") == []  # a number: nothing to offer


def test_bash_completes_what_the_catalogues_hold(complete):
    kinds, formats = ([entry["name"] for entry in as_json("list", topic)] for topic in ("faults", "formats"))
    schedules, tasks = ([entry["name"] for entry in as_json("list", topic)] for topic in ("schedules", "tasks"))
    assert complete("faultline", "explain", "") == kinds + formats + schedules + tasks
    assert complete("faultline", "apply", "") == kinds
    assert complete("faultline", "apply", "zero", "'relative") == ["relative_gaussian"]
    assert complete("faultline", "apply", "'quantize(format=") == [f"quantize(format={name})" for name in formats]


@pytest.mark.parametrize("command", ["apply", "selftest"])
def test_bash_offers_every_option_that_help_names(complete, command):
    help_texts = (ok("--help"), ok(command, "--help"))
    known = {name for text in help_texts for name in re.findall(r"(?<![\w-])--[a-z]+", text.split("Examples")[0])}
    assert set(complete("faultline", command, "--")) == known
    assert ("--force" in known) == (command == "apply")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_every_command(shell):
    script = ok("completion", shell)
    assert as_json("completion", shell) == {"shell": shell, "script": script}
    assert all(word in script for word in ("selftest", "dtype", "relative_gaussian", "mxfp8_e5m2", "epoch_aware"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


# --- selftest, output -------------------------------------------------------------------------------------------------
def test_selftest_passes():
    report = as_json("selftest", "--quick")
    assert report["failed"] == 0 and report["passed"] > 100
    assert all(check["ok"] for check in report["checks"])


def test_colour_only_where_it_is_wanted():
    assert "\x1b" not in ok("explain", "zero")
    assert "\x1b[1m" in ok("explain", "zero", "--color", "always")
    assert "\x1b" not in ok("explain", "zero", "--color", "never", env={"NO_COLOR": ""})


def test_a_closed_pipe_is_no_crash():
    command = f"set -o pipefail; '{PROGRAM}' list faults | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.strip() == "0" and done.stderr == ""


def test_a_full_disk_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "list", "faults"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr


def test_a_wrong_instruction_set_is_refused():
    done = run("apply", "zero", *SMALL, env={"FAULTLINE_CPU_ISA": "sse9"})
    assert done.returncode == 64 and "FAULTLINE_CPU_ISA" in done.stderr
