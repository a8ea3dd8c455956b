"""What some parameters alone were multiplied with, where one factor explains all others."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding

ENOUGH = 5
"""Equations that the others have. One of them fixes the factor, the rest could prove it wrong."""


@dataclass
class Apart:
    """rest: the parameters that have a factor of their own. main: that of all others. ratio: what theirs is over it;
    None where they have several."""

    rest: list[int]
    main: Factor
    ratio: Factor | None


def explain(case: Case) -> Finding | str | None:
    """None where there is nothing of the kind.

    A script may make gradients of a layer smaller or larger on purpose, by any number. It has no reason to do so with
    all that are sparse, by just the number of ranks, where its optimizer knows no other rate for them."""
    found = apart(case)
    if found is None:
        return None
    window, step, ranks = case.window, case.step, case.together.ranks
    names = window.named(found.rest)
    ratio = "" if found.ratio is None else f", {found.ratio.middle:.3g} times that of all others"
    sparse = [number for number in case.parameters if any(one.is_sparse for one in case.all(number))]
    scale = window.scales[0] if len(window.scales) == 1 else None
    is_averaged = scale is not None and found.main.times(
        ranks * scale / (step.grad_scale or 1.0) / case.clipped
    ).contains(1)
    is_summed = ranks > 1 and found.ratio is not None and found.ratio.contains(ranks)
    # Others have rates of their own, or divide each gradient by its length, so that no factor matters.
    is_plain = step.type == "SGD" and len({*step.rates}) == 1
    if not (is_averaged and is_summed and is_plain and {*found.rest} == {*sparse}):
        return f"some gradients have a factor of their own{ratio}: by hand, it seems: {names}"
    says = f"sparse gradients are summed over the {ranks} ranks, and all others are averaged: {names}"
    effect = f"{len(found.rest)} of {len(case.parameters)} parameters move {ranks} times as far as they should"
    return case.finding("watch/means-averaged", says, effect, is_of_all_steps=True)


def apart(case: Case) -> Apart | None:
    """None where a gradient is no multiple of what was computed for its parameter, or where the factors are of many
    kinds."""
    alone: dict[int, Factor] = {}
    for number in case.parameters:
        if case.window.used[number][2]:
            of = _of(case, [number])
            factor = of.fits(of.all)
            if factor is None:
                return None
            if factor.is_known:
                alone[number] = factor
    if not alone:
        return None
    # Most have the same one, so that it is in the middle.
    middle = median_low(factor.middle for factor in alone.values())
    most = [number for number, factor in alone.items() if factor.contains(middle)]
    main = _factor(case, most)
    rest = [number for number in alone if number not in {*most}]
    if main is None or not 0 < len(rest) < len(most) or _of(case, most).independent < ENOUGH:
        return None
    of_rest = _factor(case, rest)
    return Apart(rest, main, None if of_rest is None else Factor(of_rest.low / main.high, of_rest.high / main.low))


def _factor(case: Case, parameters: list[int]) -> Factor | None:
    of = _of(case, parameters)
    factor = of.fits(of.all)
    return factor if factor is not None and factor.is_known else None


def _of(case: Case, parameters: list[int]) -> Case:
    return Case(case.together, case.window, parameters, case.clips)
