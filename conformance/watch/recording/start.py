"""Starts the recorder of a process."""

from __future__ import annotations

import atexit
import os
from contextlib import AbstractContextManager, ExitStack

from conformance.trace.seams.guarding import failures, harmless
from conformance.watch import records
from conformance.watch.recording import (
    backward,
    clearing,
    clipping,
    groups,
    inputs,
    leaves,
    scaling,
    schedules,
    steps,
)
from conformance.watch.recording.recording import Recording

_open = ExitStack()
"""Until the process ends."""


def start(folder: str) -> None:
    """Record what this process does, in a file of this folder. In a process that is forked, again from the start."""
    recording = Recording(folder)
    _begin(recording)
    atexit.register(harmless(lambda: _end(_current[-1]), __name__))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=harmless(lambda: _again(folder), __name__))


_current: list[Recording] = []


def _begin(recording: Recording) -> None:
    def failed(observer: str, error: Exception) -> None:
        recording.note(records.Failed(observer.rpartition(".")[2], f"{type(error).__name__}: {error}"))

    _current[:] = [recording]
    _open.enter_context(failures.reported_to(failed))
    at_leaves, fed = leaves.Leaves(recording), inputs.Inputs(recording)
    for name, seams in {
        "leaves": lambda: leaves.observe(recording, at_leaves),
        "inputs": lambda: inputs.observe(recording, fed),
        "backward": lambda: backward.observe(recording, at_leaves, fed),
        "steps": lambda: steps.observe(recording),
        "clearing": lambda: clearing.observe(recording),
        "clipping": lambda: clipping.observe(recording),
        "scaling": lambda: scaling.observe(recording),
        "schedules": lambda: schedules.observe(recording),
        "groups": lambda: groups.observe(recording),
    }.items():
        harmless(lambda seams=seams: _enter(seams()), f"{__package__}.{name}")()


def _enter(seams: object) -> None:
    for seam in seams:  # type: ignore[attr-defined]
        assert isinstance(seam, AbstractContextManager)
        _open.enter_context(seam)


def _again(folder: str) -> None:
    _open.close()
    _begin(Recording(folder))


def _end(recording: Recording) -> None:
    recording.note(records.Ended())
    recording.flush()
