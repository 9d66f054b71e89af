"""Long commands, disturbed at moments that a seed chooses, and resumed until they are through. A moment is the Nth change of
the disk below the command's folder (failing_disk.cpp) or a share of the time an undisturbed run takes; whichever it is, what
follows must hold: nothing that was recorded is lost or changed, nothing is there twice, a full disk is a sentence and exit 2,
and the end is bit-identical to the undisturbed run's."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

from program import PROGRAM, ROOT

BY_DISK = ["kill", "torn", "term", "stop", "enospc", "eio"]
BY_TIME = ["kill after", "term after", "stop after"]
PATIENCE = 600  # seconds after which a command hangs


def build_library(folder):
    compiler = shutil.which("c++") or shutil.which("g++")
    library = folder / "libfailing_disk.so"
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/crash/failing_disk.cpp", "-ldl"], check=True)
    return library


class Ended:
    def __init__(self, code, error, stopped):
        self.code, self.error, self.stopped = code, error, stopped


def run(words, out, library=None, how="", at=0, count=None, after=None, sent=None):
    """One process. `at` is the call of the disk, `after`/`sent` a signal by the clock."""
    environment = {**os.environ, "NO_COLOR": "1"}
    if library is not None:
        environment |= {"LD_PRELOAD": str(library), "FAULTLINE_CRASH_FOLDER": str(out), "FAULTLINE_CRASH_AT": str(at), "FAULTLINE_CRASH_HOW": how}
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
        return Ended(process.returncode, error.read(), stopped)


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
        self.done = {}

    def disturb(self, out):
        how = self.chance.choice(BY_DISK + BY_TIME)
        if how in BY_TIME:
            sent = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}[how.split()[0]]
            ended = run(self.subject.words(out), out, how=how, after=self.chance.uniform(0, self.seconds), sent=sent)
        else:
            ended = run(self.subject.words(out), out, self.library, how, self.chance.randint(1, self.calls))
        self.done[how] = self.done.get(how, 0) + 1
        killed, termed = ended.code == -signal.SIGKILL, ended.code == -signal.SIGTERM
        if how in ("enospc", "eio"):  # said, or harmless; never a crash
            assert ended.code in (0, 2), (how, ended.code, ended.error)
            assert ended.code == 0 or (ended.error.strip().splitlines()[-1].startswith("error: ") and "please report" not in ended.error), ended.error
        elif how.startswith("stop"):
            assert ended.code == 0, (how, ended.code, ended.error)
        elif how.startswith("term"):
            assert termed or ended.code in (0, 2), (how, ended.code, ended.error)
        else:
            assert killed or ended.code == 0, (how, ended.code, ended.error)
        return ended

    def round(self, name, disturbances):
        """-> how many there were. The next round starts from nothing."""
        out = self.folder / name
        before = {}
        for number in range(disturbances):
            ended = self.disturb(out)
            state = self.subject.check(out)
            assert all(state.get(key) == value for key, value in before.items()), "something recorded was lost or changed"
            before = state
            if ended.code == 0:
                break
        ended = run(self.subject.words(out), out)
        assert ended.code == 0, ended.error
        assert self.subject.content(out) == self.reference
        shutil.rmtree(out, ignore_errors=True)
        return number + 1


def disturb_until(subject, folder, kills, seed, at_once=4):
    """Rounds of at most `at_once` disturbances until there were `kills`. -> {how: times}"""
    folder = pathlib.Path(folder)
    disturber = Disturber(subject, folder, seed)
    done = rounds = 0
    while done < kills:
        rounds += 1
        done += disturber.round(f"round{rounds}", min(at_once, kills - done))
    return disturber.done
