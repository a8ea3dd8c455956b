"""Gradients of other windows: those that are cleared before a step uses them, and backward passes of another line or
mode that a step uses as well."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """Describes what a line of a rank has cleared. shares: passes whose losses are divided by the number of passes that
    the window has with them. whole: these, and others of the kind of the step's, at least as many as it used. calls:
    those that the losses came from."""

    first: Cleared
    shares: int = 0
    whole: int = 0
    calls: set[int] = field(default_factory=set)


@dataclass
class _Rank:
    """Describes a process. waiting: what was cleared and concerns no step yet. emptied: the lines that cleared unused
    gradients of a parameter since its last step."""

    waiting: list[Cleared] = field(default_factory=list)
    emptied: dict[int, records.Site] = field(default_factory=dict)


class Discarded(Chapter):
    """Judges the processes of one launch. passes: how many were cleared before steps that used the rest alone. windows:
    how many steps these are. counts: for each optimizer how many steps follow how many cleared passes. calls: those
    that losses came from whose gradients were used. without: for each rank and optimizer the lines that cleared the
    gradients of steps which then found none."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[int, _Rank] = defaultdict(_Rank)
        self._lines: dict[tuple[int, str], _Line] = {}
        self._passes = self._windows = 0
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._calls: set[int] = set()
        self._without: dict[tuple[int, int | None], list[records.Site]] = defaultdict(list)

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        """Takes a record that the stream has not seen yet."""
        of = self._of[rank]
        match record:
            case records.Cleared() if record.site is not None:
                for number in record.parameters:
                    if stream.pending({number}):
                        of.emptied[number] = record.site

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        of = self._of[rank]
        of.waiting += stream.cleared
        del of.waiting[:-_MOST]

    def see(self, window: Window) -> None:
        if window.step is None:
            return
        emptied = self._of[window.rank].emptied
        sites = [emptied.pop(number) for number in window.step.parameters if number in emptied]
        if sites and not window.step.used:
            self._without[window.rank, window.optimizer].append(sites[0])

    def sort(self, windows: Sequence[Window], *, is_known: bool) -> None:
        """Assigns what was cleared to the next step. is_known: these steps are known to use the rest alone. Otherwise
        the script may have kept what it cleared, and used it by hand."""
        for window in windows:
            held = set() if window.step is None else {*window.step.parameters}
            of = self._of[window.rank]
            before = [one for one in of.waiting if one.at <= window.at and one.parameters & held]
            of.waiting = [one for one in of.waiting if one not in before]
            window.lost = len({one.backward.backward for one in before})
            if is_known and window.backwards:
                self._count(before, window)
            self._calls |= {one.calls for one in window.backwards.values()}

    def _count(self, before: Sequence[Cleared], window: Window) -> None:
        self._counts[window.optimizer][window.lost] += 1
        self._passes += len(before)
        self._windows += bool(before)
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
        if not self._passes:
            return
        steps = sum(stream.steps.get(one, 0) for stream in end.streams.values() for one in concerned)
        counts = sum((self._counts[one] for one in concerned), Counter[int]())
        is_regular = max(times for count, times in counts.items() if count) >= _REGULAR * counts.total()
        whole = sum(line.whole for line in self._lines.values())
        # Losses of other lines are those that the script only looks at the gradients of.
        is_often = whole >= max(_SEVERAL, _OFTEN * steps) and any(
            line.calls & self._calls for line in self._lines.values()
        )
        for (rank, _), line in self._lines.items():
            passes = line.whole if is_often and is_regular else line.shares
            if passes:
                site = line.first.site or line.first.backward.site
                says = said("used.cleared-before", passes=passes, steps=steps)
                effect = said("used.lost", passes=passes)
                finding = Finding("watch/used", says, line.first.after_steps, (rank,), site, effect)
                self._findings.add(finding, count=passes)
        first = next(iter(self._lines.values())).first
        says = said("clearing.discarded", passes=self._passes, windows=self._windows, steps=steps)
        self._findings.leave_open(says, self._passes, first.after_steps, first.site or first.backward.site)

    def name_lines(self) -> None:
        """Blames the line that cleared gradients after the backward pass for the steps that found none."""
        for key, cause in [*self._findings.causes.items()]:
            first = cause.first
            sites = [site for rank in cause.ranks for site in self._without[rank, first.optimizer]]
            if first.law != "watch/has-gradient" or len(sites) < cause.count:
                continue
            says = said("used.step-without", steps=cause.count)
            found = Finding("watch/used", says, first.step, first.ranks, sites[0], first.effect, first.optimizer)
            del self._findings.causes[key]
            self._findings.causes[found.key] = Cause(found, cause.ranks, cause.count)
            if key in self._findings.scenes:
                self._findings.scenes[found.key] = self._findings.scenes.pop(key)


def _is_share(one: Cleared, window: Window) -> bool:
    """Whether all losses are divided by how many passes the window has with those that were cleared. Where batches came
    without a backward pass, the script may leave out what looks wrong to it."""
    number, passes = window.lost + len(window.backwards), (one.backward, *window.backwards.values())
    return all(divisors_of(backward) == [number] and backward.batches == 1 for backward in passes)


_SEVERAL_PASSES = 2
"""Windows that begin with an evaluation."""


