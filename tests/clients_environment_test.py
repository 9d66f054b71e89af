"""FAULTLINE_RECIPE in processes that are not ours: scripts that were not edited, children, processes with nothing to
compute, and every mistake as a sentence. A run that should have been faulty is never silently clean."""

import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import faultline
from clients_process import ROOT, python, write
from faultline import __main__ as launcher
from faultline import evidence, noise
from faultline.complaints import complaint
from faultline.armed import armed
from tap_models import recipe, rule

GENERATE = """
import torch
from tap_models import llama, tokens
print(llama(2).generate(tokens(), max_new_tokens=4, min_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True).logits[-1].double().sum().item())
"""
TRAIN = """
import json, sys, transformers
from tap_models import llama, tokens
rows = [{"input_ids": row, "labels": row} for row in tokens(8)]
arguments = transformers.TrainingArguments(output_dir=sys.argv[1], max_steps=2, per_device_train_batch_size=4, logging_steps=1, report_to=[], use_cpu=True,
                                           save_strategy="no", disable_tqdm=True, eval_strategy="steps", eval_steps=1)
trainer = transformers.Trainer(llama(2), arguments, train_dataset=rows, eval_dataset=rows[:2])
trainer.train()
for line in trainer.state.log_history:
    print("logged", json.dumps({name: value for name, value in line.items() if name.startswith("faultline/")}))
"""
GELU = recipe(rule("gelu", where={"operator": "aten::gelu"}))


@pytest.fixture
def files(tmp_path):
    return {"recipe": write(tmp_path, "recipe.json", recipe()), "generate": write(tmp_path, "generate.py", GENERATE), "train": write(tmp_path, "train.py", TRAIN)}


def under_plan(files, *arguments, **environment):
    return python("-m", "faultline", "--recipe", files["recipe"], *arguments, **environment)


# --- scripts that were not edited -------------------------------------------------------------------------------------
def test_a_generation_changes_under_the_plan_and_its_calls_are_in_their_layers(files, tmp_path):
    clean = python(files["generate"])
    faulty = under_plan(files, "--evidence", tmp_path / "evidence", files["generate"])
    assert clean.returncode == faulty.returncode == 0, faulty.stderr
    assert clean.stdout != faulty.stdout
    collection = faultline.collect(tmp_path / "evidence")
    [process] = collection["processes"]
    report = process["report"]
    assert process["ended"] and process["work"] == {"rollout": 1} and report["forwards"] == {"rollout": 4}
    assert {row["phase"] for row in report["rows"]} == {"rollout"}
    assert {row["layer"] for row in report["rows"]} == {-1, 0, 1}
    assert collection["rules"]["fault"]["calls"] == 4 * 15 and collection["complaints"] == []
    assert "[fault fault] 60 calls in 1 process" in faulty.stderr


def test_a_trainer_has_its_phases_its_log_and_its_record(files, tmp_path):
    done = under_plan(files, files["train"], tmp_path / "out")
    assert done.returncode == 0, done.stderr
    logged = [json.loads(line.removeprefix("logged ")) for line in done.stdout.splitlines() if line.startswith("logged {\"")]
    assert len(logged) >= 4 and logged[0]["faultline/fault/calls"] < logged[-1]["faultline/fault/calls"]
    assert all(0.04 < line["faultline/fault/relative_error"] < 0.06 and line["faultline/fault/changed"] > 0.9 for line in logged)
    [process] = faultline.collect(tmp_path / "out" / "faultline")["processes"]
    report = process["report"]
    calls = {phase: sum(row["ledger"]["calls"] for row in report["rows"] if row["phase"] == phase) for phase in ("actor_forward", "actor_backward", "eval", "rollout")}
    assert calls["actor_forward"] == 2 * 15 and calls["actor_backward"] == 2 * 30
    assert calls["eval"] == report["forwards"]["eval"] * 15 and calls["rollout"] == 0
    assert report["step"] == 1 and {row["layer"] for row in report["rows"]} == {-1, 0, 1}


