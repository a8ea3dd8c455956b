"""Clipping by value changes each element by a factor of its own. What it made of which gradients is recorded, so that a
step can be judged in two parts: what it was given is to be a multiple of what was computed, and what the step used, a
multiple of what it gave back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.watch import records
from conformance.watch.judging.case import AMPLE, Case
from conformance.watch.judging.findings import Finding, said
from conformance.watch.judging.windows import Contribution, Sketch, Window
from conformance.watch.sizes import WIDTH


def undone(case: Case) -> Case | None:
    """The case of a step that used what clipping by value was given; None where there is none, or not one alone, after
    all backward passes, of all these parameters, whose result the step used."""
    window = case.window
    held = {number for number in case.parameters if window.used[number][2]}
    found = [(at, one) for at, one in window.limits if held & {*one.parameters}]
    places = [one.at for number in case.parameters for one in window.new.get(number, [])]
    if len(found) != 1 or not held or found[0][0] < max(places, default=0):
        return None
    [(_, limit)] = found
    is_same_sample = all(
        case.sample(number) == which
        for number, which in zip(limit.parameters, limit.samples, strict=True)
        if number in held
    )
    before, after = _of(limit, limit.before), _of(limit, limit.after)
    if not held <= before.keys() or not is_same_sample or not all(np.isfinite(before[n]).all() for n in held):
        return None
    kept = case.ratio((number, window.used[number], after[number]) for number in sorted(held))
    if kept is None:
        return None
    used = {**window.used, **{number: before[number] for number in held}}
    result = Case(case.together, replace(window, used=used), case.parameters, case.clips)
    result.after, result.is_limited = kept, False
    return result


def before_averaging(case: Case) -> Finding | None:
    """Whether each rank clipped its own gradients, and the step uses the average of what was left."""
    left = [_left(case, other) for other in case.together.here]
    if case.together.ranks < 2 or any(one is None for one in left):
        return None
    factor = case.fits(lambda number: [of[number] for of in left if of is not None and number in of])
    if factor is None or not factor.is_known or not factor.times(case.together.ranks).contains(1):
        return None
    if case.independent < 1 + AMPLE:
        return None
    effect = said("averages-of-clipped", parameters=len(case.parameters))
    return case.finding("watch/one-factor", said("clipped-by-value-then-averaged"), effect, is_of_all_steps=True)


def _left(case: Case, window: Window) -> dict[int, Contribution] | None:
    """What a rank's only clipping by value left of its own gradients, before anything else became of them; None if it
    was not so."""
    own = Case(case.together, window, case.parameters, [])
    limits = [limit for at, limit in window.limits if at > max(window.places, default=0)]
    if len(limits) != 1 or len(window.limits) != 1 or window.step is None:
        return None
    before, after = _of(limits[0], limits[0].before), _of(limits[0], limits[0].after)
    computed = {number: own.own(number) for number in case.parameters if own.own(number)}
    if not computed or not computed.keys() <= before.keys():
        return None
    given = replace(window, used=before)
    of_given = Case(case.together, given, [*computed], [])
    factor = of_given.fits(of_given.own)
    if factor is None or not factor.is_known:
        return None
    return {number: replace(one[-1], sketch=after[number][None], sums=len(one)) for number, one in computed.items()}


def _of(limit: records.Limited, sketches: records.Sketches) -> dict[int, Sketch]:
    return dict(zip(limit.parameters, np.reshape(sketches, (-1, WIDTH)), strict=True))
