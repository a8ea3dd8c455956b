"""Gradients of other windows: those that are cleared before a step uses them, and backward passes of another line or
mode that a step uses as well."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Cause, Finding, Findings, said
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.targets import divisors_of, factor_of, kinds
from conformance.watch.judging.windows import Cleared, Window

_SEVERAL = 2
_OFTEN = 0.5
"""A script that clears passes before a smaller share of its steps may leave out the short windows of short epochs."""
_REGULAR = 0.75
"""A script that leaves out gradients by what they are clears other numbers of passes before a larger share of steps."""
_MOST = 1000
"""Passes that were cleared and wait for the next step of their parameters."""


@dataclass
class _Line:
    """What a line of a rank has cleared. shares: passes whose losses are divided by the number of passes that the
    window has with them. whole: these, and others of the kind of the step's, at least as many as it used. calls: those
    that the losses came from."""

    first: Cleared
    shares: int = 0
    whole: int = 0
    calls: set[int] = field(default_factory=set)


class Discarded(Chapter):
    """Gradients that are cleared before a step uses them.

    waiting: by rank, what was cleared and concerns no step yet. emptied: by rank and parameter, the line that cleared
    its unused gradients since its last step. counts: for each optimizer, how many steps follow how many cleared passes.
    calls: those that losses came from whose gradients were used. without: for each rank and optimizer, the lines that
    cleared the gradients of steps which then found none."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._waiting: dict[int, list[Cleared]] = defaultdict(list)
        self._emptied: dict[tuple[int, int], records.Site] = {}
        self._lines: dict[tuple[int, str], _Line] = {}
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._calls: set[int] = set()
        self._without: dict[tuple[int, int | None], list[records.Site]] = defaultdict(list)

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        """Takes a record that the stream has not seen yet."""
        if isinstance(record, records.Cleared) and record.site is not None:
            for number in record.parameters:
                if stream.has_pending(number):
                    self._emptied[rank, number] = record.site

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        self._waiting[rank] = [*self._waiting[rank], *stream.cleared][-_MOST:]

    def see(self, window: Window) -> None:
        if window.step is None:
            return
        sites = [self._emptied.pop((window.rank, number), None) for number in window.step.parameters]
        site = next((site for site in sites if site is not None), None)
        if site is not None and not window.step.used:
            self._without[window.rank, window.optimizer].append(site)

    def sort(self, windows: Sequence[Window], *, is_known: bool) -> None:
        """Assigns what was cleared to the next step. is_known: these steps are known to use the rest alone. Otherwise
        the script may have kept what it cleared, and used it by hand."""
        for window in windows:
            held = set() if window.step is None else {*window.step.parameters}
            waiting = self._waiting[window.rank]
            before = [one for one in waiting if one.at <= window.at and one.parameters & held]
            self._waiting[window.rank] = [one for one in waiting if one not in before]
            window.lost = len(before)
            if is_known and window.backwards:
                self._count(before, window)
            self._calls |= {one.calls for one in window.backwards.values()}

    def _count(self, before: Sequence[Cleared], window: Window) -> None:
        self._counts[window.optimizer][window.lost] += 1
        together = Counter(one.at for one in before)
        for one in before:
            line = self._lines.setdefault((one.rank, str(one.site or one.backward.site)), _Line(one))
            is_share = _is_share(one, window)
            is_alike = one.fed not in window.fed and window.has_part(one.backward)
            line.shares += is_share
            line.whole += is_share or (is_alike and together[one.at] >= len(window.backwards))
            line.calls.add(one.backward.calls)

    def finish(self, end: End) -> None:
        concerned = [optimizer for optimizer, counts in self._counts.items() if any(counts)]
        if not concerned:
            return
        steps = sum(stream.steps.get(one, 0) for stream in end.streams.values() for one in concerned)
        counts = sum((self._counts[one] for one in concerned), Counter[int]())
        is_regular = max(times for count, times in counts.items() if count) >= _REGULAR * counts.total()
        is_often = sum(line.whole for line in self._lines.values()) >= max(_SEVERAL, _OFTEN * steps)
        # Losses of other lines are those that the script only looks at the gradients of.
        is_of_training = any(line.calls & self._calls for line in self._lines.values())
        for (rank, _), line in self._lines.items():
            passes = line.whole if is_often and is_regular and is_of_training else line.shares
            if passes:
                site = line.first.site or line.first.backward.site
                says, effect = said("used.cleared-before", passes=passes, steps=steps), said("used.lost", passes=passes)
                finding = Finding("watch/used", says, line.first.after_steps, (rank,), site, effect)
                self._findings.add(finding, count=passes)
        first = next(iter(self._lines.values())).first
        lost, windows = sum(count * times for count, times in counts.items()), counts.total() - counts[0]
        says = said("clearing.discarded", passes=lost, windows=windows, steps=steps)
        self._findings.leave_open(says, lost, first.after_steps, first.site or first.backward.site)

    def name_lines(self) -> None:
        """Blames the line that cleared gradients after the backward pass for the steps that found none."""
        for key, cause in [*self._findings.causes.items()]:
            first = cause.first
            sites = [site for rank in cause.ranks for site in self._without[rank, first.optimizer]]
            if first.law == "watch/has-gradient" and len(sites) >= cause.count:
                says = said("used.step-without", steps=cause.count)
                found = replace(first, law="watch/used", says=says, site=sites[0])
                del self._findings.causes[key]
                self._findings.causes[found.key] = Cause(found, cause.ranks, cause.count)
                if key in self._findings.scenes:
                    self._findings.scenes[found.key] = self._findings.scenes.pop(key)