def test_the_scripts_own_status_is_kept_and_missing_evidence_has_its_own(files, tmp_path):
    leaves = write(tmp_path, "leaves.py", "import sys, torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\nsys.exit(7)")
    assert under_plan(files, leaves).returncode == 7
    idle = under_plan(files, write(tmp_path, "idle.py", "print('nothing to do')"))
    assert idle.returncode == 3 and "rule 'fault' never fired in any process" in idle.stderr
    tolerant = under_plan(files, tmp_path / "idle.py", FAULTLINE_ON_MISSING="warn")
    assert tolerant.returncode == 0 and "never fired in any process" in tolerant.stderr


def test_a_generation_that_no_rule_meets_fails_at_once(files, tmp_path):
    files["recipe"] = write(tmp_path, "gelu.json", GELU)
    done = under_plan(files, files["generate"])
    assert done.returncode != 0 and done.stdout == ""
    assert "this process has computed (rollout) and none of the plan's rules ('gelu') met a single call" in done.stderr


def test_a_child_process_has_its_own_evidence(files, tmp_path):
    script = write(tmp_path, "parent.py", """
import multiprocessing, torch
def work():
    import faultline
    torch.ones(4, 4) @ torch.ones(4, 4)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start(); child.join()
    print(child.exitcode)
""")
    done = under_plan(files, "--evidence", tmp_path / "evidence", script)
    assert done.returncode == 0 and done.stdout == "0\n", done.stderr
    collection = faultline.collect(tmp_path / "evidence")
    calls = sorted(int(process["report"]["rules"][0]["calls"]) for process in collection["processes"])
    assert calls == [0, 1] and all(process["ended"] for process in collection["processes"])
    assert collection["rules"]["fault"] | {"processes": 1, "calls": 1} == collection["rules"]["fault"]


def test_a_process_that_is_killed_leaves_what_it_had_written(files, tmp_path):
    script = write(tmp_path, "killed.py", GENERATE + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = under_plan(files, "--evidence", tmp_path / "evidence", script)
    assert done.returncode == -9
    [process] = faultline.collect(tmp_path / "evidence")["processes"]
    assert not process["ended"] and process["report"]["forwards"] == {"rollout": 4}


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def own_environment():
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("arguments, environment, message", [
    (["script.py"], {}, "no recipe: give --recipe FILE or set FAULTLINE_RECIPE"),
    (["--recipe", "missing.yaml", "script.py"], {}, "there is no such file here"),
    (["--recipe", "RECIPE", "missing.py"], {}, "missing.py: there is no such script"),
    (["--recipe", "RECIPE", "script.py"], {"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS='other' leaves out 'faultline'"),
    (["--recipe", "RECIPE", "script.py"], {"FAULTLINE_TOTAL_STEPS": "0"}, "FAULTLINE_TOTAL_STEPS is a number of steps"),
    (["--recipe", "RECIPE", "script.py"], {"FAULTLINE_ON_MISSING": "warm"}, "FAULTLINE_ON_MISSING is raise or warn"),
    (["--recipe", "WRONG", "script.py"], {}, "did you mean 'aten::addmm'"),
])
def test_a_mistake_is_a_sentence_and_nothing_runs(own_environment, files, tmp_path, capsys, arguments, environment, message):
    write(tmp_path, "script.py", "print('ran')")
    wrong = write(tmp_path, "wrong.json", recipe(rule(where={"operator": "aten::admm"})))
    os.environ.update(environment)
    named = {"RECIPE": files["recipe"], "WRONG": wrong}
    status = launcher.main([str(named.get(text, tmp_path / text if text.endswith((".py", ".yaml")) else text)) for text in arguments])
    said = capsys.readouterr()
    assert status == 64 and said.out == "" and said.err.startswith("faultline: ") and message in said.err
    assert not torch.ops.faultline.plan_is_armed() and armed() is None


def test_a_mistake_in_the_environment_of_the_launcher_is_a_sentence_too(tmp_path):
    done = python("-m", "faultline", write(tmp_path, "script.py", "print('ran')"), FAULTLINE_RECIPE="/nowhere/recipe.yaml")
    assert done.returncode == 64 and done.stdout == "" and done.stderr.startswith("faultline: ") and "/nowhere/recipe.yaml" in done.stderr


def test_an_unknown_option_is_a_mistake_too(capsys):
    with pytest.raises(SystemExit) as end:
        launcher.main(["--nonsense"])
    assert end.value.code == 64 and "usage" in capsys.readouterr().err


def test_a_library_for_another_torch_is_refused_before_it_is_loaded(tmp_path):
    write(tmp_path, "libfaultline.so", "not a library")
    write(tmp_path, "libfaultline.torch", "1.13.1\n")
    done = python("-c", "import faultline", FAULTLINE_LIBRARY=str(tmp_path / "libfaultline.so"))
    assert done.returncode != 0 and "is built for torch 1.13.1, this Python has torch" in done.stderr and "pip install . --no-build-isolation" in done.stderr


def test_a_second_copy_of_the_library_is_refused(tmp_path):
    copy = shutil.copy(faultline.library_path(), tmp_path / "libfaultline.so")
    done = python("-c", f"import torch; torch.ops.load_library({str(copy)!r}); import faultline")
    assert done.returncode != 0 and "another copy of the library is loaded in this process already" in done.stderr


def configure(folder, *definitions, env=()):
    """-> cmake's end, and its complaints on one line."""
    done = subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, f"-DFAULTLINE_PYTHON={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", *definitions], env={**os.environ, **dict(env)}, capture_output=True, text=True)
    return done, " ".join(done.stderr.split())


needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake: nothing is built on this machine")


@needs_cmake
def test_a_compiler_whose_programs_have_a_c_plus_plus_library_of_their_own_is_refused(tmp_path):
    done, said = configure(tmp_path / "build", "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++")
    assert done.returncode != 0 and "do not use the shared libstdc++, as torch does, and would abort with it: choose another compiler, as in CXX=/usr/bin/g++" in said, said
    done, said = configure(tmp_path / "build", "-DCMAKE_EXE_LINKER_FLAGS=")
    assert done.returncode == 0, said


@needs_cmake
@pytest.mark.parametrize("version, has_interface", [("1.13.1", False), ("2.12.0", True)])
def test_a_torch_that_nobody_has_tried_is_tried_and_refused_where_it_does_not_serve(tmp_path, version, has_interface):
    """A torch in name: its version, and the headers of the real one or empty ones."""
    fake = tmp_path / "torch"
    fake.mkdir()
    write(fake, "__init__.py", f"__version__ = {version!r}")
    real = pathlib.Path(torch.__file__).parent
    (fake / "lib").symlink_to(real / "lib")
    (tmp_path / "torch.libs").symlink_to(real / "../torch.libs")
    if has_interface:
        (fake / "include").symlink_to(real / "include")
    else:
        for header in ("ATen/core/dispatch/Dispatcher.h", "torch/library.h"):
            (fake / "include" / header).parent.mkdir(parents=True)
            write(fake / "include", header, "")
    done, said = configure(tmp_path / "build", env={"PYTHONPATH": str(tmp_path)})
    if has_interface:
        assert done.returncode == 0 and f"torch {version}: faultline is tested with 2.11, 2.13 and 2.15; this one is tried" in said, said
    else:
        assert done.returncode != 0 and f"torch {version} in" in said and "has not the dispatcher's interface that the taps need: faultline is tested with torch 2.11, 2.13 and 2.15; install one of these" in said, said


# --- gathering --------------------------------------------------------------------------------------------------------
def entry(pid=1, calls=3, work=None, complaints=(), unreached=None, notes=None):
    rules = [{"name": "a", "kind": "gain", "sites": 1, "calls": calls, "elements": 8 * calls, "changed": 8 * calls, "unreached": unreached or {}}]
    report = {"rules": rules, "rows": [{}] * bool(calls), "complaints": list(complaints), "forwards": {}}
    return {"format": 2, "run": "r", "host": "h", "pid": pid, "role": "worker", "recipe": "", "ended": True, "work": work or {}, "notes": notes or {}, "report": report}


