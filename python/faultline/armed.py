"""Which plan FAULTLINE_RECIPE armed in this process, for the modules that ask: phases, trainers, evidence, engines. environment.py
puts it here; this module imports none of them."""

from __future__ import annotations

import os
from typing import Any

_armed: Any = None  # environment.Armed


def hold(own: Any) -> None:
    """From now on this process has that plan; None: none any more."""
    global _armed
    _armed = own


def held() -> Any:
    """The plan that was put here, by this process or by the one that it was forked from."""
    return _armed


def armed() -> Any:
    """The plan of this very process."""
    return _armed if _armed is not None and _armed.process == os.getpid() else None


def take_role(role: str) -> None:
    """This process belongs to an engine: it may turn out to have nothing to compute."""
    if (own := armed()) is not None:
        own.role = role


def snapshot() -> dict[str, Any] | None:
    """The evidence of this process as it is now."""
    return own.snapshot() if (own := armed()) is not None else None


def finish() -> dict[str, Any] | None:
    """The evidence of this process, which has done its work and may be killed from now on; its file says that it ended."""
    if (own := armed()) is None:
        return None
    own.write(ended=True)
    return own.snapshot(ended=True)
