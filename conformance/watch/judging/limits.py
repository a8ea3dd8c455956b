"""Clipping by value changes each element by a factor of its own. What it made of which gradients is recorded, so that a
step can be judged in two parts: what it was given is to be a multiple of what was computed, and what the step used, a
multiple of what it gave back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.watch import records
from conformance.watch.judging.case import Case
from conformance.watch.judging.windows import Sketch
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


def _of(limit: records.Limited, sketches: records.Sketches) -> dict[int, Sketch]:
    return dict(zip(limit.parameters, np.reshape(sketches, (-1, WIDTH)), strict=True))
