"""The stages of a certificate against brute force in the real dtype: sums, ranges, divisors and merged constants."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from conformance.oracle.affine import Unbounded
from conformance.oracle.rounding import Ledger, Sums, gamma, integers, is_dyadic, nearest, odd_part
from conformance.workloads.precision import BF16, FP16, FP32, FP64, Format

from .training import DTYPES, tree_sum

FORMATS = (FP64, FP32, BF16, FP16)
formats = st.sampled_from(FORMATS)
either_way = settings(suppress_health_check=[HealthCheck.filter_too_much])


@st.composite
def groups(draw: st.DrawFn, spare: tuple[int, int] = (-2, 2)) -> tuple[list[Fraction], Format]:
    """Terms of a sum in a format, with about as many bits as the format has."""
    fmt = draw(formats)
    bits = fmt.p - draw(st.integers(*spare))
    size = draw(st.integers(2, 9))
    largest = 2 ** max(1, bits - size.bit_length())
    units = draw(st.lists(st.integers(-largest, largest), min_size=size, max_size=size))
    exponent = draw(st.sampled_from([0, 0, -3, 5, fmt.min_exponent - fmt.p + 1, fmt.max_exponent - bits]))
    return [unit * Fraction(2) ** exponent for unit in units], fmt


def summed(groups):
    return Sums.over(*integers(groups))


def certified(terms, fmt):
    ledger = Ledger()
    return ledger.sums("stage", summed([terms]), fmt) and ledger.range("stage", summed([terms]), fmt)


def brute_force(terms, fmt, order):
    """Sums in the format's dtype, in many orders and associations; None where a term is not even representable."""
    tensors = [torch.tensor(float(term), dtype=torch.float64).to(DTYPES[fmt.name]) for term in terms]
    if any(Fraction(term) != rational(tensor) for term, tensor in zip(terms, tensors, strict=True)):
        return None
    in_order = [rational(sum(tensors[1:], tensors[0])), rational(sum(tensors[-2::-1], tensors[-1]))]
    return [*in_order, *(rational(tree_sum(tensors, order)) for _ in range(6))]


def rational(tensor):
    value = tensor.item()
    return Fraction(value) if abs(value) != float("inf") and value == value else None


@either_way
@given(groups(spare=(-1, 3)), st.randoms(use_true_random=False))
def test_a_certified_sum_is_the_same_in_every_order(group, order):
    terms, fmt = group
    assume(certified(terms, fmt))
    assert set(brute_force(terms, fmt, order)) == {sum(terms)}


@either_way
@given(groups(spare=(-4, 0)), st.randoms(use_true_random=False))
def test_a_sum_that_comes_out_wrong_in_some_order_is_refused(group, order):
    terms, fmt = group
    results = brute_force(terms, fmt, order)
    assume(results is None or set(results) != {sum(terms)})
    assert not certified(terms, fmt)


