"""The order of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from conformance.oracle.faults.catalogue import distributed, fault, has_epochs
from conformance.oracle.faults.stale_weights import has_room_for_other_weights
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Sample


def shuffles(problem: Problem) -> bool:
    return problem.workload.shuffle and problem.in_order and has_room_for_other_weights(problem)


def in_first_order(problem: Problem, window: Window) -> Window:
    """A window as it would be in the first epoch."""
    place = window.index % problem.workload.windows_of_epoch
    windows = problem.windows_of_lives[problem.life_of(window.index)]
    first = next(one for one in windows if one.index == place)
    return replace(first, index=window.index, epoch=window.epoch)


@fault("reads every epoch in the order of the first one, as its sampler is never told the epoch", shuffles, has_epochs)
class EpochNeverSet(Recurrence):
    def read(self) -> Sequence[Window]:
        return [in_first_order(self.problem, window) for window in super().read()]


@fault("deals the samples out to each rank in an order of its own, as by another seed", shuffles, distributed)
class SeededByRank(Recurrence):
    def read(self) -> Sequence[Window]:
        return [self._of_all_seeds(window) for window in super().read()]

    def _of_all_seeds(self, window: Window) -> Window:
        # After a stop, other ranks may read windows from before it.
        layout = next(one for one in self.problem.layouts if one.world_size == window.world_size)
        workload = self.problem.workload
        seeded = [layout.window(workload, window.index, rank) for rank in range(layout.world_size)]
        samples = list[tuple[int, Sample]]()
        for rank, (own, share) in enumerate(zip(seeded, window.shares, strict=True)):
            order = [(own.samples[at], own.batch[at]) for at in chain(*own.shares[rank])]
            # A window that is filled up has more, and one of whole micro-batches alone has fewer.
            asked = list(chain(*share))
            samples += order[: len(asked)]
            samples += [(window.samples[at], window.batch[at]) for at in asked[len(order) :]]
        numbers = iter(range(len(samples)))
        shares = tuple(tuple(tuple(next(numbers) for _ in one) for one in share) for share in window.shares)
        return replace(window, samples=tuple(n for n, _ in samples), batch=tuple(s for _, s in samples), shares=shares)
