"""What a trainer did where several ways are right, next to what it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.run import Rank, Run
from conformance.results.records import Behaviour
from conformance.trace.events import BackwardBegin, BackwardEnd, Optimizer, ZeroGrad
from conformance.workloads.behaviour import WORDS, Way, is_declared, split

_GO_ON = "let the ranks that have data left go on, as in torch's `Join`"


def observed(ways: Sequence[Way], run: Run, declares: Mapping[str, str]) -> tuple[list[Behaviour], list[str]]:
    """What was done in the run, and what of it was declared otherwise.

    ``ways``: how the numbers read what is open in the case.
    """
    found, against = [], []
    for way in ways:
        may_be = _of_a_dropped_window(run) if way == "last_window=drop" else (way,)
        choice, done = split(may_be[0])
        declared = declares.get(choice)
        found.append(Behaviour(may_be[0], declared))
        if declared is not None and not any(is_declared(one, declared) for one in may_be):
            words = WORDS[may_be[0]]
            instead = _GO_ON if done == "drop" and _has_run_out(run) else words.instead
            instead = f", else {instead}" if instead else ""
            against.append(
                f'the trainer declares {choice}="{declared}", but {words.says}; declare {choice}="{done}" if that is '
                f"meant{instead}"
            )
    return found, against


def _has_run_out(run: Run) -> bool:
    """Whether some ranks have no data for the last window."""
    return run.plan.with_data(int(run.plan.spec["steps"]) - 1) < run.plan.world_size


def _of_a_dropped_window(run: Run) -> tuple[Way, ...]:
    """What dropping the last window may be, with gradients that the end of the run leaves: what shows comes first.

    They are in the way of the next epoch, unless each window or the epoch begins by clearing them.
    """
    left = [rank for rank in run.ranks if _leaves_gradients(rank)]
    if not left or all(map(_clears_first, left)):
        return ("last_window=drop",)
    if any(rank.of(ZeroGrad, before=first) for rank in left for first in rank.of(BackwardBegin)[:1]) or any(
        event.by == "hand" for rank in left for event in rank.of(ZeroGrad)
    ):
        return ("last_window=carry", "last_window=drop")
    return ("last_window=carry",)


def _leaves_gradients(rank: Rank) -> bool:
    """Whether gradients of a window without a step are still there at the end."""
    last = rank.windows[-1] if rank.windows else None
    if last is None or last.step_is_unseen or last.attempts or not last.of(BackwardEnd):
        return False
    held = {parameter for optimizer in rank.of(Optimizer) for parameter in optimizer.trainable}
    cleared = {
        parameter for event in last.of(ZeroGrad, after=last.of(BackwardEnd)[-1]) for parameter in event.parameters
    }
    return not held <= cleared


def _clears_first(rank: Rank) -> bool:
    """Whether the line that cleared gradients before the last window did so before the first one too."""
    begins = [*rank.of(BackwardBegin)[:1], *rank.windows[-1].of(BackwardBegin)[:1]]
    clearings = [rank.of(ZeroGrad, before=begin) for begin in begins]
    return len(clearings) == 2 and any(
        event.where in [one.where for one in clearings[0]] for event in clearings[1][-1:]
    )
