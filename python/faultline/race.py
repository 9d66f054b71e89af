"""`python -m faultline.race`: the reproducer of `faultline race` over a backend of torch.distributed: RCCL and NCCL (nccl), HCCL (hccl),
Gloo, UCC, or one that an import registers. Patterns, digests, attribution, the exchange between the ranks, the watch over them and the
record are the library's own (src/race/); Python makes the process group and calls its collectives, nothing else. Alone it starts its
ranks, under torchrun it is one of them; `faultline race --transport torch` and recipes of `faultline triage` start it too."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from faultline import _library  # noqa: F401  the operators
from faultline.backends import EXIT_RUNTIME, EXIT_USAGE, add_import_option, import_backends

_FOOTER = """examples:
  python -m faultline.race --backend gloo --ranks 4
  python -m faultline.race --backend nccl --device cuda --ranks 8                      # NCCL, or RCCL in a ROCm build of torch
  python -m faultline.race --backend hccl --device npu --import torch_npu --ranks 8
  torchrun --nproc-per-node 8 -m faultline.race --backend nccl --device cuda --json
  python -m faultline.race --backend gloo 'inject={target: all_gather, kind: bitflip, layer: 7, rank: 2, iteration: 3}'

exit codes: 0 no corruption, 1 corruption, 2 a rank failed or hung, 3 the canary was missed, 64 usage. docs/race.md"""


class Collectives:
    """What the library calls: one function, by the name of what is wanted. An exception becomes the rank's own sentence."""

    def __init__(self, backend: str):
        self.backend = backend
        self.works: dict[int, Any] = {}
        self._complaint: ctypes.Array | None = None  # alive until the next call
        self._function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _call(self, what: bytes, number: int) -> int | None:
        try:
            getattr(self, what.decode())(number)
            return None
        except BaseException as error:  # nothing may leave a call that C made
            text = str(error).strip() or type(error).__name__
            self._complaint = ctypes.create_string_buffer(text.splitlines()[0].encode())
            return ctypes.addressof(self._complaint)

    def open(self, _: int) -> None:
        order = json.loads(torch.ops.faultline.race_order())
        device = torch.device(order["device"])
        if device.type != "cpu":
            torch.get_device_module(device.type).set_device(device)
        # A backend's own watchdog would end the process before it could say what it saw; what the user has set stays.
        for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "HCCL_ASYNC_ERROR_HANDLING"):
            os.environ.setdefault(name, "0")
        if order["on_loopback"]:
            for library in ("GLOO", "NCCL", "HCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
        limit = datetime.timedelta(seconds=order["timeout_seconds"])
        store = dist.TCPStore(order["address"], order["port"], is_master=False, wait_for_workers=False, timeout=limit)
        dist.init_process_group(self.backend, store=dist.PrefixStore(order["prefix"], store), rank=order["rank"], world_size=order["ranks"], timeout=limit)

    def _start(self, number: int, collective: Any) -> None:
        output, given = torch.ops.faultline.race_buffers()
        self.works[number] = collective(output, given)

    def all_gather(self, number: int) -> None:
        self._start(number, lambda output, given: dist.all_gather_into_tensor(output, given, async_op=True))

    def reduce_scatter(self, number: int) -> None:
        self._start(number, lambda output, given: dist.reduce_scatter_tensor(output, given, async_op=True))

    def all_reduce(self, number: int) -> None:
        self._start(number, lambda output, given: dist.all_reduce(output, async_op=True))

    def all_to_all(self, number: int) -> None:
        self._start(number, lambda output, given: dist.all_to_all_single(output, given, async_op=True))

    def wait(self, number: int) -> None:
        work = self.works.pop(number)
        if work is not None:
            work.wait()

    def close(self, _: int) -> None:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faultline.race",
        description="Known bytes through the collectives of a backend of torch.distributed and through compute; names what corrupts them.",
        epilog=torch.ops.faultline.race_keys() + "\n" + _FOOTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run = parser.add_argument_group("run")
    run.add_argument("--backend", required=True, metavar="NAME", help="of torch.distributed: nccl (also RCCL), hccl, gloo, ucc, or one that --import registers")
    run.add_argument("--device", default="cpu", help="cpu, cuda, npu, …: each rank takes the one of its local rank; npu:0: all of them the same (default cpu)")
    add_import_option(run, "imported first, in every rank: it registers the backend or the device")
    run.add_argument("--recipe", default="", metavar="FILE", help="a file with a race: section or a triage recipe; default: a small run")
    run.add_argument("--ranks", type=int, default=4, metavar="N", help="how many, 1 to 256 (default 4); under torchrun its WORLD_SIZE")
    run.add_argument("--launcher", default="local", metavar="NAME", help="who starts the ranks: local (default), ssh, srun, mpirun, torchrun, or a command line with {command}")
    run.add_argument("--hosts", default="", metavar="A,B,…", help="machines for the ranks, which are given to them in blocks")
    run.add_argument("--address", default="", metavar="IP", help="of this machine, for the ranks; default: as seen from the first host")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of patterns and faults (default 0)")
    run.add_argument("--measure-overhead", action="store_true", help="digests in every second iteration; what they cost")
    output = parser.add_argument_group("output")
    output.add_argument("--out", default="", metavar="FILE", help="the merged evidence as JSON; `faultline report` makes a page of it")
    output.add_argument("--write-golden", default="", metavar="FILE", help="keep this run's digests as the golden of later ones")
    output.add_argument("--json", action="store_true", help="the result as JSON, nothing else on standard output")
    output.add_argument("--quiet", action="store_true", help="no progress, no first line")
    parser.add_argument("--join", default="", help=argparse.SUPPRESS)  # a launcher's store: be the rank that the environment says
    parser.add_argument("--host", default="", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration; the keys are listed below")
    parser.error = lambda message: _refuse(f"{message}; `{parser.prog} --help` shows the options")  # type: ignore[method-assign]
    return parser


def _refuse(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _import(options: argparse.Namespace) -> None:
    if not dist.is_available():
        _refuse("this torch has no torch.distributed")
    try:
        import_backends(options)
    except ValueError as error:
        _refuse(str(error))
    known = [name for name in dist.Backend.backend_list if name != "undefined" and dist.is_backend_available(name)]
    if options.backend not in known:
        _refuse(f"--backend {options.backend}: this torch has {', '.join(known)}; a module that registers another is named with --import")


def _request(options: argparse.Namespace, arguments: list[str]) -> str:
    names = ("recipe", "overrides", "ranks", "seed", "launcher", "hosts", "address", "out", "write_golden", "measure_overhead", "backend", "device")
    asked = {name: getattr(options, name) for name in names}
    asked |= {"imports": options.modules, "interpreter": sys.executable, "quiet": options.quiet or options.json, "command": ["python", "-m", "faultline.race", *arguments]}
    return json.dumps(asked)


def _run(options: argparse.Namespace, arguments: list[str], call: int) -> int:
    request = _request(options, arguments)
    described = torch.ops.faultline.race_describe(request)
    first = os.environ.get("RANK", "0") == "0"
    if first and not (options.quiet or options.json):
        print(described, file=sys.stderr)
    answer = json.loads(torch.ops.faultline.race_run(request, call))
    if not answer["silent"]:
        print(json.dumps(answer["result"], indent=2) if options.json else "\n".join(answer["lines"]))
    return answer["exit_code"]


def main(arguments: list[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if not 1 <= options.ranks <= 256:
        _refuse(f"--ranks: wanted 1 to 256, got {options.ranks}")
    if options.seed < 0:
        _refuse(f"--seed: wanted 0 or more, got {options.seed}")
    _import(options)
    collectives = Collectives(options.backend)
    try:
        if options.join:
            return torch.ops.faultline.race_join(options.join, options.host, options.device, collectives.address)
        return _run(options, arguments, collectives.address)
    except (ValueError, RuntimeError) as error:
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ValueError) else EXIT_RUNTIME


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a group whose peer is gone would keep the interpreter's end waiting
