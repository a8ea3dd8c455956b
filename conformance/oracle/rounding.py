"""One stage of a training step in a floating-point format: proved exact, or given a rigorous error radius.

A *stage* is a set of products and sums that a correct trainer may evaluate in any order and association. It is exact
if all terms are multiples of one power of two q and their magnitudes sum to less than 2^p q: then every partial sum is
an integer below 2^p times q, hence representable, so no operation rounds. Otherwise the error of n operations in a row
is at most gamma_n = n u / (1 - n u) relative to the sum of the magnitudes (Higham, ASNA 2nd ed., Lemma 3.1 and section
4.2, valid for every order of summation), plus one quantum for each operation whose result underflows.

This module has gamma_n, the ledger of roundings and the sums of an optimizer. `conformance.oracle.gradient` has the
bound of a gradient, and its proof of exactness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from math import gcd, lcm
from operator import mul, or_

from conformance.oracle.affine import Affine, Unbounded, dot
from conformance.workloads.precision import Format


@dataclass(frozen=True)
class StageProof:
    """The proof of one stage of one window: the bits that its sums need and have, or the ``reason`` why it fails."""

    stage: str
    window: int
    bits: int
    available: int
    reason: str | None = None

    @property
    def exact(self) -> bool:
        return self.reason is None


@lru_cache(maxsize=256)
def gamma(operations: int, fmt: Format) -> Fraction:
    """gamma_n = n u / (1 - n u).

    Raises:
        Unbounded: n u >= 1, where the lemma does not apply.
    """
    product = operations * fmt.unit_roundoff
    if product >= 1:
        raise Unbounded(f"{operations} roundings in {fmt.name} (u = 2^-{fmt.p}) have no finite relative bound")
    return product / (1 - product)


def odd_part(number: int) -> int:
    return number // _power_of_two(number)


def is_dyadic(value: Fraction) -> bool:
    return value.denominator == _power_of_two(value.denominator)


@dataclass(frozen=True)
class Sums:
    """Groups of terms, reduced to the inputs of rounding: the sum of the magnitudes, and the largest power of two that
    divides every term.

    Both are integers in units of 1 / ``unit``; the power is 0 if all terms are zero.
    """

    unit: int
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def over(cls, groups: Iterable[Sequence[int]], unit: int) -> Sums:
        """The groups of ``group[i] / unit``."""
        return cls(unit, tuple((sum(map(abs, group)), _power_of_two(reduce(or_, group, 0))) for group in groups))

    @cached_property
    def bits(self) -> int | None:
        """The significand bits that every partial sum, in any order, fits in; None if a term is not dyadic."""
        if self.unit != _power_of_two(self.unit):
            return None
        return max((magnitude // (power or 1)).bit_length() for magnitude, power in self.groups)


def integers(table: Iterable[Sequence[Fraction]]) -> tuple[list[list[int]], int]:
    """``table`` over its common denominator, and that denominator."""
    rows = [[value.as_integer_ratio() for value in row] for row in table]
    unit = lcm(*{denominator for row in rows for _, denominator in row})
    return [[numerator * (unit // denominator) for numerator, denominator in row] for row in rows], unit


def _power_of_two(number: int) -> int:
    """The largest power of two that divides ``number``; 0 for 0."""
    return number & -number


class Ledger:
    """Collects the stage proofs of one run for its certificate."""

    def __init__(self) -> None:
        self.proofs: list[StageProof] = []
        self.window = 0

    @property
    def exact(self) -> bool:
        return all(proof.exact for proof in self.proofs)

    def sums(self, stage: str, sums: Sums, fmt: Format) -> bool:
        """Proves that the sum of each group is exact in ``fmt``, in every order; keeps the tightest proof."""
        worst = sums.bits
        if worst is None:
            return self.refuse(stage, fmt, "a term is not a dyadic rational")
        if worst > fmt.p:
            return self.refuse(stage, fmt, f"a sum needs {worst} bits, {fmt.name} has {fmt.p}", worst)
        self.proofs.append(StageProof(stage, self.window, worst, fmt.p))
        return True

    def range(
        self, stage: str, sums: Sums, fmt: Format, shrink: Fraction = Fraction(1), grow: Fraction = Fraction(1)
    ) -> bool:
        """Proves that each group's dyadic terms and sums stay in range, scaled by ``shrink`` to ``grow``."""
        # Compare integers with the integer below a bound, because fractions are slow.
        largest = fmt.largest * sums.unit // grow if grow else None
        # A dyadic term is an odd multiple of 1 / denominator, which an odd divisor does not change. The quantum is a
        # power of two below one.
        finest = odd_part(shrink.denominator) * fmt.quantum.denominator // shrink.denominator
        for magnitude, power in sums.groups:
            if largest is not None and magnitude > largest:
                return self.refuse(stage, fmt, f"a value may overflow {fmt.name}")
            if max(1, sums.unit // power if power else 1) > finest:
                return self.refuse(stage, fmt, f"a value may underflow {fmt.name}")
        return True

    def constants(self, stage: str, chains: Iterable[Sequence[Fraction]], fmt: Format) -> bool:
        """Proves that multiplying by a constant, itself rounded to ``fmt``, is exact for every representable result.

        A chain's constants are its products of one, two, ... factors, rounded after each. With c (1 + delta) instead of
        c, a result k becomes k (1 + delta) before it rounds. It rounds to k for every representable k if abs(delta) <=
        u / 2, because half an ulp of k is more than k u / 2. They are equal only just below a power of two, and such a
        tie goes to the power of two, because its significand is even.
        """
        for chain in chains:
            wrong = _inexact_constant(tuple(chain), fmt)
            if wrong is not None:
                return self.refuse(stage, fmt, f"multiplying by the rounded {wrong} is not exact in {fmt.name}")
        return True

    def divisors(self, stage: str, divisors: Iterable[int], fmt: Format) -> bool:
        """Proves that dividing a multiple of d by d is exact in ``fmt``, also as a product with the rounded 1/d."""
        return self.constants(stage, [(Fraction(1, odd_part(divisor)),) for divisor in divisors], fmt)

    def refuse(self, stage: str, fmt: Format, reason: str, bits: int = 0) -> bool:
        """Records why the stage cannot be proved exact. Returns False, the result of a failed proof."""
        self.proofs.append(StageProof(stage, self.window, bits, fmt.p, reason))
        return False


@lru_cache(maxsize=4096)
def _inexact_constant(factors: tuple[Fraction, ...], fmt: Format) -> Fraction | None:
    """The first of a chain's rounded constants that is wrong by more than half a unit roundoff; else None."""
    right = rounded = Fraction(1)
    for factor in factors:
        right, rounded = right * factor, nearest(rounded * factor, fmt)
        if abs(rounded / right - 1) > fmt.unit_roundoff / 2:
            return right
    return None


def nearest(value: Fraction, fmt: Format) -> Fraction:
    """``value`` rounded to nearest, ties to even, in ``fmt`` (no overflow)."""
    if not value:
        return value
    ulp = fmt.ulp(value)
    return round(value / ulp) * ulp


def cast(vector: Affine, fmt: Format) -> Affine:
    """``vector`` rounded to nearest. Rounding is monotonic, so bounds of an entry become bounds of its rounding."""
    bounds = map(vector.interval, range(len(vector)))
    return vector.symbols.between([(nearest(low, fmt), nearest(high, fmt)) for low, high in bounds])


def combined(stage: str, parts: Sequence[tuple[Fraction, Affine]], fmt: Format, ledger: Ledger) -> Affine:
    """``sum_k factor_k * vector_k`` as an optimizer evaluates it in ``fmt``: exact if provable, else with its error.

    The factors reach the kernel as doubles and round to ``fmt``. Each term passes at most its factor's rounding (twice
    if the factor was computed in double before), one product and ``len(parts)`` sums.
    """
    symbols = parts[0][1].symbols
    if all(vector.exact for _, vector in parts):
        terms, unit = _products(parts)
        total = symbols.exactly([Fraction(sum(term), unit) for term in terms])
        sums = Sums.over(terms, unit)
        if not all(fmt.holds(factor) for factor, _ in parts):
            ledger.refuse(stage, fmt, f"a factor is not representable in {fmt.name}")
        elif ledger.sums(stage, sums, fmt) and ledger.range(stage, sums, fmt):
            return total
    else:
        total = symbols.exactly([Fraction(0)] * len(parts[0][1]))
        for factor, vector in parts:
            total = total.plus(vector.scaled(factor))
        ledger.refuse(stage, fmt, "its input already carries a rounding error")
    factors = [gamma(len(parts) + 3, fmt) * abs(factor) for factor, _ in parts]
    magnitudes = zip(*(vector.magnitude for _, vector in parts), strict=True)
    radii = [dot(factors, sizes, 2 * len(parts) * fmt.quantum) for sizes in magnitudes]
    return total.widen(radii)


def _products(parts: Sequence[tuple[Fraction, Affine]]) -> tuple[list[list[int]], int]:
    """The terms ``factor_k * center_k`` of each entry, over their common denominator, and that denominator."""
    [factors], per = integers([[factor for factor, _ in parts]])
    centers, unit = integers([vector.center for _, vector in parts])
    terms = [list(map(mul, factors, entry)) for entry in zip(*centers, strict=True)]
    shared = gcd(unit * per, *(term for entry in terms for term in entry))
    return [[term // shared for term in entry] for entry in terms], unit * per // shared
