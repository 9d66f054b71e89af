"""The command line end to end: what it prints, how it fails, and that hostile input ends in a sentence, never a crash.

The program is $FAULTLINE_BUILD/faultline (default: build/faultline). A run costs a third of a second, nearly all of it
loading torch; so the runs of the case tables are started in the background while other tests are busy.
"""

import concurrent.futures
import json
import os
import pathlib
import struct
import subprocess

import jsonschema
import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("FAULTLINE_BUILD", ROOT / "build")).resolve() / "faultline"
SMALL = ["--shape", "64x96"]


POOL = concurrent.futures.ThreadPoolExecutor(max_workers=2)
STARTED = {}


def cases(table, command=()):
    """The table for parametrize; its runs are started as soon as the first test asks for any run."""
    for case in table:
        arguments = case[0] if isinstance(case[0], list) else [case[0]]
        STARTED[(*command, *arguments)] = None
    return table


def run(*arguments, env=None, **options):
    for key, future in STARTED.items():
        STARTED[key] = future or POOL.submit(launch, *key)
    key = tuple(map(str, arguments))
    if key in STARTED and not env and not options:
        return STARTED[key].result()
    return launch(*arguments, env=env, **options)


def launch(*arguments, env=None, **options):
    environment = {**os.environ, "NO_COLOR": "1", **(env or {})}
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, env=environment, cwd=ROOT, **options
    )


def ok(*arguments, **options):
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(*arguments):
    return json.loads(ok(*arguments, "--json"))


def refused(code, *arguments, says=""):
    done = run(*arguments)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") and "please report" not in done.stderr
    assert says in done.stderr
    if code == 64:
        assert done.stdout == ""
    return done.stderr


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
    assert version["torch"].startswith("2.11") and version["cpu_instructions"] in ("portable", "avx2", "avx512")


@pytest.mark.parametrize("command", ["apply", "list", "explain", "check", "schema", "selftest", "demo"])
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
    for topic, count in (("faults", 19), ("formats", 19), ("schedules", 6)):
        entries = as_json("list", topic)
        assert len(entries) == count
        names += [entry["name"] for entry in entries]
    assert "relative_gaussian" in ok("list", "faults")
    assert len(set(names)) == len(names)
    for name in ("epoch_aware", "int4"):
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


# --- apply ------------------------------------------------------------------------------------------------------------
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
    assert report["evidence"] == "missing" and "none of 1 calls" in report["rules"][0]["complaints"][0]
    assert "evidence missing" in done.stderr
    refused(3, "apply", "quantize(format=mxfp4)", "quantize(format=mxfp4)", *SMALL, says="changed not one bit")
    assert run("apply", never, *SMALL, "--step", "5").returncode == 0


def test_a_gpu_that_is_not_there_is_exit_2():
    done = run("apply", "zero", *SMALL, "--device", "cuda")
    if done.returncode != 0:  # there may be one
        assert done.returncode == 2 and "--device cuda" in done.stderr


# --- tensor files -----------------------------------------------------------------------------------------------------
def save_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_npy_goes_in_and_out(tmp_path, dtype):
    x = numpy.random.default_rng(0).standard_normal((33, 65)).astype(dtype)
    order = "F" if dtype == "f4" else "C"
    numpy.save(tmp_path / "x.npy", numpy.asarray(x, order=order))
    report = as_json("apply", "gain(strength=1)", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert report["shape"] == [33, 65]
    y = numpy.load(tmp_path / "y.npy")
    assert y.dtype == x.dtype and numpy.array_equal(y, x * x.dtype.type(2))


def test_bf16_npy_and_safetensors(tmp_path):
    bits = (numpy.arange(64, dtype="<u2") + 0x3F80).reshape(8, 8)
    numpy.save(tmp_path / "x.npy", bits.view("V2"))
    refused(64, "apply", "zero", "--input", tmp_path / "x.npy", says="--dtype bf16")
    ok("apply", "gain(strength=1)", "--input", tmp_path / "x.npy", "--dtype", "bf16", "--output", tmp_path / "y.safetensors")
    ok("apply", "gain(strength=1)", "--input", tmp_path / "y.safetensors", "--output", tmp_path / "z.npy")
    assert numpy.array_equal(numpy.load(tmp_path / "z.npy").view("<u2"), bits + 0x100)  # times 4: exponent + 2


def test_safetensors_with_several_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    ones = numpy.ones(6, "<f4").tobytes()
    save_safetensors(path, {"a": ("F32", [2, 3], ones), "b": ("F16", [4], b"\0<" * 4), "i": ("I32", [6], ones)})
    refused(64, "apply", "zero", "--input", path, says="choose one with --tensor")
    refused(64, "apply", "zero", "--input", path, "--tensor", "c", says="no tensor 'c'")
    refused(64, "apply", "zero", "--input", path, "--tensor", "i", says="I32")
    assert as_json("apply", "zero", "--input", path, "--tensor", "a")["rules"][0]["ledger"]["zeroed"] == 6


def test_the_input_is_not_overwritten(tmp_path):
    path = tmp_path / "x.npy"
    numpy.save(path, numpy.ones((4, 4), "f4"))
    (tmp_path / "link.npy").symlink_to(path)
    for name in ("x.npy", "link.npy"):
        refused(64, "apply", "zero", "--input", path, "--output", tmp_path / name, says="--force")
    assert numpy.load(path).sum() == 16
    ok("apply", "zero", "--input", path, "--output", path, "--force")
    assert numpy.load(path).sum() == 0


def npy_bytes(header, data=b"\0" * 64):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }"


