"""A script under a plan, unedited: `python -m faultline --recipe recipe.yaml script.py ARGS`, `torchrun … -m faultline
--recipe recipe.yaml script.py ARGS`, or `-m module` in place of the script. The plan is armed here and, through the
environment, in every process that the script starts with a plug-in of ours; at the end somebody must have evidence.
`--launches` lists the kernels that this process ran on its GPUs (docs/tap.md), with a recipe or without one. `--trace DIR`
records what every operator read and gave (docs/compare.md), with a recipe or without one."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import runpy
import sys

EXIT_EVIDENCE, EXIT_USAGE = 3, 64


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faultline", description=__doc__)
    parser.add_argument("--recipe", help="the recipe; default: FAULTLINE_RECIPE")
    parser.add_argument("--evidence", metavar="DIR", help="folder of the processes' evidence, one file a process; default: FAULTLINE_EVIDENCE, else none is kept")
    parser.add_argument("--collectives", metavar="DIR", help="tap every collective, too, and write its digests there (compare: python -m faultline.collectives --compare DIR)")
    parser.add_argument("--launches", nargs="?", metavar="FILE", help="list the kernels that this process ran on its GPUs and which of them were faulted; --launches=FILE: as JSON, too; needs no recipe")
    parser.add_argument("--trace", metavar="DIR", help="record what every operator of the script's first model read and gave, for `faultline compare --a DIR --b OTHER`; needs no recipe")
    parser.add_argument("--detail", choices=("digest", "sample", "full"), help="of --trace; default: sample")
    parser.add_argument("-m", dest="module", action="store_true", help="what follows is a module, not a script")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    try:
        return parser.parse_args(_with_bare_launches(parser, given))
    except SystemExit as end:
        sys.exit(EXIT_USAGE if end.code else 0)


def _with_bare_launches(parser: argparse.ArgumentParser, given: list[str]) -> list[str]:
    """`--launches script.py` means no file, `--launches=FILE` does; argparse would take the script for the file."""
    takes_a_value = {name for action in parser._actions if action.nargs is None for name in action.option_strings}
    position = 0
    while position < len(given) and given[position].startswith("-"):
        if given[position] == "--launches":
            return [*given[:position], "--launches=", *given[position + 1 :]]
        position += 2 if given[position] in takes_a_value else 1
    return given


def _prepare(options: argparse.Namespace) -> None:
    recipe = options.recipe or os.environ.get("FAULTLINE_RECIPE")
    if not recipe:
        raise ValueError("no recipe: give --recipe FILE or set FAULTLINE_RECIPE")
    os.environ["FAULTLINE_RECIPE"] = str(pathlib.Path(recipe).resolve())
    if options.evidence:
        os.environ["FAULTLINE_EVIDENCE"] = str(pathlib.Path(options.evidence).resolve())
    _prepare_children(options)


def _prepare_children(options: argparse.Namespace) -> None:
    """Children arm the plan and record, too: inherited/sitecustomize.py."""
    if not options.module and not pathlib.Path(options.script).is_file():
        raise ValueError(f"{options.script}: there is no such script")
    if options.trace:
        os.environ["FAULTLINE_TRACE"] = str(pathlib.Path(options.trace).resolve())
        os.environ["FAULTLINE_TRACE_DETAIL"] = options.detail or "sample"
        os.environ["FAULTLINE_TRACE_PROCESS"] = str(os.getpid())
    elif options.detail:
        raise ValueError("--detail is of a trace; give --trace DIR, too")
    package = pathlib.Path(__file__).resolve().parent
    search = [str(package / "inherited"), str(package.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(search))


def main(given: list[str]) -> int:
    options = _arguments(given)
    if options.trace and not (options.recipe or os.environ.get("FAULTLINE_RECIPE")):
        return _run_with_trace(options)
    if options.launches is not None and not (options.recipe or options.evidence or options.collectives or os.environ.get("FAULTLINE_RECIPE")):
        return _run_with_launches(options, scopes=False)
    try:
        _prepare(options)
        from faultline import armed, environment, evidence

        environment.arm_from_environment()
        armed.take_role("launcher")
        if options.trace:
            from faultline.trace import watch_from_environment

            watch_from_environment()
        if options.collectives:
            from faultline import collectives

            collectives.install(options.collectives)
    except (ImportError, ValueError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return EXIT_USAGE
    with _judged_exit(lambda status: _end(armed, evidence, status)):
        status = _run(options) if options.launches is None else _run_with_launches(options, scopes=True)
        if options.trace:
            _close_trace(options)
    return _end(armed, evidence, status) or status


@contextlib.contextmanager
def _judged_exit(judge):
    """os._exit ends a process past every handler. In the script's own process it is judged first."""
    leave, process = os._exit, os.getpid()

    def judged(status):
        os._exit = leave
        leave((os.getpid() == process and judge(status)) or status)

    os._exit = judged
    try:
        yield
    finally:
        os._exit = leave


