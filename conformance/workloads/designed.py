"""Workloads with designed data: every parameter element takes an independent course, also over several epochs.

In each batch the columns of the rows, one per parameter element, are orthogonal (a Hadamard matrix twice, each for half
the samples). So an element's gradient depends only on that element, and any gradients are possible: the residuals that
give them are a combination of the columns. The remaining choice is one number per element and batch, few enough to try
all: kept are those that leave the element on a grid in all steps of all epochs. The arithmetic here only chooses the
data; the certificate in :mod:`conformance.oracle` proves exactness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import lcm

import numpy as np
import numpy.typing as npt

from conformance.workloads.descent import Floats, State, after, vector
from conformance.workloads.model import ManyTensors, Model
from conformance.workloads.outliers import Outliers
from conformance.workloads.reading_plan import shuffled
from conformance.workloads.workload import Ingredients, LossScale, Sample, Workload

#: Half the gradients to try for each element and batch, in units.
_MULTIPLES = (-16, -12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16)
#: Initial weights to try, in twice these units.
_STARTS = (-16, -12, -8, -6, -4, -3, -2, -1, 1, 2, 3, 4, 6, 8, 12, 16)
#: Each element takes one of this many courses: those with the smallest residuals, which need the fewest bits, or
#: somewhat larger ones if it moves more often.
_SMALLEST = 24
_ATTEMPTS = 256
#: How far the halves of a weighted batch are mixed: 0 means not at all.
_MIXED = 1.5


@dataclass(frozen=True)
class Design(Ingredients):
    """The ingredients of a designed workload.

    Args:
        weights: for each batch, the weights of the samples in its two halves.
        unit: residuals are odd multiples of this, times the odd part of the divisor, and weights are multiples of twice
            that.
        largest_weight: no weight becomes larger.
        short: samples of the last batch of an epoch, as a fraction of the others'.
        outliers: in these batches, samples that overflow fp16.
        idle: in this batch, no sample is of the last block.
        stops: after so many steps no element is at its start or at rest. Training can be resumed there: lost
            state shows in each element, and so on each rank that stores one.
    """

    model: Model = ManyTensors()
    _: KW_ONLY
    scale: LossScale = LossScale(Fraction(2**5))
    batch_sizes: tuple[int, ...] = (32, 24)
    weights: tuple[tuple[int, int], ...] | None = None
    unit: Fraction = Fraction(1, 4)
    largest_weight: int = 4
    batches: int = 3
    short: Fraction = Fraction(1)
    epochs: int = 2
    outliers: Mapping[int, Outliers] = field(default_factory=dict)
    idle: int | None = None
    stops: tuple[int, ...] = ()

    @property
    def ends_show(self) -> bool:
        """Whether it is made to show bugs at the ends of epochs."""
        return self.short < 1 or self.schedule_by == "epoch"

    @property
    def in_epoch(self) -> int | None:
        """The steps of an epoch, if schedules count epochs."""
        return self.batches if self.schedule_by == "epoch" else None

    @property
    def visited(self) -> Sequence[int]:
        """The batch number of each step: each epoch has another order."""
        full = self.batches - (self.short < 1)
        return [
            number for epoch in range(self.epochs) for number in (*shuffled(full, 1, epoch), *range(full, self.batches))
        ]

    def samples(self, number: int, batch_size: int) -> int:
        """The number of samples in batch ``number``."""
        return int(batch_size * self.short) if number == self.batches - 1 else batch_size

    def unit_of(self, batch_size: int) -> float:
        """The unit of residuals, times the odd parts of all divisors."""
        weights = self.weights or ((1, 1),) * self.batches
        totals = [sum(own) * self.samples(number, batch_size) // 2 for number, own in enumerate(weights)]
        return float(self.unit) * lcm(*(total // (total & -total) for total in totals))

    def build(self, batch_size: int, accumulation: int = 1) -> Workload:
        generator = np.random.default_rng([*self.name.encode(), batch_size, self.seed])
        batches = _drawn(self, batch_size, generator)
        courses = _courses(self, batches)
        chosen = np.array([generator.integers(len(own.visits)) for own in courses])
        run = _Run.of(chosen, self.visited, batches, courses, generator)
        for _ in range(_ATTEMPTS):
            # Small residuals need few bits.
            tried, element = run.chosen.copy(), generator.integers(len(courses))
            tried[element] = generator.integers(len(courses[element].visits))
            other = _Run.of(tried, self.visited, batches, courses, generator)
            # If elements are alike, a gradient does not show its samples.
            run = min(run, other, key=lambda run: (run.alike if self.ends_show else 0, run.largest))
        samples = tuple(_samples(self, number, rows, run, generator) for number, rows in enumerate(batches))
        start = vector(run.visits[0])
        return Workload(**self.settings, loss=self.loss, batches=samples, start=start, epochs=self.epochs, shuffle=True)


def _drawn(design: Design, batch_size: int, generator: np.random.Generator) -> list[_Rows]:
    """The rows of all batches. If ends of epochs are to show, all rows differ: a trace tells which samples were read.

    Raises:
        ValueError: the model has too few elements for so many different rows.
    """
    found: list[_Rows] = []
    for number in range(design.batches):
        for _ in range(_ATTEMPTS):
            batches = [*found, _Rows.drawn(design, number, batch_size, generator)]
            every = np.concatenate([rows.factors for rows in batches])
            if not design.ends_show or len(np.unique(every, axis=0)) == len(every):
                found = batches
                break
        else:
            raise ValueError(f"workload {design.name}: {design.model.size} elements cannot tell all samples apart")
    return found


@dataclass(frozen=True)
class _Rows:
    """One batch without its targets.

    factors: (samples, elements), the factor of each element. half, block, weights: (samples,), those of each sample.
    share: (elements,), the part of the batch's weight that uses each element. step: the unit of residuals, times the
    odd part of the divisor. free: columns of shape (samples / 2,) that are orthogonal to all others.
    """

    factors: Floats
    half: npt.NDArray[np.int64]
    block: npt.NDArray[np.int64]
    weights: Floats
    share: Floats
    step: float
    free: tuple[Floats, ...]

    @classmethod
    def drawn(cls, design: Design, number: int, batch_size: int, generator: np.random.Generator) -> _Rows:
        model, samples = design.model, design.samples(number, batch_size)
        size = samples // 2
        ones, *others = hadamard(size).T
        columns = [generator.choice([-1.0, 1.0]) * column for column in generator.permutation(others)]
        half = np.repeat([0, 1], size)
        block_of = half * (number != design.idle)
        factors = np.zeros((samples, model.size))
        factors[:, -1] = 1.0
        of_blocks = [[e for e, own in enumerate(model.block_of) if own == block] for block in range(model.blocks)]
        shared = [element for element, own in enumerate(model.block_of[:-1]) if own is None and model.is_used[element]]
        is_plain = design.weights is None
        wide = [np.concatenate([ones, -ones])] if is_plain else []
        if len(columns) < len(of_blocks[0]) + (len(shared) + is_plain) // (1 + is_plain) + 2:
            raise ValueError(f"workload {design.name}: {model.size} elements are too many for {samples} samples")
        for alike in zip(*of_blocks, strict=True):
            column = columns.pop()
            for block, element in enumerate(alike):
                factors[half == block, element] = column * (block_of[half == block] == block)
        # If rows must differ, more columns distinguish more; two share one only if there are too few.
        alone = not is_plain or (design.ends_show and len(columns) > len(shared))
        while len(wide) < len(shared):
            column = columns.pop()
            wide += [np.concatenate([column, sign * column]) for sign in ((1,) if alone else (1, -1))]
        factors[:, generator.permutation(shared)] = np.column_stack(wide[: len(shared)])
        weights = np.array([1, 1] if design.weights is None else design.weights[number], dtype=float)[half]
        share = weights @ factors**2 / weights.sum()
        return cls(factors, half, block_of, weights, share, design.unit_of(batch_size), tuple(columns))

    def residuals(self, multiples: Floats, generator: np.random.Generator) -> Floats:
        """The residuals that make the gradient of each element twice its share of ``multiples`` steps."""
        free = []
        for block in (0, 1):
            used = self.factors[self.half == block][0] != 0
            # A sum of equally many signs is even or odd in all samples; an odd one is not zero.
            count = 2 if multiples[used].sum() % 2 else 1
            free.append(np.sum([generator.choice([-1.0, 1.0]) * column for column in self.free[:count]], axis=0))
        residuals: Floats = self.step * (self.factors @ multiples + np.concatenate(free))
        return residuals


@dataclass(frozen=True)
class _Courses:
    """The courses that an element can take.

    asked: (courses, batches), half the gradient at the first visit of each batch, in multiples of the element's share
    of the batch's step. visits: (courses, visits), the weight at each visit of a batch.
    """

    asked: Floats
    visits: Floats

    @classmethod
    def of(cls, design: Design, batches: list[_Rows], element: int) -> _Courses:
        """The best courses that stay on the grid."""
        start, *asked = np.array(list(product(_STARTS, *[_MULTIPLES] * len(batches))), dtype=float).T
        unit, step = float(design.unit), batches[0].step
        threshold = float(design.clip.threshold) if design.clip and design.clip.kind == "value" else np.inf
        bites, still, stepped = np.zeros(len(start), dtype=bool), 0, 0
        tensor = design.model.tensors[design.model.tensor_of[element]]
        state = State(2 * unit * start, np.zeros_like(start))
        taken, visits, moves = np.column_stack(asked), np.empty((len(start), 0)), np.zeros(len(start))
        for visit, number in enumerate(design.visited):
            visits = np.column_stack([visits, state.weights])
            if number in design.outliers:
                continue
            if not (tensor.is_trained(visit, design.unfreeze_at) and batches[number].share[element]):
                state = replace(state, steps=state.steps + 1)
                still += 1
                continue
            stepped += 1
            slope = 2 * batches[number].share[element]
            gradients = slope * (step * taken[:, number] + state.weights - visits[:, number])
            moved = after(design, gradients, state, element, design.in_epoch)
            moves += moved.weights != state.weights
            bites |= np.abs(gradients) > threshold
            fits = ((moved.weights - state.weights) % (2 * step) == 0) & (
                np.abs(moved.weights) <= design.largest_weight
            )
            if visit + 1 in design.stops:
                fits &= (moved.weights != visits[:, 0]) & (moved.buffer != 0)
            state = State(moved.weights[fits], moved.buffer[fits], moved.steps)
            taken, visits, moves, bites = taken[fits], visits[fits], moves[fits], bites[fits]
        # If all elements are clipped, other faults are hidden.
        meant = (moves >= (len(visits.T) - still) / 2) | (stepped == 0)
        meant &= bites == (_is_clipped(design, element) and stepped > 0)
        # Training a frozen parameter would move it.
        meant &= (taken != 0).all(axis=1) | (not tensor.frozen)
        if design.ends_show:
            # A bug in a short window shows in its gradient and in everything after it.
            meant &= (taken[:, -1] != 0) & (moves == len(visits.T))
        taken, visits, moves = taken[meant], visits[meant], moves[meant]
        order = np.array(design.visited)
        # Columns are orthogonal, so these sums are the squares of residuals.
        later = taken[:, order] + (visits - visits[:, order]) / step
        smallest = np.argsort((later**2).sum(axis=1) - 4 * moves, kind="stable")[:_SMALLEST]
        return cls(taken[smallest], visits[smallest])

    @classmethod
    def of_unused(cls, design: Design, element: int) -> _Courses:
        """The course of an element that the model does not use: only weight decay moves it."""
        state, visits = State(np.array([float(design.largest_weight)]), np.zeros(1)), list[Floats]()
        for _ in range(design.epochs * design.batches):
            visits.append(state.weights)
            state = after(design, np.zeros(1), state, element, design.in_epoch)
        return cls(np.zeros((1, design.batches)), np.column_stack(visits))


@dataclass(frozen=True)
class _Run:
    """The choices: each element's course number, the weights at each visit of a batch, shape (visits, elements), the
    residuals of each batch at its first visit, the largest sum of residuals of all visits, and how many elements repeat
    another one's course up to its sign."""

    chosen: npt.NDArray[np.int64]
    visits: Floats
    residuals: tuple[Floats, ...]
    largest: float
    alike: int

    @classmethod
    def of(
        cls,
        chosen: npt.NDArray[np.int64],
        order: Sequence[int],
        batches: list[_Rows],
        courses: list[_Courses],
        generator: np.random.Generator,
    ) -> _Run:
        asked = np.array([own.asked[number] for own, number in zip(courses, chosen, strict=True)])
        visits = np.array([own.visits[number] for own, number in zip(courses, chosen, strict=True)]).T
        residuals = tuple(rows.residuals(asked[:, number], generator) for number, rows in enumerate(batches))
        sums = []
        for number, weights in zip(order, visits, strict=True):
            later = residuals[number] + batches[number].factors @ (weights - visits[number])
            sums.append(float(np.abs(batches[number].weights * later).sum()))
        return cls(chosen, visits, residuals, max(sums), len(asked) - len(np.unique(np.abs(asked), axis=0)))


