"""Backward passes whose gradients were cleared before any step used them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Cleared, Window

_OFTEN = 0.5
"""A script that clears gradients before a step more rarely than this, a step, may leave out windows on purpose, such as
the short one of each short epoch."""

_REGULAR = 0.75

_MOST = 1000


class Lost:
    """Of the processes that train together. concerned: the optimizers that hold what was cleared."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: dict[int, list[Cleared]] = defaultdict(list)
        self._known: list[tuple[Cleared, int]] = []
        self._concerned: set[int] = set()
        self._used_calls: set[int] = set()
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._of_same_inputs = 0
        self._of_other_kind = 0

    def take(self, cleared: Cleared) -> None:
        waiting = self._waiting[cleared.rank]
        waiting.append(cleared)
        del waiting[_MOST:]

    def sort(self, windows: Sequence[Window], *, is_known: bool) -> None:
        """What was cleared before a step is lost where the step is known to have used the rest alone; else the script
        may have kept it, and used it by hand."""
        for window in windows:
            held = set() if window.step is None else {*window.step.parameters}
            waiting = self._waiting[window.rank]
            before = [one for one in waiting if one.at <= window.at and one.parameters & held]
            self._waiting[window.rank] = [one for one in waiting if one not in before]
            if before:
                self._concerned.add(window.optimizer)
            if is_known and window.backwards:
                self._of_same_inputs += sum(one.fed in window.fed for one in before)
                self._of_other_kind += sum(not window.has_part(one.backward) for one in before)
                self._known += [(one, len(window.backwards)) for one in before]
                self._counts[window.optimizer][len({one.backward.backward for one in before})] += 1
            self._used_calls |= {one.calls for one in window.backwards.values()}
        del self._known[_MOST:]

    def finish(self, by_optimizer: Mapping[int, int]) -> None:
        """by_optimizer: how many steps each has made, on all ranks.

        The last window of an epoch, which has fewer passes than the others, may be left out on purpose. One that is
        cleared with as many as the step uses is none of these.
        """
        if not self._known:
            return
        steps = sum(by_optimizer[one] for one in self._concerned)
        together: dict[tuple[int, int], int] = defaultdict(int)
        for one, _ in self._known:
            together[one.rank, one.at] += 1
        long = [one for one, used in self._known if together[one.rank, one.at] >= used]
        # A loss of another line is one that the script only looks at the gradients of.
        alike = not self._used_calls or any(one.backward.calls in self._used_calls for one, _ in self._known)
        may_be_meant = max(self._of_same_inputs, self._of_other_kind) > _OFTEN * steps
        if alike and _is_often(len(long), steps) and self._is_regular and not may_be_meant:
            self._accuse(long, steps)
        elif alike and _is_often(len(long), steps):
            self._findings.undecided(
                "backward passes were cleared before steps: those that look wrong to a script, that go through the "
                "same inputs first, or whose gradients it compares with those of the step, may be"
            )
        elif alike and _is_often(len(together), steps):
            self._findings.undecided(
                "windows with fewer backward passes than the others were cleared before a step, as those at the end of "
                "epochs may be on purpose"
            )
        else:
            self._findings.note(
                f"{len(self._known)} backward passes were cleared before a step: windows left out by hand?"
            )

    @property
    def _is_regular(self) -> bool:
        """Whether as many are lost before nearly each step. A script that leaves out what looks wrong to it, such as
        gradients that are too long, does so now and then."""
        counts = sum((self._counts[one] for one in self._concerned), Counter[int]())
        often = max((times for count, times in counts.items() if count), default=0)
        return often >= _REGULAR * counts.total()

    def _accuse(self, lost: Iterable[Cleared], steps: int) -> None:
        lost = list(lost)
        for cleared in lost:
            self._findings.add(
                Finding(
                    "watch/used",
                    f"{len(lost)} backward passes were cleared before any step used them, for {steps} steps",
                    cleared.after_steps,
                    (cleared.rank,),
                    cleared.site or cleared.backward.site,
                    f"the gradients of {len(lost)} backward passes are in no update",
                )
            )


def _is_often(count: int, steps: int) -> bool:
    return count >= max(2, _OFTEN * steps)
