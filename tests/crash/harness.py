"""Long commands, disturbed at moments that a seed chooses, and resumed until they are through. A moment is the Nth change of
the disk below the command's folder (failing_disk.cpp) or a share of the time an undisturbed run takes; whichever it is, what
follows must hold: nothing that was recorded is lost or changed, nothing is there twice, a full disk is a sentence and exit 2,
and the end is bit-identical to the undisturbed run's. Only what struck counts: a signal that ended or stopped the process
before its own end, a call of the disk that failed. A resumed run may be through before its moment comes; then another is drawn.

    python tests/crash/harness.py build/crash.json    the table of the last run
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import PROGRAM, ROOT  # noqa: E402

BY_DISK = ["kill", "torn", "term", "stop", "enospc", "eio"]
BY_TIME = ["kill after", "term after", "stop after"]
PATIENCE = 600  # seconds after which a command hangs
DRAWS = 8  # as many as this for each disturbance that strikes; more, and the moments are not those of the command


def build_library(folder):
    compiler = shutil.which("c++") or shutil.which("g++")
    library = folder / "libfailing_disk.so"
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/crash/failing_disk.cpp", "-ldl"], check=True)
    return library


class Ended:
    def __init__(self, code, error, stopped, struck):
        self.code, self.error, self.stopped = code, error, stopped
        self.struck = struck  # the interposed disk did what it was told to


def run(words, out, library=None, how="", at=0, count=None, after=None, sent=None):
    """One process. `at` is the call of the disk, `after`/`sent` a signal by the clock."""
    environment = {**os.environ, "NO_COLOR": "1"}
    struck = out.parent / f"{out.name}.struck"
    struck.unlink(missing_ok=True)
    if library is not None:
        environment |= {"LD_PRELOAD": str(library), "FAULTLINE_CRASH_FOLDER": str(out), "FAULTLINE_CRASH_AT": str(at), "FAULTLINE_CRASH_HOW": how, "FAULTLINE_CRASH_STRUCK": str(struck)}
        if count is not None:
            environment["FAULTLINE_CRASH_COUNT"] = str(count)
    stopped = False
    with open(out.parent / f"{out.name}.stderr", "w+", encoding="utf-8", errors="replace") as error:
        process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=error, cwd=ROOT, env=environment)
        deadline, sent_at = time.monotonic() + PATIENCE, None if after is None else time.monotonic() + after
        while True:
            done, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            if done and os.WIFSTOPPED(status):
                stopped = True
                time.sleep(0.05)  # longer than any write it was in
                os.kill(process.pid, signal.SIGCONT)
            elif done:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            if sent_at is not None and time.monotonic() > sent_at:
                os.kill(process.pid, sent)
                sent_at = None
            if time.monotonic() > deadline:
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
                raise AssertionError(f"{words[0]} hangs after '{how}' at {at}")
            time.sleep(0.005)
        error.seek(0)
        return Ended(process.returncode, error.read(), stopped, struck.exists())


class Disturber:
    """`subject` has: words(out) -> the command that starts or resumes; check(out), true of any state on disk; content(out),
    what must be equal at the end."""

    def __init__(self, subject, folder, seed):
        self.subject, self.folder, self.chance = subject, folder, random.Random(seed)
        self.library = build_library(folder)
        reference = folder / "reference"
        count, started = folder / "count", time.monotonic()
        ended = run(subject.words(reference), reference, self.library, count=count)
        assert ended.code == 0, ended.error
        self.seconds, self.calls = time.monotonic() - started, int(count.read_text())
        assert self.calls > 0, "the disk was not interposed"
        self.reference = subject.content(reference)
        self.struck, self.missed = {}, {}  # how -> times

    def disturb(self, out):
        """-> how it ended, and whether the disturbance struck before that."""
        how = self.chance.choice(BY_DISK + BY_TIME)
        if how in BY_TIME:
            sent = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[how.split()[0]]
            ended = run(self.subject.words(out), out, how=how, after=self.chance.uniform(0, self.seconds), sent=sent)
        else:
            ended = run(self.subject.words(out), out, self.library, how, self.chance.randint(1, self.calls))
        struck = judged(how, ended)
        count = self.struck if struck else self.missed
        count[how] = count.get(how, 0) + 1
        return ended, struck

    def round(self, name, disturbances):
        """-> how many struck. The next round starts from nothing."""
        out = self.folder / name
        before, done = {}, 0
        while done < disturbances:
            ended, struck = self.disturb(out)
            done += struck
            state = self.subject.check(out)
            assert all(state.get(key) == value for key, value in before.items()), "something recorded was lost or changed"
            before = state
            if ended.code == 0:  # it is through, disturbed or not
                break
        ended = run(self.subject.words(out), out)
        assert ended.code == 0, ended.error
        content = self.subject.content(out)
        assert content == self.reference, differences(content, self.reference)
        shutil.rmtree(out, ignore_errors=True)
        return done


def differences(found, wanted, place=""):
    """-> the first places where two contents differ, with both values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        parts = [(f"{place}.{key}", found.get(key), wanted.get(key)) for key in sorted({*found, *wanted}, key=str)]
    elif isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)) and len(found) == len(wanted):
        parts = [(f"{place}[{i}]", *pair) for i, pair in enumerate(zip(found, wanted, strict=True))]
    else:
        return [] if found == wanted else [f"{place}: {found!r:.200} in place of {wanted!r:.200}"]
    return [sentence for part in parts for sentence in differences(part[1], part[2], part[0])][:20]


