#!/usr/bin/env python3
"""Runs every test and ends with one line, `N passed, M failed[, K skipped]`; `./dev test` and .ci/run rely on it. Suites:
each GoogleTest executable of the build folder, each tests/*_test.py under pytest, the format check, clang-tidy file by
file, and last, if everything ran, whether the tests that docs/lessons.md names ran and passed. Results are read from the
machine-readable reports, never from the text; a suite that crashes, times out or reports no test at all is a failure. Only
failures print their output. What became of each test is in results.json of the build folder."""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import lessons

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT = 1800
TAIL = 6000  # characters of a failed suite's output


@dataclasses.dataclass
class Suite:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = dataclasses.field(default_factory=list)  # (test, text)
    skips: dict = dataclasses.field(default_factory=dict)  # reason -> tests
    tests: list = dataclasses.field(default_factory=list)  # (test, "passed" | "failed" | "skipped", why)
    seconds: float = 0

    def succeed(self, test):
        self.passed += 1
        self.tests.append((test, "passed", ""))

    def fail(self, test, text):
        self.failed += 1
        self.tests.append((test, "failed", ""))
        self.failures.append((test, text.strip()))

    def skip(self, test, reason):
        self.skipped += 1
        self.tests.append((test, "skipped", reason))
        self.skips.setdefault(reason, []).append(test)


running = set()  # process groups of the suites that run now


def run_command(command, environment, timeout=TIMEOUT):
    """-> (return code, output); None as code after a timeout."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
        running.add(process.pid)
        try:
            output, _ = process.communicate(timeout=timeout)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started: that would slow down the suites after it
            return None, process.communicate()[0] + f"\nstopped after {timeout} s"
        finally:
            running.discard(process.pid)


def run_beside_each_other(functions, jobs):
    """Suites as they end. Ctrl-C ends those that run, with what they started, and begins no other."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(timed, function) for function in functions]):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for group in list(running):
                os.killpg(group, signal.SIGKILL)
            raise


def how_it_ended(code):
    if code is None:
        return "ran into the time limit"
    return f"crashed with signal {-code}" if code < 0 else f"exited with {code}"


def skip_reasons(output):
    """test -> reason, from the text: older GoogleTests leave it out of their report."""
    return {test: " ".join(reason.split()) for test, reason in re.findall(r"\[ RUN      \] (\S+)\n\S*: Skipped\n(.*?)\n\[  SKIPPED \]", output, re.DOTALL)}


def read_gtest(path, suite, reasons):
    for group in json.loads(path.read_text(encoding="utf-8")).get("testsuites", []):
        for test in group["testsuite"]:
            name = f"{group['name']}.{test['name']}"
            if test.get("failures"):
                suite.fail(name, "\n".join(f["failure"] for f in test["failures"]))
            elif test.get("result") == "SKIPPED":
                suite.skip(name, reasons.get(name, "GTEST_SKIP"))
            elif test.get("result") == "COMPLETED":
                suite.succeed(name)
            else:  # DISABLED_ tests are not run
                suite.skip(name, "not run")


def run_gtest(executable, environment):
    suite = Suite(executable.name)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        code, output = run_command([str(executable), f"--gtest_output=json:{report}"], environment)
        if report.exists():
            try:
                read_gtest(report, suite, skip_reasons(output))
            except (ValueError, KeyError) as error:
                suite.fail("report", f"{report.name} cannot be read: {error}")
    finish(suite, code, output)
    return suite


def read_junit(path, suite):
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            suite.fail(name, problem.text or problem.get("message") or "")
        elif case.find("skipped") is not None:
            suite.skip(name, case.find("skipped").get("message") or "")
        else:
            suite.succeed(name)


def run_pytest(file, python, environment):
    suite = Suite(file.name)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}", str(file)]
        code, output = run_command(command, environment)
        if report.exists():
            try:
                read_junit(report, suite)
            except xml.etree.ElementTree.ParseError as error:
                suite.fail("report", f"{report.name} cannot be read: {error}")
    skipped_whole = code == 5 and suite.skipped > 0  # pytest's "no tests ran": the file skipped itself
    finish(suite, 0 if skipped_whole else code, output)
    return suite


def finish(suite, code, output):
    """A suite whose exit status its report does not explain has failed."""
    if suite.passed + suite.failed + suite.skipped == 0:
        suite.fail(suite.name, f"reported no test; {how_it_ended(code)}\n{output[-TAIL:]}")
    elif code != 0 and suite.failed == 0:
        suite.fail(suite.name, f"{how_it_ended(code)}\n{output[-TAIL:]}")


def run_format_check(files, venv, environment):
    suite = Suite("clang-format")
    tool = venv / "bin" / "clang-format"
    if not tool.exists():
        suite.fail("clang-format", f"{tool} does not exist; run ./dev setup")
        return suite
    code, output = run_command([str(tool), "--dry-run", "--Werror", *files], environment)
    if code == 0:
        suite.succeed("every source file is formatted")
    else:
        suite.fail("every source file is formatted", f"{output[:TAIL]}\nrun ./dev format")
    return suite


