"""Determines the factor between two tensors, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Equation(NamedTuple):
    """The condition |used - c local| <= slack + c spread on the factor c."""

    used: float
    local: float
    slack: float
    spread: float


@dataclass(frozen=True)
class Factor:
    """All factors c that solve a set of equations: low <= c <= high."""

    low: float
    high: float

    def contains(self, value: float, error: float = 1e-5) -> bool:
        """Whether the factor may be `value`, which was computed with this relative error."""
        return self.low * (1 - error) <= value <= self.high * (1 + error)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def is_known(self) -> bool:
        """Whether the equations determine the factor."""
        return self.low > 0 and self.high <= self.low * 1.5

    def within(self, other: Factor) -> Factor:
        """The product of two factors, each anywhere within its bounds."""
        return Factor(self.low * other.low, self.high * other.high)

    def times(self, value: float) -> Factor:
        return Factor(self.low * value, self.high * value)


def solve(equations: Iterable[Equation]) -> Factor | None:
    """The factors c >= 0 that solve all equations; None if there is none."""
    low, high = 0.0, math.inf
    for used, local, slack, spread in equations:
        # used - slack <= c (local + spread), and c (local - spread) <= used + slack
        for slope, at_least in ((local + spread, used - slack), (spread - local, -used - slack)):
            if slope > 0:
                low = max(low, at_least / slope)
            elif slope < 0:
                high = min(high, at_least / slope)
            elif at_least > 0:
                return None
        if low > high:
            return None
    return Factor(low, high)