@given(formats, st.lists(st.integers(0, 2**50), min_size=1, max_size=6), st.data())
def test_the_last_bit_is_used_and_not_one_more(fmt, parts, data):
    """All terms of one sign: the largest partial sum is what needs the bits."""
    limit = 2**fmt.p
    parts = [part % (limit // 8) for part in parts]
    fits = data.draw(st.integers(sum(parts), limit - 1))
    assert certified([*map(Fraction, parts), Fraction(fits - sum(parts))], fmt)
    rounds = data.draw(st.integers(limit // 2, limit - 1)) * 2 + 1
    assert not certified([*map(Fraction, parts), Fraction(rounds - sum(parts))], fmt)
    assert not fmt.holds(Fraction(rounds))


def test_a_proof_says_how_many_bits_were_needed_or_why_it_failed():
    ledger = Ledger()
    ledger.window = 3
    for terms in ([[1, Fraction(3, 4)], [5]], [[256, 1]], [[1], [Fraction(1, 3)]]):
        ledger.sums("forward", summed([list(map(Fraction, group)) for group in terms]), BF16)
    assert [(one.stage, one.window, one.bits, one.available, one.reason) for one in ledger.proofs] == [
        ("forward", 3, 3, 8, None),
        ("forward", 3, 9, 8, "a sum needs 9 bits, bf16 has 8"),
        ("forward", 3, 0, 8, "a term is not a dyadic rational"),
    ]
    assert [one.exact for one in ledger.proofs] == [True, False, False]
    assert not ledger.exact


scales = st.integers(-12, 12).map(lambda exponent: Fraction(2) ** exponent)


@either_way
@given(groups(), scales, scales, st.sampled_from([1, 3, 5, 24]), st.data())
def test_a_range_holds_every_partial_sum_at_every_scale(group, one, other, divisor, data):
    terms, fmt = group
    terms = [term * odd_part(divisor) for term in terms]
    shrink, grow = min(one, other) / divisor, max(one, other)
    ledger = Ledger()
    assume(ledger.sums("stage", summed([terms]), fmt) and ledger.range("stage", summed([terms]), fmt, shrink, grow))
    part = sum(data.draw(st.lists(st.sampled_from(terms), max_size=len(terms), unique_by=id)), Fraction(0))
    scale = one
    while scale <= grow:
        assert fmt.holds(part * scale)
        scale *= 2
    assert fmt.holds(part * shrink)


@pytest.mark.parametrize(
    ("inside", "outside", "reason"),
    [(Fraction(2) ** -15, Fraction(2) ** -16, "underflow"), (Fraction(2) ** 6, Fraction(2) ** 7, "overflow")],
)
def test_a_range_ends_where_the_format_ends(inside, outside, reason):
    terms = [Fraction(2**9), Fraction(2**-9)]
    ledger = Ledger()
    assert ledger.range("stage", summed([terms]), FP16, min(inside, Fraction(1)), max(inside, Fraction(1)))
    assert not ledger.range("stage", summed([terms]), FP16, min(outside, Fraction(1)), max(outside, Fraction(1)))
    assert ledger.proofs[-1].reason == f"a value may {reason} fp16"


@cache
def quotients(fmt: Format, divisor: int) -> torch.Tensor:
    """Odd k for which k * divisor is representable: all of them in short formats, many of them in long ones.

    An even k divides as exactly as its half, and an odd product is representable if it has no more than p bits.
    """
    largest = 2**fmt.p // divisor
    if largest < 2**12:
        k = torch.arange(1, largest + 1, 2)
    else:
        ends = torch.arange(1, 4001, 2)
        inner = torch.randint(largest // 2, (20_000,), generator=torch.Generator().manual_seed(divisor)) * 2 + 1
        k = torch.cat([ends, (largest - ends) // 2 * 2 + 1, inner])
        k = k[k <= largest]
    return k


def wrong_products(fmt: Format, divisor: int, constant: torch.Tensor) -> int:
    """How many of the quotients come out wrong when their multiple is multiplied with ``constant``."""
    k, dtype = quotients(fmt, divisor), DTYPES[fmt.name]
    assert len(k)
    return int(((k * divisor).to(dtype) * constant != k.to(dtype)).sum())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("divisor", [1, 3, 5, 7, 9, 11, 13, 15, 21, 25, 27, 33, 45, 63, 75, 99, 125])
def test_a_certified_division_is_exact_as_a_product_too(fmt, divisor):
    one = torch.tensor(1.0, dtype=DTYPES[fmt.name])
    wrong = wrong_products(fmt, divisor, one / divisor)
    certified = Ledger().divisors("division", [2 * divisor], fmt)
    assert not (certified and wrong)
    assert wrong_products(fmt, divisor, nearest_as_tensor(Fraction(1, divisor), fmt)) == wrong


@pytest.mark.parametrize(
    ("fmt", "divisor"),
    [(FP64, 49), (FP32, 7), (FP32, 15), (FP16, 11), (BF16, 13)],
    ids=["fp64-49", "fp32-7", "fp32-15", "fp16-11", "bf16-13"],
)
def test_a_refused_division_does_go_wrong_as_a_product(fmt, divisor):
    one = torch.tensor(1.0, dtype=DTYPES[fmt.name])
    assert not Ledger().divisors("division", [divisor], fmt)
    assert wrong_products(fmt, divisor, one / divisor)


def nearest_as_tensor(value, fmt):
    return torch.tensor(float(nearest(value, fmt)), dtype=torch.float64).to(DTYPES[fmt.name])


def test_both_answers_occur_for_every_format_and_a_refused_divisor_is_named():
    for fmt in FORMATS:
        answers = {divisor: Ledger().divisors("division", [divisor], fmt) for divisor in range(1, 64, 2)}
        assert answers[1] and answers[3]
        assert set(answers.values()) == {True, False}
    ledger = Ledger()
    assert not ledger.divisors("division", [3, 14], FP32)
    assert ledger.proofs[-1].reason == "multiplying by the rounded 1/7 is not exact in fp32"


small = st.integers(1, 12).map(Fraction)
chains = st.lists(st.one_of(small, small.map(lambda n: 1 / n)), min_size=1, max_size=3)


@either_way
@given(chains, formats)
def test_a_certified_constant_may_be_merged_in_the_dtype(factors, fmt):
    """The constant as a trainer computes it: multiplied or divided by each factor in turn."""
    assume(Ledger().constants("division", [factors], fmt))
    constant, right = torch.tensor(1.0, dtype=DTYPES[fmt.name]), Fraction(1)
    for factor in factors:
        constant = constant * factor.numerator if factor >= 1 else constant / factor.denominator
        right *= factor
    divisor = odd_part(right.denominator)
    # k * divisor times the constant is k times the rest of it, which adds further bits.
    rest = right * divisor
    k = quotients(fmt, divisor)
    k = k[k <= 2**fmt.p // rest.numerator]
    dtype = DTYPES[fmt.name]
    results = (k * divisor).to(dtype) * constant
    assert bool((results == (k * rest.numerator).to(dtype) / rest.denominator).all())


def test_two_rounded_reciprocals_are_no_quotient():
    """Why a certificate covers ``loss / 3 / 3`` and not ``loss * (1 / 3) * (1 / 3)``."""
    third = torch.tensor(1.0) / 3
    assert (third / 3).item() == (torch.tensor(1.0) / 9).item()
    assert (third * third).item() != (torch.tensor(1.0) / 9).item()
    assert (torch.tensor(9.0) * (third * third)).item() != 1
    assert Ledger().constants("division", [(Fraction(1, 3), Fraction(1, 3))], FP32)


@given(st.integers(1, 400), formats)
def test_gamma_bounds_a_chain_of_roundings(operations, fmt):
    u = fmt.unit_roundoff
    if operations * u >= 1:
        with pytest.raises(Unbounded, match="no finite relative bound"):
            gamma(operations, fmt)
    else:
        assert (1 + u) ** operations - 1 <= gamma(operations, fmt)
        assert 1 - (1 - u) ** operations <= gamma(operations, fmt)


@given(st.integers(1, 10**6))
def test_the_odd_part(number):
    odd = odd_part(number)
    assert (odd % 2, number % odd) == (1, 0)
    assert is_dyadic(Fraction(odd, number))
