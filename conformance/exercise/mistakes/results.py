"""Mistakes in what is done to the result."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

from conformance.exercise.mistakes.mistake import ALL, GRADIENTS, LOOPS, LOSS, Mistake, adding_to
from conformance.exercise.textbook import Textbook
from conformance.oracle.affine import Enclosure
from conformance.oracle.rounding import nearest
from conformance.workloads.precision import FP32, FP64

MISTAKES: list[Mistake] = []
mistake = adding_to(MISTAKES)


@mistake(LOSS + GRADIENTS, "divides with `//`", "`//` rounds down to a whole number: divide with `/`.")
class FloorDivision(Textbook):
    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        return Enclosure((Fraction(floor(result.center[0])),), (Fraction(0),))


def _rounds(places: int) -> None:
    @mistake(
        ALL, f"rounds what it returns to {places} decimal places", "Return the number as it is; the tests round it."
    )
    class Rounds(Textbook):
        def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
            # The double that is nearest to the rounded number.
            return Enclosure((nearest(round(result.center[0], places), FP64),), (Fraction(0),))


for _places in range(1, 9):
    _rounds(_places)


@mistake(LOOPS, "returns how far the weight has moved", "Return the weight itself.")
class ReturnsTheMove(Textbook):
    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        start = Fraction(given["m"])
        # The last difference rounds once more.
        further = (abs(result.center[0]) + abs(start)) * 2 * FP64.unit_roundoff
        return Enclosure((result.center[0] - start,), (result.radius[0] + further,))


# Last, because its enclosure is wide.
@mistake(
    ALL, "computes in single precision", "It is right to seven digits. Python's own floats have sixteen: use them."
)
class SinglePrecision(Textbook):
    format = FP32