def compiled_files(database):
    """The database with an entry for each file: a batch, which is a file of #include lines, becomes its files, each with the batch's command."""
    entries = []
    for entry in json.loads(database.read_text(encoding="utf-8")):
        file = pathlib.Path(entry["directory"], entry["file"])
        batch = re.findall(r'^#include "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE) if file.parent.name == "Unity" else []
        for one in batch or [file]:
            source = os.path.realpath(ROOT / one)
            entries.append({**entry, "file": source, "command": entry["command"].replace(f" -c {file}", f" -c {source}")})
    return entries


def run_tidy(files, build, venv, environment):
    suite = Suite("clang-tidy")
    tool = venv / "bin" / "clang-tidy"
    database = build / "compile_commands.json"
    if not tool.exists() or not database.exists():
        suite.fail("clang-tidy", f"{tool if not tool.exists() else database} does not exist; run ./dev build")
        return suite
    entries = compiled_files(database)
    known = {entry["file"] for entry in entries}
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")

    def check(file):
        return run_command([str(tool), "-p", str(folder), "--quiet", "--warnings-as-errors=*", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-gch", "--extra-arg=-fno-openmp", file], environment)

    compiled = [file for file in files if os.path.realpath(ROOT / file) in known]
    for file in files:
        if file not in compiled:
            suite.skip(file, "not in compile_commands.json")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for file, (code, output) in zip(compiled, pool.map(check, compiled), strict=True):
            if code == 0:
                suite.succeed(file)
            else:
                suite.fail(file, f"{how_it_ended(code)}\n{output[:TAIL]}")
    return suite


def check_lessons(tests):
    """The tests that lessons name, by what the reports of all suites say of them."""
    suite = Suite("lessons")
    text = lessons.DOCUMENT.read_text(encoding="utf-8")
    wrong, left_out = lessons.unproven(text, tests)
    for name in sorted({name for _, _, _, named in lessons.read_rows(text) for name in named}):
        if name in wrong:
            suite.fail(name, wrong[name])
        elif name in left_out:
            suite.skip(name, left_out[name])
        else:
            suite.succeed(name)
    return suite


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(sys.prefix))
    parser.add_argument("--format-check", default=None, metavar="FILES", help="space separated")
    parser.add_argument("--tidy", default=None, metavar="FILES", help="space separated")
    parser.add_argument("--library", type=pathlib.Path, default=None, help="the library that Python loads, if not the build folder's")
    parser.add_argument("--cpp-only", action="store_true", help="GoogleTest executables alone")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="suites whose name holds this regular expression; may be repeated")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or os.cpu_count()), help="suites beside each other (one a processor)")
    return parser.parse_args()


def suites(options, environment):
    """-> (name, function) in the order in which they begin: the quick ones first."""
    python = options.venv / "bin" / "python"
    python = str(python) if python.exists() else sys.executable
    if options.format_check and options.format_check.split():
        yield "clang-format", lambda: run_format_check(options.format_check.split(), options.venv, environment)
    executables = sorted(p for p in options.build.glob("*_test") if p.is_file() and os.access(p, os.X_OK))
    if not executables:
        yield "C++ tests", lambda: no_executables(options.build)
    for executable in executables:
        yield executable.name, lambda e=executable: run_gtest(e, environment)
    if not options.cpp_only:
        for file in sorted((ROOT / "tests").glob("*_test.py")):
            yield file.name, lambda f=file: run_pytest(f, python, environment)
    if options.tidy and options.tidy.split():
        yield "clang-tidy", lambda: run_tidy(options.tidy.split(), options.build, options.venv, environment)


def no_executables(build):
    suite = Suite("C++ tests")
    suite.fail("C++ tests", f"{build} holds no *_test executable; run ./dev build")
    return suite


def print_suite(suite):
    counts = f"{suite.passed} passed, {suite.failed} failed" + (f", {suite.skipped} skipped" if suite.skipped else "")
    print(f"{'ok  ' if suite.failed == 0 else 'FAIL'} {suite.name:<28} {counts:<40} {suite.seconds:6.1f} s", flush=True)
    for reason, tests in suite.skips.items():  # one line a reason: a machine without a GPU skips dozens for the same one
        print(f"     skipped: {tests[0]}" + (f" and {len(tests) - 1} more" if len(tests) > 1 else "") + f": {reason}", flush=True)
    for test, text in suite.failures:
        print(f"\n---- {suite.name}: {test}\n{text[-TAIL:]}\n", flush=True)


def timed(function):
    start = time.monotonic()
    suite = function()
    suite.seconds = time.monotonic() - start
    return suite


def main():
    options = arguments()
    options.build, options.venv = options.build.resolve(), options.venv.resolve()
    environment = {**os.environ, "FAULTLINE_BUILD": str(options.build), "OMP_WAIT_POLICY": "PASSIVE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]))
    library = (options.library or options.build / "libfaultline.so").resolve()
    if library.exists():
        environment["FAULTLINE_LIBRARY"] = str(library)
    totals, tests = [0, 0, 0], []

    def take(suite):
        nonlocal totals
        print_suite(suite)
        tests.extend(suite.tests)
        (options.build / "results.json").write_text(json.dumps([dict(zip(("test", "result", "why"), test, strict=True)) for test in tests], indent=1) + "\n", encoding="utf-8")
        totals = [total + count for total, count in zip(totals, (suite.passed, suite.failed, suite.skipped), strict=True)]

    chosen = [function for name, function in suites(options, environment) if not options.only or any(re.search(pattern, name) for pattern in options.only)]
    for suite in run_beside_each_other(chosen, max(1, options.jobs)):
        take(suite)
    if not options.only and not options.cpp_only and lessons.DOCUMENT.exists():
        take(timed(lambda: check_lessons(tests)))
    passed, failed, skipped = totals
    if passed + failed + skipped == 0:
        failed = 1
        print("no test ran", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
