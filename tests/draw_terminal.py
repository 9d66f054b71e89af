"""The terminal recording of README: what a command really sent to a terminal of 100 columns, drawn without wrapping, kept with its times as an asciicast
(version 2: a line of JSON for the terminal, then one for each piece of output), and the animated SVG that is drawn from it.
Drawing is deterministic and needs nothing else: the same recording gives the same bytes. In the picture pauses longer than
PAUSE are shortened; it holds its last screen for HOLD seconds and begins again, and stands still at its end where motion is
not wanted (`prefers-reduced-motion`) or animations are not run.

    python tests/draw_terminal.py --record docs/images/demo.cast faultline demo --quick     runs it and keeps the recording
    python tests/draw_terminal.py docs/images/demo.cast docs/images/demo.svg                draws it
"""

import fcntl
import html
import json
import os
import pathlib
import pty
import re
import struct
import sys
import termios
import time

RECORDED, COLUMNS, ROWS = 100, 108, 32
PAUSE, HOLD = 0.7, 8.0  # seconds
CELL_WIDTH, LINE_HEIGHT, MARGIN, BAR = 8.0, 17.0, 14.0, 30.0
COLOURS = {31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea"}
INK, SOFT, PAPER, EDGE = "#e6edf3", "#8b949e", "#0d1117", "#21262d"


# --- recording ----------------------------------------------------------------------------------------------------------
def record(file, words):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
        os.environ.pop("NO_COLOR", None)
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, RECORDED, 0, 0))
    start, events, pending = time.monotonic(), [], b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pending += piece
        try:
            text, pending = pending.decode(), b""
        except UnicodeDecodeError:  # a character in two pieces
            continue
        events.append([round(time.monotonic() - start, 2), "o", text])
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    header = {"version": 2, "width": RECORDED, "height": ROWS, "command": " ".join(words), "exit": code, "seconds": round(time.monotonic() - start, 1)}
    pathlib.Path(file).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [header, *events]), encoding="utf-8")
    return code


def read(file):
    header, *events = [json.loads(line) for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines()]
    return header, events


# --- a terminal ---------------------------------------------------------------------------------------------------------
class Screen:
    """As much of a terminal as our output uses: colours, carriage return, erasing, wrapping."""

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[]], 0, 0, ()

    def put(self, character):
        if self.column == COLUMNS:
            self.newline()
        line = self.lines[self.row]
        line.extend([(" ", ())] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def newline(self):
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])

    def colour(self, codes):
        for code in codes:
            if code == 0:
                self.style = ()
            elif code in (1, 2):
                self.style = tuple(sorted({*self.style, "bold" if code == 1 else "dim"}))
            elif code in COLOURS or code - 60 in COLOURS:
                self.style = tuple(one for one in self.style if not one.startswith("#")) + (COLOURS[code if code in COLOURS else code - 60],)

    def feed(self, text):
        for part in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|(.)", text, re.DOTALL):
            parameters, letter, character = part.groups()
            if letter == "m":
                self.colour([int(code or 0) for code in parameters.split(";")])
            elif letter == "K":
                self.lines[self.row] = [] if parameters == "2" else self.lines[self.row][: self.column]
            elif letter == "A":
                self.row = max(0, self.row - int(parameters or 1))
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.newline()
            elif character and character >= " ":
                self.put(character)

    def text(self):
        return ["".join(character for character, _ in line).rstrip() for line in self.lines]


def frames(header, events):
    """(second, screen) whenever the screen has changed, pauses shortened: the prompt, what was typed, then what came."""
    screen = Screen()
    screen.style = (COLOURS[32],)
    screen.feed("$ ")
    screen.style = ()
    screen.feed(header["command"].replace(str(pathlib.Path(header["command"].split()[0])), "faultline", 1) + "\r\n")
    clock, before, shown = 1.0, 0.0, [(0.0, [list(line) for line in screen.lines])]
    for at, _, text in events:
        clock += min(at - before, PAUSE)
        before = at
        screen.feed(text)
        now = [list(line) for line in screen.lines]
        if now != shown[-1][1]:
            if clock - shown[-1][0] < 0.05:
                shown[-1] = (shown[-1][0], now)
            else:
                shown.append((round(clock, 2), now))
    return shown


