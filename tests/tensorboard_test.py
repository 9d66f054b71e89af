"""The oracle for src/record/tensorboard.cpp is TensorBoard itself: the C++ test writes a file, the `tensorboard` package
reads it, and steps, wall times and values must agree exactly. Needs FAULTLINE_BUILD (the folder with record_test)."""

import math
import os
import pathlib
import struct
import subprocess

import pytest

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
event_file_loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

START = 1767225599.0


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    build = os.environ.get("FAULTLINE_BUILD")
    if not build:
        pytest.skip("FAULTLINE_BUILD is not set")
    path = tmp_path_factory.mktemp("tensorboard")
    subprocess.run(
        [pathlib.Path(build) / "record_test", "--gtest_filter=Tensorboard.WritesAFileForTensorBoardToRead"],
        env={**os.environ, "FAULTLINE_TB_DIR": str(path)},
        check=True,
    )
    return path


def first_file(folder):
    return str(sorted(folder.glob("events.out.tfevents.*"))[0])


def test_the_raw_records_are_whole_and_the_version_comes_first(folder):
    events = list(event_file_loader.LegacyEventFileLoader(first_file(folder)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert len(events) == 1 + 1 + 200 + 5
    # The clock ticks 0.25 s per look: once for the file's name, once for the version, once per scalar.
    assert [event.wall_time for event in events] == [START + 0.25 * (2 + i) for i in range(len(events))]


def test_steps_wall_times_and_values_are_exact(folder):
    accumulator = event_accumulator.EventAccumulator(first_file(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    assert sorted(accumulator.Tags()["scalars"]) == [
        "actor/pg_loss",
        "faultline/extremes",
        "val-core/openai/gsm8k/acc/mean@1",
    ]
    (accuracy,) = accumulator.Scalars("val-core/openai/gsm8k/acc/mean@1")
    assert (accuracy.step, accuracy.wall_time, accuracy.value) == (0, START + 0.75, float32(0.1))
    loss = accumulator.Scalars("actor/pg_loss")
    assert [point.step for point in loss] == list(range(1, 201))
    assert [point.value for point in loss] == [float32(1.0 / step) for step in range(1, 201)]
    assert [point.wall_time for point in loss] == [START + 0.75 + 0.25 * step for step in range(1, 201)]


def test_extreme_floats_survive(folder):
    accumulator = event_accumulator.EventAccumulator(first_file(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    points = accumulator.Scalars("faultline/extremes")
    assert all(point.step == 2**40 for point in points)
    values = [point.value for point in points]
    assert values[:2] == [3.4028234663852886e38, 1.401298464324817e-45]
    assert values[2] == 0.0 and math.copysign(1.0, values[2]) == -1.0
    assert values[3] == math.inf and math.isnan(values[4])


def test_a_resumed_run_replaces_the_steps_it_repeats(folder):
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    loss = accumulator.Scalars("actor/pg_loss")
    assert [point.step for point in loss] == list(range(1, 151))
    assert [point.value for point in loss] == [float32(1.0 / step) for step in range(1, 101)] + [-1.0] * 50
