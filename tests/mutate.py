"""Breaks the source in small ways, rebuilds, and shows which test notices. A mutation that no test notices is a hole.

    python tests/mutate.py            all of them; results as a table
    python tests/mutate.py --only 3   one

Works in a copy of the checkout under build/mutate (ccache makes it bearable); the checkout itself is never touched."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# (what is broken, file, text, replacement)
MUTATIONS = [
    ("skip the out= overloads", "src/tap/operators.cpp", "    if (!op || excepted) continue;", '    if (!op || excepted || name.overload_name == "out") continue;'),
    ("forget backward", "src/tap/scope.cpp", "  return {place_of_node(*node), Phase::kActorBackward};", "  return {place_of_node(*node), Phase::kRef};"),
    ("stale layer in backward", "src/tap/scope.cpp", "  return after == line.changes.begin() ? kNowhere : std::prev(after)->place;", "  return after == line.changes.begin() ? kNowhere : line.changes.back().place;"),
    ("never start call numbers again", "src/tap/plan.cpp", "  for (auto& table : tables_) write_controls(*table);", ""),
    ("fault the input in place", "src/tap/boundary.cpp", "    at::Tensor y = x.clone();\n    plan->act", "    at::Tensor y = x;\n    plan->act"),
    ("every nested call acts", "src/tap/operator_tap.cpp", "      const ActingGuard guard(named);\n      original", "      const ActingGuard guard(0);\n      original"),
    ("ignore the rule's layers", "src/tap/plan.cpp", '  if (!rule_means_layer(where, place)) return "not one of the rule\'s layers";', ""),
    ("ignore the phases", "src/tap/plan.cpp", "  if (!rule.phases.test(static_cast<std::size_t>(location.phase)))", "  if (false)"),
    ("drop the never-fired check", "src/tap/report.cpp", "    if (example == nullptr || sum.calls == 0) {", "    if (example != nullptr && sum.calls == 0) {"),
    ("drop the count check", "src/tap/report.cpp", "      if (plan.forwards(forward) > 0 && counted != static_cast<double>(expected))", "      if (false)"),
    ("weights: forget backward", "src/tap/substitution.cpp", "    const bool weights = surface == Surface::kWeight && !above_autograd;", "    const bool weights = surface == Surface::kWeight && !above_autograd && location.phase != Phase::kActorBackward;"),
    ("weights: never refresh the copy", "src/tap/substitution.cpp", "entry.copy.defined() && entry.version == version_of(parameter) && entry.epoch == epoch_", "entry.copy.defined()"),
    ("inputs: below autograd too", "src/tap/substitution.cpp", "    const bool inputs = surface == Surface::kInput && (above_autograd || !inputs_done);", "    const bool inputs = surface == Surface::kInput;"),
    ("written arguments are overlooked", "src/tap/operators.cpp", "alias != nullptr && alias->isWrite()", "alias != nullptr && !alias->isWrite()"),
    ("the mask forgets zeros", "src/tap/boundary.cpp", "rule.what.kind == FaultKind::kDeadzone || rule.what.kind == FaultKind::kZero ? y.eq(0) : y.ne(x)", "rule.what.kind == FaultKind::kZero ? y.eq(0) : y.ne(x)"),
    ("the seed is ignored", "src/tap/plan.cpp", "{settings_.seed, ", "{0, "),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    work = ROOT / "build" / "mutate"
    shutil.rmtree(work / "src", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    for name in ("src", "cmake", "CMakeLists.txt", "CMakePresets.json"):
        source = ROOT / name
        shutil.copytree(source, work / name, dirs_exist_ok=True, copy_function=shutil.copyfile) if source.is_dir() else shutil.copy(source, work / name)
    run(["cmake", "--preset", "release", f"-DFAULTLINE_PYTHON={options.python}"], cwd=work)

    def test():
        built = run(["cmake", "--build", "build", "--target", "numeric_test"], cwd=work)
        if built.returncode != 0:
            return None, built.stdout[-2000:]
        done = run(["build/numeric_test", "--gtest_filter=Tap*:Boundary*:Operators*:Place*:Replacement*"], cwd=work, timeout=300)
        return done.returncode, re.findall(r"^\[  FAILED  \] (\w+\.\w+)$", done.stdout, re.MULTILINE)

    code, detail = test()
    if code != 0:
        sys.exit(f"the unchanged source does not pass: {detail}")
    survivors = 0
    print("| # | broken | caught by |\n|---|---|---|", flush=True)
    for number, (what, file, old, new) in enumerate(MUTATIONS):
        if options.only is not None and number != options.only:
            continue
        path = work / file
        text = path.read_text()
        if re.sub(r"\s+", "", old) not in re.sub(r"\s+", "", text):
            print(f"| {number} | {what} | TEXT NOT FOUND in {file} |", flush=True)
            survivors += 1
            continue
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        path.write_text(re.sub(pattern, lambda _: new.strip(), text, count=1))
        code, detail = test()
        path.write_text(text)
        caught = "does not compile: mutation is void" if code is None else (", ".join(sorted(set(detail))[:3]) or "the tests crash") if code != 0 else "**nothing**"
        survivors += code in (0, None)
        print(f"| {number} | {what} | {caught} |", flush=True)
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
