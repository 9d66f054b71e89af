"""In every Python process that a script under `python -m faultline` starts: the plan is armed as soon as that process imports torch, so
that a child that computes is faulted and proven like its parent. (The launcher puts this folder first on PYTHONPATH; Python imports a
`sitecustomize` at its start.) A child that never imports torch is left alone; a sitecustomize of somebody else's runs as it would."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_the_next_one():
    others = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.origin:
        load("sitecustomize", spec.origin)


def arm(_torch):
    from faultline import armed  # importing the package arms the plan

    armed.take_role("child")


def is_launcher():
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in words and words[words.index("-m") + 1 :][:1] == ["faultline"]


run_the_next_one()
if (os.environ.get("FAULTLINE_RECIPE") or os.environ.get("FAULTLINE_TRACE")) and not is_launcher():
    load("faultline_after_import", HERE.parent / "after_import.py").after_import("torch", arm)