def _courses(design: Design, batches: list[_Rows]) -> list[_Courses]:
    """The courses of each element. Elements with the same settings and shares have the same courses."""
    known = dict[object, _Courses]()
    found = []
    for element, tensor in enumerate(design.model.tensor_of):
        shares = [rows.share[element] for rows in batches]
        own = design.model.tensors[tensor]
        kind = own.group(1 + len(design.groups)), own.frozen, _is_clipped(design, element), *shares
        if kind not in known:
            is_used = design.model.is_used[element]
            known[kind] = _Courses.of(design, batches, element) if is_used else _Courses.of_unused(design, element)
        if not len(known[kind].visits):
            name = design.model.elements[element]
            raise ValueError(f"workload {design.name}: no course of {name} stays on its grid")
        found.append(known[kind])
    return found


def _is_clipped(design: Design, element: int) -> bool:
    """Whether clipping by value changes an element in some step: every other one, so one of each larger tensor."""
    return design.clip is not None and design.clip.kind == "value" and element % 2 == 0


def _samples(design: Design, number: int, rows: _Rows, run: _Run, generator: np.random.Generator) -> tuple[Sample, ...]:
    weights = run.visits[number]
    targets = rows.factors @ weights - run.residuals[number]
    order = _order(number, rows, generator, is_weighted=design.weights is not None)
    batch = tuple(
        Sample(
            design.model.inputs(vector(rows.factors[index]), int(rows.block[index])),
            Fraction(targets[index]),
            Fraction(rows.weights[index]),
        )
        for index in order
    )
    return design.outliers[number](batch, vector(weights)) if number in design.outliers else batch


