"""Judges the one factor with which a step used the sum of all gradients.

Taken relative to the mean over the ranks, with the loss scale and clipping undone, it is 1. What else it may be is a
number that the script divides or multiplies by: the loss scale, the ranks, the micro-batches, the targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.facts import FACTS
from conformance.watch.judging.findings import Findings, Said, Shown, said
from conformance.watch.judging.targets import factor_of, is_mean_of_all, scale_of, weight_of
from conformance.watch.records import ENTROPIES

_SAME = 1e-4
"""Relative: what the sketches of two ranks may differ by beyond their bounds."""


@dataclass
class _Numbers:
    """What a script may divide or multiply by. total: what all targets weigh, if losses are sums. own: a loss scale of
    the script's own. alive: how many ranks still have data. unscaled: what a scaler has divided by. error: relative."""

    kappa: Factor
    error: float
    ranks: int
    passes: int
    alive: int
    scale: float
    total: float | None
    own: float
    unscaled: float
    divisor: float

    def is_any(self, *values: float | None) -> bool:
        return any(value is not None and self.kappa.contains(value, self.error) for value in values)


def judge(case: Case, kappa: Factor, findings: Findings) -> set[Shown]:
    """What is not usual about the factor; nothing if it is right.

    kappa: the factor relative to the mean over the ranks, with the loss scale and clipping undone."""
    window = case.window
    if len(window.scales) > 1:
        ratio = max(window.scales) / min(window.scales)
        return _wrong(case, findings, "watch/one-scale", said("several-scales", scales=window.scales), ratio, once=True)
    hooked = case.hooked()
    if hooked is None:
        findings.leave_open(said("clipping.hooks"), step=window.index, site=window.site)
    else:
        kappa = kappa.within(hooked)
    of = _numbers(case, kappa)
    case.together.kappas[window.rank].append(
        next((one for one in (1.0, 1 / (of.total or 1.0)) if of.is_any(one)), kappa.middle)
    )
    if (after := _divided_after_clipping(case, of)) is not None:
        findings.leave_open(said("clipping.divided-after", by=after), step=window.index, site=window.site)
    # Ranks that still have data may be averaged over, of those that train together.
    if of.is_any(1.0, of.ranks / of.alive if case.together.is_joined else None):
        return _right(case, findings)
    if case.is_limited and kappa.high < 1:
        return _open(case, findings, said("changed.by-element"))
    found = _by_scale(case, of, findings)
    return _by_number(case, of, findings) if found is None else found


def _numbers(case: Case, kappa: Factor) -> _Numbers:
    window, step, ranks = case.window, case.step, case.together.ranks
    unscaled = math.prod(one.scale for _, one in window.unscales)
    return _Numbers(
        kappa,
        error=max(1e-5, 16 * case.roundoff),
        ranks=ranks,
        passes=len(window.backwards),
        alive=len(case.together.here),
        scale=window.scales[0] if window.scales else 1.0,
        total=_total(case),
        own=scale_of(window) or 1.0,
        unscaled=unscaled,
        divisor=step.grad_scale or unscaled,
    )


def _by_scale(case: Case, of: _Numbers, findings: Findings) -> set[Shown] | None:
    """Whether the factor is the loss scale, or 1 over it. None if it may be another number of the script."""
    scale, step = of.scale, case.step
    if scale != 1.0:
        # A scale may come down to such a number, by which a script may multiply or divide.
        if of.is_any(*(one for one in (of.ranks, 1 / (of.total or 1.0), 1 / max(1, of.passes)) if one != 1)):
            return None
        if of.is_any(scale) and step.is_own:
            findings.factors.append((case.window.rank, None, False))
            findings.leave_open(said("loss-scale.own-optimizer", scale=scale), step=case.window.index)
            return {FACTS["loss-scale.own-optimizer"]}
        if of.is_any(scale):
            return _wrong(case, findings, "watch/unscaled", said("still-scaled", scale=scale), scale, once=True)
        if of.is_any(1 / scale):
            return _wrong(case, findings, "watch/unscaled", said("unscaled-twice", scale=scale), 1 / scale, once=True)
        if of.divisor not in (1.0, scale) and of.is_any(scale / of.divisor):
            # Nobody knows by how much a scale will have grown.
            says = said("unscaled-by-another", scale=scale, divisor=of.divisor)
            return _wrong(case, findings, "watch/unscaled", says, scale / of.divisor, once=True)
        return None
    # By hand, a loss may be multiplied by it where its graph does not show it.
    passes = case.window.backwards.values()
    is_seen = all((one.targets or one.summed) and max(one.factors, default=1) <= 1 for one in passes)
    if of.unscaled != 1.0 and is_seen and of.is_any(1 / of.unscaled):
        return _wrong(case, findings, "watch/unscaled", said("never-scaled", scale=of.unscaled), 1 / of.unscaled)
    return None


