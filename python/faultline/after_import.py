"""Acts on a module as soon as somebody imports it; nothing is imported on a plan's account."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys


def after_import(name: str, act) -> None:
    """act(module), now or right after its first import."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets a module be imported as always and then acts on it, once."""

    def __init__(self, name, act):
        self._name, self._act = name, act

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._act(module)

        spec.loader.exec_module = exec_module
        return spec
