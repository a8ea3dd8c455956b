"""What a trainer did where several ways are right, next to what it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.run import Rank, Run
from conformance.results.records import Behaviour
from conformance.trace.events import AutogradGrad, BackwardBegin, BackwardEnd, Optimizer, ZeroGrad
from conformance.workloads.behaviour import WORDS, Way, declarable, is_declared, split

_GO_ON = "let the ranks that have data left go on, as in torch's `Join`"


def observed(ways: Sequence[Way], run: Run, declares: Mapping[str, str]) -> tuple[list[Behaviour], list[str]]:
    """What was done in the run, and what of it was declared otherwise. Where the run does not show which of several
    ways it was, what the trainer declares is believed.

    ``ways``: how the numbers read what is open in the case.
    """
    found, against, last = [], [], int(run.plan.spec["steps"]) - 1
    for way in ways:
        may_be: tuple[Way, ...] = (way,)
        # Later epochs show what became of the gradients.
        if way == "last_window=drop" and len(run.plan.spec["epochs"]) == 1:
            # The rank that shows the least decides what the trainer may do.
            may_be = max((_left_over(rank, last) for rank in run.ranks), key=_IN_DOUBT.index)
        choice = split(way)[0]
        declared = declares.get(choice)
        done = next((one for one in may_be if declared is not None and is_declared(one, declared)), may_be[0])
        found.append(Behaviour(done, declared))
        if declared is not None and not is_declared(done, declared):
            words = WORDS[done]
            # Some ranks may have no data for the last window.
            has_run_out = split(done)[1] == "drop" and run.plan.with_data(last) < run.plan.world_size
            instead = _GO_ON if has_run_out else words.instead
            meant = " or ".join(f'{choice}="{one}"' for one in declarable(done))
            against.append(
                f'the trainer declares {choice}="{declared}", but {words.says}; declare {meant} if that is meant'
                + (f", else {instead}" if instead else "")
            )
    return found, against


#: What dropping the last window may be, with gradients that the end of the run leaves; what shows comes first.
_DROPS: tuple[Way, ...] = ("last_window=drop",)
_LEAVES: tuple[Way, ...] = ("last_window=carry",)
_LEAVES_OR_DROPS: tuple[Way, ...] = (*_LEAVES, *_DROPS)
_UNSEEN: tuple[Way, ...] = ("last_window=unstepped", *_DROPS, *_LEAVES)
_IN_DOUBT = (_DROPS, _LEAVES, _LEAVES_OR_DROPS, _UNSEEN)


def _left_over(rank: Rank, number: int) -> tuple[Way, ...]:
    """What a rank may have done with the gradients of a last window, of this number, without a step.

    If they are in `.grad` at the end, they are in the way of the next epoch, unless each window or the epoch begins by
    clearing them.
    """
    windows = [window for window in rank.windows if window.has((BackwardEnd, AutogradGrad))]
    last = windows[-1] if windows else None
    if last is None:
        return _UNSEEN
    if last.number != number:
        return _DROPS
    # Gradients that add up in other places than `.grad`: there, each backward finds none.
    later = [backward for window in windows[:-1] for backward in window.backwards[1:]]
    if not last.of(BackwardEnd) or (later and all(one.gradients in ("none", "zero") for one in later)):
        return _UNSEEN
    cleared = last.between(ZeroGrad, after=last.of(BackwardEnd)[-1])
    held = {parameter for optimizer in rank.of(Optimizer) for parameter in optimizer.trainable}
    # Of an optimizer that is none of torch's, require at least the first parameter.
    if (held or {0}) <= {parameter for event in cleared for parameter in event.parameters}:
        return _DROPS
    first = rank.between(ZeroGrad, before=rank.of(BackwardBegin)[0])
    before = [one for begin in rank.windows[-1].of(BackwardBegin)[:1] for one in rank.between(ZeroGrad, before=begin)]
    # The line that cleared gradients before the last window did so before the first one too.
    if any(event.where in [one.where for one in first] for event in before[-1:]):
        return _DROPS
    return _LEAVES_OR_DROPS if first or any(event.by == "hand" for event in rank.of(ZeroGrad)) else _LEAVES
