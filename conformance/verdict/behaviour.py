"""What a trainer did where several ways are right, next to what it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.run import Rank, Run, Window
from conformance.results.records import Behaviour
from conformance.trace.events import AutogradGrad, BackwardBegin, BackwardEnd, Optimizer, ZeroGrad
from conformance.workloads.behaviour import WORDS, Way, declarable, is_declared, split

_GO_ON = "let the ranks that have data left go on, as in torch's `Join`"


def observed(ways: Sequence[Way], run: Run, declares: Mapping[str, str]) -> tuple[list[Behaviour], list[str]]:
    """What was done in the run, and what of it was declared otherwise. Where the run does not show which of several
    ways it was, what the trainer declares is believed.

    ``ways``: how the numbers read what is open in the case.
    """
    found, against = [], []
    for way in ways:
        # Later epochs show what became of the gradients.
        is_open = way == "last_window=drop" and len(run.plan.spec["epochs"]) == 1
        may_be = _of_a_dropped_window(run) if is_open else (way,)
        choice = split(way)[0]
        declared = declares.get(choice)
        done = next((one for one in may_be if declared is not None and is_declared(one, declared)), may_be[0])
        found.append(Behaviour(done, declared))
        if declared is not None and not is_declared(done, declared):
            words = WORDS[done]
            instead = _GO_ON if split(done)[1] == "drop" and _has_run_out(run) else words.instead
            instead = f", else {instead}" if instead else ""
            meant = " or ".join(f'{choice}="{one}"' for one in declarable(done))
            against.append(
                f'the trainer declares {choice}="{declared}", but {words.says}; declare {meant} if that is meant'
                f"{instead}"
            )
    return found, against


def _has_run_out(run: Run) -> bool:
    """Whether some ranks have no data for the last window."""
    return run.plan.with_data(_last(run)) < run.plan.world_size


def _last(run: Run) -> int:
    """The number of the last window."""
    return int(run.plan.spec["steps"]) - 1


def _of_a_dropped_window(run: Run) -> tuple[Way, ...]:
    """What dropping the last window may be, with gradients that the end of the run leaves: what shows comes first."""
    found = {_left_over(rank) for rank in run.ranks}
    return next(ways for ways in (_UNSEEN, _LEAVES_OR_DROPS, _LEAVES, _DROPS) if ways in found)


_DROPS: tuple[Way, ...] = ("last_window=drop",)
_LEAVES: tuple[Way, ...] = ("last_window=carry",)
_LEAVES_OR_DROPS: tuple[Way, ...] = (*_LEAVES, *_DROPS)
_UNSEEN: tuple[Way, ...] = ("last_window=unstepped", *_DROPS, *_LEAVES)


def _left_over(rank: Rank) -> tuple[Way, ...]:
    """What a rank may have done with the gradients of a last window without a step.

    If they are in `.grad` at the end, they are in the way of the next epoch, unless each window or the epoch begins by
    clearing them.
    """
    windows = [window for window in rank.windows if _computes(window)]
    last = windows[-1] if windows else None
    if last is None:
        return _UNSEEN
    if last.number != _last(rank.run):
        return _DROPS
    if not last.of(BackwardEnd) or _keeps_elsewhere(windows[:-1]):
        return _UNSEEN
    cleared = last.between(ZeroGrad, after=last.of(BackwardEnd)[-1])
    held = {parameter for optimizer in rank.of(Optimizer) for parameter in optimizer.trainable}
    # Of an optimizer that is none of torch's, require at least the first parameter.
    if (held or {0}) <= {parameter for event in cleared for parameter in event.parameters} or _clears_first(rank):
        return _DROPS
    clearings = rank.of(ZeroGrad)
    if rank.between(ZeroGrad, before=rank.of(BackwardBegin)[0]) or any(event.by == "hand" for event in clearings):
        return _LEAVES_OR_DROPS
    return _LEAVES


def _computes(window: Window) -> bool:
    """Whether gradients were seen to be computed in it."""
    return bool(window.of(BackwardEnd) or window.of(AutogradGrad))


def _keeps_elsewhere(windows: Sequence[Window]) -> bool:
    """Whether the gradients of a window add up in other places than `.grad`, where each backward finds none."""
    later = [backward for window in windows for backward in window.backwards[1:]]
    return bool(later) and all(backward.gradients in ("none", "zero") for backward in later)


def _clears_first(rank: Rank) -> bool:
    """Whether the line that cleared gradients before the last window did so before the first one too."""
    begins = [*rank.of(BackwardBegin)[:1], *rank.windows[-1].of(BackwardBegin)[:1]]
    clearings = [rank.between(ZeroGrad, before=begin) for begin in begins]
    return len(clearings) == 2 and any(
        event.where in [one.where for one in clearings[0]] for event in clearings[1][-1:]
    )
