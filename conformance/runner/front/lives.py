"""A case that is stopped and resumed: its ranks run in fresh processes up to the stop, and in other ones from there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from conformance.runner.outcome import Outcome, RankOutcome, RunnerError
from conformance.runner.rank.killing import BETWEEN_FILES, KILLED, KILLS
from conformance.trace.lives import as_resumed

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
    if spec["resumed"] in KILLS:
        again = stop + 1 if spec["resumed"] == BETWEEN_FILES else 2 * stop
        first = run(checkpoint_dir=folder, save_after=[stop, again])
        if first.ranks[0].exit != KILLED:
            return first
        if spec["resumed"] == BETWEEN_FILES:
            # The file that is whole may be all that the second checkpoint needs.
            second = run(resume_from=folder)
            goes_on_at = {_first_window(rank) for rank in second.ranks}
            return first.up_to(again if goes_on_at == {again} else stop).followed_by(second)
        first = first.up_to(stop)
    else:
        inside: int = spec.get("resumed_inside", 0)
        first = run(stop_after=stop, stop_inside=inside, checkpoint_dir=folder, save_after=[stop])
        if not all(rank.finished for rank in first.ranks):
            return first
    if spec["resumed"] == "twice":
        saved = _contents(folder)
        earlier = run(resume_from=folder)
        if not all(rank.finished for rank in earlier.ranks):
            return first.followed_by(earlier)
        now = _contents(folder)
        altered = tuple(sorted(name for name, content in saved.items() if now.get(name) != content))
        both = first.followed_by(earlier)
        first = replace(first, seconds=both.seconds, altered=altered, earlier=both)
    return first.followed_by(run(resume_from=folder))


def _first_window(rank: RankOutcome) -> int | None:
    return next((event["window"] for event in rank.events if event["window"] is not None), None)


def _contents(folder: str) -> dict[str, bytes]:
    """A digest of each file in it."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).digest() for path in files}


def _life(spec: dict[str, Any], **life: Any) -> dict[str, Any]:
    through: dict[str, Any] = {
        "stop_after": None,
        "stop_inside": 0,
        "checkpoint_dir": None,
        "save_after": [],
        "resume_from": None,
    }
    return {**(as_resumed(spec) if "resume_from" in life else spec), "life": {**through, **life}}