def judged(how, ended):
    """-> whether the disturbance struck. It must have ended the process in a way that is allowed."""
    if how in ("enospc", "eio"):  # said, or harmless; never a crash
        assert ended.code in (0, 2), (how, ended.code, ended.error)
        assert ended.code == 0 or (ended.error.strip().splitlines()[-1].startswith("error: ") and "please report" not in ended.error), ended.error
        assert ended.struck or ended.code == 0, (how, ended.code, ended.error)
        return ended.struck
    if how.startswith("stop"):
        assert ended.code == 0, (how, ended.code, ended.error)
        assert ended.stopped or not ended.struck, (how, "sent, and the process never stopped")
        return ended.stopped
    allowed = (-signal.SIGTERM, 2) if how.startswith("term") else (-signal.SIGKILL,)
    assert ended.code == 0 or ended.code in allowed, (how, ended.code, ended.error)
    assert ended.code != 0 or not ended.struck or how.startswith("term"), (how, "sent, and the process went on")
    return ended.code != 0


def disturb_until(subject, folder, kills, seed, at_once=4, account=None):
    """Rounds of at most `at_once` disturbances until `kills` have struck. -> {how: times}, added to the file `account`."""
    folder = pathlib.Path(folder)
    disturber = Disturber(subject, folder, seed)
    done = rounds = 0
    while done < kills:
        rounds += 1
        assert sum(disturber.missed.values()) <= DRAWS * kills, f"{done} struck, {disturber.missed} came too late"
        done += disturber.round(f"round{rounds}", min(at_once, kills - done))
    assert sum(disturber.struck.values()) == done >= kills
    print(line_of(type(subject).__name__.lower(), disturber.struck, disturber.missed))
    if account is not None:
        rows = json.loads(account.read_text()) if account.exists() else {}
        rows[type(subject).__name__.lower()] = {"seed": seed, "struck": disturber.struck, "missed": disturber.missed}
        account.write_text(json.dumps(rows, indent=1) + "\n")
    return disturber.struck


def line_of(name, struck, missed):
    return f"{name:11}{sum(struck.values()):5} struck: " + ", ".join(f"{how} {struck[how]}" for how in BY_DISK + BY_TIME if how in struck) + f"; {sum(missed.values())} came too late"


def print_table(account):
    rows = json.loads(account.read_text())
    print("| command | struck | " + " | ".join(BY_DISK + BY_TIME) + " | came too late |")
    print("|---|" + "---|" * (len(BY_DISK + BY_TIME) + 2))
    for name, row in rows.items():
        print(f"| {name} | {sum(row['struck'].values())} | " + " | ".join(str(row["struck"].get(how, 0)) for how in BY_DISK + BY_TIME) + f" | {sum(row['missed'].values())} |")
    total = {how: sum(row["struck"].get(how, 0) for row in rows.values()) for how in BY_DISK + BY_TIME}
    print(f"{sum(total.values())} disturbances struck: " + ", ".join(f"{how} {times}" for how, times in total.items()))


if __name__ == "__main__":
    print_table(pathlib.Path(sys.argv[1]))