def _is_share(one: Cleared, window: Window) -> bool:
    """Whether all losses are divided by how many passes the window has with those that were cleared. Where batches came
    without a backward pass, the script may leave out what looks wrong to it."""
    number, passes = window.lost + len(window.backwards), (one.backward, *window.backwards.values())
    return all(divisors_of(backward) == [number] and backward.batches == 1 for backward in passes)


_EVALUATIONS = 2
"""Windows that begin with an evaluation."""


@dataclass
class _Passes:
    """The windows of an optimizer on a rank. others: by the line that a window ends with, how many have a pass of
    another line or of an evaluation, and how many have none. begins: whether the first had one. taken: how many have a
    pass that another optimizer has stepped on. alone, factor: how many have one pass, and what multiplies the loss of
    the first of these; several: how many have more passes of this factor. first: the first step that uses another pass,
    and its line.
    """

    steps: int = 0
    others: dict[int, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    begins: dict[int, bool] = field(default_factory=dict)
    taken: int = 0
    alone: int = 0
    several: int = 0
    factor: float | None = None
    first: tuple[int, records.Site] | None = None

    def see(self, window: Window) -> None:
        passes = [window.backwards[number] for number in sorted(window.backwards)]
        first, factor = passes[0], self.factor
        last = next((one for one in reversed(passes) if not one.evaluates), passes[-1])
        evaluation = next((one for one in passes if one.evaluates != last.evaluates), None)
        is_other = evaluation is not None or (first.calls != last.calls and len(kinds([window])) > 1)
        if len(passes) == 1:
            self.alone += 1
            self.factor = factor_of(first) if factor is None else factor
        is_more = len(passes) > 1 and all(_are_alike(one, first, factor) for one in passes)
        is_taken = _are_taken(window, passes)
        self.steps, self.taken, self.several = self.steps + 1, self.taken + is_taken, self.several + is_more
        self.others[last.calls][is_other] += 1
        self.begins.setdefault(last.calls, is_other)
        if is_other or is_taken or is_more:
            self.first = self.first or (window.index, (evaluation or first).site)

    @property
    def count(self) -> int:
        """How many use other passes than most do, or all but the first of a run, which each take up what the one before
        has left."""
        few = [
            of[True]
            for line, of in self.others.items()
            if of[True] <= of[False] or (of[False] == 1 and not self.begins[line])
        ]
        return sum(few) or self.taken or (self.several if 2 * self.alone > self.steps else 0)


@dataclass
class _Evaluations:
    """Steps of an optimizer on a rank that begin with passes of an evaluation. at_others, of_used: how many of these
    are at weights that the training does not see, or of what the window before has trained on. fed: what that is."""

    steps: int = 0
    count: int = 0
    at_others: int = 0
    of_used: int = 0
    fed: set[tuple[int, ...]] = field(default_factory=set)
    first: Finding | None = None

    def see(self, window: Window) -> None:
        passes = [window.backwards[number] for number in sorted(window.backwards)]
        evaluations = [one for one in passes if one.evaluates]
        rest = passes[len(evaluations) :]
        self.steps += 1
        if evaluations and rest and not any(one.evaluates for one in rest):
            self.count += 1
            self.at_others += window.version(evaluations[-1]) != window.version(rest[0])
            self.of_used += {tuple(one.evaluated) for one in evaluations} <= self.fed - window.fed
            effect = said("passes.evaluated-of", passes=len(evaluations), all=len(passes))
            of = frozenset((window.rank, one.backward) for one in evaluations)
            at = window.index, (window.rank,), window.site, effect, window.optimizer, of
            self.first = self.first or Finding("watch/cleared", said("passes.evaluated"), *at)
        self.fed = window.fed

    @property
    def are_left(self) -> bool:
        """Whether they are known not to belong to the steps: a penalty that comes now and then is at the weights that
        are trained, of what the window trains on."""
        is_seldom = self.steps >= 2 * self.count >= 2 * _EVALUATIONS
        return is_seldom and self.count in (self.at_others, self.of_used)


class OtherPasses(Chapter):
    """Sees the steps of all ranks that are known to use all their passes."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[tuple[int, int], tuple[_Passes, _Evaluations]] = defaultdict(lambda: (_Passes(), _Evaluations()))

    @property
    def accuses(self) -> bool:
        return any(evaluations.are_left for _, evaluations in self._of.values())

    def judge_right(self, together: Together) -> None:
        for window in together.here:
            if window.step is not None and not window.step.closure and window.backwards:
                passes, evaluations = self._of[window.optimizer, window.rank]
                passes.see(window)
                evaluations.see(window)
                if evaluations.first is not None:
                    self._findings.show(evaluations.first.key, together.here)

    def finish(self, end: End) -> None:
        for passes, evaluations in self._of.values():
            count = passes.count
            if evaluations.are_left and evaluations.first is not None:
                self._findings.add(evaluations.first, count=evaluations.count)
            elif count and passes.first is not None:
                step, site = passes.first
                at = "" if site is None else f"{site[0]}:{site[1]}"
                says = said("clearing.other-passes", count=count, steps=passes.steps, at=at)
                self._findings.leave_open(says, count, step, site)


def _are_alike(one: records.Backward, other: records.Backward, factor: float | None) -> bool:
    return one.calls == other.calls and factor is not None and isclose(factor_of(one), factor, rel_tol=1e-6)


def _are_taken(window: Window, passes: Sequence[records.Backward]) -> bool:
    """Whether another optimizer has stepped on one of its passes before the last one came."""
    last = passes[-1].versions
    return any(
        one.versions.get(str(other)) != last.get(str(other))
        for one in passes[:-1]
        for other in window.users.get(one.backward, ())
    )