@pytest.mark.parametrize(
    "code, content",
    [
        (2, b""),
        (2, b"\x93NUMPY"),
        (2, b"PK\x03\x04" + b"\0" * 100),
        (2, b"\x93NUMPY\x09\x00" + b"\0" * 100),
        (2, b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
        (2, npy_bytes(GOOD)[:-1]),
        (2, npy_bytes(GOOD) + b"x"),
        (2, npy_bytes(GOOD)[:40]),
        (2, npy_bytes("{'descr': '<f4', 'shape': (4, 4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': 1, 'shape': (4, 4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4)}")),
        (2, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': [[[[")),
        (2, npy_bytes("{" * 60000)),
        (64, npy_bytes("{'descr': '<i4', 'fortran_order': False, 'shape': (4, 4)}")),
        (64, npy_bytes("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 4)}")),
        (64, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}")),
        (64, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,)}")),
    ],
)
def test_hostile_npy(tmp_path, code, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    refused(code, "apply", "zero", "--input", path, says="x.npy")


def safetensors_bytes(header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape=(4,), offsets=(0, 16), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "code, content",
    [
        (2, b"\1\2"),
        (2, struct.pack("<Q", 2**63) + b"{}"),
        (2, struct.pack("<Q", 99) + b"{}"),
        (2, safetensors_bytes(b"[" * 5000)),
        (2, safetensors_bytes(b"[1]")),
        (2, safetensors_bytes({"a": 3})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 17))})),
        (2, safetensors_bytes({"a": entry(offsets=(16, 0))})),
        (2, safetensors_bytes({"a": entry(offsets=(-1, 16))})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 2**64 - 1))})),
        (2, safetensors_bytes({"a": entry(shape=(5,))})),
        (2, safetensors_bytes({"a": entry(offsets=(0, 8), shape=(2,))})),
        (2, safetensors_bytes({"a": entry(), "b": entry()})),
        (64, safetensors_bytes({"a": entry(shape=(2**62, 2**62))})),
        (64, safetensors_bytes({"a": entry(dtype="F8_E4M3")})),
        (64, safetensors_bytes({}, b"")),
    ],
)
def test_hostile_safetensors(tmp_path, code, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    refused(code, "apply", "zero", "--input", path, says="x.safetensors")


def test_files_that_are_not_there(tmp_path):
    refused(2, "apply", "zero", "--input", tmp_path / "no.npy", says="no.npy")
    (tmp_path / "folder.npy").mkdir()
    refused(64, "apply", "zero", "--input", tmp_path / "folder.npy", says="not a regular file")
    refused(2, "apply", "zero", *SMALL, "--output", tmp_path / "no" / "y.npy", says="y.npy")


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
    ],
)
def test_check_refuses(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert "bad.yaml" in refused(64, "check", path, says=says)


def test_check_refuses_overrides_and_missing_files():
    refused(64, "check", "recipes/example.yaml", "sede=8", says="did you mean 'seed'?")
    done = run("check", "recipes/no.yaml")
    assert done.returncode in (2, 64) and "no.yaml" in done.stderr


# --- demo, selftest, output -------------------------------------------------------------------------------------------
def test_demo_meets_its_expectations():
    scenes = as_json("demo", "--seed", "3")["scenes"]
    assert len(scenes) == 5 and all(scene["met"] for scene in scenes)
    assert ok("demo").count(": ok\n") == 5


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
