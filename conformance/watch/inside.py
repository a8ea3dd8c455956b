"""Watches the training in a block of Python code, for the user's own tests."""

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
    """The training in a block is judged DOES NOT CONFORM or UNDECIDED. `str()` is the report."""


@contextmanager
def watching(expect: Mapping[str, str] | None = None, *, strict: bool = False) -> Iterator[Findings]:
    """Watch the optimizers that step in this block: in this process, and in those that it starts and waits for.

    The yielded findings are complete when the block ends. expect: intended values of properties, such as
    {"ranks": "sum"}. strict: every open row is a failure. Raises NotConforming at the end of the block if the verdict
    is not CONFORMS, unless the block itself raised. Raises ValueError for an unknown property or value.
    """
    expected = dict(stated(f"{name}={value}") for name, value in (expect or {}).items())
    judge = Judge()
    with place() as (folder, ledger):
        with recorded(str(folder), Settings()) as recording, _inherited(str(folder)):
            for optimizer in _made_before():
                recording.optimizer(optimizer)
            yield judge.findings
        # If a test cut the ledger short, the reader says so.
        with suppress(OSError):
            ledger.end()
        is_whole = Reader(folder, judge).finish()
    findings = judge.finish(is_whole=is_whole)
    of = outcome(findings, expected)
    if of.verdict != "CONFORMS" or (strict and of.open):
        raise NotConforming("\n".join(lines(findings, expected=expected)))


def _made_before() -> list[torch.optim.Optimizer]:
    """Existing optimizers: their parameters must be seen from the first backward pass on, not from the first step."""
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


@contextmanager
def _inherited(folder: str) -> Iterator[None]:
    """Context in which new processes start with a recorder."""
    before = dict(os.environ)
    added = environment(folder, before)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in added.keys() & before.keys() if added[name] != before[name]})