def _order(number: int, rows: _Rows, generator: np.random.Generator, *, is_weighted: bool) -> npt.NDArray[np.int64]:
    """The samples of batch ``number`` in the order in which ranks and micro-batches get them."""
    noise = generator.uniform(0, _MIXED, len(rows.half))
    if is_weighted:
        # Heavy samples are mostly in the last micro-batches and on the last ranks: no mean of means is near the mean.
        return np.argsort(rows.half + noise)
    # Blocks alternate, twice as often in each batch as in the one before. So some ranks, and some micro-batches, use
    # none of a block's own elements, as with the rows of any embedding.
    place = np.empty(len(noise))
    for block in (0, 1):
        place[rows.half == block] = noise[rows.half == block].argsort().argsort()
    turn = place * 2**number // (len(noise) // 2)
    return np.lexsort((noise, rows.half, turn))


def hadamard(size: int) -> Floats:
    """A matrix of ones and minus ones with orthogonal columns; the first column has only ones.

    Sylvester's construction for powers of two, else Paley's first one (Paley, "On orthogonal matrices", Journal of
    Mathematics and Physics 12, 1933).

    Raises:
        ValueError: neither construction applies.
    """
    if size & (size - 1) == 0:
        return np.array([[1 - 2 * ((i & j).bit_count() % 2) for j in range(size)] for i in range(size)], dtype=float)
    prime = size - 1
    if size % 4 or any(prime % factor == 0 for factor in range(2, prime)):
        raise ValueError(f"no construction here gives a Hadamard matrix of {size} rows")
    squares = {i * i % prime for i in range(1, prime)}
    matrix = np.ones((size, size))
    for i, j in product(range(prime), repeat=2):
        matrix[i + 1, j + 1] = -1 if i == j or (j - i) % prime not in squares else 1
    return matrix
