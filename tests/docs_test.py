"""Every command in README and docs. Console blocks are replayed in a folder of the document's own, block after block, and
what they show is compared with what is printed (the rules are in transcript.py); Python blocks of the tutorials run one
after the other in one process. A command that stands in another block must be in NOT_REPLAYED, with the reason; if it is
ours, its arguments are parsed. Links between documents lead somewhere."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import transcript
from program import PROGRAM, ROOT, run

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
TUTORIALS = [path for path in DOCUMENTS if path.parent.name == "tutorials"]


def name_of(path):
    return str(path.relative_to(ROOT))


def with_block(language):
    return [path for path in DOCUMENTS if any(found == language for found, _, _ in transcript.blocks(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("document", with_block("console"), ids=name_of)
def test_what_a_document_shows_is_what_is_printed(document, tmp_path):
    folder = transcript.prepare(tmp_path)
    for language, content, line in transcript.blocks(document.read_text(encoding="utf-8")):
        for command, shown in transcript.steps(content) if language == "console" else []:
            printed = transcript.replay(command, folder, PROGRAM.parent)
            assert transcript.matches(shown, printed), f"{name_of(document)}:{line}: $ {command}\n{transcript.difference(shown, printed)}"


@pytest.mark.parametrize("document", [path for path in with_block("python") if path in TUTORIALS], ids=name_of)
def test_the_python_of_a_tutorial_runs_and_shows_what_it_says(document, tmp_path):
    """A line `# → TEXT` after a print says what it prints."""
    source = "\n".join(content for language, content, _ in transcript.blocks(document.read_text(encoding="utf-8")) if language == "python")
    shown = re.findall(r"^# → (.*)$", source, re.MULTILINE)
    script = tmp_path / "tutorial.py"
    script.write_text(source, encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=transcript.environment(PROGRAM.parent), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert shown and transcript.matches(shown, done.stdout.splitlines()), transcript.difference(shown, done.stdout.splitlines())


# What no test of the documents runs, and why. The first pattern that is found in a command counts.
NOT_REPLAYED = {
    r"^\./dev ": "builds the project or runs its tests: this test is a part of it",
    r"^pip install ": "a build of the whole library; clients_environment_test does it",
    r"--device cuda|--b cuda": "needs a GPU",
    r"^torchrun |^srun |SBATCH|MASTER_ADDR": "a program of the reader's on several processes or machines; clients_distributed_test and race_collectives_test run such programs",
    r"--device npu": "needs a backend of torch; portable_test asks the CPU the same",
    r"faultline\.race --backend mine": "a backend of the reader's; race_torch_test registers one",
    r"faultline\.collectives --compare": "compares what the line before it left on a cluster; race_collectives_test",
    r"--executor ray": "ray_test runs each kind of trial on a cluster of two nodes",
    r"--a (one|a) --b|--a cpu:bf16 --record b": "traces of the reader's engines; compare_test records and compares such",
    r"faultline\.devices": "two machines of the reader's; devices_test does the same between devices of one",
    r"global_step_20-merged": "a checkpoint of the reader's run with verl; checkpoint_eval_test reads one of its form",
    r"^faultline screen |report fleet\.json": "half a minute and more, or devices and records of the reader's; screen_test runs smaller ones",
    r"-m lm_eval": "needs lm-eval in an environment of its own; ./dev test-clients runs this task (clients_lm_eval_test)",
    r"vllm": "needs vLLM in an environment of its own; ./dev test-clients runs the same file (clients_vllm_test)",
    r"verl|/shared/|FAULTLINE_RECIPE=|RAY_AUTH_MODE=": "needs verl and a cluster; clients_environment_test arms the same entry point",
    r"^python -m faultline .*(script\.py|package\.module)": "the reader's own script; clients_examples_test runs ours",
    r"diagnose-campaign|diagnose-edges|--passes 64|--rarity|--method all|--selftest": "minutes to hours; diagnose_test, campaign_test and race_test run smaller ones",
    r"/models/|/elsewhere/| FILE|--resume runs/|report runs/deadzone|list-mitigations": "names files of the reader's, or stands for several commands; recipes_test, experiment_test, train_kill_test and triage_test have their own",
    r"^faultline triage run .* -- ": "the reader's own launch; triage_upstream_test runs such commands",
    r"\.sh |ppo_trainer|srdd_error_finder|^faultline convert --( |environment)|planted\.yaml|^faultline train (a|recipe)\.yaml": "files and models of other systems; convert_upstream_test has their literal settings, a script of their form and the diagnosis of what is planted",
    r"^faultline run recipes/experiments/noisy-ops.yaml --(scale|seeds)": "experiment_test runs every experiment at scale tiny; tutorials/aqn.md replays one",
    r"^faultline train recipes/train/default.yaml": "an hour on a CPU; recipes_test runs it at smoke scale",
    r"^faultline (diagnose|scan|eval --task addition|report runs/eval)": "the tutorials diagnose.md and fp4.md replay these with what they print",
    r"^faultline (race --ranks|triage run --recipe recipes)": "the tutorial network.md replays these with what they print",
}  # fmt: skip
PROGRAMS = r"(?:build/)?faultline [a-z]|\./dev |pip |python |torchrun |srun |export "


def commands_in_other_blocks():
    found = []
    for document in DOCUMENTS:
        for language, content, line in transcript.blocks(document.read_text(encoding="utf-8")):
            if language in ("", "sh", "bash"):
                lines = [text.strip() for text in content.replace("\\\n", " ").splitlines()]
                found += [(f"{name_of(document)}:{line}", text) for text in lines if re.match(PROGRAMS, text)]
    return found


def reason_of(command):
    return next((pattern for pattern in NOT_REPLAYED if re.search(pattern, command)), None)


def test_a_command_is_replayed_or_it_is_said_why_not():
    commands = commands_in_other_blocks()
    assert [command for command in commands if reason_of(command[1]) is None] == [], "make it a console block with what it prints, or give a reason"
    assert set(NOT_REPLAYED) - {reason_of(text) for _, text in commands} == set(), "no command needs this any more"


OURS = [(place, text.split("faultline ", 1)[1]) for place, text in commands_in_other_blocks() if re.match(r"(?:build/)?faultline ", text)]


@pytest.mark.parametrize("text", [pytest.param(text, id=f"{place} {text[:60]}") for place, text in OURS])
def test_a_command_that_is_not_replayed_has_arguments_that_parse(text):
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        pytest.fail(f"{text}: {error}")
    end = next((i for i, word in enumerate(words) if word in ("|", ">", "<", ";", "&&", "&") or word.startswith("#")), len(words))
    words = words[:end]
    # The prose after a command stands two blanks away.
    plain = shlex.split(re.split(r"\s{2,}", text)[0], comments=True)
    accepted = [run("--parse-only", *arguments).returncode == 0 for arguments in ([words] if words == plain else [words, plain])]
    assert any(accepted), text


def anchors(document):
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [*DOCUMENTS, *sorted((ROOT / "docs/results").glob("*.md"))], ids=name_of)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            there = document.parent / target if target else document
            assert there.exists(), f"{name_of(document)} links to {target}"
            assert not anchor or anchor in anchors(there), f"{name_of(document)} links to {target}#{anchor}"


def test_a_transcript_that_is_not_true_is_noticed():
    assert transcript.matches(["a 1", "…", "z ~2.5 s"], ["a 1", "b", "c", "z 17 s"])
    assert transcript.matches(["x …"], ["x y z"])
    assert not transcript.matches(["a 1"], ["a 2"])
    assert not transcript.matches(["a"], ["a", "b"])
    assert not transcript.matches(["a", "…", "b"], ["a", "c"])
    assert not transcript.matches(["~1 apples"], ["some apples"])
    assert transcript.steps("$ one \\\n  two\nshown\n$ three\n") == [["one \\\n  two", ["shown"]], ["three", []]]
