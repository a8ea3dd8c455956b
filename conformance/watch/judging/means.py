"""Is a mean over micro-batches or ranks, each of which is a mean over its targets, the mean over all?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.kinds import kinds, may_be_one
from conformance.watch.judging.multiplied import divisors_of, factor_of
from conformance.watch.judging.pool import Pool
from conformance.watch.judging.windows import Window

_DIFFERENT = 0.01
_LITTLE = 0.1
"""By how much a target may weigh more than another one, as where a few pixels of some images have no label."""
_RARELY = 0.5
"""Of all windows: those in which an epoch ends."""

OWN = (
    "micro-batches were divided by numbers of their own, and then by how many there are: if these are their targets, a "
    "target of a small one weighs more"
)

OF_ONE = (
    "micro-batches of one sample count alike, however many targets it has: each sample may be meant to count as one"
)


@dataclass
class _Found:
    """Of an optimizer: in windows of which one micro-batch is smaller and all others alike, as where an epoch ends, or
    in others; of one loader's batches, or not. are_padded: whether all of these are. fed: in the first of them."""

    first: Finding | None = None
    times: int = 0
    are_padded: bool = True
    fed: list[set[tuple[int, ...]]] = field(default_factory=list)


class Means:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._steps: Counter[int] = Counter()
        self._smaller_last: dict[int, tuple[str, int]] = {}
        self._found: dict[tuple[int, bool, bool], _Found] = defaultdict(_Found)
        self._pools: dict[int, Pool] = defaultdict(Pool)

    def judge(self, windows: list[Window]) -> None:
        """What each target weighs in a window: the same, if the mean is one of all."""
        weights = {
            (window.rank, number): factor_of(one) / (one.targets or 1)
            for window in windows
            for number, one in window.backwards.items()
            if one.targets or one.summed
        }
        passes = [one for window in windows for one in window.backwards.values()]
        self._steps[windows[0].optimizer] += 1
        if any(one.ignored for one in passes) and not any(one.batches for one in passes):
            for rows in (rows for window in windows for rows in window.fed):
                self._pools[windows[0].optimizer].add(rows)
        if not weights and any(_have_numbers_of_their_own(window) for window in windows):
            self._findings.undecided(OWN)
        if not weights and (numbers := _numbers_of_ranks(windows)):
            self._findings.note(
                f"each rank divides its loss by a number of its own, from {min(numbers):g} to {max(numbers):g}: the "
                "mean over ranks is one of means over different numbers"
            )
        if len(weights) < len(passes) or len(weights) < 2 or not may_be_one(windows):
            # Losses of other lines are other losses, not other parts of one mean.
            return
        low, high = min(weights.values()), max(weights.values())
        if low <= 0 or high <= low * (1 + _DIFFERENT):
            return
        are_alike = len({one.targets or one.summed for one in passes}) == 1
        within = any(
            max(own) > min(own) * (1 + _DIFFERENT)
            for window in windows
            if (own := [weights[window.rank, number] for number in window.backwards])
        )
        size = f"a target weighs up to {high / low:.3g} times what another one does"
        if are_alike and not within and len({len(window.backwards) for window in windows}) > 1:
            self._findings.note(f"ranks have different numbers of micro-batches, and count alike: {size}")
        if are_alike:
            # Micro-batches that are weighed on purpose.
            return
        if within and not all(_reach_the_same(window) for window in windows):
            self._findings.note(f"losses of several heads are means over different numbers of targets: {size}")
            return
        if not within:
            self._findings.note(f"the mean over ranks is one of means over different numbers of targets: {size}")
            return
        if not any(_is_ragged([one.targets or one.summed for one in window.backwards.values()]) for window in windows):
            says = f"the last micro-batch of a window is smaller, but counts as much: {size}"
            if all(map(_are_batches, windows)):
                self._findings.note(says)
            else:
                said, times = self._smaller_last.get(windows[0].optimizer, (says, 0))
                self._smaller_last[windows[0].optimizer] = said, times + 1
            return
        of_any = any(one.of_any for one in passes)
        if of_any or high <= low * (1 + _LITTLE):
            # An episode or a graph may count as one, however long it is.
            of = "elements" if of_any else "targets"
            self._findings.note(f"micro-batches are means over different numbers of {of}, and count alike: {size}")
            return
        if any(window.fed for window in windows) and all(len(rows) == 1 for one in windows for rows in one.fed):
            self._findings.undecided(OF_ONE)
            return
        first = windows[0]
        sizes = [one.targets or one.summed for one in passes]
        found = Finding(
            "watch/mean-of-all",
            f"micro-batches of {min(sizes)} to {max(sizes)} targets count alike: {size}",
            first.index,
            tuple(window.rank for window in windows),
            next(iter(first.backwards.values())).site,
            f"the largest weight of a target in the update is {high / low:.3g} times the smallest",
            optimizer=first.optimizer,
        )
        is_one = len(kinds(windows)) == 1
        are_batches, is_smaller = (all(map(is_so, windows)) for is_so in (_are_batches, _has_a_smaller_one))
        self._findings.show(found.key, windows)
        if is_one and are_batches and not is_smaller:
            self._findings.add(found)
            return
        kept = self._found[first.optimizer, is_smaller, is_one and are_batches]
        kept.first, kept.times = kept.first or found, kept.times + 1
        kept.are_padded &= is_one and all(map(_are_padded, windows))
        kept.fed = kept.fed or [window.fed for window in windows]

    def finish(self) -> None:
        for optimizer, (says, times) in self._smaller_last.items():
            # Chunks of a batch are no ends of epochs.
            if times > _RARELY * self._steps[optimizer]:
                self._findings.undecided(says, times)
            else:
                self._findings.note(says)
        for (optimizer, is_smaller, are_batches), of in self._found.items():
            assert of.first is not None
            if is_smaller and of.times <= _RARELY * self._steps[optimizer]:
                self._findings.note(f"the last batch of an epoch is smaller, but counts as much: {of.first.effect}")
            elif are_batches or (of.are_padded and all(map(self._pools[optimizer].are_linked, of.fed))):
                self._findings.add(of.first, count=of.times)
            else:
                self._findings.undecided(f"{of.first.says}, as samples, tasks or groups may be meant to", of.times)


