"""`faultline screen` from outside: verdicts and exit codes that a drain hook acts on, records, fleets, the prolog of the page under a
fake Slurm, and the sentinel beside a model."""

import json
import os
import re
import shutil
import subprocess
import time

import pytest
import torch

import faultline
from program import PROGRAM, ROOT, launch

SECONDS = "3"


def screen(*arguments, **options):
    result = launch("screen", *arguments, "--json", "--quiet", timeout=300, **options)
    return result, json.loads(result.stdout) if result.stdout.strip() else None


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    out = tmp_path_factory.mktemp("screens")
    result, fleet = screen("--device", "cpu", "--seconds", SECONDS, "--memory-share", "0.002", "--out", out, "--prometheus", out / "screen.prom")
    return result, fleet, out


def test_a_healthy_cpu_is_healthy_with_a_bound_core_by_core_and_set_by_set(healthy):
    result, fleet, _ = healthy
    assert result.returncode == 0, result.stdout[-3000:]
    (record,) = fleet["devices"]
    assert record["verdict"] == "healthy" and record["exit_code"] == 0 and record["failures"] == []
    launches = record["bound"]["launches"]
    assert launches["wrong"] == 0 and launches["at_most_one_in"] == pytest.approx(launches["tested"] / 2.996, rel=0.01)
    assert launches["tested"] == sum(row["launches"] for row in record["checks"])
    assert record["canaries"]["seen"] == record["canaries"]["planted"] > 10
    assert {core["core"] for core in record["cores"]} == os.sched_getaffinity(0)
    assert all(core["together"]["launches"] > 0 and core["together"]["wrong"] == 0 for core in record["cores"])
    assert {"product", "attention", "norm", "reduction", "gather", "copy", "memory"} <= set(record["groups"])
    assert all(group["launches"] > 0 for group in record["groups"].values())
    assert 0 < record["memory"]["tested_bytes"] <= record["memory"]["asked_bytes"]
    sets = {re.search(r"\((portable|avx2|avx512)\)$", row["check"])[1] for row in record["checks"] if row["check"].endswith(")") and "heads" not in row["check"].split("(")[-1]}
    if "avx2" in open("/proc/cpuinfo").read():
        assert "portable" in sets
    assert record["identity"]["host"] and record["weather"]["before"] and record["weather"]["after"]
    assert record["seconds"] < 60


def test_the_record_is_compared_with_the_earlier_ones_of_its_folder(healthy):
    _, _, out = healthy
    (first,) = out.glob("screen-*.json")
    _, fleet = screen("--device", "cpu", "--seconds", "1", "--memory-share", "0.002", "--out", out)
    earlier = fleet["devices"][0]["earlier"]
    assert earlier["screens"] == 1 and earlier["verdicts"]["healthy"] == 1 and earlier["identity_changed"] == []
    before = json.loads(first.read_text())["bound"]["launches"]["tested"]
    assert earlier["all_screens"]["tested"] == before + fleet["devices"][0]["bound"]["launches"]["tested"]
    assert len(list(out.glob("screen-*.json"))) == 2


def test_metrics_are_lines_that_a_collector_reads(healthy):
    _, fleet, out = healthy
    text = (out / "screen.prom").read_text()
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) [a-z_]+ .+|[a-z_]+\{host="[^"]*",device="cpu",id="[^"]*"\} -?[0-9.e+]+', line), line
    assert re.search(r"^faultline_screen_healthy\{.*\} 1$", text, re.M)
    tested = fleet["devices"][0]["bound"]["launches"]["tested"]
    assert re.search(rf"^faultline_screen_launches\{{.*\}} {tested}$", text, re.M)


def test_a_planted_fault_makes_it_faulty_and_names_the_operator():
    result, fleet = screen("--device", "cpu", "--seconds", "2", "--memory-share", "0", "--fault", "bitflip(rate=0.001) @ operator=matmul")
    assert result.returncode == 1
    (record,) = fleet["devices"]
    assert record["verdict"] == "faulty" and record["planted"]["elements_changed"] > 0
    assert record["failures"] and {one["group"] for one in record["failures"]} == {"product"}
    assert record["groups"]["product"]["wrong"] > 0 and record["groups"]["norm"]["wrong"] == 0
    first = record["failures"][0]
    assert first["suspect"] == "compute" and first["broken_inputs"] == [] and first["row"] >= 0
    assert bin(int(first["expected_bits"], 16) ^ int(first["observed_bits"], 16)).count("1") == 1


