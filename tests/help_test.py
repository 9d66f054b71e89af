"""The help of every command: a purpose in one line, at least two real examples, and every example parses (`--parse-only`:
arguments are checked, nothing runs). Of the commands in GROUPED: options in named groups with defaults and ranges."""

import json
import re
import shlex

import pytest

from program import ok, run

GROUPED = [[name] for name in ("demo", "generate", "eval", "census", "scan", "race", "report", "apply", "selftest", "convert-model")] + [["triage", "run"], ["triage", "bisect"]]
NESTED = [["triage", "run"], ["triage", "bisect"]]


def commands():
    listed = ok("--help").split("Subcommands:")[1].split("Examples:")[0]
    names = re.findall(r"^  ([a-z][a-z-]*) ", listed, re.MULTILINE)
    assert len(names) >= 20, names
    return [[name] for name in names]


ALL = commands() + NESTED


@pytest.fixture(params=ALL, ids=" ".join)
def command(request):
    return request.param


def examples(text):
    """Every command line below `Examples:`, up to a pipe or a redirection."""
    block = text.split("Examples:\n")[1].split("\n\n")[0]
    found = []
    for line in block.splitlines():
        words = shlex.split(line)
        if "faultline" in words:
            found.append(list(words[words.index("faultline") + 1 :]))
    return [[*words[: next((i for i, word in enumerate(words) if word in ("|", ">")), len(words))]] for words in found]


def options(text):
    """(group, names and type, description) of every option that is shown."""
    found, group = [], ""
    for line in text.split("Examples:")[0].splitlines():
        if re.match(r"^\S.*:$", line):
            group = line[:-1]
        elif match := re.match(r"^  (-\S.*?)(?:  +(\S.*))?$", re.sub(r" Excludes:(?: --[\w-]+)+ ?", "  ", line)):
            found.append([group, match[1], match[2] or ""])
        elif found and re.match(r"^   +\S", line):
            found[-1][2] += " " + line.strip()
    return found


def test_a_command_says_its_purpose_and_two_real_examples(command):
    text = ok(*command, "--help")
    assert 20 <= len(text.splitlines()[0]) <= 120
    assert len(examples(text)) >= 2 and all(words[: len(command)] == command or command == ["triage"] for words in examples(text)), text


def test_every_example_parses(command):
    for words in examples(ok(*command, "--help")):
        done = run("--parse-only", *words)
        assert done.returncode == 0 and done.stdout == "", (words, done.stderr)


@pytest.mark.parametrize("command", GROUPED, ids=" ".join)
def test_options_stand_in_groups_with_defaults_and_ranges(command):
    for group, names, description in options(ok(*command, "--help")):
        if "--help" in names:
            continue
        assert group not in ("", "OPTIONS", "Options"), (names, group)
        assert description, names
        if re.search(r" [NTPK](?:=|$)", names):  # a number, and its default
            assert re.search(r" [NTPK]=\S", names), (names, "no default")
            assert re.search(r"\d+ to \d|\d or more|\d+ is |0: |up to \d", description), (names, description)


def test_the_parser_is_not_blind():
    """What `--parse-only` accepts is not everything."""
    assert run("eval", "--strenghts", "1", "--parse-only").returncode == 64
    assert run("report", "--parse-only").returncode == 64
    assert run("demmo", "--parse-only").returncode == 64


def test_faultline_alone_shows_where_to_start():
    text = ok()
    known = {" ".join(command) for command in ALL}
    named = re.findall(r"^  faultline ([a-z][a-z-]*)", text, re.MULTILINE)
    assert "demo" in named and set(named) <= known, named
    assert "--help" in text and "docs/tutorials/" in text


def test_the_help_of_fault_has_the_grammar_of_where(command):
    """Keys and surfaces as the schema has them, families as they are listed; the default surface is told."""
    text = ok(*command, "--help")
    takes_fault = any(re.search(r"--fault\b", names) for _, names, _ in options(text))
    assert takes_fault == ("WHERE is a list" in text) and (takes_fault or command not in (["diagnose"], ["eval"], ["generate"]))
    if not takes_fault:
        return
    where = next(one for one in walk(json.loads(ok("schema"))) if {"operator", "module", "surface"} <= set(one.get("properties", {})))["properties"]
    grammar = text.split("WHERE is a list")[1]
    assert [key for key in where if f"\n  {key}=" not in grammar] == []
    assert [name for name in where["surface"]["enum"] if name not in grammar] == []
    families = [family["name"] for family in json.loads(ok("list", "operators", "--json"))]
    assert [name for name in families if name not in grammar] == []
    assert "the output of operators and of layer_output, the INPUT of other modules" in " ".join(grammar.split())


def walk(tree):
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []:
        yield from walk(child)


def test_the_words_of_a_diagnosis_are_explained_where_they_are_asked_for():
    text = ok("diagnose", "--help")
    assert all(f"\n  {method} " in text for method in ("self", "shadow", "classic", "srdd"))
    assert all(word in text for word in ("[exact]", "[bound]", "[statistical]", "\n  forward-equivalents  ", "\n  unexplained  "))
    pace = " ".join(ok("run", "--help").split())
    assert "stop after this time" in pace and "the same command goes on from there" in pace
    assert "all of addition unless given" not in ok("eval", "--help")


def test_errors_say_what_to_type_next():
    assert run("eval", "--limit", "none").stderr.endswith("next: faultline eval --help\n")
    assert "did you mean" in run("generat").stderr
    assert "faultline generate" in run("generate", "").stderr