# --- drawing ------------------------------------------------------------------------------------------------------------
def spans(line):
    """A line as tspans, one for each run of equal style, each at its column."""
    found, start = [], 0
    while start < len(line):
        end = start
        while end < len(line) and line[end][1] == line[start][1]:
            end += 1
        text = "".join(character for character, _ in line[start:end])
        if text.strip():
            style = line[start][1]
            fill = next((one for one in style if one.startswith("#")), SOFT if "dim" in style else None)
            attributes = (f' fill="{fill}"' if fill else "") + (' font-weight="700"' if "bold" in style else "")
            found.append(f'<tspan x="{MARGIN + start * CELL_WIDTH:g}" textLength="{len(text) * CELL_WIDTH:g}"{attributes}>{html.escape(text, quote=False)}</tspan>')
        start = end
    return "".join(found)


def draw(header, events):
    shown = frames(header, events)
    total = shown[-1][0] + HOLD
    width = 2 * MARGIN + COLUMNS * CELL_WIDTH
    height = BAR + ROWS * LINE_HEIGHT + 2 * MARGIN
    # Every state of every line, with the time at which it appears and the one at which another takes its place.
    states = []
    for row in range(max(len(lines) for _, lines in shown)):
        current, since = "", 0.0
        for second, lines in shown:
            drawn = spans(lines[row]) if row < len(lines) else ""
            if drawn != current:
                if current:
                    states.append((row, since, second, current))
                current, since = drawn, second
        if current:
            states.append((row, since, None, current))
    share = lambda second: f"{100 * second / total:.3f}%"  # noqa: E731
    rules, texts = [], []
    for number, (row, begin, end, drawn) in enumerate(states):
        name = f"l{number}"
        steps = (["0%{opacity:0}"] if begin > 0 else []) + [f"{share(begin)}{{opacity:1}}"] + ([f"{share(end)}{{opacity:0}}"] if end is not None else [])
        rules.append(f"@keyframes {name}{{{''.join(steps)}100%{{opacity:{1 if end is None else 0}}}}}")
        y = BAR + MARGIN + (row + 0.76) * LINE_HEIGHT
        # Without animations the end stands: what was replaced is not seen.
        gone = "" if end is None else ' opacity="0"'
        texts.append(f'<text y="{y:g}" style="animation-name:{name}"{gone}>{drawn}</text>')
    scroll, last = [], 0
    for second, lines in shown:
        used = max((i + 1 for i, line in enumerate(lines) if line), default=1)
        offset = max(0, used - ROWS)
        if offset != last:
            scroll.append(f"{share(second)}{{transform:translateY({-offset * LINE_HEIGHT:g}px)}}")
            last = offset
    end_of_scroll = f"translateY({-last * LINE_HEIGHT:g}px)"
    style = (
        f"text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{INK};white-space:pre}}"
        f".on text,.on{{animation:{total:g}s step-end infinite}}"
        f".on{{animation-name:scroll;transform:{end_of_scroll}}}"
        f"@keyframes scroll{{0%{{transform:translateY(0)}}{''.join(scroll)}100%{{transform:{end_of_scroll}}}}}"
        + "".join(rules)
        + "@media (prefers-reduced-motion:reduce){.on,.on text{animation:none!important}}"
    )
    dots = "".join(f'<circle cx="{MARGIN + 6 + 18 * i:g}" cy="{BAR / 2:g}" r="5.5" fill="{colour}"/>' for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")))
    title = html.escape(header["command"], quote=False)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="terminal: {html.escape(header["command"])}">\n'
        f"<!-- drawn by tests/draw_terminal.py from a recording of {header['seconds']} s -->\n"
        f"<style>{style}</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="9" fill="{PAPER}" stroke="{EDGE}"/>{dots}\n'
        f'<text x="{width / 2:g}" y="{BAR / 2 + 4:g}" text-anchor="middle" fill="{SOFT}" style="fill:{SOFT}">{title}</text>\n'
        f'<clipPath id="c"><rect y="{BAR:g}" width="{width:g}" height="{height - BAR - 4:g}"/></clipPath>\n'
        f'<g clip-path="url(#c)"><g class="on">\n' + "\n".join(texts) + "\n</g></g>\n</svg>\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        sys.exit(record(sys.argv[2], sys.argv[3:]))
    pathlib.Path(sys.argv[2]).write_text(draw(*read(sys.argv[1])), encoding="utf-8")
