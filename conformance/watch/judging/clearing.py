"""Detects gradients that are cleared before a step uses them, and steps that also use backward passes of another line
or of an evaluation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isclose

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.targets import divisors_of, near, weight_of
from conformance.watch.judging.windows import Cleared, Window

_SEVERAL = 2
_OFTEN = 0.5
"""Share of steps. Scripts that clear gradients before fewer steps may drop the last, short window of an epoch."""
_REGULAR = 0.75
"""Share of steps after the same number of cleared passes. Scripts that filter gradients by value are less regular."""
_MOST = 1000
"""Limit of cleared passes that wait for the next step of their parameters."""


@dataclass
class _Line:
    """The passes that one line of a rank cleared. shares: those whose losses are divided by the window's length with
    them included. whole: shares, and whole windows of the same kind as the step's. calls: call sites of the losses."""

    first: Cleared
    shares: int = 0
    whole: int = 0
    calls: set[int] = field(default_factory=set)


class Discarded(Chapter):
    """Detects gradients that are cleared before a step uses them.

    waiting: by rank, cleared passes without a step yet. emptied: by rank and parameter, the line that cleared its
    unused gradients since its last step. counts: by optimizer, the number of steps by the number of cleared passes
    before them. passes: by optimizer and rank, the passes of steps and the cleared ones. calls: call sites of losses
    whose gradients were used. without: by rank and optimizer, the lines that cleared all gradients of a step."""

    fed = (records.Cleared,)
    followed = (records.Local, records.Cleared)

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._waiting: dict[int, list[Cleared]] = defaultdict(list)
        self._emptied: dict[tuple[int, int], records.Site] = {}
        self._lines: dict[tuple[int, str], _Line] = {}
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._passes = Counter[tuple[int, int]]()
        self._calls: set[int] = set()
        self._without: dict[tuple[int, int | None], list[records.Site]] = defaultdict(list)

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        assert isinstance(record, records.Cleared)
        if record.site is not None:
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
        if site is not None and not any(sketch[2] for sketch in window.used.values()):
            self._without[window.rank, window.optimizer].append(site)

    def sort(self, windows: Sequence[Window], *, is_known: bool) -> None:
        """Assigns cleared passes to the next step. is_known: these steps are known to use only the remaining passes.
        Otherwise the script may have kept a copy of the cleared gradients and used it."""
        for window in windows:
            held = set() if window.step is None else {*window.step.parameters}
            waiting = self._waiting[window.rank]
            before = [one for one in waiting if one.at <= window.at and one.parameters & held]
            self._waiting[window.rank] = [one for one in waiting if one not in before]
            parts = [one for one in before if one.is_part]
            if is_known and window.backwards and parts:
                lost = sorted({number for one in parts for number in one.parameters & held})
                says = said("clearing.part", parameters=len(lost), names=window.named(lost))
                self._findings.leave_open(says, 1, window.index, parts[0].site or parts[0].backward.site)
            before = [one for one in before if not one.is_part and one.backward.backward not in window.backwards]
            window.lost = len(before)
            if is_known and window.backwards:
                self._count(before, window)
            self._calls |= {one.calls for one in window.passes}

    def _count(self, before: Sequence[Cleared], window: Window) -> None:
        self._counts[window.optimizer][window.lost] += 1
        self._passes[window.optimizer, window.rank] += window.lost + len(window.backwards)
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
        # A script may compute gradients of other losses only to inspect them.
        is_of_training = any(line.calls & self._calls for line in self._lines.values())
        for (rank, _), line in self._lines.items():
            of = sum(self._passes[optimizer, rank] for optimizer in concerned)
            passes = line.whole if is_often and is_regular and is_of_training else line.shares
            if passes:
                site = line.first.site or line.first.backward.site
                says, effect = said("used.cleared-before"), said("used.lost", passes=passes, of=of)
                computed = line.first.backward.site
                finding = Finding("watch/used", says, line.first.after_steps, (rank,), site, effect, backward=computed)
                self._findings.add(finding, count=passes)
        first = next(iter(self._lines.values())).first
        lost, windows = sum(count * times for count, times in counts.items()), counts.total() - counts[0]
        says = said("clearing.discarded", passes=lost, windows=windows, steps=steps)
        self._findings.leave_open(says, windows, first.after_steps, first.site or first.backward.site)

    def name_lines(self) -> None:
        """Blames steps without gradients on the line that cleared them after the backward pass."""
        for key, cause in [*self._findings.causes.items()]:
            first = cause.first
            sites = [site for rank in cause.ranks for site in self._without[rank, first.optimizer]]
            if first.law == "watch/has-gradient" and len(sites) >= cause.count:
                says = said("used.step-without", steps=cause.count)
                found = replace(first, law="watch/used", says=says, site=sites[0])
                del self._findings.causes[key]
                self._findings.causes[found.key] = replace(cause, first=found)
                if key in self._findings.scenes:
                    self._findings.scenes[found.key] = self._findings.scenes.pop(key)


def _is_share(one: Cleared, window: Window) -> bool:
    """Whether all losses are divided by the window's length including the cleared passes. If some batches have no
    backward pass, the script may filter passes on purpose."""
    number, passes = window.lost + len(window.backwards), (one.backward, *window.passes)
    return all(divisors_of(backward) == [number] and backward.batches == 1 for backward in passes)


_EVALUATIONS = 2
"""Least number of windows that begin with an evaluation."""