def _by_number(case: Case, of: _Numbers, findings: Findings) -> set[Shown]:
    """Whether the factor is the number of ranks, micro-batches or targets, or 1 over it."""
    ranks, passes, total = of.ranks, of.passes, of.total
    if ranks > 1 and of.is_any(float(ranks)):
        if is_mean_of_all(case.together):
            return _right(case, findings)
        findings.factors.append((case.window.rank, None, True))
        return _open(case, findings, said("ranks.sum", ranks=ranks))
    if passes > 1 and of.is_any(1 / passes):
        divided = [math.prod(one.factors) / (one.scale or 1.0) for one in case.window.backwards.values()]
        if all(math.isclose(one, 1 / passes, rel_tol=1e-6) for one in divided) and not _is_a_sum(case, total, passes):
            return _wrong(case, findings, "watch/divided-once", said("divided-twice", passes=passes), 1 / passes)
        return _right(case, findings)
    # A number that losses are multiplied with, and gradients divided by, has no other use.
    if of.own > 1 and of.is_any(1 / of.own, ranks / of.own):
        return _right(case, findings)
    if ranks > 1 and of.is_any(1 / ranks) and not _is_a_sum(case, total, ranks):
        return _wrong(case, findings, "watch/averaged-once", said("averaged-twice", ranks=ranks), 1 / ranks)
    if total is not None and of.is_any(1 / total):
        return _right(case, findings)
    if total is not None and ranks > 1 and of.is_any(1 / (ranks * total)):
        # Where the ranks' numbers are equal, what divides may be each rank's own, times a factor of the script's.
        if _are_apart(case):
            says = said("divided-by-all-and-averaged", targets=ranks * total)
            return _wrong(case, findings, "watch/averaged-once", says, 1 / ranks)
        return _open(case, findings, said("ranks.factor", factor=of.kappa.middle))
    findings.factors.append((case.window.rank, None, False))
    norm = case.norm
    if of.kappa.high < 1 and norm is not None:
        # A clip by hand, if the norm is the same in each such step.
        case.together.shortened[case.window.rank].append((of.kappa.middle, norm))
        return {(case.window.optimizer, case.window.rank)}
    return _open(case, findings, said("ranks.factor", factor=of.kappa.middle))


def _right(case: Case, findings: Findings) -> set[Shown]:
    findings.factors.append((case.window.rank, None, True))
    return set()


def _open(case: Case, findings: Findings, says: Said) -> set[Shown]:
    findings.leave_open(says, step=case.window.index, site=case.window.site)
    return {FACTS[says.code]}


def _wrong(case: Case, findings: Findings, law: str, says: Said, factor: float, *, once: bool = False) -> set[Shown]:
    """once: one step proves it; else all steps must."""
    found = case.finding(law, says, said("factor", factor=factor))
    if once:
        findings.add(found)
    else:
        findings.factors.append((case.window.rank, found, False))
    return {found.shows}


def _divided_after_clipping(case: Case, of: _Numbers) -> float | None:
    """By which number of the script, or 1 over one, the norm that a step used is less than what its clip has left. The
    norm of a large parameter is not known."""
    window = case.window
    clips = [window.clips[number][1] for number in case.clips]
    if len(clips) != 1 or clips[0].how != "norm" or {*clips[0].parameters} != {*case.parameters}:
        return None
    if clips[0].norm is None or case.clipped == 1 or case.norm is None:
        return None
    ratio = clips[0].norm * case.clipped / case.norm
    numbers = (of.ranks / of.alive, of.ranks, of.total, of.passes, of.own, of.own / of.ranks)
    found = {max(one, 1 / one) for one in numbers if one}
    return next((one for one in found if one > 1 + _SAME and math.isclose(ratio, one, rel_tol=_SAME)), None)


def _total(case: Case) -> float | None:
    """What all targets weigh in the losses of a step, on average of the ranks, if these are sums; None if it is not
    known. What is divided by that is their mean."""
    here = case.together.here
    weights = [weight_of(window) for window in here]
    # A mean that is multiplied with the number of its targets is a sum.
    are_sums = any(
        one.summed or (one.targets and math.isclose(factor_of(one), one.targets))
        for window in here
        for one in window.backwards.values()
    )
    known = [weight for weight in weights if weight is not None]
    are_known = len(known) == len(here) == case.together.ranks
    return sum(known) / len(here) or None if are_sums and are_known else None


def _are_apart(case: Case) -> bool:
    """Whether the losses of ranks are cross entropies over different numbers of targets, each of which weighs 1. Half
    of a squared error may be meant."""
    passes = [one for window in case.together.here for one in window.backwards.values()]
    are_bare = all(math.isclose(factor_of(one), one.targets or 1) for one in passes if factor_of(one))
    are_entropies = all(one.made_by in ENTROPIES for one in passes)
    return are_bare and are_entropies and len({weight_of(window) for window in case.together.here}) > 1


def _is_a_sum(case: Case, total: float | None, number: int) -> bool:
    """Whether a loss may be a sum, to be divided by this number yet, which is that of the ranks or passes by chance."""
    if total is not None:
        return not math.isclose(total, 1, rel_tol=_SAME)
    passes = [one for window in case.together.here for one in window.backwards.values()]
    return any((one.of_any and not one.targets) or one.terms == number for one in passes)
