"""A step that used one multiple of what was computed, and the numbers that this factor may be: what a script divides or
multiplies by, such as the loss scale, the ranks, the micro-batches and the targets.
"""

from __future__ import annotations

from functools import cached_property
from math import hypot, isclose, prod

from conformance.watch import records
from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Said, said
from conformance.watch.judging.targets import factor_of, passes_of, scale_of, weight_of
from conformance.watch.records import ENTROPIES

_SAME = 1e-4
"""Relative: what the sketches of two ranks may differ by beyond their bounds."""


class Fit:
    """A step and its factor relative to the mean over the ranks, with the loss scale and clipping undone.

    alive: how many ranks still have data. unscaled: what a scaler has divided by; divisor: or the optimizer. own: a
    loss scale of the script's own. error: relative."""

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
        """The first of these numbers that the factor may be."""
        return next((one for one in values if one is not None and self.kappa.contains(one, self.error)), None)

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

    @property
    def targets(self) -> float:
        return self.ranks * (self.total or 1.0)

    @property
    def over_total(self) -> float | None:
        return None if self.total is None else 1 / self.total

    @property
    def over_all_and_ranks(self) -> float | None:
        """What divides by all targets, and by the ranks again."""
        return None if self.total is None or self.ranks == 1 else 1 / (self.total * self.ranks)

    @cached_property
    def every(self) -> list[records.Backward]:
        """The backward passes of all ranks."""
        return passes_of(self.case.together.here)

    @property
    def right(self) -> float:
        """The factor: exactly, if it is right."""
        return self.found(1.0, self.over_total) or self.kappa.middle

    @property
    def is_scaled(self) -> bool:
        """Whether there is a loss scale, and the factor is no number by which a script may multiply or divide: a scale
        may come down to one."""
        others = (self.ranks, self.over_total, 1 / max(1, self.passes))
        return self.scale != 1.0 and self.found(*(one for one in others if one != 1)) is None

    @property
    def is_scale_seen(self) -> bool:
        """Whether a loss scale would show. By hand, a loss may be multiplied by it where its graph does not show it."""
        own = self.case.window.backwards.values()
        return all((one.targets or one.summed) and max(one.factors, default=1) <= 1 for one in own)

    @property
    def are_divided(self) -> bool:
        """Whether each loss of the rank is divided by the number of its passes."""
        divided = [factor_of(one) for one in self.case.window.backwards.values()]
        return self.passes > 1 and all(isclose(one, 1 / self.passes, rel_tol=1e-6) for one in divided)

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

    # What other gradients than all of this window a step has used.

    @property
    def factors(self) -> list[float]:
        """What each rank's clipping has multiplied its gradients with."""
        return self.case.factors_of_ranks

    @property
    def longer(self) -> Said | None:
        """What earlier gradients add, in the length of all together. That of a sum is at most the sum of the lengths.
        The factor is that of the gradients as they are."""
        case = self.case
        used = hypot(*(float(case.window.used[number][2]) for number in case.parameters))
        new = hypot(*(sum(float(one.sketch[..., 2].sum()) for one in case.all(n)) for n in case.parameters))
        own = self.kappa.middle * new
        return said("times-as-long", times=used / own) if 0 < own < used else None

    @property
    def adds_to_the_last(self) -> bool:
        """Whether gradients that carry a loss scale were added to all of what the last step had used, which are too
        small next to them to show in the sum. Of a few numbers, any are a multiple of any others."""
        case, window = self.case, self.case.window
        own = {n for n in case.parameters for rank, one in case.old(n) if rank == window.rank and one.is_seen}
        is_all = self.scale > 1.0 and self.found(1.0) is not None and own == {*case.parameters}
        return is_all and case.is_ample and not case.is_changed and case.fits(case.with_old) is not None
