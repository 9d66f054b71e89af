"""`faultline triage bundle`: a triage's folder as one archive for others. Secrets are planted in every place that is packed,
and none may come out."""

import gzip
import io
import json
import os
import tarfile

import pytest

from program import launch

RECIPE = """
workload: command
trials: 1
ticket: OURS-3
custom_patterns: [{id: said, match: {regex: '(?P<what>.*s3cr3t.*)'}, on_match: warn}]
metrics: [{file: metrics.jsonl, metric: loss}]
cells: [{name: baseline}]
"""
# In pieces, so that no scanner of repositories takes them for leaked ones.
TOKENS = ["hf_" + "abcdefghijklmnopqrstuvwxyzABCD", "AKIA" + "IOSFODNN7EXAMPLE", "sk-" + "proj-abcdefghijklmnopqrstuvwx", "ghp_" + "0123456789abcdef0123"]
VALUE, HELD = "s3cr3t-value", "plain-words-held-by-the-shell"
LINES = [*TOKENS, f"HF_TOKEN={VALUE}", f'{{"api_key": "{VALUE}"}}', f"Authorization: Bearer {VALUE}", f"https://me:{VALUE}@host/x", f"password: {VALUE}", f"it says {HELD}",
         "-----BEGIN PRIVATE KEY-----", f"{VALUE}", "-----END PRIVATE KEY-----"]  # fmt: skip
