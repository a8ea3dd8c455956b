"""Backward passes whose gradients were cleared before any step used them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.multiplied import divisors_of
from conformance.watch.judging.windows import Cleared, Window

_OFTEN = 0.5
"""A script that clears gradients before a step more rarely than this, a step, may leave out windows on purpose, such as
the short one of each short epoch."""

_REGULAR = 0.75

_MOST = 1000
"""Passes that were cleared, and wait for a step of what they were about."""


@dataclass
class _Cause:
    """Of a rank and a line: what was lost there first, and how many backward passes were. is_left_out: whether a batch
    may have come without a backward pass, as one whose loss is not finite."""

    first: Cleared
    count: int = 0
    is_left_out: bool = False


class Lost:
    """Of the processes that train together. known: how many passes were cleared before steps that used the rest alone.
    windows: how many windows these are of. long: those of windows with no fewer passes than the step used; shares:
    those of windows whose losses are divided by the number of both. calls: that their losses came from. concerned: the
    optimizers that hold what was cleared."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: dict[int, list[Cleared]] = defaultdict(list)
        self._known = self._windows = 0
        self._long: dict[tuple[int, str], _Cause] = {}
        self._shares: dict[tuple[int, str], _Cause] = {}
        self._calls: set[int] = set()
        self._concerned: set[int] = set()
        self._used_calls: set[int] = set()
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._of_same_inputs = self._of_other_inputs = 0
        self._of_other_kind = 0

    def take(self, cleared: Cleared) -> None:
        waiting = self._waiting[cleared.rank]
        waiting.append(cleared)
        del waiting[:-_MOST]

    def sort(self, windows: Sequence[Window], *, is_known: bool) -> None:
        """What was cleared before a step is lost where the step is known to have used the rest alone; else the script
        may have kept it, and used it by hand."""
        for window in windows:
            held = set() if window.step is None else {*window.step.parameters}
            waiting = self._waiting[window.rank]
            before = [one for one in waiting if one.at <= window.at and one.parameters & held]
            self._waiting[window.rank] = [one for one in waiting if one not in before]
            window.lost = len({one.backward.backward for one in before})
            if before:
                self._concerned.add(window.optimizer)
            if is_known and window.backwards:
                self._count(before, window)
            self._used_calls |= {one.calls for one in window.backwards.values()}

    def _count(self, before: Sequence[Cleared], window: Window) -> None:
        self._of_same_inputs += sum(one.fed in window.fed for one in before)
        self._of_other_inputs += sum(one.fed not in {None, *window.fed} for one in before if window.fed)
        self._of_other_kind += sum(not window.has_part(one.backward) for one in before)
        self._counts[window.optimizer][window.lost] += 1
        together = Counter(one.at for one in before)
        self._known += len(before)
        self._windows += len(together)
        self._calls |= {one.backward.calls for one in before}
        for one in before:
            at = one.rank, str(one.site or one.backward.site)
            is_share = _is_share(one, window)
            if is_share:
                of = self._shares.setdefault(at, _Cause(one))
                of.count += 1
                of.is_left_out |= any(two.batches != 1 for two in (one.backward, *window.backwards.values()))
            if is_share or together[one.at] >= len(window.backwards):
                self._long.setdefault(at, _Cause(one)).count += 1

    def finish(self, by_optimizer: Mapping[int, int]) -> None:
        """by_optimizer: how many steps each has made, on all ranks.

        The last window of an epoch, which has fewer passes than the others, may be left out on purpose. One that is
        cleared with as many as the step uses is none of these.
        """
        if not self._known:
            return
        steps = sum(by_optimizer[one] for one in self._concerned)
        long = sum(one.count for one in self._long.values())
        # A loss of another line is one that the script only looks at the gradients of.
        alike = not self._used_calls or bool(self._calls & self._used_calls)
        may_be_meant = max(self._of_same_inputs, self._of_other_kind) > _OFTEN * steps
        if alike and _is_often(long, steps) and self._is_regular and not may_be_meant:
            for of in self._long.values():
                self._accuse(of, f"{long} backward passes were cleared before any step used them, for {steps} steps")
        elif self._shares:
            self._judge_shares()
        elif alike and _is_often(long, steps):
            self._findings.undecided(
                "backward passes were cleared before steps: those that look wrong to a script, that go through the "
                "same inputs first, or whose gradients it compares with those of the step, may be"
            )
        elif alike and _is_often(self._windows, steps):
            self._findings.undecided(
                "windows with fewer backward passes than the others were cleared before a step, as those at the end of "
                "epochs may be on purpose"
            )
        elif _is_often(self._windows, steps) and self._is_regular and self._of_other_inputs <= _OFTEN * steps:
            self._findings.undecided(
                "a loss goes backward in a line of its own before each step, and its gradients are cleared: the script "
                "may only look at them"
            )
        else:
            self._findings.note(f"at least {self._known} backward passes were cleared before a step, or only looked at")

    def _judge_shares(self) -> None:
        for of in self._shares.values():
            says = f"{of.count} backward passes were cleared before a step used the others of their windows"
            if of.is_left_out:
                self._findings.undecided(f"{says}: the script may leave out what looks wrong to it")
            else:
                self._accuse(of, says)

    @property
    def _is_regular(self) -> bool:
        """Whether as many are lost before nearly each step. A script that leaves out what looks wrong to it, such as
        gradients that are too long, does so now and then."""
        counts = sum((self._counts[one] for one in self._concerned), Counter[int]())
        often = max((times for count, times in counts.items() if count), default=0)
        return often >= _REGULAR * counts.total()

    def _accuse(self, of: _Cause, says: str) -> None:
        effect = f"the gradients of {of.count} backward passes are in no update"
        ranks, site = (of.first.rank,), of.first.site or of.first.backward.site
        self._findings.add(Finding("watch/used", says, of.first.after_steps, ranks, site, effect), count=of.count)


def _is_share(one: Cleared, window: Window) -> bool:
    """Whether all losses are divided by how many passes the window would have with those that were cleared."""
    number = window.lost + len(window.backwards)
    return all(divisors_of(backward) == [number] for backward in (one.backward, *window.backwards.values()))


def _is_often(count: int, steps: int) -> bool:
    return count >= max(2, _OFTEN * steps)
