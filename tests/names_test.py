"""A type's name stands for one type. Two of one name, in files that never meet, compile and link; the linker then keeps one of the two
sets of constructors, destructors and containers' code for both, and memory is overwritten where their sizes differ."""

import collections
import re
import subprocess

from program import ROOT

OPENS = re.compile(r"(?:inline )?namespace ([\w:]*) ?\{")
CLOSES = re.compile(r"\}  // namespace")
DEFINES = re.compile(r"(?:template <.*> ?)?(?:struct|class|union|enum class|enum) (?:alignas\(.*?\) )?(\w+(?:::\w+)?(?:<[^{;]*>)?)(?: final)?(?: : [^{;]*)?(?: \{.*)?$")


def types_of(text):
    """Names with their namespaces, of the types that a file defines for others: not in an anonymous namespace, not nested."""
    spaces = []
    for line in text.splitlines():
        if opened := OPENS.match(line):
            spaces.append(opened[1])
        elif CLOSES.match(line):
            spaces.pop()
        elif "" not in spaces and (defined := DEFINES.match(line)):
            yield "::".join([*spaces, defined[1]])


def test_no_type_is_defined_twice():
    files = subprocess.run(["git", "ls-files", "src/*.h", "src/*.cpp", "src/*.cuh", "src/*.cu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = collections.defaultdict(set)  # a file may define it twice: for builds with a GPU and without
    for file in files:
        for name in types_of((ROOT / file).read_text(encoding="utf-8")):
            found[name].add(file)
    assert len(found) > 400
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_the_eyes_of_this_test():
    text = """namespace faultline {
struct Forward;
struct Place {
  struct Inner {
  };
};
class Failure : public std::exception {
enum class Kind : uint8_t { kOne, kTwo };
struct Place::State {
template <class T>
struct Pair {
template <>
struct Pair<int> {
namespace {
struct Own {
}  // namespace
namespace cuda {
struct Place {
}  // namespace cuda
}  // namespace faultline
"""
    names = ["Place", "Failure", "Kind", "Place::State", "Pair", "Pair<int>", "cuda::Place"]
    assert list(types_of(text)) == [f"faultline::{name}" for name in names]