SCRIPT = """import json, os, pathlib, sys
lines = json.loads(os.environ["LINES"])
print("first line")
for line in lines:
    print(line)
    print(line, file=sys.stderr)
print("last line")
folder = pathlib.Path(os.environ["FAULTLINE_TRIAL_FOLDER"])
(folder / "metrics.jsonl").write_text(json.dumps({"loss": 1, "note": lines, "text": "\\n".join(lines)}) + "\\n")
(folder / "config.json").write_text(json.dumps({"nested": {"text": "\\n".join(lines), "max_new_tokens": 5}}))
(folder / "weights.bin").write_bytes(bytes(range(256)))
(folder / "big.log").write_text("begin\\n" + "0123456789\\n" * 20000 + "end\\n")
(folder / "link.txt").symlink_to("/etc/passwd")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("triage")
    (place / "recipe.yaml").write_text(RECIPE)
    (place / "command.py").write_text(SCRIPT)
    env = {"LINES": json.dumps(LINES), "NCCL_DEBUG_TOKEN": HELD}
    done = launch("triage", "run", "--recipe", place / "recipe.yaml", "--out", place / "probe", "--quiet", "--", "python3", place / "command.py", "--token", VALUE, env=env)
    assert done.returncode == 0, done.stderr
    return place / "probe"


def bundle(folder, out, *more, env=None):
    done = launch("triage", "bundle", folder, "--out", out, "--json", *more, env={"MY_TOKEN": HELD, **(env or {})})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packed(out):
    with tarfile.open(out) as archive:
        members = archive.getmembers()
        assert all(member.isreg() and member.mtime == 0 and member.uid == 0 and not member.name.startswith(("/", "..")) for member in members)
        return {member.name: archive.extractfile(member).read() for member in members}


def test_a_bundle_holds_what_happened_and_no_secret(folder, tmp_path):
    contents = bundle(folder, tmp_path / "out.tar.gz")
    files = packed(tmp_path / "out.tar.gz")
    wanted = ["contents.json", "matrix.json", "matrix.md", "provenance.json", "recipe.resolved.yaml", "trials/baseline/0000.json", "trials/baseline/0000.stdout.log",
              "trials/baseline/0000.stderr.log", "trials/baseline/0000.files/metrics.jsonl", "trials/baseline/0000.files/config.json"]  # fmt: skip
    assert {f"probe/{name}" for name in wanted} <= set(files)
    for name, content in files.items():
        for secret in [*TOKENS, VALUE, HELD]:
            assert secret.encode() not in content, (name, secret)
    log = files["probe/trials/baseline/0000.stdout.log"].decode()
    assert log.startswith("first line\n") and log.endswith("last line\n") and "HF_TOKEN=(redacted)" in log and "https://(redacted)@host/x" in log
    assert json.loads(files["probe/trials/baseline/0000.files/config.json"])["nested"]["max_new_tokens"] == 5
    for name, content in files.items():
        if name.endswith(".json"):
            json.loads(content)
    assert json.loads(files["probe/contents.json"])["files"] == contents["files"]
    entry = {file["path"]: file for file in contents["files"]}["trials/baseline/0000.stdout.log"]
    assert entry["replaced"] == {"header": 1, "private key": 1, "token": 4, "url": 1, "value": 1, "variable": 3}
    left_out = {one["path"]: one["why"] for one in contents["left_out"]}
    assert "no text" in left_out["trials/baseline/0000.files/weights.bin"] and "a link" in left_out["trials/baseline/0000.files/link.txt"]
    assert "campaign.sqlite" in left_out and "trials/baseline/0000.log" in left_out


def test_the_same_folder_gives_the_same_bytes_whatever_the_time(folder, tmp_path):
    bundle(folder, tmp_path / "a.tar.gz")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    bundle(folder, tmp_path / "b.tgz")
    bundle(folder, tmp_path / "c.tar")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    assert gzip.decompress((tmp_path / "a.tar.gz").read_bytes()) == (tmp_path / "c.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "c.tar").read_bytes())) as archive:
        assert archive.getnames() == sorted(archive.getnames())


def test_a_long_log_keeps_its_ends(folder, tmp_path):
    contents = bundle(folder, tmp_path / "out.tar", "--most-log", 4)
    log = packed(tmp_path / "out.tar")["probe/trials/baseline/0000.files/big.log"].decode()
    assert log.startswith("begin\n0123456789\n") and log.endswith("0123456789\nend\n") and len(log) < 5000
    entry = {file["path"]: file for file in contents["files"]}["trials/baseline/0000.files/big.log"]
    assert f"[... {entry['cut']} bytes are left out here ...]" in log and entry["bytes"] == 220010


def test_a_secret_across_the_cut_does_not_come_out_in_half(folder, tmp_path):
    log = folder / "trials/baseline/0000.stdout.log"
    kept = log.read_text()
    try:
        for shift in range(0, 40, 3):
            log.write_text("x\n" * 1000 + "." * shift + TOKENS[0] + "\n" + "x\n" * 4000)
            out = tmp_path / f"{shift}.tar"
            bundle(folder, out, "--most-log", 4)
            text = packed(out)["probe/trials/baseline/0000.stdout.log"]
            assert b"hf_" not in text and b"ABCD" not in text
    finally:
        log.write_text(kept)


def test_names_are_hidden_where_that_is_asked_for(folder, tmp_path):
    log = folder / "trials/baseline/0000.stderr.log"
    kept = log.read_text()
    log.write_text("/home/ada/x of ada\n")
    env = {"HOME": "/home/ada", "USER": "ada"}
    try:
        bundle(folder, tmp_path / "a.tar", env=env)
        bundle(folder, tmp_path / "b.tar", "--hide-names", env=env)
    finally:
        log.write_text(kept)
    assert packed(tmp_path / "a.tar")["probe/trials/baseline/0000.stderr.log"] == b"/home/ada/x of ada\n"
    assert packed(tmp_path / "b.tar")["probe/trials/baseline/0000.stderr.log"] == b"~/x of (user)\n"


@pytest.mark.parametrize("place", ["provenance.json", "trials/baseline/0007.json", "trials/other"])
def test_a_link_in_a_records_place_is_refused(folder, tmp_path, place):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_text("of somebody else")
    link = folder / place
    kept = link.read_bytes() if link.exists() else None
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "secret" / ("" if place.endswith("other") else "file"))
    try:
        done = launch("triage", "bundle", folder, "--out", tmp_path / "out.tar")
    finally:
        link.unlink()
        if kept is not None:
            link.write_bytes(kept)
    assert done.returncode == 64 and "in the place of a record" in done.stderr and not (tmp_path / "out.tar").exists()


def test_what_is_no_triage_or_no_place_is_refused(folder, tmp_path):
    (tmp_path / "there.tar").write_text("mine")
    for words, says in [
        (["nowhere"], "there is no such folder"),
        ([tmp_path], "no folder of a triage"),
        ([folder, "--out", "out.zip"], "must end in"),
        ([folder, "--out", tmp_path / "there.tar"], "exists already"),
        ([folder, "--out", tmp_path / "no/out.tar"], "there is no such folder"),
        ([folder, "--out", tmp_path / "a.tar", "--most-log", "0"], "--most-log"),
    ]:
        done = launch("triage", "bundle", *words)
        assert done.returncode == 64 and says in done.stderr, (words, done.stderr)
    assert (tmp_path / "there.tar").read_text() == "mine"


def test_a_triage_of_the_race_is_packed_too(tmp_path):
    text = "trials: 1\nsteps: 2\nwarmup_trial: false\nworkload_config: {mode: fsdp, warmup_iterations: 0, fsdp_shard_size: 200, h2d_tensor_size: 100, gemm_size: 16, gemm_layers: 2}\ncells: [{name: baseline}]\n"
    (tmp_path / "recipe.yaml").write_text(text)
    assert launch("triage", "run", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "race", "--quiet").returncode == 0
    bundle(tmp_path / "race", tmp_path / "out.tar.gz")
    files = packed(tmp_path / "out.tar.gz")
    assert files["race/trials/baseline/0000.json"] == (tmp_path / "race/trials/baseline/0000.json").read_bytes()
    assert "race/trials/baseline/0000.log" in files and files["race/matrix.json"] == (tmp_path / "race/matrix.json").read_bytes()


def test_what_is_packed_and_replaced_is_said(folder, tmp_path):
    done = launch("triage", "bundle", folder, "--out", tmp_path / "out.tar.gz")
    assert done.returncode == 0 and "left out: campaign.sqlite" in done.stdout and "read it before you send it" in done.stdout
    assert "4 token" in done.stdout