def _run(options: argparse.Namespace) -> int:
    sys.argv = [options.script, *options.rest]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(pathlib.Path(options.script).resolve().parent)
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as end:  # the script's own status counts, too
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _run_with_trace(options: argparse.Namespace) -> int:
    """_run with nothing armed and every forward recorded."""
    try:
        _prepare_children(options)
        from faultline.trace import watch_from_environment

        watch_from_environment()
    except (ImportError, ValueError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        status = _run(options)
    except ValueError as error:
        if "trace" not in str(error):
            raise
        print(f"faultline: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _close_trace(options) or status


def _close_trace(options: argparse.Namespace) -> int:
    """A script that records nothing has another model than ours, or none: its trace is missing, and so is the evidence."""
    from faultline.trace import close_all

    if close_all() == 0 and not any(pathlib.Path(os.environ["FAULTLINE_TRACE"]).glob("*/header.json")):
        print("faultline: --trace: no model of transformers ran a forward in the script; record yours with faultline.trace(model, DIR)", file=sys.stderr)
        return EXIT_EVIDENCE
    print(f"[trace] {os.environ['FAULTLINE_TRACE']}: beside another one: faultline compare --a {options.trace} --b OTHER", file=sys.stderr)
    return 0


def _run_with_launches(options: argparse.Namespace, *, scopes: bool) -> int:
    """_run in a window of kernel launches, whose table comes even where the script fails. It decides no status."""
    from faultline.launches import begin_launches, end_launches, launches_table, write_launches

    if not options.module and not pathlib.Path(options.script).is_file():
        print(f"faultline: {options.script}: there is no such script", file=sys.stderr)
        return EXIT_USAGE
    file = options.launches and pathlib.Path(options.launches).resolve()  # the script may go elsewhere
    absent = begin_launches(scopes=scopes)
    try:
        return _run(options)
    finally:
        answer = absent or end_launches()
        print("\n".join(launches_table(answer)), file=sys.stderr)
        try:
            if file:
                write_launches(answer, file)
        except OSError as error:
            print(f"faultline: --launches: {error}", file=sys.stderr)


def _end(armed, evidence, status: int) -> int:
    from faultline.complaints import sentences

    own = armed.armed()
    own.script_error = f"exit status {status}" if status else None
    # A rank of a distributed run speaks for itself: the others may still be running.
    is_rank = int(os.environ.get("WORLD_SIZE", "1")) > 1
    collection = evidence.merge([own.snapshot()] if is_rank else evidence.own_entries())
    own.write_verdict(collection["complaints"], whole=True)
    if collection["complaints"]:
        print("faultline: the evidence is missing: " + sentences(collection["complaints"]), file=sys.stderr)
        return EXIT_EVIDENCE if own.on_missing == "raise" else 0
    for name, rule in collection["rules"].items():
        print(f"[fault {name}] {rule['calls']} calls in {rule['processes']} process{'es' if rule['processes'] != 1 else ''}, {rule['changed']} of {rule['elements']} elements changed", file=sys.stderr)
    if (proof := collection["launches"]) is not None:
        for why in proof["absent"]:
            print(f"[launches] no proof by kernel launches: {why}", file=sys.stderr)
        if proof["kinds"]:
            print(f"[launches] {proof['faulted']} of {proof['products']} product kernels in {proof['kinds']} first forwards were faulted", file=sys.stderr)
    if (aqn := collection["aqn"]) is not None:
        print(f"[aqn] {aqn['norms']} norm weights carry noise in {aqn['processes']} process{'es' if aqn['processes'] != 1 else ''}, put on {aqn['applications']} times", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
