"""Checks that learning-rate schedules step after their optimizers, and that the rates let these train."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import floor, inf, log10

from conformance.watch import records
from conformance.watch.judging.chapter import End, OneRank
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

_OFTEN = 3
_LAW = "watch/schedule-after-step"

_AGAIN = 1.5
"""Tolerated steps of a schedule per step of its optimizer, or per step of its horizon: a few more may come before or
after the training."""

_DECADES = 4
"""A rate this many powers of ten below the largest one hardly trains."""


@dataclass
class _Optimizer:
    """An optimizer, its rates and its schedules.

    parameters: its initial ones. made: its schedule. rates: of its first step. keeps_rates: all steps have these.
    still_groups: those with a rate of 0 in all steps, None before the first.
    steps: their number. tries: steps and skips. decades: the number of steps by the power of ten of their largest rate.
    most: the largest rate. still: the last steps with all rates 0, after other rates. scheduled: steps of its
    schedules. counts, latest: the first count by schedule, and the last step, of schedules that count by themselves.
    are_several: at least two of these. early: their steps before the first optimizer step. since, seen: the tries of
    this optimizer, and the steps of all, before the last step of a schedule. alone: steps of schedules since the last
    step of this optimizer, each after a step of another one. first: the first of these that changed rates."""

    parameters: frozenset[int] = frozenset()
    made: records.Schedule | None = None
    rates: set[float | None] = field(default_factory=set)
    keeps_rates: bool = True
    still_groups: set[int] | None = None
    steps: int = 0
    tries: int = 0
    decades: Counter[float] = field(default_factory=Counter)
    most: float = 0.0
    still: int = 0
    scheduled: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    latest: records.Scheduled | None = None
    are_several: bool = False
    early: int = 0
    since: int = 0
    seen: int = 0
    alone: int = 0
    first: records.Scheduled | None = None

    def step(self, step: records.Stepped) -> None:
        largest = max((abs(rate) for rate in step.rates if rate is not None), default=None)
        self.rates = self.rates or {*step.rates}
        self.keeps_rates &= {*step.rates} == self.rates
        still = {group for group, rate in enumerate(step.rates) if rate == 0}
        self.still_groups = still if self.still_groups is None else self.still_groups & still
        if largest is not None:
            self.decades[floor(log10(largest)) if largest else -inf] += 1
            self.most = max(self.most, largest)
        self.still = self.still + 1 if self.most > 0 and not any(step.rates) else 0
        self.steps, self.tries, self.alone, self.first = self.steps + 1, self.tries + 1, 0, None

    def schedule(self, record: records.Scheduled, steps: int) -> None:
        """Takes a step of a schedule. steps: of all optimizers."""
        self.scheduled += 1
        if self.tries == self.since and steps > self.seen:
            self.alone += 1
            self.first = self.first or (record if record.before != record.after else None)
        self.since, self.seen = self.tries, steps
        # A schedule that is given the position of the training has the rate of that position at any time.
        if not record.is_told:
            # Schedules that take turns have their own counts.
            before = self.latest
            self.are_several |= before is not None and (before.name != record.name or before.count >= record.count)
            self.counts.setdefault(record.name, record.count)
            self.latest = record
            self.early += not self.tries

    @property
    def low(self) -> int:
        """The number of steps whose rates are far below the largest one."""
        return sum(count for decade, count in self.decades.items() if decade < max(self.decades) - _DECADES)

    def is_long(self, steps: int) -> bool:
        """Whether this is about half of all steps, and several."""
        return steps >= _OFTEN and 2 * steps + 1 >= self.steps

    @property
    def often(self) -> float:
        """Steps of the latest schedule per step of the optimizer."""
        return 0.0 if self.latest is None else (self.latest.count - self.counts[self.latest.name] + 1) / self.steps

    @property
    def ends_early(self) -> bool:
        """Whether the rate is 0 because a schedule steps more often than the optimizer."""
        return self.often > _AGAIN and self.is_long(self.still)


class Schedules(OneRank):
    """Judges the schedules of one process."""

    fed = (records.Optimizer, records.Schedule, records.Scheduled, records.Skipped, records.Stepped)

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._steps = 0

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        match record:
            case records.Optimizer():
                self._of[record.optimizer].parameters = frozenset(record.parameters)
            case records.Schedule():
                self._of[record.optimizer].made = record
            case records.Scheduled():
                of = self._of[record.optimizer]
                self._findings.seen[Property.SCHEDULE] += of.tries > of.since
                of.schedule(record, self._steps)
            case records.Skipped():
                self._of[record.optimizer].tries += 1
            case records.Stepped():
                self._judge_negative(rank, self._of[record.optimizer], record)
                self._of[record.optimizer].step(record)
                self._steps += 1

    def _judge_negative(self, rank: int, of: _Optimizer, step: records.Stepped) -> None:
        rate = min((rate for rate in step.rates if rate is not None), default=0.0)
        if rate < 0 and not step.is_own:
            is_of_schedule = of.latest is not None and {*of.latest.after} == {*step.rates}
            site = of.latest.site if of.latest is not None and is_of_schedule else step.site
            says, effect = said("rate.negative", rate=rate), said("rate.negative.effect")
            self._findings.add(Finding(_LAW, says, of.tries, (rank,), site, effect, step.optimizer))

    def see(self, window: Window) -> None:
        # Reports schedules that change the rate between the last backward pass and the step.
        if window.step is None or window.step.closure or not window.places:
            return
        since_pass = [(at, one) for at, one in window.schedules if at > min(window.places)]
        for at, one in since_pass:
            # A schedule that follows the loss may step as soon as the loss is known.
            if at > max(window.places) and one.before != one.after and not one.is_told:
                same = [other for _, other in since_pass if (other.name, other.site) == (one.name, one.site)]
                says, effect = said("schedule.before-step", name=one.name), _rates(same[0], one)
                if 1 < len(same) == len({*window.places}):
                    says = said("schedule.each-pass", name=one.name, passes=len(same))
                finding = Finding.of(window, _LAW, says, effect, one.site)
                self._findings.add(finding)
                window.broken.append(finding.key)

    def finish_rank(self, rank: int, stream: Stream, end: End) -> None:
        are_without = any(of.steps >= _OFTEN and of.keeps_rates and not of.scheduled for of in self._of.values())
        for optimizer, of in [*self._of.items()]:
            if of.steps >= _OFTEN:
                self._judge_schedule(rank, optimizer, of)
                if of.are_several and are_without and of.latest is not None:
                    self._findings.leave_open(said("schedule.several", name=of.latest.name), site=of.latest.site)
                self._judge_rates(of)
            if of.alone >= _OFTEN and of.first is not None and end.is_whole:
                self._judge_alone(rank, optimizer, of, of.first, stream)

    def _judge_schedule(self, rank: int, optimizer: int, of: _Optimizer) -> None:
        """Compares the steps of a schedule with those of its optimizer, and with its horizon."""
        if of.made is not None and not of.scheduled and of.keeps_rates:
            rates = sorted(rate for rate in of.rates if rate is not None)
            says = said("schedule.never-steps", name=of.made.name, steps=of.steps, rates=rates)
            self._findings.leave_open(says, site=of.made.site)
        last = of.latest
        if last is None:
            return
        if of.ends_early:
            says = said("schedule.ends-early", name=last.name, often=of.often)
            effect = said("schedule.ends-early.effect", still=of.still, steps=of.steps)
            self._findings.add(Finding(_LAW, says, 0, (rank,), last.site, effect, optimizer))
        elif of.often > _AGAIN:
            self._findings.leave_open(said("schedule.steps-often", name=last.name, often=of.often), site=last.site)
        elif of.early:
            says = said("schedule.before-first-step", name=last.name, times=of.early)
            self._findings.leave_open(says, site=last.site)
        if last.horizon is not None and last.count > _AGAIN * last.horizon:
            says = said("schedule.past-its-end", name=last.name, made_for=last.horizon, times=last.count)
            self._findings.leave_open(says, site=last.site)

    def _judge_rates(self, of: _Optimizer) -> None:
        """Leaves open rates that are zero or very low for many steps."""
        if of.still_groups:
            self._findings.leave_open(said("schedule.zero-rate", steps=of.steps))
        elif of.is_long(of.low) and not of.ends_early:
            self._findings.leave_open(said("schedule.low-rate", low=of.low, steps=of.steps, most=of.most))

    def _judge_alone(self, rank: int, optimizer: int, of: _Optimizer, first: records.Scheduled, stream: Stream) -> None:
        """Reports a schedule of an optimizer that never steps, while another one with the same parameters keeps the
        initial rates of both. An optimizer that only carries a schedule would not have these parameters and rates."""
        for other, steps in self._of.items():
            # The other optimizer may have got further groups later.
            is_of_both = bool(of.parameters) and of.parameters <= stream.held.get(other, frozenset())
            is_made_again = is_of_both and steps.keeps_rates and steps.rates == {*first.base}
            if other != optimizer and is_made_again and not of.steps:
                says = said("schedule.of-another", name=first.name)
                effect = said("schedule.of-another.effect", rate=first.base[0], steps=steps.steps)
                law = "watch/schedule-of-what-steps"
                self._findings.add(Finding(law, says, 0, (rank,), first.site, effect, other))
                return
        self._findings.leave_open(said("schedule.without-steps", name=first.name, times=of.alone), site=first.site)


def _rates(first: records.Scheduled, last: records.Scheduled) -> Said | None:
    both = zip(first.before, last.after, strict=False)
    known = ((old, new) for old, new in both if old is not None and new is not None)
    changed = next(((old, new) for old, new in known if old != new), None)
    return changed and said("schedule.before-step.effect", before=changed[0], after=changed[1])
