"""The long tests' accounts are of the code that is there now: an account of other sources or of another program counts for
nothing, and a new suite that starts the program is among those that run under the sanitizers."""

import fuzz
import hard
import mutate
from mutations import MUTATIONS


def test_a_mutation_is_tried_again_when_a_source_changed(tmp_path):
    (tmp_path / "src/base").mkdir(parents=True)
    for name in ("CMakeLists.txt", "CMakePresets.json", "src/base/a.cpp", "src/base/a_test.cpp"):
        (tmp_path / name).write_text("1")
    account, sources = {}, mutate.sources_hash(tmp_path)
    for mutation in MUTATIONS[:2]:
        account[mutation.what] = {"key": mutate.key_of(mutation, sources), "state": "caught", "by": "`A.B`"}
    assert mutate.still_true(account, MUTATIONS, sources) == account
    assert list(mutate.still_true(account, [MUTATIONS[0], MUTATIONS[1]._replace(new="another")], sources)) == [MUTATIONS[0].what]
    for name in ("src/base/a.cpp", "src/base/a_test.cpp", "CMakeLists.txt"):
        (tmp_path / name).write_text("2")
        assert mutate.still_true(account, MUTATIONS, mutate.sources_hash(tmp_path)) == {}, name
        (tmp_path / name).write_text("1")
    assert mutate.sources_hash(tmp_path) == sources
    assert mutate.still_true({MUTATIONS[0].what: ["caught", "an account of old"]}, MUTATIONS, sources) == {}


def test_a_target_that_was_built_anew_is_fuzzed_from_zero(tmp_path):
    targets = {name: tmp_path / name for name in ("a_fuzz", "parquet_fuzz")}
    for path in (*targets.values(), tmp_path / "libfaultline_parquet.so"):
        path.write_bytes(b"1")
    account = fuzz.continued({}, targets)
    for row in account.values():
        row["cpu_minutes"] = 30
    assert fuzz.continued(account, targets) == account
    targets["a_fuzz"].write_bytes(b"2")
    assert [row["cpu_minutes"] for row in fuzz.continued(account, targets).values()] == [0, 30]
    (tmp_path / "libfaultline_parquet.so").write_bytes(b"2")
    assert [row["cpu_minutes"] for row in fuzz.continued(account, targets).values()] == [0, 0]
    assert fuzz.continued({"a_fuzz": {"cpu_minutes": 30}}, targets)["a_fuzz"]["cpu_minutes"] == 0, "an account of old"


def test_every_suite_that_starts_the_program_runs_under_the_sanitizers(tmp_path):
    (tmp_path / "new_test.py").write_text("import os\nfrom program import launch\n")
    (tmp_path / "other_test.py").write_text("import programs\n")
    (tmp_path / "crash_test.py").write_text("import program\n")
    assert hard.program_suites(tmp_path) == ["new_test.py"]
    assert {"train_test.py", "demo_test.py", "race_outside_test.py", "ray_test.py"} <= set(hard.program_suites())
    assert all((hard.ROOT / "tests" / name).exists() and why for name, why in hard.NOT_SANITIZED.items())
