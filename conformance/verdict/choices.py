"""Compares a trainer's choices, where several behaviours are valid, with those that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conformance.laws.subjects import Rank, Run
from conformance.results.result_lines import Behaviour
from conformance.trace.events import AutogradGrad, BackwardBegin, BackwardEnd, Optimizer, ZeroGrad
from conformance.workloads.behaviour import WORDS, Way, declarable, is_declared, split

_GO_ON = "let the ranks with data left continue, as torch's `Join` does"


class Against(NamedTuple):
    """A choice that contradicts its declaration, in a sentence, and what to do."""

    says: str
    advice: str


def observed(ways: Sequence[Way], run: Run, declares: Mapping[str, str]) -> tuple[list[Behaviour], list[Against]]:
    """The trainer's choices in the run, and those that contradict its declaration. If the run leaves several choices
    possible, the declared one is taken.

    ``ways``: the choices that the numbers show.
    """
    found, against, last = [], [], int(run.plan.spec["steps"]) - 1
    for way in ways:
        may_be: tuple[Way, ...] = (way,)
        # Later epochs show whether the gradients were carried over.
        if way == "last_window=drop" and len(run.plan.spec["epochs"]) == 1:
            # The rank that shows the least decides.
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
            advice = f"set {meant} if intended" + (f", else {instead}" if instead else "")
            against.append(Against(f'the trainer sets {choice}="{declared}", but {words.says}', advice))
    return found, against


#: The possible meanings of a dropped last window, by the gradients left at the end; visible ones come first.
_DROPS: tuple[Way, ...] = ("last_window=drop",)
_LEAVES: tuple[Way, ...] = ("last_window=carry",)
_LEAVES_OR_DROPS: tuple[Way, ...] = (*_LEAVES, *_DROPS)
_UNSEEN: tuple[Way, ...] = ("last_window=unstepped", *_DROPS, *_LEAVES)
_IN_DOUBT = (_DROPS, _LEAVES, _LEAVES_OR_DROPS, _UNSEEN)


def _left_over(rank: Rank, number: int) -> tuple[Way, ...]:
    """What a rank may have done with the gradients of a last window, of this number, without a step.

    Gradients in `.grad` at the end leak into the next epoch, unless each window or epoch starts by clearing them.
    """
    windows = [window for window in rank.windows if window.has((BackwardEnd, AutogradGrad))]
    last = windows[-1] if windows else None
    if last is None:
        return _UNSEEN
    if last.number != number:
        return _DROPS
    # If each backward finds no gradients, they add up elsewhere than in `.grad`.
    later = [backward for window in windows[:-1] for backward in window.backwards[1:]]
    if not last.of(BackwardEnd) or (later and all(one.gradients in ("none", "zero") for one in later)):
        return _UNSEEN
    cleared = last.between(ZeroGrad, after=last.of(BackwardEnd)[-1])
    held = {parameter for optimizer in rank.of(Optimizer) for parameter in optimizer.trainable}
    # For an optimizer that is not torch's, require at least the first parameter.
    if (held or {0}) <= {parameter for event in cleared for parameter in event.parameters}:
        return _DROPS
    first = rank.between(ZeroGrad, before=rank.of(BackwardBegin)[0])
    before = [one for begin in rank.windows[-1].of(BackwardBegin)[:1] for one in rank.between(ZeroGrad, before=begin)]
    # The line that cleared gradients before the last window also cleared them before the first.
    if any(event.where in [one.where for one in first] for event in before[-1:]):
        return _DROPS
    return _LEAVES_OR_DROPS if first or any(event.by == "hand" for event in rank.of(ZeroGrad)) else _LEAVES
