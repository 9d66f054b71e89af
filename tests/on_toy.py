"""A pytest plugin, `-p on_toy`: suites that were written for the CPU run on the test backend instead. Tensors and models that say no device
are made on it, as on any accelerator that a user makes the default; accelerate, which looks for devices in a list of its own, is told of it
by the variable that it has for others. At the end of a session it prints on how many calls the device
computed and which devices the plans' ledgers named, so that a suite that quietly stayed on the CPU is seen (backend_suites_test.py)."""

import collections
import json
import os

import pytest
import torch

import faultline
import toy_device

ledgers = collections.Counter()


def pytest_configure(config):
    torch.set_default_device(toy_device.NAME)
    os.environ["ACCELERATE_TORCH_DEVICE"] = toy_device.NAME
    read = faultline.Plan.read

    def counted(self, *arguments, **options):
        report = read(self, *arguments, **options)
        ledgers.update(row["device"] for row in report["rows"])
        return report

    faultline.Plan.read = counted


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    count = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    failed = [each.nodeid for name in ("failed", "error") for each in terminalreporter.stats.get(name, [])]
    answer = {**count, "tests": failed, "calls": toy_device.OPS.calls_on_host(), "ledgers": dict(ledgers)}
    terminalreporter.write_line("ON_TOY " + json.dumps(answer))
