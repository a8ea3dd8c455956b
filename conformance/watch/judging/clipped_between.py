"""Detects clipping between two backward passes of a window, where the step uses what came before and after it.

A call alone proves nothing: a script may keep what it has so far, clear `.grad` by hand, and add all up at last, as one
that clips each micro-batch for privacy does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.watch.judging.case import Case, Together, factor_of
from conformance.watch.judging.findings import Finding, Said, said
from conformance.watch.judging.kinds import kinds
from conformance.watch.judging.windows import Contribution, Sketch, Window
from conformance.watch.records import Clipped, Limited, Sketches
from conformance.watch.sizes import WIDTH


def judged(together: Together, window: Window) -> Iterator[Finding]:
    """A violation for each clip that changed gradients before the last ones came."""
    for at, clip in window.clips:
        held = parameters_between(window, at, clip)
        is_in_step = _keeps_limited if clip.how == "value" else _keeps_clipped
        if held and (clip.how == "value" or factor_of(clip) < 1) and is_in_step(together, window, held, at):
            last = max(came for came, one in window.clips if {*held} <= {*one.parameters})
            effect = said("clip.clipped-again")
            if later := {one.backward for passes in window.new.values() for one in passes if one.at > last}:
                effect = said("clip.passes-unclipped", passes=len(later), all=len(window.backwards))
            yield found(window, clip, said("clip.between-passes"), effect)


def found(window: Window, clip: Clipped, says: Said, effect: Said) -> Finding:
    law, rank = "watch/clip-whole-window", (window.rank,)
    return Finding(law, says, window.index, rank, clip.site, effect, window.optimizer)


def parameters_between(window: Window, at: int, clip: Clipped) -> list[int]:
    """The parameters that a clip call was given between two of their gradients of one loss."""
    # A penalty that comes last is another loss, which may be left as it is on purpose.
    is_one = len(kinds([window])) == 1
    if not is_one and not _calls(window, at, later=False) & _calls(window, at, later=True):
        return []
    # What is backpropagated to other parameters meanwhile, such as those of a critic, is clipped by itself.
    held = [number for number in clip.parameters if number in window.used and window.used[number][2]]
    return [number for number in held if _is_between(at, window.new.get(number, []))]


def _calls(window: Window, at: int, *, later: bool) -> set[int]:
    """The calls that made the losses whose gradients came before this place in the stream, or later."""
    came = {one.backward for passes in window.new.values() for one in passes if (one.at > at) == later}
    return {window.backwards[number].calls for number in came if number in window.backwards}


def _is_between(at: int, passes: list[Contribution]) -> bool:
    return bool(passes) and passes[0].at < at < passes[-1].at


def _keeps_clipped(together: Together, window: Window, held: list[int], at: int) -> bool:
    """Whether the step uses each gradient times all factors of the clips that came after it, and not each alike."""
    alike = [window.clips_of(number) for number in held]
    case = Case(together, window, [number for number, clips in zip(held, alike, strict=True) if clips == alike[0]], [])

    def in_turns(number: int) -> list[Contribution]:
        return [
            replace(one, sketch=one.sketch * _after(other, number, one.at), sums=one.sums + len(other.clips))
            for other in together.here
            for one in other.new.get(number, [])
        ]

    factor = case.fits(in_turns)
    return factor is not None and factor.is_known and case.fits(case.all) is None


def _after(window: Window, number: int, at: int) -> float:
    result = 1.0
    for came, clip in window.clips:
        if came > at and clip.how == "norm" and number in clip.parameters:
            result *= factor_of(clip)
    return result


def _keeps_limited(together: Together, window: Window, held: list[int], at: int) -> bool:
    """Whether the result of a clip by value is still in `.grad` at the next one, or at the step: the difference is what
    was backpropagated meanwhile."""
    limits = [(came, one) for came, one in window.limits if {*held} <= {*one.parameters}]
    here = next((one for came, one in reversed(limits) if came <= at), None)
    following = next(((came, one) for came, one in limits if came > at), None)
    if here is None or _changes_nothing(here, held):
        return False
    until = window.at if following is None else following[0]
    if any(clip.how == "norm" and at < came < until for came, clip in window.clips):
        return False
    left = _of(here, here.after)
    then = window.used if following is None else _of(following[1], following[1].before)
    held = [number for number in held if any(at < one.at < until for one in window.new.get(number, []))]
    added = {n: np.append((then[n] - left[n])[:2], then[n][2] + left[n][2]) for n in held}
    case = Case(together, replace(window, used={**window.used, **added}), held, [])

    def of_all(number: int) -> list[Contribution]:
        return [one for one in case.all(number) if at < one.at < until]

    def of_rank(number: int) -> list[Contribution]:
        return [one for one in case.own(number) if at < one.at < until]

    return bool(held) and any((factor := case.fits(of)) is not None and factor.is_known for of in (of_all, of_rank))


def _changes_nothing(limit: Limited, held: list[int]) -> bool:
    """Whether no element was beyond the limit."""
    before, after = _of(limit, limit.before), _of(limit, limit.after)
    return all(np.array_equal(before[number], after[number]) for number in held)


def _of(limit: Limited, sketches: Sketches) -> dict[int, Sketch]:
    return dict(zip(limit.parameters, np.reshape(sketches, (-1, WIDTH)), strict=True))
