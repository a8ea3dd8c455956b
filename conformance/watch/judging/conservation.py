"""Judges whether a step used the computed gradients: each backward pass of each rank once, with the correct factor.

Clipping by value changes each element by a different factor. Its input and output are recorded, so such a step is
judged in two parts: the input of the clip must be a multiple of the computed gradients, and the used gradients must be
a multiple of its output.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from math import isfinite

import numpy as np

from conformance.watch.judging.equations import Case, Together
from conformance.watch.judging.findings import Finding, Findings, Said, Shown, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.solver import COARSE, explain
from conformance.watch.judging.windows import Window

_SAME = 1e-4
"""Relative difference allowed between the sketches of two ranks, beyond their bounds."""


def judge(together: Together, findings: Findings) -> None:
    """Judge the step of each rank, and compare the ranks' factors."""
    for window in together.here:
        if (shows := _step(together, window, findings)) is not None:
            findings.judged(*shows)
    _judge_ranks(together, findings)


def _step(together: Together, window: Window, findings: Findings) -> set[Shown] | None:
    """What a rank's step shows beyond the usual, empty if it is correct; None if there is nothing to judge."""
    step = window.step
    if step is None or step.found_inf or (step.used and not window.used):
        return None
    if not all(map(isfinite, chain(*window.weights.values()))):
        return _open(window, findings, "changed.weights")
    if not step.used:
        return _without_gradients(window, findings)
    if not all(map(isfinite, chain(*(sketch.tolist() for sketch in window.used.values())))):
        # `loss_scale.py` reports it.
        findings.idle["idle.not-finite"] += 1
        return None
    if any(shards == 0 for shards in window.shards.values()):
        return _open(window, findings, "ranks.layout")
    if not window.new and not window.captured:
        return _without_backward(together, window, findings)
    return _gradients(together, window, findings)


def _gradients(together: Together, window: Window, findings: Findings) -> set[Shown] | None:
    step = window.step
    assert step is not None
    of_others = {number for number in window.of_others - window.new.keys() if _is_as_it_was(window, number)}
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number in window.used:
        if number not in of_others:
            sets[window.clips_of(number)].append(number)
    shows: set[Shown] = set()
    for clips, parameters in sets.items():
        case = Case(together, window, parameters, [*clips])
        shows |= explain(case.undone() or case, findings)
    if of_others:
        shows |= _open(window, findings, "clearing.shared")
    if COARSE in shows:
        findings.idle["idle.coarse"] += 1
        return None
    if not shows:
        # Intended for an average over perturbed weights. A bug in a closure that an optimizer of torch calls at several
        # weights, because it must clear the gradients of the previous call.
        saw_several = window.saw_several_weights
        if saw_several and step.closure and not step.is_own:
            found = Finding.of(window, "watch/cleared", said("not-cleared-in-closure"))
            findings.add(found)
            return {found.shows}
        if saw_several:
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
    if step.moved:
        findings.factors.append((window.rank, None, False))
        return _open(window, findings, "changed.otherwise")
    effect = said("moves-nothing", parameters=len(step.parameters))
    _lack_gradients(window, findings, said("no-gradient"), effect)
    return None


def _lack_gradients(window: Window, findings: Findings, says: Said, effect: Said) -> None:
    """Suggests a bug, which all steps must show."""
    findings.factors.append((window.rank, Finding.of(window, "watch/has-gradient", says, effect), False))


def _without_backward(together: Together, window: Window, findings: Findings) -> set[Shown]:
    step = window.step
    assert step is not None
    used = [number for number, sketch in window.used.items() if sketch[2]]
    if not used:
        if window.with_taken is not None and not (step.is_own or step.closure):
            _lack_gradients(window, findings, said("clearing.zeroed"), said("factor", factor=0.0))
            return {FACTS["clearing.zeroed"]}
        if not window.is_computed:
            # Horovod and DeepSpeed make optimizers create their state this way.
            return set()
        findings.factors.append((window.rank, None, False))
        return _open(window, findings, "clearing.zeroed")
    if window.is_made_last:
        return _open(window, findings, "changed.before")
    if not all(_is_as_it_was(window, number) for number in used):
        return _open(window, findings, "changed.by-hand")
    if together.is_joined:
        # A rank that ran out of data repeats the steps of the others.
        return _open(window, findings, "ranks.run-out", table=f"rank {window.rank}: its last gradients again")
    if window.is_of_other or step.is_elsewhere:
        return _open(window, findings, "clearing.shared" if window.is_of_other else "clearing.again")
    if step.closure or not window.is_computed:
        return _open(window, findings, "changed.by-hand")
    found = Finding.of(window, "watch/fresh", said("no-backward"), said("moves-twice"))
    findings.add(found)
    return {found.shows}


def _is_as_it_was(window: Window, number: int) -> bool:
    """Whether the step uses the last step's gradient again, not one that the script assigned."""
    old = window.old.get(number, [])
    is_same_sample = all(one.sample == window.sample(number) for one in old)
    if not old or number not in window.used or not is_same_sample:
        return False
    return np.array_equal(sum(one.sketch[0] for one in old), window.used[number])


def _judge_ranks(together: Together, findings: Findings) -> None:
    """Reports ranks that used different multiples of the same sum."""
    for parameters, by_rank in together.factors.items():
        if any((parameters, rank) in together.own for rank in by_rank):
            # The ranks' gradients are multiples of each other, and so of their sum, even if they were not averaged.
            continue
        lowest = min(by_rank, key=lambda rank: by_rank[rank].high)
        highest = max(by_rank, key=lambda rank: by_rank[rank].low)
        if by_rank[lowest].high * (1 + _SAME) < by_rank[highest].low:
            first = next(window for window in together.here if window.rank == lowest)
            ratio = by_rank[lowest].middle / by_rank[highest].middle
            says = said("ranks-by-factor", parameters=len(parameters), rank=lowest, other=highest, ratio=ratio)
            found = Finding.of(first, "watch/one-factor", says, said("steps-farther", times=1 / ratio))
            found.ranks, found.site = (lowest, highest), first.clipped_at
            findings.add(found)


def _open(window: Window, findings: Findings, code: str, **values: str) -> set[Shown]:
    findings.leave_open(said(code, **values), step=window.index, site=window.site)
    return {FACTS[code]}
