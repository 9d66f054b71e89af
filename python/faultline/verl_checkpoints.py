"""The evidence of a training that was interrupted. verl's checkpoints, global_step_20, get what every process had counted until then, in
global_step_20/faultline/RUN; a run that resumes from one takes it up, so that its counts are those of the whole training, and keeps it
beside its own evidence, in FAULTLINE_EVIDENCE/before/RUN."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

from faultline import evidence

_FOLDER = "faultline"


def folder_of(trainer_config: Any, step: int) -> pathlib.Path:
    """Where verl writes the checkpoint of a step."""
    return pathlib.Path(trainer_config.default_local_dir) / f"global_step_{step}"


def resumed_from(trainer_config: Any, step: int) -> pathlib.Path:
    """Where a run was resumed that stands at this step."""
    return pathlib.Path(trainer_config.resume_from_path) if trainer_config.resume_mode == "resume_path" else folder_of(trainer_config, step)


def write(checkpoint: pathlib.Path, entries: list[dict[str, Any]]) -> None:
    """Entries of this run and of those before it, into a checkpoint, in place of those of a run that was killed after it."""
    shutil.rmtree(checkpoint / _FOLDER, ignore_errors=True)
    evidence.write_parts(checkpoint / _FOLDER, entries)


def read(checkpoint: pathlib.Path) -> list[dict[str, Any]]:
    """What a checkpoint brings along; nothing where it was made without a plan. Raises ValueError for damaged files."""
    return evidence.read_parts(checkpoint / _FOLDER)