@dataclass
class _Passes:
    """An optimizer of a rank. ends: by the line that windows end with, evaluations aside, how many there are.
    began: how many of them begin in another line, or have an evaluation. lacks: the lines whose first window does not.
    taken: how many windows have a pass that another optimizer has stepped on. alone: how many have one pass.
    factor: of the first one's loss. more: how many windows have several passes of one line, each with this factor.
    first: the step that uses another pass, and where that is.
    evaluations: how many windows begin with some. at_others, of_used: how many of these are at weights that the
    training does not see, or of what the window before has trained on. fed: what that is. evaluated: the first one.
    """

    steps: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    began: Counter[int] = field(default_factory=Counter)
    lacks: set[int] = field(default_factory=set)
    taken: int = 0
    alone: int = 0
    factor: float | None = None
    more: int = 0
    first: dict[str, tuple[int, records.Site]] = field(default_factory=dict)
    evaluations: int = 0
    at_others: int = 0
    of_used: int = 0
    fed: set[tuple[int, ...]] = field(default_factory=set)
    evaluated: Finding | None = None

    @property
    def others(self) -> tuple[str, int]:
        """Why some steps use other passes than most do, and how many: few, or all but the first of a run, which each
        take up what the one before has left."""
        few = 0
        for line, count in self.began.items():
            is_rest = count == self.ends[line] - 1 and line in self.lacks
            few += count if 2 * count <= self.ends[line] or is_rest else 0
        more = self.more if 2 * self.alone > self.steps else 0
        return next(((why, n) for why, n in (("began", few), ("taken", self.taken), ("more", more)) if n), ("", 0))

    @property
    def is_left(self) -> bool:
        """Whether what the evaluations have left is known not to belong to the steps: a penalty that comes now and then
        is at the weights that are trained, of what the window trains on."""
        is_seldom = self.steps >= 2 * self.evaluations >= 2 * _SEVERAL_PASSES
        return is_seldom and self.evaluations in (self.at_others, self.of_used)

    def note(self, why: str, window: Window, backward: records.Backward) -> None:
        self.first.setdefault(why, (window.index, backward.site))


class OtherPasses(Chapter):
    """Sees the steps of all ranks that are known to use all their passes."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[tuple[int, int], _Passes] = defaultdict(_Passes)

    @property
    def accuses(self) -> bool:
        return any(of.is_left for of in self._of.values())

    def judge_right(self, together: Together) -> None:
        windows = together.here
        for window in windows:
            if window.step is not None and not window.step.closure and window.backwards:
                of = self._of[window.optimizer, window.rank]
                _see(of, window)
                is_first = of.evaluated is None
                _see_evaluations(of, window)
                if is_first and of.evaluated is not None:
                    self._findings.show(of.evaluated.key, windows)

    def finish(self, end: End) -> None:
        for of in self._of.values():
            why, count = of.others
            if of.is_left and of.evaluated is not None:
                self._findings.add(of.evaluated, count=of.evaluations)
            elif count:
                step, site = of.first[why]
                at = "" if site is None else f"{site[0]}:{site[1]}"
                says = said("clearing.other-passes", count=count, steps=of.steps, at=at)
                self._findings.leave_open(says, count, step, site)


def _see(of: _Passes, window: Window) -> None:
    passes = [window.backwards[number] for number in sorted(window.backwards)]
    first = passes[0]
    last = next((one for one in reversed(passes) if not one.evaluates), passes[-1])
    evaluation = next((one for one in passes if one.evaluates != last.evaluates), None)
    of.steps += 1
    of.ends[last.calls] += 1
    is_other = first.calls != last.calls and len(kinds([window])) > 1
    if evaluation is not None or is_other:
        of.began[last.calls] += 1
        of.note("began", window, evaluation or first)
    elif of.ends[last.calls] == 1:
        of.lacks.add(last.calls)
    if _are_taken(window, passes):
        of.taken += 1
        of.note("taken", window, first)
    if len(passes) == 1:
        of.alone += 1
        of.factor = factor_of(first) if of.factor is None else of.factor
    elif of.factor is not None and all(
        one.calls == first.calls and isclose(factor_of(one), of.factor, rel_tol=1e-6) for one in passes
    ):
        of.more += 1
        of.note("more", window, first)


def _are_taken(window: Window, passes: Sequence[records.Backward]) -> bool:
    """Whether another optimizer has stepped on one of its passes, and has no part in the last one."""
    last = window.reached.get(passes[-1].backward, set())
    others = {str(other) for one in passes[:-1] for other in window.users.get(one.backward, ())}
    return not others <= last


def _see_evaluations(of: _Passes, window: Window) -> None:
    passes = [window.backwards[number] for number in sorted(window.backwards)]
    evaluations = [one for one in passes if one.evaluates]
    rest = passes[len(evaluations) :]
    if evaluations and rest and not any(one.evaluates for one in rest):
        of.evaluations += 1
        of.at_others += window.version(evaluations[-1]) != window.version(rest[0])
        of.of_used += {tuple(one.evaluated) for one in evaluations} <= of.fed - window.fed
        says = said("passes.evaluated")
        effect = said("passes.evaluated-of", passes=len(evaluations), all=len(passes))
        of_evaluation = frozenset((window.rank, one.backward) for one in evaluations)
        found = (window.index, (window.rank,), window.site, effect, window.optimizer, of_evaluation)
        of.evaluated = of.evaluated or Finding("watch/cleared", says, *found)
    of.fed = window.fed