def test_a_fault_that_changed_nothing_is_no_proof():
    result, _ = screen("--device", "cpu", "--seconds", "1", "--memory-share", "0", "--fault", "gain(strength=0.05) @ operator=rotary")
    assert result.returncode == 3 and "changed nothing" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--load", "everything"], "training, inference, memory or all"),
        (["--minutes", "0"], "--minutes"),
        (["--memory-share", "2"], "--memory-share"),
        (["--device", "tpu"], "--device"),
        (["--device", "local"], "LOCAL_RANK"),
        (["--merge", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_what_cannot_be_is_the_users_mistake(arguments, words):
    environment = {key: value for key, value in os.environ.items() if key not in ("LOCAL_RANK", "SLURM_LOCALID")}
    result = launch("screen", *arguments, env=environment)
    assert result.returncode == 64 and words in result.stderr


def test_a_device_that_is_not_there_is_not_healthy():
    result = launch("screen", "--device", "cuda:0", "--seconds", "1")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert result.returncode == 2 and "cuda" in result.stderr.lower()


def test_a_screen_that_was_stopped_is_inconclusive():
    process = subprocess.Popen([PROGRAM, "screen", "--device", "cpu", "--seconds", "60", "--memory-share", "0", "--json", "--quiet"], stdout=subprocess.PIPE, text=True)
    time.sleep(6)
    process.terminate()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    record = json.loads(out)["devices"][0]
    assert record["verdict"] == "inconclusive" and "stopped before its time" in record["broken_off"]


CLOCK = """
#include <dlfcn.h>
#include <time.h>
extern "C" int clock_gettime(clockid_t which, struct timespec* out) noexcept {
  static int (*const real)(clockid_t, struct timespec*) = reinterpret_cast<int (*)(clockid_t, struct timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  static long begin = 0;
  struct timespec steady;
  real(CLOCK_MONOTONIC, &steady);
  if (begin == 0) begin = steady.tv_sec;
  const int status = real(which, out);
  if (which == CLOCK_REALTIME && steady.tv_sec - begin >= 3) out->tv_sec -= 3600;
  return status;
}
"""


def test_a_clock_that_is_set_back_in_the_middle_changes_nothing_but_what_is_said_of_it(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "clock.cpp").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.cpp", "-ldl"], check=True)
    result, fleet = screen("--device", "cpu", "--seconds", "6", "--memory-share", "0.002", env={"LD_PRELOAD": str(tmp_path / "clock.so")})
    (record,) = fleet["devices"]
    assert result.returncode == 0 and record["verdict"] == "healthy"
    assert record["clock_step_seconds"] == pytest.approx(-3600, abs=30)
    assert 5 < record["seconds"] < 300


def test_a_core_that_may_not_be_used_is_said_to_be_untested():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    result = launch("screen", "--device", "cpu", "--seconds", "2", "--memory-share", "0", "--json", "--quiet", preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    record = json.loads(result.stdout)["devices"][0]
    assert [core["core"] for core in record["cores"]] == [min(os.sched_getaffinity(0))]
    assert any("may not run on" in sentence for sentence in record["not_tested"])


# --- fleets -------------------------------------------------------------------------------------------------------------
def test_records_of_many_machines_become_a_fleet_and_a_page(healthy, tmp_path):
    _, fleet, _ = healthy
    files = []
    for number in range(3):
        record = json.loads(json.dumps(fleet["devices"][0]))
        record["id"], record["identity"]["host"] = f"machine-{number}", f"<b>node{number}</b>"
        if number == 1:
            record["verdict"], record["exit_code"], record["sentence"] = "faulty", 1, "3 of 100 launches were wrong"
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(record))
    result, merged = screen("--merge", *files, "--out", tmp_path / "fleet.json", "--prometheus", tmp_path / "fleet.prom")
    assert result.returncode == 1 and merged["counts"] == {"healthy": 2, "faulty": 1, "inconclusive": 0}
    assert len(re.findall(r"^faultline_screen_faulty\{", (tmp_path / "fleet.prom").read_text(), re.M)) == 3
    for source, words in ((tmp_path / "fleet.json", "3 devices: 2 healthy, 1 faulty"), (files[0], "no wrong result in")):
        assert launch("report", source, "-o", tmp_path / "page.html").returncode == 0
        html = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert words in html and "<b>node" not in html and "<script" not in html
    files[0].write_text('{"kind": "diagnose"}')
    refused = launch("screen", "--merge", files[0])
    assert refused.returncode == 64 and "no record of `faultline screen`" in refused.stderr


# --- the prolog of docs/screen.md under a fake scheduler ----------------------------------------------------------------
@pytest.mark.parametrize(("code", "exits", "drained"), [(0, 0, False), (1, 1, True), (2, 0, False), (3, 0, False)])
def test_the_prolog_drains_a_faulty_node_and_no_other(tmp_path, code, exits, drained):
    page = (ROOT / "docs/screen.md").read_text(encoding="utf-8")
    script = re.search(r"```sh\n(#!/bin/sh\n# screen-prolog.sh.*?)```", page, re.S)[1]
    for name, text in {"prolog": script, "faultline": f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\necho '{{}}'\nexit {code}\n", "scontrol": f'#!/bin/sh\necho "$@" >{tmp_path}/drained\n'}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run([tmp_path / "prolog"], env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SCREENS": str(tmp_path), "SLURMD_NODENAME": "node7"}, capture_output=True, text=True, check=False)
    assert done.returncode == exits, done.stderr
    assert (tmp_path / "drained").exists() == drained
    if drained:
        assert (tmp_path / "drained").read_text().split()[:3] == ["update", "nodename=node7", "state=drain"]
    asked = (tmp_path / "asked").read_text().split()
    assert launch("--parse-only", *asked).returncode == 0  # the options of the page are the program's


# --- the sentinel -------------------------------------------------------------------------------------------------------
def tiny_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.SiLU(), torch.nn.Linear(128, 64, bias=False)).to(torch.bfloat16)


