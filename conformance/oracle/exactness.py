"""The proof that no operation on the way to a window's gradient rounds, whatever a correct trainer's order of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, permutations
from operator import mul

from conformance.oracle.normal_form import tabulated
from conformance.oracle.rounding import Ledger, StageProof, Sums, integers, is_dyadic, odd_part
from conformance.workloads.layout import Window
from conformance.workloads.model import Model, transposed
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


@dataclass(frozen=True)
class _Terms:
    """All that is added up, or only stored, from the weights to the gradient.

    The residuals, times two and their samples' weights, are integers in units of a power of two wherever a proof is
    possible.
    """

    forward: Sums
    residuals: list[int]
    backward: Sums
    gradient: Sums


@lru_cache(maxsize=256)
def _terms(loss: str, model: Model, window: Window, weights: Vector) -> _Terms:
    """The terms of a window at ``weights``, which are the same in every precision."""
    # In integers: weights are multiples of 1 / fine, samples of 1 / unit, and what comes out of a layer has one more
    # factor of 1 / fine than what it gets.
    table = tabulated(window, model)
    [point], fine = integers([weights])
    unit, depth = table.unit, len(model.layers)
    one, below = fine**depth, fine ** (depth - 1)
    inputs = [weight * unit * below for weight in point]
    inputs += [value * one for value in chain(*table.rows, table.targets, table.weights)]
    multiples = [*model.multiples(point), [1]]
    forward: list[list[int]] = []
    backward: list[list[int]] = []
    residuals: list[int] = []
    terms: list[list[int]] = []
    for row, target, weight in zip(table.rows, table.targets, table.weights, strict=True):
        values = model.values(row, point)
        for number, (layer, own) in enumerate(zip(model.layers[:-1], values[:-1], strict=True), start=1):
            rest = fine ** (depth - number)
            forward += [[rest * point[element] * own[at] for element, at in each] for each in layer]
        forward.append([*map(mul, values[-1], multiples[-2]), -target * one])
        residuals.append(2 * sum(forward[-1]) * (weight if loss == "weighted" else unit))
        for number, (layer, own) in enumerate(zip(model.layers[1:], multiples[2:], strict=True)):
            rest = residuals[-1] * unit * fine**number
            backward += [[rest * point[element] * own[at] for element, at in each] for each in transposed(layer)]
        terms.append([residuals[-1] * slope for slope in model.slopes(row, point)])
    # All terms of the window: a trainer may share samples out in another way, or compute them in one forward.
    columns = [list(column) for column in zip(*terms, strict=True)]
    whole = one * below * unit**3
    return _Terms(
        forward=Sums.over([*_each(inputs), *forward], one * unit),
        residuals=residuals,
        backward=Sums.over([*_each(residual * unit * below for residual in residuals), *backward, *columns], whole),
        gradient=Sums.over(columns, whole),
    )


def _each(values: Iterable[int]) -> list[list[int]]:
    """One group for each distinct value; repeated values would prove nothing new."""
    return [[value] for value in dict.fromkeys(values)]


@lru_cache(maxsize=256)
def proofs(problem: Problem, window: Window, weights: Vector, scale: Fraction, finite: bool) -> tuple[StageProof, ...]:
    """The proofs up to the first refusal, cached: every fault starts from the same weights as the right answer."""
    ledger = Ledger()
    ledger.window = window.index
    _proved(problem, window, weights, scale, finite, ledger)
    return tuple(ledger.proofs)


def _proved(problem: Problem, window: Window, weights: Vector, scale: Fraction, finite: bool, ledger: Ledger) -> bool:
    workload, precision, total = problem.workload, problem.precision, problem.total_weight(window)
    compute, master, wire = precision.compute, precision.master, precision.wire
    if not is_dyadic(total):
        return ledger.refuse("division", master, "the total weight is not a dyadic rational")
    if not is_dyadic(scale) or odd_part(scale.numerator) != 1:
        return ledger.refuse("loss scale", master, f"{scale} is not a power of two")

    terms = _terms(workload.loss, workload.model, window, weights)
    forward = terms.forward
    if not (ledger.sums("forward", forward, compute) and ledger.range("forward", forward, compute)):
        return False

    divisors = _divisors(workload.loss, window, total)
    by = divisors[0]
    if any(by % divisor for divisor in divisors):
        return ledger.refuse("division", master, f"a correct trainer may divide by {max(divisors)}, the total does not")
    if any(residual % by for residual in terms.residuals):
        return ledger.refuse("division", master, f"a residual is not a multiple of {by}")
    constants = _constants(workload.loss, window, total)
    if not (ledger.constants("division", constants, master) and ledger.divisors("division", divisors, wire)):
        return False

    stages = (
        ("backward", terms.backward, compute),
        ("accumulation", terms.gradient, master),
        ("all-reduce", terms.gradient, wire),
    )
    shrink = min(Fraction(1), scale) * min(Fraction(1), 1 / total)
    grow = max(Fraction(1), scale) * max(Fraction(1), window.world_size / total)
    if finite:
        # An overflow would have left an infinity or a NaN in the gradients; none is there, so nothing overflowed.
        grow = Fraction(0)
    return all(
        ledger.sums(stage, groups, fmt) and ledger.range(stage, groups, fmt, shrink, grow)
        for stage, groups, fmt in stages
    )


def _divisors(loss: str, window: Window, total: Fraction) -> tuple[int, ...]:
    """The odd parts of all divisors that a correct trainer may use; the total's comes first."""
    factors = [total.numerator, window.world_size]
    if loss == "mean":
        factors += [window.length, *(len(micro_batch) for share in window.shares for micro_batch in share)]
    return tuple(odd_part(factor) for factor in factors)


def _constants(loss: str, window: Window, total: Fraction) -> Iterator[tuple[Fraction, ...]]:
    """What a correct trainer may multiply a term with on the way, in the order in which it may round.

    A trainer may also apply each factor by itself, to a loss, a gradient or a sum of gradients. If it merges factors
    into one constant before it multiplies a residual with them, they round one after the other. A quotient is rounded
    once: the product of two rounded reciprocals, as in ``loss * (1 / 3) * (1 / 3)``, is further off than any
    certificate allows.
    """
    world = Fraction(window.world_size)
    yield (1 / total, world)
    if loss == "weighted":
        for weight in {sample.weight for sample in window.batch if sample.weight}:
            yield (1 / total, weight)
            yield (1 / total, world, weight)
            yield (weight / total, world)
        return
    for size in {len(micro_batch) for share in window.shares for micro_batch in share}:
        yield (size / total, Fraction(1, size))
        yield from permutations((Fraction(1, size), Fraction(1, window.length), 1 / world))
