"""Judges the one factor with which a step used the sum of all gradients.

Taken relative to the mean over the ranks, with the loss scale and clipping undone, it is 1. What else it may be is a
number that the script divides or multiplies by: the loss scale, the ranks, the micro-batches, the targets. The first
row of a table that fits is what the factor means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isclose, prod
from typing import Any

from conformance.watch import records
from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Findings, Shown, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.targets import factor_of, is_mean_of_all, passes_of, scale_of, weight_of
from conformance.watch.records import ENTROPIES

_SAME = 1e-4
"""Relative: what the sketches of two ranks may differ by beyond their bounds."""


class _Numbers:
    """What a script may divide or multiply by, next to the factor that its step has.

    alive: how many ranks still have data. unscaled: what a scaler has divided by; divisor: or the optimizer. own: a
    loss scale of the script's own. total: what all targets weigh, if losses are sums. error: relative."""

    def __init__(self, case: Case, kappa: Factor) -> None:
        window = case.window
        self.case, self.kappa = case, kappa
        self.error = max(1e-5, 16 * case.roundoff)
        self.ranks, self.alive = case.together.ranks, len(case.together.here)
        self.passes = len(window.backwards)
        self.scale = window.scales[0] if window.scales else 1.0
        self.own = scale_of(window) or 1.0
        self.unscaled = prod(one.scale for _, one in window.unscales)
        self.divisor = case.step.grad_scale or self.unscaled

    def is_any(self, *values: float | None) -> bool:
        return any(value is not None and self.kappa.contains(value, self.error) for value in values)

    @cached_property
    def total(self) -> float | None:
        """What all targets weigh in the losses of a step, on average of the ranks, if these are sums; None if it is not
        known. What is divided by that is their mean."""
        here = self.case.together.here
        # A mean that is multiplied with the number of its targets is a sum.
        are_sums = any(one.summed or (one.targets and isclose(factor_of(one), one.targets)) for one in self.every)
        known = [weight for window in here if (weight := weight_of(window)) is not None]
        are_known = len(known) == len(here) == self.ranks
        return sum(known) / len(here) or None if are_sums and are_known else None

    @cached_property
    def every(self) -> list[records.Backward]:
        """The backward passes of all ranks."""
        return passes_of(self.case.together.here)

    @property
    def is_scale(self) -> bool:
        """Whether there is a loss scale, and the factor is no number by which a script may multiply or divide: a scale
        may come down to one."""
        others = (self.ranks, 1 / (self.total or 1.0), 1 / max(1, self.passes))
        return self.scale != 1.0 and not self.is_any(*(one for one in others if one != 1))

    @property
    def is_scale_seen(self) -> bool:
        """Whether a loss scale would show. By hand, a loss may be multiplied by it where its graph does not show it."""
        own = self.case.window.backwards.values()
        return all((one.targets or one.summed) and max(one.factors, default=1) <= 1 for one in own)

    @property
    def are_divided(self) -> bool:
        """Whether each loss of the rank is divided by the number of its passes."""
        divided = [factor_of(one) for one in self.case.window.backwards.values()]
        return all(isclose(one, 1 / self.passes, rel_tol=1e-6) for one in divided)

    @property
    def are_apart(self) -> bool:
        """Whether the losses of ranks are cross entropies over different numbers of targets, each of which weighs 1.
        Where the ranks' numbers are equal, what divides may be each rank's own, times a factor of the script's. Half of
        a squared error may be meant."""
        are_bare = all(isclose(factor_of(one), one.targets or 1) for one in self.every if factor_of(one))
        are_entropies = all(one.made_by in ENTROPIES for one in self.every)
        return are_bare and are_entropies and len({weight_of(window) for window in self.case.together.here}) > 1

    def is_a_sum(self, number: int) -> bool:
        """Whether a loss may be a sum, to be divided by this number yet, which is that of the ranks or passes by
        chance."""
        if self.total is not None:
            return not isclose(self.total, 1, rel_tol=_SAME)
        return any((one.of_any and not one.targets) or one.terms == number for one in self.every)


@dataclass(frozen=True)
class _Row:
    """What a factor may be. values: the factor then; any, if there are none. when: in which steps. law: that it breaks;
    code: what is said of that, or the fact that it is without a law; a row with neither is right. names: the values of
    `code`, of the numbers. once: one step proves it; else all must. is_right: what a fact says of the other steps; None
    if nothing. effect: what the update is of the right one, if it is not the factor."""

    values: Callable[[_Numbers], Iterable[float | None]] | None = None
    when: Callable[[_Numbers], bool] = lambda of: True
    law: str | None = None
    code: str | None = None
    names: Callable[[_Numbers], dict[str, Any]] = lambda of: {}
    once: bool = False
    is_right: bool | None = None
    effect: Callable[[_Numbers], float] | None = None


_UNSCALED, _AVERAGED = "watch/unscaled", "watch/averaged-once"

