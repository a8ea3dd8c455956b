"""The running averages of weights that a trainer keeps where training was stopped and resumed."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.run import Rank, Run
from conformance.trace.events import Average
from conformance.verdict.buffers import Fate


def resumed_averages(runs: Sequence[Run], *, at_epoch: bool) -> Fate:
    """What became of each average of each rank; ``runs``: one for each life. Its first update after the resume must
    find what the last one before the stop has left. Who keeps others after the resume, or none, may mean it, and so
    may who begins one anew now and then, as in each epoch; ``at_epoch``: the resume is at the beginning of one."""
    first, second = runs
    for number, (one, other) in enumerate(zip(first.ranks, second.ranks, strict=True)):
        before, after = _of(one), _of(other)
        if before.keys() != after.keys():
            continue
        for average, updates in before.items():
            last, next_ = updates[-1], after[average][0]
            if next_.updates == 0:
                if at_epoch or len(before) > 1 or any(update.updates == 0 for update in updates[1:]):
                    continue
                return Fate(
                    f"rank {number} begins its average of the weights anew after the resume, where it had "
                    f"{last.updates + 1} updates before the stop: save and load the `state_dict()` of the "
                    "`AveragedModel`"
                )
            if (next_.updates, next_.before) != (last.updates + 1, last.after):
                return Fate(
                    f"rank {number} goes on with another average of the weights after the resume than that of the "
                    "stop: save and load the `state_dict()` of the `AveragedModel`, which counts its updates, too"
                )
    return Fate()


def _of(rank: Rank) -> dict[int, list[Average]]:
    """The updates of each average, in order."""
    found: dict[int, list[Average]] = {}
    for update in rank.of(Average):
        found.setdefault(update.average, []).append(update)
    return found
