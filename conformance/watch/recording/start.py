"""Starts the recorder of a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial

from conformance.trace.seams.guarding import CudaGraph, failures, harmless
from conformance.trace.seams.patching import Seams
from conformance.watch.ledger import Ledger
from conformance.watch.recording import (
    adjusting,
    backward,
    exchanges,
    inputs,
    leaves,
    optimizer_steps,
    partitions,
    resumed,
    weights,
)
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.settings import Settings

_process = ExitStack()
"""Keeps the recorder that runs until the process ends."""


def start(folder: str, ledger: Ledger | None = None) -> Callable[[], object]:
    """Starts recording this process into files of this folder. Returns a function to call when the process ends."""
    _process.enter_context(recorded(folder, Settings.of(), ledger))
    return harmless(_process.close, __name__)


_latest: list[Recording] = []


@cache
def _follow_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=harmless(_begin_again, __name__))


def _begin_again() -> None:
    """Replaces the recorder in a forked process: the copy of the parent's recorder must not write."""
    if _latest:
        parents = _latest[-1]
        try:
            parents.abandon()
            parents.stop()
            recording = _process.enter_context(recorded(parents.folder, parents.settings, parents.ledger))
            for optimizer in parents.numbers.alive("optimizer"):
                recording.optimizer(optimizer)
        except Exception:
            # A failure here is not reported anywhere else.
            parents.ledger.note_unlisted()


@contextmanager
def recorded(folder: str, settings: Settings, ledger: Ledger | None = None) -> Iterator[Recording]:
    """Context in which this process is recorded, up to the number of steps in the settings. A forked process gets its
    own recorder. ledger: that of the folder, if it is already mapped."""
    recording = Recording(folder, settings, ledger)
    at_leaves, moving, loaded = leaves.Leaves(recording), weights.Moving(recording), inputs.Loading()
    fed, small, loads = inputs.Inputs(recording, loaded), exchanges.Reduced(recording), resumed.Resumed(recording)
    _follow_forks()
    _latest.append(recording)
    with ExitStack() as stack:

        def failed(observer: str, error: Exception) -> None:
            if isinstance(error, CudaGraph):
                recording.fail("", str(error))
            else:
                recording.fail(observer.rpartition(".")[2], f"{type(error).__name__}: {error}")

        def enter(observe: Callable[[], Seams]) -> None:
            for seam in observe():
                stack.enter_context(seam)

        def stop() -> None:
            at_leaves.disarm()
            stack.close()

        stack.enter_context(failures.reported_to(failed))
        recording.before_writing.append(failures.tell)
        recording.stop = stop
        for observer, observe in (
            (leaves, partial(leaves.observe, recording, at_leaves)),
            (inputs, partial(inputs.observe, recording, fed, loaded)),
            (backward, partial(backward.observe, recording, at_leaves, fed, moving, small)),
            (partitions, partial(partitions.observe, recording)),
            (resumed, partial(resumed.observe, recording, loads)),
            (optimizer_steps, partial(optimizer_steps.observe, recording, loads)),
            (adjusting, partial(adjusting.observe, recording, moving)),
            (exchanges, partial(exchanges.observe, recording, at_leaves, small)),
            (weights, partial(weights.observe, recording)),
        ):
            harmless(enter, observer.__name__)(observe)
        try:
            yield recording
        finally:
            _latest.remove(recording)
            harmless(recording.end, __name__)()
            harmless(at_leaves.disarm, __name__)()
