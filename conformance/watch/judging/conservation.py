"""Judges whether a step used what was computed for it: each backward pass of each rank once, with one right factor.

Clipping by value changes each element by a factor of its own. What it made of which gradients is recorded, so a step is
judged in two parts: what it was given is to be a multiple of what was computed, and what the step used, a multiple of
what it gave back.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.watch import records
from conformance.watch.judging import factors, hypotheses
from conformance.watch.judging.case import AMPLE, HOOKS, Case, Together
from conformance.watch.judging.findings import Finding, Findings, Shown, said
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.system import System
from conformance.watch.judging.windows import Contribution, Sketch, Window
from conformance.watch.sizes import WIDTH

_SAME = 1e-4
"""Relative: what the sketches of two ranks may differ by beyond their bounds."""

_COARSE: Shown = (Property.RANKS, "too coarse to tell")
"""What a step shows that is not judged: its factor is not known."""


def judge(together: Together, findings: Findings) -> None:
    """Look at the step of each rank."""
    for window in together.here:
        if (shows := _step(together, window, findings)) is not None:
            findings.judged(*shows)
    _judge_ranks(together, findings)


def _step(together: Together, window: Window, findings: Findings) -> set[Shown] | None:
    """What is not usual in the step of a rank, nothing if it is right; None if there is nothing to judge."""
    step = window.step
    if step is None or step.found_inf or (step.used and not window.used):
        return None
    if not all(np.isfinite(value).all() for value in window.weights.values()):
        return _open(window, findings, "changed.weights")
    if not step.used:
        return _without_gradients(window, findings)
    if not all(np.isfinite(sketch).all() for sketch in window.used.values()):
        # What `order.py` has found.
        return None
    if any(shards == 0 for shards in window.shards.values()):
        return _open(window, findings, "ranks.layout")
    if not window.new and not window.captured:
        return _without_backward(together, window, findings)
    return _gradients(together, window, findings)


def _gradients(together: Together, window: Window, findings: Findings) -> set[Shown] | None:
    of_others = {number for number in window.of_others - window.new.keys() if is_as_it_was(window, number)}
    shows: set[Shown] = set()
    for clips, parameters in _clip_sets(window):
        own = [number for number in parameters if number not in of_others]
        if own:
            case = Case(together, window, own, clips)
            shows |= _set(undone(case) or case, findings)
    if of_others:
        shows |= _open(window, findings, "clearing.shared")
    if _COARSE in shows:
        findings.coarse += 1
        return None
    if not shows:
        # On purpose for an average over disturbed weights; a bug where one should have been cleared.
        if window.saw_several_weights:
            _open(window, findings, "clearing.several-weights")
        if window.is_late:
            _open(window, findings, "clearing.late")
    return shows


def _without_gradients(window: Window, findings: Findings) -> set[Shown] | None:
    step = window.step
    assert step is not None
    if not window.is_computed:
        _open(window, findings, "coverage.unreached")
        return None
    if step.moved or step.closure:
        findings.factors.append((window.rank, None, False))
        return _open(window, findings, "changed.otherwise")
    effect = said("moves-nothing", parameters=len(step.parameters))
    found = _finding(window, "watch/has-gradient", "no-gradient", effect)
    findings.factors.append((window.rank, found, False))
    return None


def _without_backward(together: Together, window: Window, findings: Findings) -> set[Shown]:
    step = window.step
    assert step is not None
    used = [number for number, sketch in window.used.items() if sketch[2]]
    again = bool(used) and all(is_as_it_was(window, number) for number in used)
    if again and together.is_joined:
        # A rank that has run out of data goes on with the steps of the others.
        return _open(window, findings, "ranks.run-out")
    if again and window.is_of_other:
        return _open(window, findings, "clearing.shared")
    if again and step.is_elsewhere:
        return _open(window, findings, "clearing.again")
    if again and not step.closure and window.is_computed:
        found = _finding(window, "watch/fresh", "no-backward", said("moves-twice"))
        findings.add(found)
        return {found.shows}
    if used:
        return _open(window, findings, "changed.by-hand")
    # Horovod and DeepSpeed have an optimizer create its state so.
    return _open(window, findings, "clearing.zeroed") if window.is_computed else set()


def is_as_it_was(window: Window, number: int) -> bool:
    """Whether the step uses the gradient of the last step again, and not one that was put there by hand."""
    old = window.old.get(number, [])
    is_same_sample = all(one.sample == window.sample(number) for one in old)
    if not old or number not in window.used or not is_same_sample:
        return False
    return np.array_equal(sum(one.sketch[0] for one in old), window.used[number])


def _clip_sets(window: Window) -> list[tuple[list[int], list[int]]]:
    """The parameters that were clipped by the same calls, after the numbers of these calls."""
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number in window.used:
        sets[window.clips_of(number)].append(number)
    return [([*clips], parameters) for clips, parameters in sets.items()]


def _set(case: Case, findings: Findings) -> set[Shown]:
    """What is not usual in the gradients of parameters that are clipped together."""
    window = case.window
    if not all(one.is_finite for number in case.parameters for one in case.all(number)):
        return _replaced(case, findings)
    if not any(window.used[number][2] for number in case.parameters):
        if not case.clipped or not any(case.sum(number)[:2].any() for number in case.parameters):
            return set()
        return _open(window, findings, "clearing.zeroed")
    if not case.is_of_one_sample:
        return _open(window, findings, "ranks.sample")
    factor = case.fits(case.all) if any(case.all(number) for number in case.parameters) else None
    if factor is None:
        return _unexplained(case, findings)
    if not factor.is_known:
        return {_COARSE}
    case.remember(factor)
    shows = factors.judge(case, case.kappa(factor), findings)
    if not shows and hypotheses.adds_to_the_last(case):
        effect = said("counts-again", factor=1 / window.scales[0])
        found = case.finding("watch/cleared", said("unscaled-old"), effect)
        findings.add(found)
        return {found.shows}
    return shows


def _unexplained(case: Case, findings: Findings) -> set[Shown]:
    """The gradients are no multiple of the sum of all that was computed."""
    window, together = case.window, case.together
    if case.is_limited:
        early = before_averaging(case)
        if early is None:
            return _open(window, findings, "changed.by-element")
        findings.factors.append((window.rank, early, False))
        return {early.shows}
    unknown = sorted(hook for hook in together.hooks if hook not in HOOKS)
    if unknown:
        return _open(window, findings, "ranks.hook", hooks=unknown)
    if together.is_joined:
        return _open(window, findings, "ranks.run-out")
    found = hypotheses.explain(case, findings)
    if isinstance(found, set):
        return found
    if isinstance(found, System):
        findings.unsolved.append(found)
        return {(window.optimizer, window.rank)}
    if not isinstance(found, Finding):
        findings.factors.append((window.rank, None, False))
        findings.leave_open(found, step=window.index, site=window.site)
        return {FACTS[found.code]}
    if not found.waits and (found.is_of_all_steps or case.independent < 1 + AMPLE):
        findings.factors.append((window.rank, found, False))
    else:
        findings.add(found)
    return {found.shows}


def _replaced(case: Case, findings: Findings) -> set[Shown]:
    """Gradients that are not finite became finite before the step.

    With a loss scale they would be finite at a smaller one. What replaces them depends on the scale and not on the
    loss: the step is to be skipped, and the scale lowered."""
    scales = [backward.scale for backward in case.window.backwards.values() if backward.scale not in (None, 1.0)]
    rest = case.fits(case.finite)
    if not scales or (rest is not None and rest.is_known):
        return _open(case.window, findings, "changed.not-finite")
    lost = sum(not all(one.is_finite for one in case.all(number)) for number in case.parameters)
    effect = said("made-up", lost=lost, all=len(case.parameters))
    found = case.finding("watch/finite", said("overflow-replaced", scale=scales[0]), effect)
    findings.add(found)
    return {found.shows}


def _judge_ranks(together: Together, findings: Findings) -> None:
    """Each rank used a multiple of the same sum: was it the same multiple?"""
    for parameters, by_rank in together.factors.items():
        if any((parameters, rank) in together.own for rank in by_rank):
            # The ranks' gradients are multiples of each other, and so of their sum, whatever became of it.
            continue
        lowest = min(by_rank, key=lambda rank: by_rank[rank].high)
        highest = max(by_rank, key=lambda rank: by_rank[rank].low)
        if by_rank[lowest].high * (1 + _SAME) < by_rank[highest].low:
            first = next(window for window in together.here if window.rank == lowest)
            ratio = by_rank[lowest].middle / by_rank[highest].middle
            says = said("ranks-by-factor", parameters=len(parameters), rank=lowest, other=highest, ratio=ratio)
            found = _finding(first, "watch/one-factor", says, said("factor", factor=ratio))
            found.ranks = (lowest, highest)
            findings.add(found)


def _open(window: Window, findings: Findings, code: str, **values: Any) -> set[Shown]:
    findings.leave_open(said(code, **values), step=window.index, site=window.site)
    return {FACTS[code]}


def _finding(window: Window, law: str, says: Any, effect: Any) -> Finding:
    says = said(says) if isinstance(says, str) else says
    return Finding(law, says, window.index, (window.rank,), window.site, effect, window.optimizer)


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