_ROWS = (
    # Ranks that still have data may be averaged over, of those that train together.
    _Row(lambda of: (1.0, of.ranks / of.alive if of.case.together.is_joined else None)),
    _Row(when=lambda of: of.case.is_limited and of.kappa.high < 1, code="changed.by-element"),
    # The loss scale.
    _Row(
        lambda of: (of.scale,),
        lambda of: of.is_scale and of.case.step.is_own,
        code="loss-scale.own-optimizer",
        names=lambda of: {"scale": of.scale},
        is_right=False,
    ),
    _Row(
        lambda of: (of.scale,),
        lambda of: of.is_scale,
        _UNSCALED,
        "still-scaled",
        lambda of: {"scale": of.scale},
        once=True,
    ),
    _Row(
        lambda of: (1 / of.scale,),
        lambda of: of.is_scale,
        _UNSCALED,
        "unscaled-twice",
        lambda of: {"scale": of.scale},
        once=True,
    ),
    # Nobody knows by how much a scale will have grown.
    _Row(
        lambda of: (of.scale / of.divisor,),
        lambda of: of.is_scale and of.divisor not in (1.0, of.scale),
        _UNSCALED,
        "unscaled-by-another",
        lambda of: {"scale": of.scale, "divisor": of.divisor},
        once=True,
    ),
    _Row(
        lambda of: (1 / of.unscaled,),
        lambda of: of.scale == 1.0 != of.unscaled and of.is_scale_seen,
        _UNSCALED,
        "never-scaled",
        lambda of: {"scale": of.unscaled},
    ),
    # The ranks.
    _Row(lambda of: (of.ranks,), lambda of: of.ranks > 1 and is_mean_of_all(of.case.together)),
    _Row(
        lambda of: (of.ranks,),
        lambda of: of.ranks > 1,
        code="ranks.sum",
        names=lambda of: {"ranks": of.ranks},
        is_right=True,
    ),
    # The micro-batches.
    _Row(
        lambda of: (1 / of.passes,),
        lambda of: of.passes > 1 and of.are_divided and not of.is_a_sum(of.passes),
        "watch/divided-once",
        "divided-twice",
        lambda of: {"passes": of.passes},
    ),
    _Row(lambda of: (1 / of.passes,), lambda of: of.passes > 1),
    # A number that losses are multiplied with, and gradients divided by, has no other use.
    _Row(lambda of: (1 / of.own, of.ranks / of.own), lambda of: of.own > 1),
    _Row(
        lambda of: (1 / of.ranks,),
        lambda of: of.ranks > 1 and not of.is_a_sum(of.ranks),
        _AVERAGED,
        "averaged-twice",
        lambda of: {"ranks": of.ranks},
    ),
    # The targets.
    _Row(lambda of: (1 / (of.total or 1.0),), lambda of: of.total is not None),
    _Row(
        lambda of: (1 / (of.ranks * (of.total or 1.0)),),
        lambda of: of.total is not None and of.ranks > 1 and of.are_apart,
        _AVERAGED,
        "divided-by-all-and-averaged",
        lambda of: {"targets": of.ranks * (of.total or 1.0)},
        effect=lambda of: 1 / of.ranks,
    ),
    _Row(
        lambda of: (1 / (of.ranks * (of.total or 1.0)),),
        lambda of: of.total is not None and of.ranks > 1,
        code="ranks.factor",
        names=lambda of: {"factor": of.kappa.middle},
    ),
)


def judge(case: Case, kappa: Factor, findings: Findings) -> set[Shown]:
    """What is not usual about the factor; nothing if it is right.

    kappa: the factor relative to the mean over the ranks, with the loss scale and clipping undone."""
    window = case.window
    if len(window.scales) > 1:
        ratio = max(window.scales) / min(window.scales)
        says, effect = said("several-scales", scales=window.scales), said("factor", factor=ratio)
        found = case.finding("watch/one-scale", says, effect)
        findings.add(found)
        return {found.shows}
    hooked = case.hooked()
    if hooked is None:
        findings.leave_open(said("clipping.hooks"), step=window.index, site=window.site)
    else:
        kappa = kappa.within(hooked)
    of = _Numbers(case, kappa)
    right = next((one for one in (1.0, 1 / (of.total or 1.0)) if of.is_any(one)), kappa.middle)
    case.together.kappas[window.rank].append(right)
    for row in _ROWS:
        if (row.values is None or of.is_any(*row.values(of))) and row.when(of):
            return _found(of, row, findings)
    findings.factors.append((window.rank, None, False))
    if kappa.high < 1 and case.norm is not None:
        # A clip by hand, if the norm is the same in each such step.
        case.together.shortened[window.rank].append((kappa.middle, case.norm))
        return {(window.optimizer, window.rank)}
    findings.leave_open(said("ranks.factor", factor=kappa.middle), step=window.index, site=window.site)
    return {FACTS["ranks.factor"]}


def _found(of: _Numbers, row: _Row, findings: Findings) -> set[Shown]:
    """A step that a row explains."""
    case, rank = of.case, of.case.window.rank
    if row.code is None:
        findings.factors.append((rank, None, True))
        return set()
    says = said(row.code, **row.names(of))
    if row.law is None:
        if row.is_right is not None:
            findings.factors.append((rank, None, row.is_right))
        findings.leave_open(says, step=case.window.index, site=case.window.site)
        return {FACTS[row.code]}
    value = next((one for one in row.values(of) if one is not None), 1.0) if row.values is not None else 1.0
    factor = value if row.effect is None else row.effect(of)
    found = case.finding(row.law, says, said("factor", factor=factor))
    if row.once:
        findings.add(found)
    else:
        findings.factors.append((rank, found, False))
    return {found.shows}
