"""The job: what a trainer that launches its workers itself gets, once a case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One case, as the process that launches its workers sees it.

    world_size: how many workers to start; each must call `conformance.enter(job.ticket, rank)` once, with its own
    rank from 0 to world_size - 1.
    steps: optimizer steps (accumulation windows) in all, for frameworks whose driver counts them.
    checkpoint_dir, resume_from: those of the workers' `Task`, for frameworks whose driver names them.
    ticket: what `enter` needs, as plain JSON values: send it to the workers in any way.
    session: what the trainer's session yielded, or None.
    """

    world_size: int
    steps: int
    ticket: dict[str, Any]
    session: Any = None
    checkpoint_dir: Path | None = None
    resume_from: Path | None = None
