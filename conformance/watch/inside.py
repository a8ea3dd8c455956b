"""Watches the training in a block of Python code, for the user's own tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.report.digest import lines
from conformance.watch.verdict import Expected, Outcome, Verdict, outcome, stated
from conformance.watch.watching import NoRoom, environment, place


class NotConforming(AssertionError):
    """The training in a block is judged DOES NOT CONFORM or UNDECIDED. `str()` is the report."""


@dataclass(frozen=True)
class Watch:
    """The findings on a block, complete once it has ended. `str()` is the report as text; notebooks show a page."""

    findings: Findings
    expected: Expected

    @property
    def outcome(self) -> Outcome:
        return outcome(self.findings, self.expected)

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    def __str__(self) -> str:
        return "\n".join(lines(self.findings, expected=self.expected))

    def _repr_html_(self) -> str:
        # A trainer's process may have another jinja2.
        from conformance.report.html import framed
        from conformance.watch.report.watch_page import page

        return framed(page(self.findings, (), self.expected))


@contextmanager
def watching(expect: Mapping[str, str] | None = None, *, strict: bool = False, check: bool = True) -> Iterator[Watch]:
    """Watch the optimizers that step in this block: in this process, and in those that it starts and waits for. The
    ranks of a process group share one watch if each of them enters the block.

    expect: intended values of properties, such as {"ranks": "sum"}. strict: every open row is a failure. check: raise
    NotConforming at the end of the block if the verdict is not CONFORMS, unless the block itself raised. Raises
    ValueError for an unknown property or value.
    """
    expected = dict(stated(f"{name}={value}") for name, value in (expect or {}).items())
    judge = Judge()
    watch = Watch(judge.findings, expected)
    with _shared() as (folder, ledger):
        with recorded(str(folder), Settings()) as recording, _inherited(str(folder)):
            for optimizer in _made_before():
                recording.optimizer(optimizer)
            yield watch
        _wait()
        # If the block cut the ledger short, the reader says so.
        with suppress(OSError):
            ledger.end()
        is_whole = Reader(folder, judge).finish()
    judge.finish(is_whole=is_whole)
    if check and (watch.verdict != "CONFORMS" or (strict and watch.outcome.open)):
        raise NotConforming(str(watch))


@contextmanager
def _shared() -> Iterator[tuple[Path, Ledger]]:
    """The place for the records of all ranks, or of this process if it has no process group. Raises NoRoom."""
    with ExitStack() as stack:
        if not _has_ranks() or distributed.get_rank() == 0:
            folder, ledger = stack.enter_context(place())
        if _has_ranks():
            name: list[str] = [str(folder) if distributed.get_rank() == 0 else ""]
            distributed.broadcast_object_list(name)
            if distributed.get_rank() != 0:
                folder = Path(name[0])
                try:
                    ledger = Ledger(folder)
                except FileNotFoundError as error:
                    raise NoRoom(f"{folder} of rank 0 is not here; watch ranks of one machine only") from error
        yield folder, ledger
        _wait()


def _has_ranks() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _wait() -> None:
    """Wait for all ranks."""
    if _has_ranks():
        distributed.barrier()


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
