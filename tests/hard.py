"""The long tests of `./dev test-hard`: each part is a command that anyone can run alone; what gives an answer soon comes first.
A part that fails does not keep the others from running. The account is kept after every part, as JSON and as Markdown.

    python tests/hard.py                  all parts
    python tests/hard.py asan tsan        some
    python tests/hard.py --list           what they are
    python tests/hard.py --short          every part for a moment: shows that all of them start

environment: FAULTLINE_KILLS (200), FUZZ_MINUTES (30 of processor time a target), SOAK_MINUTES (120)
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TAIL = 1500  # characters of a part's output in the account
# Tests whose program starts threads or processes that share something; those of the other modules have one thread.
THREADED = ["base_test", "record_test", "race_test", "triage_test", "tap_test"]
# Suites that import `program` and are not run with a sanitized one, and why. Python and torch are not built for a sanitizer:
# where a suite loads the library into Python too, that one is the ordinary build's.
NOT_SANITIZED = {
    "crash_test.py": "interposes the disk with LD_PRELOAD, and AddressSanitizer's runtime must be loaded first",
    "race_cuda_test.py": "needs a GPU; the part 'gpu' has it",
    "diagnose_cuda_test.py": "needs a GPU; the part 'gpu' has it",
    "sanitizer_cuda_test.py": "needs a GPU; the part 'gpu' has it",
}
THREADED_SUITES = ["race_test.py", "triage_test.py"]
GPU_PROGRAMS = {"numeric_test": "*Cuda*", "model_test": "Graph.*"}
SANITIZER = ["compute-sanitizer", "--error-exitcode", "99", "--target-processes", "all", "--report-api-errors", "no", "--tool"]
OUR_KERNELS = ["--kernel-name", "kns=faultline"]


def program_suites(folder=ROOT / "tests"):
    """-> names of the suites that start the program: those that import what starts it, without the exceptions."""
    importing = sorted(path.name for path in folder.glob("*_test.py") if re.search(r"^(import program$|from program import )", path.read_text(), re.MULTILINE))
    return [name for name in importing if name not in NOT_SANITIZED]


@dataclasses.dataclass
class Part:
    name: str
    what: str
    commands: list
    environment: dict = dataclasses.field(default_factory=dict)
    missing: str = ""  # why it cannot run here


def parts(venv, short):
    python = str(venv / "bin" / "python")

    def suite(build, *words):
        return [python, "tests/run.py", "--build", build, "--venv", str(venv), *words]

    def only(names):
        return [word for name in names for word in ("--only", f"^{name}$")]

    def amount(variable, usual, moment):
        return str(moment) if short else os.environ.get(variable, str(usual))

    sources = subprocess.run(["git", "ls-files", "src/*.cpp"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [source for source in sources if not source.endswith(("_test.cpp", "_fuzz.cpp", "_bench.cpp"))]
    gpu = "" if shutil.which("nvidia-smi") and shutil.which("compute-sanitizer") else "no GPU with compute-sanitizer here"
    clang = "" if shutil.which("clang++") else "no clang++ with libFuzzer here: apt-get install clang"

    def sanitized(tool, test, *words):
        program = [f"build/{test}", f"--gtest_filter={GPU_PROGRAMS[test]}"] if test in GPU_PROGRAMS else [python, "-m", "pytest", "-q", f"tests/{test}_cuda_test.py"]
        return [*SANITIZER, tool, *words, *program]

    on_gpu = [[python, "-m", "pytest", "-q", "tests/sanitizer_cuda_test.py"]]
    on_gpu += [sanitized("memcheck", test) for test in [*GPU_PROGRAMS, "sample", "tap", "model", "diagnose", "generate"]]  # race: delays are not seen
    # racecheck, which looks at shared memory, checks our kernels alone, or it takes hours, and is not used where cuBLAS multiplies 16-bit matrices: it breaks
    # those kernels when it does not check them (docs/results/trust.md). What is left starts each of our kernels that has shared memory.
    on_gpu += [sanitized("racecheck", test, *OUR_KERNELS) for test in ("numeric_test", "sample", "model")]
    on_gpu += [[*sanitized("racecheck", "diagnose", *OUR_KERNELS), "-k", "fp32"], sanitized("racecheck", "tap")]
    yield Part("suite", "every test, in the version of every day", [suite("build", *(only(["base_test"]) if short else []))])
    yield Part("asan", "every C++ test under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer",
               [["./dev", "build", "asan", *(["faultline_program", "base_test"] if short else [])], suite("build-asan", "--cpp-only", *(only(["base_test"]) if short else []))])  # fmt: skip
    yield Part("tsan", "the threaded C++ tests under ThreadSanitizer",
               [["./dev", "build", "tsan", "faultline_program", *(["base_test"] if short else THREADED)], suite("build-tsan", "--cpp-only", *only(["base_test"] if short else THREADED))], {"OMP_NUM_THREADS": "1"})  # fmt: skip
    yield Part("tsan-program", "race and triage, the program under ThreadSanitizer",
               [suite("build-tsan", *only(THREADED_SUITES[:1] if short else THREADED_SUITES))], {"OMP_NUM_THREADS": "1"})  # fmt: skip
    yield Part("asan-program", "the suites that start the program, with it under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer",
               [suite("build-asan", "--library", "build/libfaultline.so", *only(["convert_test.py"] if short else program_suites()))])  # fmt: skip
    yield Part("crash", "long commands, disturbed and resumed", [suite("build", "--only", "crash_test"), [python, "tests/crash/harness.py", "build/crash.json"]], {"FAULTLINE_KILLS": amount("FAULTLINE_KILLS", 200, 5)})
    yield Part("gpu", "CUDA kernels under compute-sanitizer's memcheck and racecheck", on_gpu,
               {"PYTHONPATH": "python:tests", "FAULTLINE_BUILD": "build", "FAULTLINE_SHORT": "1"}, missing=gpu)  # fmt: skip
    yield Part("hip", "the fault kernels compiled as HIP for AMD GPUs, without a warning", [[python, "tests/compile_hip.py", *(["digest"] if short else [])]],
               missing="" if shutil.which("hipcc") else "no hipcc here: apt-get install hipcc")  # fmt: skip
    yield Part("backend", "the Hugging Face suites on the test backend", [suite("build", "--only", "^backend_suites_test$")], {} if short else {"FAULTLINE_HARD": "1"})
    yield Part("tidy", "clang-tidy on every source file", [suite("build", "--only", "clang-tidy", "--tidy", " ".join(sources[:1] if short else sources))])
    yield Part("mutation", "small breakages of the source, each caught by a test", [[python, "tests/mutate.py", "--json", "build/mutation.json", *(["--only", "0"] if short else [])]])
    yield Part("fuzz", "every parser under libFuzzer", [["./dev", "fuzz"]], {"FUZZ_MINUTES": amount("FUZZ_MINUTES", 30, 0.01)}, missing=clang)
    yield Part("soak", "a campaign and a race for hours: memory, files and pace as at the beginning",
               [[python, "tests/soak.py", "--json", "build/soak.json", "--minutes", amount("SOAK_MINUTES", 120, 1)]], {"FAULTLINE_BUILD": "build"})  # fmt: skip


def run_part(part):
    """-> its row of the account. The output goes to the terminal and its end into the row."""
    row = {"part": part.name, "what": part.what, "commands": [" ".join(f"{key}={value}" for key, value in part.environment.items()) + (" " if part.environment else "") + " ".join(command) for command in part.commands]}
    if part.missing:
        return {**row, "result": "not run", "exit": None, "last": part.missing, "seconds": 0}
    begin = time.monotonic()
    for command in part.commands:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **part.environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        tail = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            tail = (tail + line)[-TAIL:]
        if process.wait() != 0:
            break
    lines = tail.strip().splitlines()
    return {**row, "result": "passed" if process.returncode == 0 else f"failed ({process.returncode})", "exit": process.returncode, "last": lines[-1] if lines else "", "tail": tail, "seconds": round(time.monotonic() - begin, 1)}


def markdown(rows):
    lines = ["| part | result | last line | seconds | commands |", "|---|---|---|---|---|"]
    for row in rows:
        commands = "; ".join(f"`{command if len(command) < 200 else command[:200] + '…'}`" for command in row["commands"])
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in (row["part"], row["result"], row["last"], f"{row['seconds']:.0f}", commands)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(sys.prefix))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--account", type=pathlib.Path, default=ROOT / "build" / "hard.json", help="with .md beside it")
    options = parser.parse_args()
    known = list(parts(options.venv, options.short))
    unknown = set(options.parts) - {part.name for part in known}
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in known)}")
    if options.list:
        print("\n".join(f"{part.name:13} {part.what}" + (f" ({part.missing})" if part.missing else "") for part in known))
        return 0
    rows = []
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    for part in known:
        if options.parts and part.name not in options.parts:
            continue
        print(f"==> {part.name}: {part.what}", flush=True)
        rows.append(run_part(part))
        account = {"commit": commit, "machine": platform.machine(), "processors": os.cpu_count(), "short": options.short, "parts": rows}
        options.account.write_text(json.dumps(account, indent=1) + "\n")
        options.account.with_suffix(".md").write_text(markdown(rows))
    print("\n" + "\n".join(f"{row['part']:13} {row['result']:12} {row['seconds']:8.0f} s  {row['last']}" for row in rows))
    return 1 if any(row["exit"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
