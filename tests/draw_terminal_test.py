"""The recording in README: it is drawn from a kept run, and what is on its last screen is what the run printed."""

import re
import xml.etree.ElementTree

import draw_terminal
from program import ROOT

CAST, PICTURE = ROOT / "docs/images/demo.cast", ROOT / "docs/images/demo.svg"


def test_the_picture_is_drawn_from_the_recording():
    assert draw_terminal.draw(*draw_terminal.read(CAST)) == PICTURE.read_text(encoding="utf-8"), "python tests/draw_terminal.py docs/images/demo.cast docs/images/demo.svg"


def test_the_recording_is_a_run_that_ended_well_and_fits():
    header, events = draw_terminal.read(CAST)
    assert header["exit"] == 0 and header["command"].endswith("demo --quick")
    screen = draw_terminal.frames(header, events)[-1][1]
    text = ["".join(character for character, _ in line).rstrip() for line in screen]
    assert [line for line in text if len(line) > draw_terminal.COLUMNS] == []
    printed = "\n".join(text)
    for act in ("What runs where", "Is this model healthy?", "A fault is planted", "Who is to blame?", "Was it the network?"):
        assert re.search(rf"^\d\. {re.escape(act)}$", printed, re.MULTILINE), act
    assert re.search(r"^\s+found: ", printed, re.MULTILINE) and "caught and attributed" in printed and "report.html" in text[-1] + text[-2]


def test_the_picture_is_well_formed_and_loads_nothing():
    text = PICTURE.read_text(encoding="utf-8")
    root = xml.etree.ElementTree.fromstring(text)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"]
    assert not re.search(r"href|<script|@import|url\((?!#)", text)
    assert len(text) < 300_000


def test_the_terminal_knows_what_our_output_uses():
    screen = draw_terminal.Screen()
    screen.feed("one\rtwo\x1b[K\r\n\x1b[1;32mgood\x1b[0m" + "x" * draw_terminal.COLUMNS)
    assert screen.text() == ["two", "good" + "x" * (draw_terminal.COLUMNS - 4), "xxxx"]
    assert screen.lines[1][0] == ("g", ("bold", draw_terminal.COLOURS[32])) and screen.lines[1][4] == ("x", ())


def test_a_line_that_is_replaced_ends_when_the_next_begins_and_the_end_stands_without_animation():
    header = {"command": "faultline x", "seconds": 1}
    picture = draw_terminal.draw(header, [[0.1, "o", "half"], [1.0, "o", "\rwhole"]])
    half, whole = re.search(r"<text[^>]*>(?:<tspan[^>]*>)?half", picture)[0], re.search(r"<text[^>]*>(?:<tspan[^>]*>)?whole", picture)[0]
    assert 'opacity="0"' in half and "opacity" not in whole
