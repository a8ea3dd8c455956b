"""A case that is stopped and resumed: its ranks run in fresh processes up to the stop, and in other ones from there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from conformance.runner.outcome import Outcome, RunnerError

Run = Callable[[dict[str, Any], float], Outcome]

#: The names of folders for checkpoints begin so.
CHECKPOINTS = "conformance-checkpoints-"


def run_case(run: Run, spec: dict[str, Any], time_limit: float) -> Outcome:
    """Run a case with ``run``, once, or once for each life of one that is resumed. ``time_limit``: of each.

    A life in which a rank fails is the last. Raises RunnerError.
    """
    stop = spec["resumed_at"]
    if stop is None:
        return run(spec, time_limit)
    try:
        folder = tempfile.TemporaryDirectory(prefix=CHECKPOINTS, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunnerError(f"cannot make a folder for checkpoints: {error.strerror}") from error
    with folder as name:
        first = run(_life(spec, stop_after=stop, checkpoint_dir=name), time_limit)
        if not all(rank.finished for rank in first.ranks):
            return first
        return first.followed_by(run(_life(spec, resume_from=name), time_limit))


def _life(spec: dict[str, Any], **life: Any) -> dict[str, Any]:
    return {**spec, "life": {"stop_after": None, "checkpoint_dir": None, "resume_from": None, **life}}