def test_totals_are_over_processes_and_complaints_name_theirs():
    merged = evidence.merge([entry(1), entry(2, calls=4)])
    assert merged["rules"]["a"] == {"kind": "gain", "calls": 7, "elements": 56, "changed": 56, "processes": 2} and merged["complaints"] == []
    [strength] = evidence.merge([entry(1, complaints=[complaint("strength", "the strength is wrong", rule="a", place="lm_head")]), entry(2)])["complaints"]
    assert strength == complaint("strength", "process 1 on h: the strength is wrong", rule="a", place="lm_head")
    # That a rule is silent here is fine where it fired elsewhere; a process that computed and met nothing is not.
    silent = entry(2, calls=0, complaints=[complaint("never_fired", "rule 'a' never fired: nothing it names was called", rule="a")])
    assert evidence.merge([entry(1), silent])["complaints"] == []
    assert evidence.merge([silent])["complaints"] == [complaint("never_fired", "rule 'a' never fired in any process", rule="a")]
    [idle] = evidence.merge([entry(1), entry(2, calls=0, work={"rollout": 1})])["complaints"]
    assert idle["code"] == "idle" and idle["sentence"].startswith("process 2 on h: ")
    assert evidence.merge([entry(1), entry(2, calls=0, work={"rollout": 1}, unreached={"phase rollout is off": 4})])["complaints"] == []
    assert [one["code"] for one in evidence.merge([])["complaints"]] == ["no_evidence"]


def test_the_noise_on_norms_is_counted_over_processes_and_its_absence_is_a_complaint():
    def with_noise(pid, **counts):
        return entry(pid, work={"rollout": 1}, notes={"aqn": {**noise.NO_NOISE, **counts}})

    assert evidence.merge([entry(1)])["aqn"] is None
    whole = evidence.merge([with_noise(1, asked=5, norms=5, applications=2), with_noise(2, asked=5, norms=5, applications=1), entry(3, notes={"aqn": noise.NO_NOISE})])
    assert whole["aqn"] == {"asked": 10, "norms": 10, "applications": 3, "processes": 2} and whole["complaints"] == []
    assert [one["code"] for one in evidence.merge([with_noise(1, asked=5, norms=4, applications=1)])["complaints"]] == ["noise_overwritten"]
    own, all_of_them = evidence.merge([with_noise(1)])["complaints"]
    assert own["code"] == all_of_them["code"] == "noise_missing" and own["sentence"].startswith("process 1 on h: ")


def test_noise_on_norms_that_nobody_would_apply_is_refused(files, tmp_path):
    aqn = recipe(aqn={"schedule": "constant", "sigma_start": 0.05})
    with pytest.raises(ValueError, match="section aqn asks for noise on norms"), faultline.plan(aqn):
        pass
    with faultline.plan(aqn, overrides=["~aqn"]):
        torch.ones(2, 2) @ torch.ones(2, 2)
    files["recipe"] = write(tmp_path, "aqn.json", aqn)
    done = under_plan(files, files["generate"])
    assert done.returncode != 0 and done.stdout == "" and "was put on no norm here" in done.stderr


def test_collecting_refuses_what_is_no_evidence(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        faultline.collect(tmp_path / "nowhere")
    with pytest.raises(faultline.CollectionError, match="no process has written evidence") as error:
        faultline.collect(tmp_path)
    assert [one["code"] for one in error.value.complaints] == ["no_evidence"]
    with pytest.warns(UserWarning, match="no process has written evidence"):
        assert faultline.collect(tmp_path, on_missing="warn")["processes"] == []
    with pytest.raises(ValueError, match="on_missing is raise or warn"):
        faultline.collect(tmp_path, on_missing="ignore")
    with pytest.raises(ValueError, match="got int"):
        faultline.collect(3)
    for text, message in (("{", "not an evidence file"), (json.dumps({"format": 99}), "not an evidence file of this version")):
        write(tmp_path, "process-h-1.json", text)
        with pytest.raises(ValueError, match=message):
            faultline.collect(tmp_path)


def test_a_vllm_without_our_plugin_and_a_vllm_that_failed_are_told_apart(monkeypatch):
    class Engine:
        def __init__(self, error):
            self.error = error

        def collective_rpc(self, name):
            raise self.error

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    with pytest.raises(RuntimeError, match="vLLM's workers do not know faultline: .*install it with pip"):
        faultline.collect(Engine(Exception("Worker failed with error ''CPUWorker' object has no attribute 'faultline_evidence''")))
    ours = importlib.metadata.EntryPoint("faultline", "faultline.vllm_plugin:register", "vllm.general_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [ours])
    with pytest.raises(OSError, match="pipe"):
        faultline.collect(Engine(OSError("broken pipe")))
