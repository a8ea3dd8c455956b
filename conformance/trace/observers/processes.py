"""Processes that the trainer forks, of which nothing is recorded."""

from __future__ import annotations

import os
from collections.abc import Callable

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced


def observe(recording: Recording) -> Seams:
    """Records `os.fork`, which is how Python's multiprocessing starts a process, too."""

    def fork(original: Callable[[], int]) -> int:
        process = original()
        if process:
            recording.note("fork")
        return process

    yield replaced(os, "fork", fork)