def _reach_the_same(window: Window) -> bool:
    """Whether all passes reach the same parameters, which losses of several heads do not."""
    reached = {
        frozenset(
            number for number, of_parameter in window.new.items() if any(one.backward == n for one in of_parameter)
        )
        for n in window.backwards
    }
    return len(reached) == 1


def _have_numbers_of_their_own(window: Window) -> bool:
    """Whether losses of one kind were divided by how many there are, and each by a number of its own before."""
    passes = [*window.backwards.values()]
    divisors = [divisors_of(one) for one in passes]
    own = {of_one[-1] for of_one in divisors if len(of_one) > 1 and of_one[0] == len(passes)}
    is_one_kind = len(kinds([window])) == 1
    return is_one_kind and len(own) > 1 and all(len(of_one) == 2 for of_one in divisors)


def _numbers_of_ranks(windows: list[Window]) -> set[float]:
    """What ranks divide their losses by first, where these are of one kind, and it is another number on each."""
    firsts = [
        {divisors[-1] for one in window.backwards.values() if (divisors := divisors_of(one))} for window in windows
    ]
    numbers = set[float]().union(*firsts)
    are_own = len(windows) > 1 and all(len(of_rank) == 1 for of_rank in firsts) and len(kinds(windows)) == 1
    return numbers if are_own and len(numbers) > 1 and min(numbers) > 0 else set()


def _are_batches(window: Window) -> bool:
    """Whether each is one batch of one loader, of several samples, as groups of a batch, batches of several data sets
    and tasks are not."""
    passes = window.backwards.values()
    loaders, batches = {one.loader for one in passes if one.batches}, sum(one.batches for one in passes)
    return batches >= len(passes) and len(loaders) == 1 and None not in loaders and not any(one.draws for one in passes)


def _are_padded(window: Window) -> bool:
    """Whether no loader gave them, and they are padded to one size."""
    passes = window.backwards.values()
    sizes = {(one.targets or one.summed) + one.ignored for one in passes}
    return len(sizes) == 1 and any(one.ignored for one in passes) and not any(one.batches for one in passes)


def _has_a_smaller_one(window: Window) -> bool:
    """Whether its micro-batches are of one size, but for one of them, wherever an epoch ends within it."""
    sizes = Counter(one.targets or one.summed for one in window.backwards.values())
    return len(sizes) == 1 or (len(sizes) == 2 and sizes[min(sizes)] == 1)


def _is_ragged(targets: list[int]) -> bool:
    """Whether they differ in another way than by a smaller last batch of the data."""
    *before, last = targets
    return len({*before}) > 1 or last > max(before, default=last)
