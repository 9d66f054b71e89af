"""What somebody meets in the first hour: mistakes that are answered with the remedy, before anything is loaded; words that say
what is about to happen and what Ctrl-C leaves; a terminal of 80 columns that nothing wraps badly in. On a random model."""

import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

import pytest
import tiny_folder
from program import PROGRAM, ROOT, launch, ok, refused

TINY = ROOT / "recipes/train/tiny.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_folder.make(tmp_path_factory.mktemp("first") / "tiny", context=2048))


def on_terminal(*arguments, columns=80):
    """Exit code and what a terminal of so many columns was sent, both streams together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment)
    os.close(theirs)
    sent = []

    def receive():
        try:
            while piece := os.read(ours, 65536):
                sent.append(piece)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=receive)
    reader.start()
    code = process.wait(timeout=600)
    reader.join()
    os.close(ours)
    return code, b"".join(sent).decode().replace("\r\n", "\n")


def seen(sent):
    """The lines without colours."""
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", sent).splitlines()


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where, hint", [
    ("module=mlp.downproj", "no module matches 'mlp.downproj'; did you mean 'mlp.down_proj'?"),
    ("module=down_prj", "did you mean 'down_proj'?"),
    ("module=nonsense_of_mine", "; this model has "),
    ("module=lm_head,layer=1", "module 'lm_head' is in none of the layers that it names"),
    ("module=layer_output,surface=input", "is never a layer's input; leave surface out, or write module: layer_input"),
])  # fmt: skip
def test_a_place_that_does_not_exist_is_answered_with_one_that_does(model, where, hint):
    refused(64, "eval", "--model", model, "--limit", "1", "--fault", f"gain(strength=0.1) @ {where}", says=hint)


@pytest.mark.parametrize("command", [["eval"], ["generate", "Hi"], ["diagnose"]], ids=lambda words: words[0])
def test_a_fault_without_a_place_gets_an_example(command):
    said = refused(64, *command, "--fault", "gain(strength=0.1)", says="does not say where it acts; write the place behind an @, as in 'gain(strength=0.1) @ operator=matmul,layer=15'")
    assert "where' is missing" not in said


def test_a_verdict_and_other_records_are_not_taken_for_recipes(model, tmp_path):
    verdict = tmp_path / "verdict.json"
    launch("diagnose", "--model", model, "--out", verdict)
    for command in (["run", verdict], ["train", verdict], ["check", verdict], ["diagnose", "--recipe", verdict]):
        said = refused(64, *command, says=f"this is a verdict, not a recipe; read it with `faultline report {verdict}`")
        assert len(said.splitlines()) <= 2, said
    scan = tmp_path / "scan.json"
    ok("scan", "--model", model, "--formats", "mxfp4", "--out", scan)
    refused(64, "run", scan, says="a result that faultline wrote, not a recipe; read it with `faultline report")
    ok("eval", "--model", model, "--limit", "1", "--max-new-tokens", "1", "--out", tmp_path / "runs")
    (record,) = (tmp_path / "runs").iterdir()
    refused(64, "run", record / "summary.json", says=f"part of a run's record, not a recipe; read the run with `faultline report {record}`")


def test_a_model_is_not_taken_for_a_recipe_or_a_record(model, tmp_path):
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"GGUF" + bytes(60))
    for file, form in ((gguf, "GGUF"), (pathlib.Path(model) / "model.safetensors", "safetensors")):
        refused(64, "run", file, says=f"this is a model or its tensors ({form}), not a recipe")
        refused(64, "report", file, says=f"this is a model or its tensors ({form}), not the record of a run")
    refused(64, "report", ROOT / "recipes/noise.yaml", says="a page is made from a run directory")


@pytest.mark.parametrize("text", ["{}", "[]", "{", ""])
def test_a_folder_with_a_manifest_that_says_nothing_is_no_record(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    refused(64, "report", tmp_path, says="no record: nothing in it can be read")
    assert not (tmp_path / "report.html").exists()


MISSING = [
    (["eval", "--text", "/nowhere/book.txt"], "/nowhere/book.txt: there is no such file"),
    (["eval", "--fault", "relative_gaussian(strength=1e-5) @ operator=matmul"], "cannot be seen in bf16"),
    (["run", "recipes/noise.yaml", "faults.0.what.strength=1e-5"], "cannot be seen in bf16"),
    (["run", "recipes/noise.yaml", "+evaluate.text=/nowhere/book.txt"], "/nowhere/book.txt: there is no such file"),
    (["diagnose", "--fault", "gain(strength=1e-6) @ module=down_proj"], "cannot be seen in bf16"),
    (["generate", "Hi", "--fault", "gain(strength=0) @ operator=matmul"], "with a strength of 0 changes nothing"),
    (["eval", "--model", "/nowhere/model"], "/nowhere/model: no such model"),
]  # fmt: skip


@pytest.mark.parametrize("arguments, says", MISSING, ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "")
def test_what_can_be_known_is_refused_before_a_bar_is_drawn(arguments, says):
    code, sent = on_terminal(*arguments, columns=400)
    assert code == 64 and says in sent, sent
    assert "loading" not in sent and "%" not in sent and "torch:" not in sent, sent


def test_an_operator_that_cannot_show_its_fault_is_a_mistake_too(model):
    """Its type is known only when it runs: the error passes through torch and is ours all the same."""
    said = refused(64, "eval", "--model", model, "--limit", "1", "--max-new-tokens", "1", "--fault", "gain(strength=1e-6) @ operator=faultline::swiglu", says="cannot be seen in bf16")
    assert "torch:" not in said
    refused(64, "diagnose", "--model", model, "--fault", "gain(strength=1e-6) @ operator=faultline::swiglu", says="cannot be seen in bf16")


# --- what is about to happen, and what stays ------------------------------------------------------------------------------
def test_a_training_says_what_it_is_about_to_do(model, tmp_path):
    done = launch("train", TINY, f"model={model}", "--dtype", "fp32", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    before = done.stdout.split("step:1 ")[0]
    assert "3 steps of SFT" in before and "4 steps of GRPO" in before and "at most about" in before and f"record: {tmp_path}" in before, before
    assert "no recipe was named" not in before
    # Without a recipe it says that, too, before the first of many steps.
    lines = until(["train", f"model={model}", "--dtype", "fp32", "--out", str(tmp_path)], "record:")
    assert "no recipe was named, so this is the default training" in "".join(lines)


def until(arguments, text, interrupt=False):
    """What is printed up to the line that holds `text`; then the command is ended, by Ctrl-C where that is what is tried."""
    process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    else:
        raise AssertionError("".join(lines))
    process.send_signal(signal.SIGINT if interrupt else signal.SIGKILL)
    rest = process.stdout.read()
    assert process.wait(timeout=60) == (-signal.SIGINT if interrupt else -signal.SIGKILL)
    return [*lines, rest] if interrupt else lines


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(model, tmp_path):
    lines = until(["train", f"model={model}", "--dtype", "fp32", "--out", str(tmp_path), "train.checkpoint_every=1"], "step:2 ", interrupt=True)
    (record,) = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert f"interrupted; {record} keeps its checkpoints; go on from the newest with\n  faultline train --resume {record}\n" in lines[-1], lines
    assert (record / "manifest.json").exists()


def test_the_demo_says_before_it_trains_how_long_that_takes_and_what_ctrl_c_keeps(model, tmp_path):
    lines = until(["demo", "--model", model, "--output", str(tmp_path)], "The next act trains: about ", interrupt=True)
    said = "".join(lines)
    (record,) = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert re.search(r"about \d+ (seconds|minutes) on this machine, judged by the acts before. `faultline demo --quick`\nleaves it out", said), said
    assert f"interrupted; the acts that ended are kept in {record}; `faultline report {record}` makes a page of them." in said
    assert "is still going, or it died" in ok("report", record)


# --- a terminal of 80 columns ---------------------------------------------------------------------------------------------
ANY = ["list faults", "list formats", "list operators", "list schedules", "list tasks", "explain quantize", ""]


@pytest.mark.parametrize("words", ANY)
def test_nothing_is_wider_than_the_terminal(words):
    for columns in (80, 100):
        code, sent = on_terminal(*words.split(), columns=columns)
        lines = seen(sent)
        assert code == 0 and len(lines) > 5
        assert [line for line in lines if len(line) > columns] == []
    # Cut nowhere: the words are those that a file gets.
    assert " ".join(sorted(" ".join(lines).split())) == " ".join(sorted(ok(*words.split()).split()))


def test_the_table_of_an_evaluation_fits(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sun rises in the east and sets in the west. " * 8)
    fault = "relative_gaussian(strength=0.5, lifetime.kind=permanent) @ operator=matmul,layer=all,surface=output"
    code, sent = on_terminal("eval", "--model", model, "--task", "arithmetic", "--limit", "2", "--max-new-tokens", "2", "--text", text, "--window", "64", "--fault", fault, "--quiet")
    assert code == 0 and [line for line in seen(sent) if len(line) > 80] == [], sent


def test_colours_are_for_terminals_alone(model):
    code, sent = on_terminal("list", "faults")
    assert code == 0 and "\x1b[1m" in sent
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    plain = subprocess.run([PROGRAM, "diagnose", "--model", model], capture_output=True, env=environment, cwd=ROOT)
    assert b"\x1b" not in plain.stdout + plain.stderr


def test_each_row_of_an_evaluation_names_its_proof(model):
    out = ok("eval", "--model", model, "--limit", "1", "--max-new-tokens", "1", "--fault", "gain(strength=0.5) @ operator=matmul", "--strengths", "0.2,0.5")
    blocks = out.split("\n\n")[1:]
    assert [block.splitlines()[0] for block in blocks] == ["proof of gain strength=0.2", "proof of gain strength=0.5"]
    assert all("[fault gain] registered" in block for block in blocks)


def test_a_layer_output_is_an_output_unless_it_is_said_otherwise(model):
    planted = {}
    for where in ("module=layer_output,layer=1", "module=layer_output,layer=1,surface=output", "module=layer_input,layer=1", "module=down_proj,layer=1"):
        done = launch("diagnose", "--model", model, "--json", "--fault", f"gain(strength=0.1) @ {where}")
        (rule,) = json.loads(done.stdout)["planted"]["rules"]
        planted[where.replace("layer=1", "")] = rule["surface"]
    assert list(planted.values()) == ["output", "output", "input", "input"]