@dataclass
class _Passes:
    """The windows of an optimizer on a rank. others: by the line of a window's last pass, the number of windows with
    and without a pass of another line or of an evaluation. begins: whether the first of them has one. taken: windows
    with a pass that another optimizer already used. alone: windows of one pass. factor: multiplies the loss of the
    first of these. several: windows with more passes of this factor. first: the first step that uses another pass, and
    the line of that pass. tried: the first window, if its mean does not need the passes of its first line. calls: the
    lines of passes since.
    """

    steps: int = 0
    others: dict[int, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    begins: dict[int, bool] = field(default_factory=dict)
    taken: int = 0
    alone: int = 0
    several: int = 0
    factor: float | None = None
    first: tuple[int, records.Site] | None = None
    tried: Window | None = None
    calls: set[int] = field(default_factory=set)

    def see(self, window: Window) -> None:
        passes = window.passes
        if self.steps or window.index:
            self.calls |= {one.calls for one in passes}
        elif near(weight_of(replace(window, backwards=_since_tries(window))), 1):
            self.tried = window
        first, factor = passes[0], self.factor
        last = next((one for one in reversed(passes) if not one.evaluates), passes[-1])
        evaluation = next((one for one in passes if one.evaluates != last.evaluates), None)
        is_other = evaluation is not None or (first.calls != last.calls and len(window.kinds) > 1)
        if len(passes) == 1:
            self.alone += 1
            self.factor = first.factor if factor is None else factor
        is_more = len(passes) > 1 and all(_are_alike(one, first, factor) for one in passes)
        is_taken = _are_taken(window, passes)
        self.steps, self.taken, self.several = self.steps + 1, self.taken + is_taken, self.several + is_more
        self.others[last.calls][is_other] += 1
        self.begins.setdefault(last.calls, is_other)
        if is_other or is_taken or is_more:
            self.first = self.first or (window.index, (evaluation or first).site)

    def found(self) -> Finding | None:
        """A first try before the training: only the first step uses such a pass, and it needs none."""
        if self.tried is None or self.steps <= _SEVERAL:
            return None
        window, rest = self.tried, _since_tries(self.tried)
        tries = [one for number, one in sorted(window.backwards.items()) if number not in rest]
        if not tries or any(one.calls in self.calls or one.evaluates for one in tries):
            return None
        effect = said("passes.extra", passes=len(tries), all=len(window.backwards))
        found = Finding.of(window, "watch/cleared", said("passes.before"), effect, tries[0].site)
        found.passes = frozenset((window.rank, one.backward) for one in tries)
        return found

    @property
    def count(self) -> int:
        """The number of windows that use other passes than most windows do, or than the first window of the run: each
        of these uses gradients that the previous one left."""
        few = [
            of[True]
            for line, of in self.others.items()
            if of[True] <= of[False] or (of[False] == 1 and not self.begins[line])
        ]
        return sum(few) or self.taken or (self.several if 2 * self.alone > self.steps else 0)


@dataclass
class _Evaluations:
    """The steps of an optimizer on a rank whose window begins with passes of an evaluation. at_others: those at weights
    that the training does not use. of_used: those on inputs of the previous window. fed: these inputs."""

    steps: int = 0
    count: int = 0
    at_others: int = 0
    of_used: int = 0
    fed: set[tuple[int, ...]] = field(default_factory=set)
    first: Finding | None = None

    def see(self, window: Window) -> None:
        passes = window.passes
        evaluations = [one for one in passes if one.evaluates]
        rest = passes[len(evaluations) :]
        self.steps += 1
        if evaluations and rest and not any(one.evaluates for one in rest):
            self.count += 1
            self.at_others += window.version(evaluations[-1]) != window.version(rest[0])
            self.of_used += {tuple(one.evaluated) for one in evaluations} <= self.fed - window.fed
            effect = said("passes.evaluated-of", passes=len(evaluations), all=len(passes))
            self.first = self.first or Finding.of(window, "watch/cleared", said("passes.evaluated"), effect)
            self.first.passes = self.first.passes or frozenset((window.rank, one.backward) for one in evaluations)
        self.fed = window.fed

    @property
    def are_left(self) -> bool:
        """Whether they surely do not belong to the steps. An occasional penalty, in contrast, uses the trained weights
        and the inputs of its own window."""
        is_seldom = self.steps >= 2 * self.count >= 2 * _EVALUATIONS
        return is_seldom and self.count in (self.at_others, self.of_used)


class OtherPasses(Chapter):
    """Detects steps that also use passes of an evaluation or of another line, among steps that use all their passes."""

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
            elif (found := passes.found()) is not None and passes.tried is not None:
                self._findings.add(found, [passes.tried])
            elif count and passes.first is not None:
                step, site = passes.first
                says = said("clearing.other-passes", count=count, steps=passes.steps)
                self._findings.leave_open(says, count, step, site)


def _since_tries(window: Window) -> dict[int, records.Backward]:
    """Its backward passes without those of the first one's line."""
    first = window.backwards[min(window.backwards)]
    return {number: one for number, one in window.backwards.items() if one.calls != first.calls}


def _are_alike(one: records.Backward, other: records.Backward, factor: float | None) -> bool:
    return one.calls == other.calls and factor is not None and isclose(one.factor, factor, rel_tol=1e-6)


def _are_taken(window: Window, passes: Sequence[records.Backward]) -> bool:
    """Whether another optimizer stepped on one of the passes before the last pass."""
    last = passes[-1].versions
    return any(
        one.versions.get(str(other)) != last.get(str(other))
        for one in passes[:-1]
        for other in window.users.get(one.backward, ())
    )
