"""Whether a device may be trusted with the faults: every elementary operation of the portable arithmetic, then every kind and number
format, against the CPU's kernels, on the device itself (docs/faults.md). A backend of torch is loaded by importing it, so that this is
where a device such as `npu:0` can be asked: `python -m faultline.selftest --device npu:0 --import torch_npu`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

from faultline import _library  # noqa: F401  the operators
from faultline.backends import EXIT_USAGE, add_import_option, device_named, import_backends


def selftest(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What agrees with the CPU's kernels on a device: `device`, `arithmetic` (`native` or `portable`: which one faults use there),
    `operations` and `kinds`, lists of `name`, `ok`, `complaint`. A kind that is not ok is refused on devices without kernels of ours.

    Raises RuntimeError for a device that torch does not know; import its backend first.
    """
    return json.loads(torch.ops.faultline.selftest(torch.device(device)))


def main() -> int:
    """`python -m faultline.selftest`: a line an operation, kind and format; exit 1 where one does not agree."""
    parser = argparse.ArgumentParser(prog="python -m faultline.selftest", description="Kind by kind: does a device's arithmetic agree with the CPU's?")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, npu:0, …")
    add_import_option(parser, "a backend to import first")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    options = parser.parse_args()
    try:
        import_backends(options)
        answer = selftest(device_named(options.device))
    except (ValueError, RuntimeError) as error:
        print(f"faultline: {str(error).splitlines()[0]}", file=sys.stderr)
        return EXIT_USAGE
    findings = [*answer["operations"], *answer["kinds"]]
    refused = [finding for finding in findings if not finding["ok"]]
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        for finding in findings:
            print(f"ok    {finding['name']}" if finding["ok"] else f"FAIL  {finding['name']}: {finding['complaint']}")
        print(f"{len(findings) - len(refused)} agree, {len(refused)} do not, on {answer['device']}")
    return 1 if refused else 0

