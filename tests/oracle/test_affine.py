"""Affine arithmetic encloses whatever its inputs and errors may be."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import reduce
from math import inf
from operator import add, mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.oracle.affine import Affine, Enclosure, Symbols, Unbounded, square_root

SIZE = 3
NUMBERS = st.integers(0, 2**32).map(random.Random)


def number(numbers: random.Random) -> Fraction:
    """Of any kind: short, long, tiny, large, not dyadic."""
    plain = Fraction(numbers.randint(-9, 9), numbers.choice([1, 2, 3, 7, 1024]))
    return plain * numbers.choice([1, 1, 1, Fraction(numbers.random()), Fraction(1, 10**12), 10**9])


def within(numbers: random.Random, radius: Fraction) -> Fraction:
    """An error of up to ``radius``; often as large as that."""
    return radius * numbers.choice([-1, 1, Fraction(numbers.uniform(-1, 1))])


class Program:
    """A straight-line program, run in affine arithmetic and in rationals at one choice of all its errors."""

    def __init__(self, numbers: random.Random) -> None:
        self.numbers, self.symbols = numbers, Symbols()
        self.values: list[tuple[Affine, list[Fraction]]] = [self.exact(), self.interval()]

    def vector(self) -> list[Fraction]:
        return [number(self.numbers) for _ in range(SIZE)]

    def exact(self):
        vector = self.vector()
        return self.symbols.exactly(vector), vector

    def interval(self):
        ends = [tuple(sorted(pair)) for pair in zip(self.vector(), self.vector(), strict=True)]
        inside = [(low + high) / 2 + within(self.numbers, (high - low) / 2) for low, high in ends]
        return self.symbols.between(ends), inside

    def widened(self):
        (affine, value), radii = self.pick(), [abs(size) for size in self.vector()]
        return affine.widen(radii), [v + within(self.numbers, radius) for v, radius in zip(value, radii, strict=True)]

    def transformed(self):
        (affine, value), rows, offset = self.pick(), [self.vector() for _ in range(SIZE)], self.vector()
        image = [sum(map(mul, row, value)) + constant for row, constant in zip(rows, offset, strict=True)]
        return affine.transform(rows, offset), image

    def scaled(self):
        (affine, value), factor = self.pick(), number(self.numbers)
        return affine.scaled(factor), [factor * v for v in value]

    def summed(self):
        (one, left), (other, right) = self.pick(), self.pick()
        return one.plus(other), list(map(add, left, right))

    def scaled_by_an_unknown(self):
        (affine, value), (low, high) = self.pick(), sorted((number(self.numbers), number(self.numbers)))
        factor = (low + high) / 2 + within(self.numbers, (high - low) / 2)
        return affine.scaled_by_interval(low, high), [factor * v for v in value]

    def clamped(self):
        (affine, value), threshold = self.pick(), abs(number(self.numbers))
        return affine.clamped(threshold), [max(-threshold, min(threshold, v)) for v in value]

    def pick(self):
        return self.numbers.choice(self.values[-4:])

    def run(self, length: int):
        """The pairs of affine form and rational value after each of ``length`` instructions."""
        made = (self.exact, self.interval, self.widened, self.transformed, self.scaled, self.summed)
        for _ in range(length):
            self.values.append(self.numbers.choice([*made, self.scaled_by_an_unknown, self.clamped])())
        return self.values


@settings(max_examples=200)
@given(NUMBERS, st.integers(1, 30))
def test_programs_stay_inside(numbers, length):
    for affine, value in Program(numbers).run(length):
        assert affine.enclosure().holds(value)
        assert all(abs(v) <= size for v, size in zip(value, affine.magnitude, strict=True))
        assert affine.exact == affine.enclosure().exact
        for index, v in enumerate(value):
            low, high = affine.interval(index)
            assert low <= v <= high


@settings(max_examples=40)
@given(NUMBERS)
def test_long_iterations_stay_inside_and_their_numbers_stay_short(numbers):
    """Hundreds of steps of a contraction: centers are rounded on the way, and that is accounted for."""
    symbols = Symbols()
    start = [Fraction(numbers.random()) for _ in range(2)]
    affine, value = symbols.exactly(start), start
    a, b = Fraction(numbers.random()) / 2, Fraction(numbers.random()) / 3
    rows = [[a, b], [-b, a]]
    for _ in range(80):
        error = Fraction(numbers.random()) / 2**30
        affine = affine.transform(rows, (Fraction(1, 3), Fraction(1, 7))).widen([error, error])
        value = [
            sum(map(mul, row, value)) + constant + within(numbers, error)
            for row, constant in zip(rows, (Fraction(1, 3), Fraction(1, 7)), strict=True)
        ]
        assert affine.enclosure().holds(value)
    assert max(center.denominator.bit_length() for center in affine.center) <= 1200
    assert max(affine.radius) < Fraction(4, 2**30)


def test_shared_errors_cancel():
    symbols = Symbols()
    noisy = symbols.exactly([Fraction(1), Fraction(2)]).widen([Fraction(1, 2), Fraction(1, 3)])
    difference = noisy.plus(noisy.scaled(Fraction(-1)))
    assert difference.center == (0, 0)
    assert max(difference.radius) < Fraction(1, 2**45)
    independent = noisy.plus(symbols.exactly([Fraction(0)] * 2).widen(noisy.radius))
    assert min(independent.radius) > Fraction(2, 3) - Fraction(1, 2**45)


def test_products_of_shared_errors():
    """(2 + e)(3 + e) for any e in [-1, 1] is 6 + 5 e + e^2."""
    one = Symbols().between([(Fraction(1), Fraction(3))])
    product = one * one.plus(one.symbols.exactly([Fraction(1)]))
    low, high = product.interval(0)
    assert low <= 2 < 12 <= high
    assert high - low < 12 + Fraction(1, 2**20)
    # In the other direction the errors cancel, except for their squares.
    difference = product.plus(one.scaled(Fraction(-5)))
    assert difference.radius[0] < 1 + Fraction(1, 2**20)


def test_entries_keep_their_errors_when_they_are_joined():
    vector = Symbols().between([(Fraction(0), Fraction(2)), (Fraction(-4), Fraction(4))])
    again = vector.symbols.joined(vector.entries())
    assert again.plus(vector.scaled(Fraction(-1))).radius[1] < Fraction(1, 2**20)
    assert again.interval(0) == vector.interval(0)


def test_clamping_keeps_what_it_does_not_touch():
    symbols = Symbols()
    noisy = symbols.exactly([Fraction(0), Fraction(4)]).widen([Fraction(1, 2)] * 2)
    clamped = noisy.clamped(Fraction(2))
    rest = clamped.plus(noisy.scaled(Fraction(-1)))
    assert rest.radius[0] < Fraction(1, 2**45)
    assert clamped.interval(1) == (2, 2)


def test_exact_values_stay_exact():
    symbols = Symbols()
    vector = symbols.exactly([Fraction(1, 3), Fraction(5)])
    image = vector.transform([[Fraction(3), Fraction(1)]], [Fraction(-1)]).scaled(Fraction(1, 5))
    image = image.clamped(Fraction(1, 2))
    assert image.exact
    assert (image.center, image.radius) == ((Fraction(1, 2),), (0,))


ROWS = [[Fraction(10**200), Fraction(-(10**200))]] * 2


@pytest.mark.parametrize(
    ("grown", "times"),
    [
        (lambda form: form.scaled(Fraction(2)), 1100),
        (lambda form: form.plus(form), 1100),
        (lambda form: form.transform(ROWS, [Fraction(0)] * 2), 2),
        (lambda form: form.widen([Fraction(10) ** 400] * 2), 1),
    ],
)
def test_errors_without_bound_are_refused(grown, times):
    form = Symbols().exactly([Fraction(0)] * 2).widen([Fraction(1)] * 2)
    with pytest.raises(Unbounded, match="outgrow every format"):
        reduce(lambda one, _: grown(one), range(times), form).enclosure()


boxes = st.lists(
    st.tuples(st.integers(-6, 6), st.integers(0, 3)).map(lambda pair: (Fraction(pair[0], 2), Fraction(pair[1], 2))),
    min_size=2,
    max_size=2,
).map(lambda entries: Enclosure(*zip(*entries, strict=True)))


@given(boxes, boxes)
def test_a_gap_above_one_means_that_no_point_lies_in_both(one, other):
    """One without bound is between two exact values."""
    gap, entries = one.gap(other), list(zip(one.center, one.radius, other.center, other.radius, strict=True))
    assert (gap > 1) == any(max(c - r, d - s) > min(c + r, d + s) for c, r, d, s in entries)
    assert gap == other.gap(one)
    assert (gap == 0) == (one.center == other.center)
    assert (gap == inf) == any(c != d and r + s == 0 for c, r, d, s in entries)


@given(boxes, st.lists(st.integers(-6, 6).map(lambda n: Fraction(n, 4)), min_size=2, max_size=2))
def test_a_box_holds_its_points(box, point):
    inside = all(c - r <= p <= c + r for c, r, p in zip(box.center, box.radius, point, strict=True))
    assert box.holds(point) == inside
    assert box.exact == (box.radius == (0, 0))


magnitudes = st.builds(lambda m, e: Fraction(m) * Fraction(2) ** e, st.integers(0), st.integers(-900, 900))


@given(st.fractions(min_value=0) | magnitudes)
def test_square_roots_enclose_and_rational_ones_are_exact(value):
    low, high = square_root(value)
    assert 0 <= low * low <= value <= high * high
    assert (high - low) * 2**250 <= low
    assert square_root(value * value) == (value, value)