def work(model, watch, steps):
    for _ in range(steps):
        model(torch.randn(4, 64, dtype=torch.bfloat16))
    return watch.verdict()


def test_a_sentinel_beside_a_healthy_model_is_healthy_and_counts_what_it_asked():
    model = tiny_model()
    with faultline.sentinel(model, every=2, share=1.0) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(40):  # weights change all the while
            model(torch.randn(4, 64, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        verdict = work(model, watch, 40)
    assert verdict["verdict"] == "healthy", verdict["sentence"]
    assert verdict["linears"]["launches"] > 5 and verdict["linears"]["wrong"] == 0
    assert verdict["bound"]["launches"]["tested"] > 0 and verdict["canaries"]["planted"] > 0
    model(torch.randn(4, 64, dtype=torch.bfloat16))  # closed: the model runs alone


def test_a_sentinel_finds_a_fault_of_the_model_and_of_the_machine():
    model = tiny_model()
    with faultline.sentinel(model, every=1, share=1.0) as watch, faultline.plan("faults: [{name: broken, where: {operator: matmul}, what: {kind: gain, strength: 0.05}}]", model=model):
        verdict = work(model, watch, 80)
    assert verdict["verdict"] == "faulty", verdict["sentence"]
    assert verdict["linears"]["wrong"] > 0 and verdict["groups"]["product"]["wrong"] > 0


def test_a_sentinel_accuses_nobody_whose_fp32_is_bf16_by_the_users_wish():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False))
    torch.set_float32_matmul_precision("medium")
    try:
        with faultline.sentinel(model, every=1, share=1.0) as watch:
            for _ in range(60):
                model(torch.randn(64, 256))
            verdict = watch.verdict()
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert verdict["verdict"] == "healthy", verdict["sentence"]


def test_a_sentinel_keeps_to_its_share_of_the_time():
    model = tiny_model()
    with faultline.sentinel(model, every=1, share=0.01) as watch:
        verdict = work(model, watch, 300)
    assert verdict["share"]["estimated"] <= 0.01


def test_a_sentinel_that_asked_nothing_is_not_healthy():
    with faultline.sentinel(tiny_model(), every=1000) as watch:
        verdict = watch.verdict()
    assert verdict["verdict"] == "inconclusive" and verdict["exit_code"] != 0


def test_a_sentinel_refuses_what_it_cannot_watch():
    with pytest.raises(ValueError, match="every is at least 1"):
        faultline.sentinel(tiny_model(), every=0)
    with pytest.raises(ValueError, match="with parameters"):
        faultline.sentinel(torch.nn.SiLU())
