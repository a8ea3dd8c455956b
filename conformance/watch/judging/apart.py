"""Explains a step parameter by parameter: some are averaged and others are not, or each has its own factor."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from statistics import median_low

from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding, Said, Shown, said

_ENOUGH = 5
"""Equations that the other parameters have. One of them fixes the factor, the rest could prove it wrong."""

_AT_LIMIT = 0.01
"""Relative: how far norms that were clipped to one limit are apart, with the small number that divides them."""


def partitioned(case: Case) -> Factor | None:
    """The factor of a step in which partitioned parameters use this rank's gradients, and others those of all ranks.

    A partitioned parameter differs between ranks from the start, and what its backward pass needs of other ranks goes
    through a collective: its own gradient is that of all samples. It may be divided by the ranks, as the others are."""
    own = [number for number in case.parameters if number in case.together.partitioned]
    if not own:
        return None
    shared = [number for number in case.parameters if number not in case.together.partitioned]
    of_own, of_shared = case.of(own), case.of(shared)
    factor = of_own.fits(of_own.own)
    if factor is None or not factor.is_known:
        return None
    alone, together = case.kappa(factor, ranks=1), case.kappa(factor)
    if not any(case.window.used[number][2] for number in shared):
        return alone if not together.contains(1) else together
    rest = of_shared.fits(of_shared.all)
    if rest is None or not rest.is_known:
        return None
    kappa = case.kappa(rest)
    return kappa if any(kappa.meets(one) for one in (alone, together)) else None


def not_averaged(case: Case) -> Finding | None:
    """Whether each parameter alone is a multiple of all ranks' gradients or of this rank's, and some are the latter."""
    if case.together.ranks == 1:
        return None
    alone = []
    for number in case.parameters:
        single = case.of([number])
        if not case.window.used[number][2] or single.is_known(single.all):
            continue
        if not single.is_known(single.own):
            return None
        if number not in case.together.partitioned:
            alone.append(number)
    if not alone:
        return None
    counts = {"parameters": len(alone), "all": len(case.parameters)}
    effect = said("parameters-own", **counts, ranks=case.together.ranks)
    found = case.finding("watch/averaged", said("some-not-averaged", **counts, names=case.window.named(alone)), effect)
    found.waits, found.parameters = drifts(case, alone), frozenset(alone)
    return found


def drifts(case: Case, parameters: list[int]) -> bool:
    """Whether it shows in the weights if each rank steps these parameters on gradients of its own."""
    is_split = any(case.window.shards.get(number, 1) > 1 for number in parameters)
    return not is_split and case.step.type != "ZeroRedundancyOptimizer"


@dataclass
class _Apart:
    """rest: the parameters that have a factor of their own. main: that of all others. ratio: what theirs is over it;
    None where they have several."""

    rest: list[int]
    main: Factor
    ratio: Factor | None


def explain(case: Case) -> Finding | Said | set[Shown] | None:
    """Whether each parameter has a factor of its own: a clip of each, or what the script has changed by hand.

    A script may shrink or grow gradients of a layer on purpose, by any number. It has no reason to do so with all that
    are sparse, by just the number of ranks, where its optimizer knows no other rate for them."""
    alone = _alone(case)
    if alone is None:
        return None
    if _are_clipped(case, alone):
        return set()
    found = _split(case, alone)
    if found is None:
        return None
    window, step, ranks = case.window, case.step, case.together.ranks
    sparse = {number for number in case.parameters if any(one.is_sparse for one in case.all(number))}
    is_averaged = len(window.scales) <= 1 and case.kappa(found.main).contains(1)
    is_summed = ranks > 1 and found.ratio is not None and found.ratio.contains(ranks)
    # Others have rates of their own, or divide each gradient by its length, so no factor matters.
    is_plain = step.type == "SGD" and len({*step.rates}) == 1
    if not (is_averaged and is_summed and is_plain and {*found.rest} == sparse):
        return said("ranks.some-parameters", names=window.named(found.rest))
    says = said("sparse-summed", ranks=ranks, names=window.named(found.rest))
    effect = said("move-too-far", parameters=len(found.rest), all=len(case.parameters), times=ranks)
    return case.finding("watch/means-averaged", says, effect, is_of_all_steps=True)


def _alone(case: Case) -> dict[int, Factor] | None:
    """The factor of each parameter; None where a gradient is no multiple of what was computed for it."""
    alone: dict[int, Factor] = {}
    for number in case.parameters:
        if case.window.used[number][2]:
            of = case.of([number])
            factor = of.fits(of.all)
            if factor is None:
                return None
            if factor.is_known:
                alone[number] = factor
    return alone or None


def _are_clipped(case: Case, alone: dict[int, Factor]) -> bool:
    """Whether each parameter was clipped by its own norm: to one limit, or to one share of the norm of its weights, as
    adaptive gradient clipping does (Brock et al. 2021)."""
    kappas = {number: case.kappa(factor) for number, factor in alone.items()}
    norms = {number: norm for number in kappas if (norm := case.of([number]).norm) is not None}
    weights = {number: case.window.weights[number][2] for number in kappas if number in case.window.weights}
    if norms.keys() < kappas.keys():
        return False
    shares = {number: norms[number] / norm for number, norm in weights.items() if norm}
    return _are_at_limit(kappas, norms) or (shares.keys() == kappas.keys() and _are_at_limit(kappas, shares))


def _are_at_limit(kappas: dict[int, Factor], norms: dict[int, float]) -> bool:
    """Whether those with a factor below 1 have one norm, the limit, and no other has a larger one."""
    clipped = [number for number, kappa in kappas.items() if kappa.high < 1]
    if len(clipped) < 2:
        return False
    limit = max(norms[number] for number in clipped)
    at_limit = all(isclose(norms[number], limit, rel_tol=_AT_LIMIT) for number in clipped)
    others = [number for number in kappas if number not in clipped]
    return at_limit and all(kappas[one].contains(1) and norms[one] <= limit * (1 + _AT_LIMIT) for one in others)


def _split(case: Case, alone: dict[int, Factor]) -> _Apart | None:
    """None where the factors are of many kinds."""
    # Most have the same one, so it is in the middle.
    middle = median_low(factor.middle for factor in alone.values())
    most = [number for number, factor in alone.items() if factor.contains(middle)]
    main = _factor(case, most)
    rest = [number for number in alone if number not in {*most}]
    if main is None or not 0 < len(rest) < len(most) or case.of(most).independent < _ENOUGH:
        return None
    of_rest = _factor(case, rest)
    return _Apart(rest, main, None if of_rest is None else Factor(of_rest.low / main.high, of_rest.high / main.low))


def _factor(case: Case, parameters: list[int]) -> Factor | None:
    of = case.of(parameters)
    factor = of.fits(of.all)
    return factor if factor is not None and factor.is_known else None
