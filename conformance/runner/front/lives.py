"""A case that is stopped and resumed: its ranks run in fresh processes up to the stop, and in other ones from there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from conformance.runner.outcome import Outcome, RunnerError
from conformance.runner.rank.killing import KILLED

Run = Callable[[dict[str, Any], float], Outcome]

#: The names of folders for checkpoints begin so.
CHECKPOINTS = "conformance-checkpoints-"


def run_case(run: Run, spec: dict[str, Any], time_limit: float) -> Outcome:
    """Run a case with ``run``, once, or once for each life of one that is resumed. ``time_limit``: of each.

    A life in which a rank fails is the last, unless it was to be killed. Raises RunnerError.
    """
    if spec["resumed_at"] is None:
        return run(spec, time_limit)
    try:
        folder = tempfile.TemporaryDirectory(prefix=CHECKPOINTS, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunnerError(f"cannot make a folder for checkpoints: {error.strerror}") from error
    with folder as name:
        return _run_lives(lambda **life: run(_life(spec, **life), time_limit), spec, name)


def _run_lives(run: Callable[..., Outcome], spec: dict[str, Any], folder: str) -> Outcome:
    stop: int = spec["resumed_at"]
    if spec["resumed"] == "killed":
        first = run(checkpoint_dir=folder, save_after=[stop, 2 * stop])
        if first.ranks[0].exit != KILLED:
            return first
        first = first.up_to(stop)
    else:
        first = run(stop_after=stop, checkpoint_dir=folder, save_after=[stop])
        if not all(rank.finished for rank in first.ranks):
            return first
    if spec["resumed"] == "twice":
        saved = _contents(folder)
        earlier = run(resume_from=folder)
        if not all(rank.finished for rank in earlier.ranks):
            return first.followed_by(earlier)
        now = _contents(folder)
        altered = tuple(sorted(name for name, content in saved.items() if now.get(name) != content))
        first = replace(first, seconds=first.seconds + earlier.seconds, altered=altered)
    return first.followed_by(run(resume_from=folder))


def _contents(folder: str) -> dict[str, bytes]:
    """A digest of each file in it."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).digest() for path in files}


def _life(spec: dict[str, Any], **life: Any) -> dict[str, Any]:
    return {**spec, "life": {"stop_after": None, "checkpoint_dir": None, "save_after": [], "resume_from": None, **life}}
