"""Breaks the source in small ways (tests/mutations.py), rebuilds, and shows which test notices. A mutation that no test notices
is a hole.

    python tests/mutate.py --check             each text is still there exactly once, and tests that look; nothing is built
    python tests/mutate.py                     all, in a copy of the checkout under build/mutate
    python tests/mutate.py --here              all, on this working tree, which is restored; uses the folder build/
    python tests/mutate.py --here --only 3,7   some; --seconds N begins none after N seconds
    python tests/mutate.py --here --json FILE  results are added to FILE; what is in it is not run again while the mutation and
                                               everything its tests are built from are the same
"""

import argparse
import fnmatch
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEST_SECONDS = 600


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)


def pattern_of(mutation):
    return r"\s+".join(re.escape(word) for word in mutation.old.split())


def suites(root):
    """-> names of all suites of GoogleTest; where they are instantiated with a prefix, with that too."""
    names = set()
    for path in (*root.glob("src/**/*_test.cpp"), *root.glob("tests/*_test.cpp")):
        text = path.read_text()
        names.update(re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),", text, re.MULTILINE))
        names.update(f"{prefix}/{suite}" for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w+), (\w+)", text))
    return names


def complaints(root, mutations=MUTATIONS):
    """-> sentences about mutations whose text is not there exactly once, or whose filter no suite passes."""
    found = []
    known = suites(root)
    for number, mutation in enumerate(mutations):
        path = root / mutation.file
        count = len(re.findall(pattern_of(mutation), path.read_text())) if path.exists() else 0
        if count != 1:
            found.append(f"{number} ({mutation.what}): its text is {count} times in {mutation.file}")
        if mutation.old.split() == mutation.new.split():
            found.append(f"{number} ({mutation.what}): changes nothing")
        wanted = [pattern.split(".")[0] for pattern in mutation.filter.split("-")[0].split(":")]
        if not any(fnmatch.fnmatch(suite, pattern) for suite in known for pattern in wanted):
            found.append(f"{number} ({mutation.what}): no suite is called {mutation.filter}")
    return found


def sources_hash(root):
    """Of all that a test program may be built from: a header is everybody's, so one file more or less is another program."""
    digest = hashlib.sha256()
    for name in ("src", "cmake", "tests", "data", "CMakeLists.txt", "CMakePresets.json"):
        top = root / name
        for path in sorted(path for path in (top, *top.rglob("*")) if path.is_file()):
            if top.name == "tests" and (path.suffix != ".cpp" and "corpus" not in path.parts):
                continue  # the Python suites do not look at mutations
            digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def key_of(mutation, sources):
    return hashlib.sha256("\0".join((*mutation, sources)).encode()).hexdigest()[:16]


def still_true(account, mutations, sources):
    """-> of an account the results that are of these mutations and these sources."""
    keys = {mutation.what: key_of(mutation, sources) for mutation in mutations}
    return {what: row for what, row in account.items() if isinstance(row, dict) and row["key"] == keys.get(what)}


def prepare_copy(python):
    work = ROOT / "build" / "mutate"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("src", "cmake", "tests", "data", "CMakeLists.txt", "CMakePresets.json"):
        source = ROOT / name
        shutil.rmtree(work / name, ignore_errors=True)
        shutil.copytree(source, work / name, copy_function=shutil.copyfile) if source.is_dir() else shutil.copy(source, work / name)
    configured = run(["cmake", "--preset", "release", f"-DFAULTLINE_PYTHON={python}"], cwd=work)
    if configured.returncode != 0:
        sys.exit(configured.stdout)
    return work


def build_and_test(work, mutation, jobs):
    """-> ("passed" | "failed" | "does not compile" | "hangs", names of failed tests)"""
    built = run(["cmake", "--build", "build", "-j", str(jobs), "--target", mutation.target], cwd=work)
    if built.returncode != 0:
        return "does not compile", [line for line in built.stdout.splitlines() if "error" in line][:3]
    report = work / "build" / "mutated-tests.json"
    report.unlink(missing_ok=True)
    try:
        done = run([f"build/{mutation.target}", f"--gtest_filter={mutation.filter}", f"--gtest_output=json:{report}"], cwd=work, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return "hangs", []
    ran, failed = read_report(report)
    if done.returncode == 0 and not ran:
        return "no test ran", []
    return ("passed" if done.returncode == 0 else "failed"), failed


def read_report(path):
    """-> how many tests GoogleTest's report says were run, and the names of those that failed; a crash leaves none."""
    if not path.exists():
        return 0, []
    tests = [test for group in json.loads(path.read_text(encoding="utf-8")).get("testsuites", []) for test in group["testsuite"]]
    return sum(test["status"] == "RUN" for test in tests), sorted(f"{test['classname']}.{test['name']}" for test in tests if test.get("failures"))


def try_one(work, mutation, jobs):
    path = work / mutation.file
    text = path.read_text()
    try:
        path.write_text(re.sub(pattern_of(mutation), lambda _: mutation.new, text, count=1))
        outcome, detail = build_and_test(work, mutation, jobs)
    finally:
        path.write_text(text)
    if outcome == "failed":
        return "caught", ", ".join(f"`{name}`" for name in detail[:3]) or "the tests crash"
    if outcome == "hangs":
        return "caught", "the tests hang"
    return ("void", f"{outcome}: {detail}") if outcome in ("does not compile", "no test ran") else ("survived", "**nothing**")


def table(results):
    lines = ["| # | broken | in | caught by |", "|---|---|---|---|"]
    for number, mutation in enumerate(MUTATIONS):
        if mutation.what in results:
            lines.append(f"| {number} | {mutation.what} | `{mutation.file.removeprefix('src/')}` | {results[mutation.what]['by']} |")
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--only", default="", help="numbers, 3,7")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, default=None)
    parser.add_argument("--python", default=sys.executable)
    return parser.parse_args()


def main():
    options = arguments()
    wrong = complaints(ROOT)
    if wrong or options.check:
        print("\n".join(wrong) or f"{len(MUTATIONS)} mutations, each in its place")
        sys.exit(1 if wrong else 0)
    work = ROOT if options.here else prepare_copy(options.python)
    chosen = [int(number) for number in options.only.split(",") if number] or range(len(MUTATIONS))
    sources = sources_hash(ROOT)
    results = still_true(json.loads(options.json.read_text()) if options.json and options.json.exists() else {}, MUTATIONS, sources)
    if results:
        print(f"{len(results)} of {len(MUTATIONS)} were tried on these very sources and are not tried again", flush=True)
    started = time.monotonic()
    for number in sorted(chosen, key=lambda n: MUTATIONS[n].target):
        mutation = MUTATIONS[number]
        if mutation.what in results or time.monotonic() - started > options.seconds:
            continue
        state, by = try_one(work, mutation, options.jobs)
        results[mutation.what] = {"key": key_of(mutation, sources), "state": state, "by": by}
        print(f"{number:3} {mutation.what}: {state}: {by}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    if options.here:  # the last mutation's objects are still in the build folder
        run(["cmake", "--build", "build", "-j", str(options.jobs)], cwd=work)
    print(table(results))
    caught = sum(row["state"] == "caught" for row in results.values())
    print(f"\n{caught} of {len(results)} caught; {len(MUTATIONS) - len(results)} not run")
    sys.exit(0 if caught == len(results) else 1)


if __name__ == "__main__":
    main()
