"""Schedules that go astray: those of optimizers that were made again, and rates that no step has."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.stream import Stream

_OFTEN = 3


@dataclass
class _Optimizer:
    """parameters: those that it was made with. rates: of its first step. keeps_rates: whether all steps have these.
    scheduled: how often a schedule of it has stepped after a step of another one, since it stepped itself. first: the
    first of these that changed its rates. early: how often one went on before the first step; count: how often at all;
    is_first: whether the last step came after the last time. made: a schedule of it. is_own: whether it is no class of
    torch's."""

    parameters: frozenset[int] = frozenset()
    rates: set[float | None] = field(default_factory=set)
    keeps_rates: bool = True
    scheduled: int = 0
    first: records.Scheduled | None = None
    early: int = 0
    count: int = 0
    is_first: bool = False
    made: records.Schedule | None = None
    is_own: bool = False


class Astray:
    """Of one process. stepped: the optimizer that made the last step, until a schedule goes on."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._stepped: int | None = None

    def feed(self, record: records.Record) -> None:
        match record:
            case records.Optimizer():
                self._of[record.optimizer].parameters = frozenset(record.parameters)
            case records.Schedule():
                self._of[record.optimizer].made = record
            case records.Scheduled():
                of, is_after = self._of[record.optimizer], self._stepped not in (None, record.optimizer)
                of.scheduled += is_after
                if is_after and record.before != record.after:
                    of.first = of.first or record
                of.early += not of.rates and not record.is_told
                of.count, of.is_first = of.count + 1, False
                self._stepped = None
            case records.Stepped():
                self._stepped = record.optimizer
                of = self._of[record.optimizer]
                of.is_own |= record.is_own
                of.rates = of.rates or {*record.rates}
                of.keeps_rates &= {*record.rates} == of.rates
                of.scheduled, of.first, of.is_first = 0, None, True

    def finish(self, rank: int, stream: Stream) -> None:
        """The process has ended."""
        for optimizer in stream.steps:
            self._judge_schedules(rank, stream, optimizer)
            of = self._of[optimizer]
            # Who takes a run up again, goes on more often; a scaler may have skipped the first step.
            if of.early == 1 and of.is_first and of.count >= _OFTEN and not stream.skips.get(optimizer):
                self._findings.undecided("a schedule goes on before the first step, whose rate is never used then")
            # One of epochs has no turn in a run of less than one.
            if of.made is not None and not of.count and of.keeps_rates and stream.steps[optimizer] >= _OFTEN:
                where = "" if of.made.site is None else f" ({of.made.site[0]}:{of.made.site[1]})"
                rates = ", ".join(f"{rate:g}" for rate in of.rates if rate is not None)
                self._findings.note(f"{of.made.name}{where} never steps: the learning rate stays {rates}")
            if of.keeps_rates and 0 in of.rates and stream.steps[optimizer] >= _OFTEN:
                if all(one.keeps_rates and one.rates <= {0} and not one.is_own for one in self._of.values()):
                    self._findings.undecided("the learning rate is 0 in all steps, so that these change nothing")
                else:
                    self._findings.note("some parameters have a learning rate of 0 in all steps")

    def _judge_schedules(self, rank: int, stream: Stream, optimizer: int) -> None:
        """Does a schedule go on of an optimizer that does not step, while one that was made of the same parameters, to
        begin with the same rates, keeps these? One that is kept for a schedule of another number has no reason to hold
        what another one steps, at its rates."""
        steps = self._of[optimizer]
        for other, of in self._of.items():
            if of.first is None or of.scheduled < _OFTEN or other == optimizer:
                continue
            # More groups may have come later.
            is_of_both = bool(of.parameters) and of.parameters <= stream.held[optimizer]
            is_kept = is_of_both and steps.keeps_rates and steps.rates == {*of.first.base}
            if is_kept and stream.steps.get(other):
                # A phase of a training may be over.
                self._findings.undecided("a schedule goes on of an optimizer that steps no more")
            elif is_kept:
                says = f"{of.first.name} goes on for an optimizer that never steps: another one steps its parameters"
                effect = f"the learning rate stays {of.first.base[0]:g} in {stream.steps[optimizer]} steps"
                law, site = "watch/schedule-of-what-steps", of.first.site
                self._findings.add(Finding(law, says, 0, (rank,), site, effect, optimizer))
