"""Finds gradients that are cleared before a step uses them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conformance.watch import records
from conformance.watch.judging.findings import Cause, Finding, Findings, said
from conformance.watch.judging.multiplied import divisors_of
from conformance.watch.judging.stream import Stream
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
    gradients of a parameter since its last step. first: the first pass that was cleared. cleared: how many were.
    is_by_hand: whether the script clears by hand, or weights changed between passes that it cleared. turns: how often
    an optimizer's schedule stepped after another backward pass. seen: how many passes there were then."""

    waiting: list[Cleared] = field(default_factory=list)
    emptied: dict[int, records.Site] = field(default_factory=dict)
    first: Cleared | None = None
    cleared: int = 0
    is_by_hand: bool = False
    turns: Counter[int] = field(default_factory=Counter)
    seen: dict[int, int] = field(default_factory=dict)


class Discarded:
    """Judges the processes of one launch. passes: how many were cleared before steps that used the rest alone. windows:
    how many steps these are. counts: for each optimizer how many steps follow how many cleared passes. calls: those
    that losses came from whose gradients were used. without: for each rank and optimizer the lines that cleared the
    gradients of steps which then found none."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
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
            case records.Scheduled() if stream.clock > of.seen.get(record.optimizer, 0):
                of.turns[record.optimizer] += 1
                of.seen[record.optimizer] = stream.clock

    def take(self, cleared: Cleared) -> None:
        of = self._of[cleared.rank]
        of.waiting.append(cleared)
        del of.waiting[:-_MOST]
        of.first = of.first or cleared
        of.cleared += 1
        of.is_by_hand |= cleared.site is None or cleared.backward.versions != of.first.backward.versions

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

    def finish(self, streams: Mapping[int, Stream], *, is_whole: bool) -> None:
        """All processes have ended. is_whole: by themselves."""
        self._judge_lines(streams)
        for rank, stream in streams.items() if is_whole else ():
            self._judge_never(rank, stream)

    def _judge_lines(self, streams: Mapping[int, Stream]) -> None:
        concerned = [optimizer for optimizer, counts in self._counts.items() if any(counts)]
        if not self._passes:
            return
        steps = sum(stream.steps.get(one, 0) for stream in streams.values() for one in concerned)
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

    def _judge_never(self, rank: int, stream: Stream) -> None:
        """Finds a training without steps: a schedule steps between backward passes whose gradients are all cleared, by
        calls, while the weights stay the same. Gradients that are computed for their own sake, as for a Fisher
        information, need no schedule."""
        of = self._of[rank]
        [(optimizer, turns)] = of.turns.most_common(1) or [(0, 0)]
        if stream.steps or stream.skips or min(turns, of.cleared) < _SEVERAL or of.first is None or of.is_by_hand:
            return
        known = stream.clock - of.first.backward.backward + 1
        if known <= of.cleared + len(stream.pending(stream.ever)):
            says, effect = said("used.no-step", turns=turns), said("used.lost", passes=stream.clock)
            self._findings.add(Finding("watch/used", says, 0, (rank,), of.first.site, effect, optimizer))


def _is_share(one: Cleared, window: Window) -> bool:
    """Whether all losses are divided by how many passes the window has with those that were cleared. Where batches came
    without a backward pass, the script may leave out what looks wrong to it."""
    number, passes = window.lost + len(window.backwards), (one.backward, *window.backwards.values())
    return all(divisors_of(backward) == [number] and backward.batches == 1 for backward in passes)
