"""A step that used one multiple of the computed gradients, and the numbers that may explain this factor: the loss
scale, and the numbers of ranks, micro-batches and targets.
"""

from __future__ import annotations

from functools import cached_property
from math import hypot, isclose, prod

from conformance.watch import records
from conformance.watch.judging.equations import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Said, said
from conformance.watch.judging.targets import passes_of, scale_of, weight_of
from conformance.watch.records import ENTROPIES

_SAME = 1e-4
"""Relative difference allowed between the sketches of two ranks, beyond their bounds."""


class Fit:
    """A step and its factor relative to the mean over the ranks, with the loss scale and clipping undone.

    alive: the number of ranks that still have data. unscaled: the divisor of unscaling by a scaler. divisor: the same,
    or that of the optimizer. own: a hand-written loss scale. error: relative."""

    def __init__(self, case: Case, kappa: Factor) -> None:
        window = case.window
        self.case, self.kappa = case, kappa
        self.error = max(1e-5, 16 * case.roundoff)
        self.ranks, self.alive = case.together.ranks, len(case.together.here)
        self.passes, self.scales = len(window.backwards), window.scales
        self.scale = window.scales[0] if window.scales else 1.0
        self.own = scale_of(window) or 1.0
        self.unscaled = prod(one.scale for _, one in window.unscales)
        self.divisor = case.step.grad_scale or self.unscaled

    def found(self, *values: float | None) -> float | None:
        """The first of these numbers that the factor may equal."""
        return next((one for one in values if one is not None and self.kappa.contains(one, self.error)), None)

    @cached_property
    def total(self) -> float | None:
        """The total weight of the targets in a step's losses, averaged over the ranks, if the losses are sums; None if
        unknown. Dividing by it makes a mean."""
        here = self.case.together.here
        # A mean times the number of its targets is a sum.
        are_sums = any(one.summed or (one.targets and isclose(one.factor, one.targets)) for one in self.every)
        known = [weight for window in here if (weight := weight_of(window)) is not None]
        are_known = len(known) == len(here) == self.ranks
        return sum(known) / len(here) or None if are_sums and are_known else None

    @property
    def targets(self) -> float:
        return self.ranks * (self.total or 1.0)

    @property
    def over_total(self) -> float | None:
        return None if self.total is None else 1 / self.total

    @property
    def over_all_and_ranks(self) -> float | None:
        """The factor of dividing by all targets, and again by the ranks."""
        return None if self.total is None or self.ranks == 1 else 1 / (self.total * self.ranks)

    @cached_property
    def every(self) -> list[records.Backward]:
        """The backward passes of all ranks."""
        return passes_of(self.case.together.here)

    @property
    def right(self) -> float:
        """1, the factor of a mean over all targets or of a sum over the ranks, if the factor may equal it; else its
        middle."""
        return self.found(1.0) or self.found(self.over_total, self.ranks) or self.kappa.middle

    @property
    def is_scaled(self) -> bool:
        """Whether there is a loss scale, and no other number explains the factor: a scale may shrink to such a
        number."""
        others = (self.ranks, self.over_total, 1 / max(1, self.passes))
        return self.scale != 1.0 and self.found(*(one for one in others if one != 1)) is None

    @property
    def is_scale_seen(self) -> bool:
        """Whether a loss scale would show in the graphs of the losses. A hand-written one may be out of sight."""
        passes = self.case.window.passes
        return all((one.targets or one.summed) and max(one.factors, default=1) <= 1 for one in passes)

    @property
    def are_divided(self) -> bool:
        """Whether each loss of the rank is divided by the rank's number of passes."""
        divided = [one.factor for one in self.case.window.passes]
        return self.passes > 1 and all(isclose(one, 1 / self.passes, rel_tol=1e-6) for one in divided)

    @property
    def are_apart(self) -> bool:
        """Whether the ranks' losses are cross entropies over different numbers of targets, each with weight 1. With
        equal numbers, the divisor may be each rank's own, times a factor in the script. Other losses, such as a squared
        error, may intentionally be halved."""
        are_bare = all(isclose(one.factor, one.targets or 1) for one in self.every if one.factor)
        are_entropies = all(one.made_by in ENTROPIES for one in self.every)
        return are_bare and are_entropies and len({weight_of(window) for window in self.case.together.here}) > 1

    def is_a_sum(self, number: int) -> bool:
        """Whether a loss may be a sum that must still be divided by this number, which equals the number of ranks or
        passes by chance."""
        if self.total is not None:
            return not isclose(self.total, 1, rel_tol=_SAME)
        return any((one.of_any and not one.targets) or one.terms == number for one in self.every)

    # Gradients that other rows of the table are about.

    @property
    def factors(self) -> list[float]:
        """Each rank's factor of clipping."""
        return self.case.factors_of_ranks

    @property
    def longer(self) -> Said | None:
        """How many times longer old gradients make the used ones, at least: a sum is at most as long as its terms
        together. None if they make it no longer."""
        case = self.case
        used = hypot(*(float(case.window.used[number][2]) for number in case.parameters))
        new = hypot(*(sum(one.norm for one in case.all(n)) for n in case.parameters))
        own = self.kappa.middle * new
        return said("times-as-long", times=used / own) if 0 < own < used else None

    @property
    def adds_to_the_last(self) -> bool:
        """Whether scaled gradients were added to all old, unscaled ones, which are too small to show in the sum. With
        too few numbers, any gradients are a multiple of any others, so these do not count."""
        case, window = self.case, self.case.window
        if self.scale <= 1.0 or self.found(1.0) is None:
            return False
        own = {n for n in case.parameters for rank, one in case.old(n) if rank == window.rank and one.is_seen}
        is_all = own == {*case.parameters}
        return is_all and case.is_ample and not case.is_changed and case.fits(case.with_old) is not None
