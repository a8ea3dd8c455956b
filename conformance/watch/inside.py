"""Watches what this process, and those that it starts, do within a block, for a test of one's own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.judge import Judge
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.report.digest import lines
from conformance.watch.verdict import outcome, stated
from conformance.watch.watching import environment, place


class NotConforming(AssertionError):
    """What a block did does not conform, or is undecided. `str()` is the report."""


@contextmanager
def watching(expect: Mapping[str, str] | None = None, *, strict: bool = False) -> Iterator[Findings]:
    """Watch the optimizers that step in this block: in this process, and in those that it starts and waits for.

    What was found is in the result when the block is left. expect: values of properties, such as {"ranks": "sum"}.
    strict: each open row is a failure. Raises NotConforming there if it does not conform or is undecided, unless the
    block itself raised. Raises ValueError for an expectation that there is not.
    """
    expected = dict(stated(f"{name}={value}") for name, value in (expect or {}).items())
    judge = Judge()
    with place() as (folder, ledger):
        with recorded(str(folder), Settings()) as recording, _inherited(str(folder)):
            for optimizer in _made_before():
                recording.optimizer(optimizer)
            yield judge.findings
        # Where a test has cut it short, the reader says so.
        with suppress(OSError):
            ledger.end()
        is_whole = Reader(folder, judge).finish()
    findings = judge.finish(is_whole=is_whole)
    of = outcome(findings, expected)
    if of.verdict != "CONFORMS" or (strict and of.open):
        raise NotConforming("\n".join(lines(findings, expected=expected)))


def _made_before() -> list[torch.optim.Optimizer]:
    """Those that exist: what they hold is to be seen from the first backward pass on, not only from the first step."""
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


@contextmanager
def _inherited(folder: str) -> Iterator[None]:
    """Within this, processes that are started have a recorder."""
    before = dict(os.environ)
    added = environment(folder, before)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in added.keys() & before.keys() if added[name] != before[name]})
