"""One stage of a training step in a floating-point format: proved exact, or given a rigorous error radius.

A *stage* is a set of products and sums that a correct trainer may evaluate in any order and association. It is exact
if all terms are multiples of one power of two q and their magnitudes add up to less than 2^p q: every partial sum is
then an integer below 2^p times q, hence representable, so no operation rounds. Otherwise n operations in a row err by
at most gamma_n = n u / (1 - n u) relative to the sum of the magnitudes (Higham, ASNA 2nd ed., Lemma 3.1 and section
4.2, valid for every order of summation), plus one quantum for each operation whose result underflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from conformance.oracle.affine import Affine, Symbols, Unbounded
from conformance.workloads.precision import Format


@dataclass(frozen=True)
class StageProof:
    """What the certificate found for one stage of one window."""

    stage: str
    window: int
    bits: int
    available: int
    reason: str | None = None

    @property
    def exact(self) -> bool:
        return self.reason is None


def gamma(operations: int, fmt: Format) -> Fraction:
    """gamma_n = n u / (1 - n u).

    Raises:
        Unbounded: n u >= 1, where the lemma says nothing.
    """
    product = operations * fmt.unit_roundoff
    if product >= 1:
        raise Unbounded(f"{operations} roundings in {fmt.name} (u = 2^-{fmt.p}) have no finite relative bound")
    return product / (1 - product)


def odd_part(number: int) -> int:
    return number // (number & -number)


def is_dyadic(value: Fraction) -> bool:
    return value.denominator & (value.denominator - 1) == 0


def bits_of_sum(terms: Iterable[Fraction]) -> int | None:
    """Significand bits that every partial sum of ``terms``, in any order, fits in; None if a term is not dyadic."""
    nonzero = [term for term in terms if term]
    if not all(is_dyadic(term) for term in nonzero):
        return None
    if not nonzero:
        return 0
    denominator = max(term.denominator for term in nonzero)
    scaled = [abs(term.numerator) * (denominator // term.denominator) for term in nonzero]
    shift = min(number & -number for number in scaled)
    return (sum(scaled) // shift).bit_length()


class Ledger:
    """Collects the stage proofs of one run: the certificate in the making."""

    def __init__(self) -> None:
        self.proofs: list[StageProof] = []
        self.window = 0

    @property
    def exact(self) -> bool:
        return all(proof.exact for proof in self.proofs)

    def sums(self, stage: str, groups: Iterable[Sequence[Fraction]], fmt: Format) -> bool:
        """Prove that each group of terms adds up exactly in ``fmt``, in every order; note the tightest group."""
        worst = 0
        for terms in groups:
            bits = bits_of_sum(terms)
            if bits is None:
                return self._note(stage, 0, fmt, "a term is not a dyadic rational")
            worst = max(worst, bits)
        if worst > fmt.p:
            return self._note(stage, worst, fmt, f"a sum needs {worst} bits, {fmt.name} has {fmt.p}")
        return self._note(stage, worst, fmt)

    def range(
        self,
        stage: str,
        groups: Iterable[Sequence[Fraction]],
        fmt: Format,
        shrink: Fraction = Fraction(1),
        grow: Fraction = Fraction(1),
    ) -> bool:
        """Prove that each group's terms and sums, scaled by anything from ``shrink`` to ``grow``, stay in range."""
        finest = (shrink.denominator // odd_part(shrink.denominator)) * fmt.quantum
        for terms in groups:
            if sum(map(abs, terms), Fraction(0)) * grow > fmt.largest:
                return self._note(stage, 0, fmt, f"a value may overflow {fmt.name}")
            # A dyadic term is an odd multiple of 1 / denominator, and an odd divisor leaves that as it is.
            if max((term.denominator for term in terms), default=1) * finest > 1:
                return self._note(stage, 0, fmt, f"a value may underflow {fmt.name}")
        return True

    def constants(self, stage: str, chains: Iterable[Sequence[Fraction]], fmt: Format) -> bool:
        """Prove that multiplying by a constant, itself rounded to ``fmt``, is exact wherever the result is
        representable.

        A chain's constants are its products of one, two, ... factors, rounded after each. With c (1 + delta) in the
        place of c, a result k becomes k (1 + delta) before it is rounded. It rounds to k for every representable k if
        abs(delta) <= u / 2, because half an ulp of k is more than k u / 2. Only below a power of two it is no more than
        that, and then the tie goes to the power of two, whose significand is even.
        """
        for chain in chains:
            right = rounded = Fraction(1)
            for factor in chain:
                right, rounded = right * factor, nearest(rounded * factor, fmt)
                if abs(rounded / right - 1) > fmt.unit_roundoff / 2:
                    return self._note(stage, 0, fmt, f"multiplying by the rounded {right} is not exact in {fmt.name}")
        return True

    def divisors(self, stage: str, divisors: Iterable[int], fmt: Format) -> bool:
        """Prove that dividing a multiple of d by d is exact in ``fmt``, also as a product with the rounded 1/d."""
        return self.constants(stage, [(Fraction(1, odd_part(divisor)),) for divisor in divisors], fmt)

    def refuse(self, stage: str, fmt: Format, reason: str) -> bool:
        return self._note(stage, 0, fmt, reason)

    def _note(self, stage: str, bits: int, fmt: Format, reason: str | None = None) -> bool:
        self.proofs.append(StageProof(stage, self.window, bits, fmt.p, reason))
        return reason is None


def nearest(value: Fraction, fmt: Format) -> Fraction:
    """``value`` rounded to nearest, ties to even, in ``fmt`` (no overflow)."""
    if not value:
        return value
    ulp = fmt.ulp(value)
    return round(value / ulp) * ulp


def combined(
    stage: str, parts: Sequence[tuple[Fraction, Affine]], fmt: Format, ledger: Ledger, symbols: Symbols
) -> Affine:
    """``sum_k factor_k * vector_k`` as an optimizer evaluates it in ``fmt``: exactly if provable, else with its error.

    The factors reach the kernel as doubles and are rounded to ``fmt``. Each term passes at most its factor's rounding
    (twice, where it was computed in double before), one product and ``len(parts)`` sums.
    """
    size = len(parts[0][1])
    total = symbols.exactly([Fraction(0)] * size)
    for factor, vector in parts:
        total = total.plus(vector.scaled(factor))
    if all(vector.exact for _, vector in parts):
        if not all(fmt.holds(factor) for factor, _ in parts):
            ledger.refuse(stage, fmt, f"a factor is not representable in {fmt.name}")
        else:
            terms = [[factor * vector.center[i] for factor, vector in parts] for i in range(size)]
            if ledger.sums(stage, terms, fmt) and ledger.range(stage, terms, fmt):
                return total
    else:
        ledger.refuse(stage, fmt, "its input already carries a rounding error")
    bound = gamma(len(parts) + 3, fmt)
    magnitudes = [vector.magnitude for _, vector in parts]
    radii = [
        bound
        * sum(
            (abs(factor) * sizes[i] for (factor, _), sizes in zip(parts, magnitudes, strict=True)),
            Fraction(0),
        )
        + 2 * len(parts) * fmt.quantum
        for i in range(size)
    ]
    return total.widen(radii)
