"""The gradient of a squared-error loss over one accumulation window, with its proof of exactness or its error.

For coefficients c_i (a correct trainer has c_i = weight_i / total weight) the gradient by the folded weights w is
``sum_i 2 c_i (x_i . w - y_i) x_i = A w - r`` with ``A = 2 sum_i c_i x_i x_i^T`` and ``r = 2 sum_i c_i y_i x_i``. A
model of one layer has the folded weights as its weights. For several layers, the gradient by the weights is the slope
of the prediction, with the gradient by the folded weights instead of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise, permutations
from operator import mul

from conformance.oracle.affine import Affine, Unbounded
from conformance.oracle.normal_form import NormalForm, tabulated
from conformance.oracle.rounding import Ledger, StageProof, Sums, gamma, integers, is_dyadic, nearest, odd_part
from conformance.workloads.layout import Window
from conformance.workloads.model import Model, transposed
from conformance.workloads.precision import Precision
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


@dataclass(frozen=True)
class _Terms:
    """All terms that are summed or stored between the weights and the gradient.

    The residuals, times two and their samples' weights, are integers in units of a power of two if a proof is possible.
    """

    forward: Sums
    residuals: list[int]
    backward: Sums
    gradient: Sums


@lru_cache(maxsize=256)
def _terms(loss: str, model: Model, window: Window, weights: Vector) -> _Terms:
    """The terms of a window at ``weights``, which are the same in every precision."""
    # In integers: weights are multiples of 1 / fine, samples of 1 / unit, and outputs of a layer have one more factor
    # of 1 / fine than its inputs.
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
    # All terms of the window: a trainer may split samples differently, or compute them in one forward.
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
    """The proofs up to the first refusal, cached: every fault starts from the same weights as the correct answer."""
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
        # An overflow would leave an infinity or a NaN in the gradients, so nothing overflowed.
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
    """Yields the factors that a correct trainer may multiply a term by, in the order in which they may round.

    A trainer may also apply each factor separately, to a loss, a gradient or a sum of gradients. If it merges factors
    into one constant before multiplying a residual, they round one after the other. A quotient rounds once: the product
    of two rounded reciprocals, as in ``loss * (1 / 3) * (1 / 3)``, is less precise than any certificate allows.
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


#: The multiplications of one sample's term between the residual and the optimizer, each by a rounded constant: the
#: loss's 2/m, its weight, 1/accumulation, 1/world, the loss scale and its inverse, a rescaling.
_SCALINGS = 8


def as_cast(weights: Affine, precision: Precision) -> Affine:
    """The weights that autocast's forward uses: rounded to the compute format.

    An exact weight rounds to nearest. A weight within a quarter of an ulp of a number of the compute format is cast to
    that number, so the cast removes its error. (Rounding to nearest allows half an ulp, and a quarter just below a
    power of two.)
    """
    compute = precision.compute
    if not precision.mixed:
        return weights
    if weights.exact:
        cast = [nearest(center, compute) for center in weights.center]
        return weights.symbols.exactly(cast) if all(map(compute.holds, cast)) else weights
    snaps = all(
        compute.holds(center) and 4 * radius < compute.ulp(center)
        for center, radius in zip(weights.center, weights.radius, strict=True)
    )
    return weights.symbols.exactly(weights.center) if snaps else weights


def gradient(
    problem: Problem,
    window: Window,
    form: NormalForm,
    weights: Affine,
    loss_scale: Fraction,
    ledger: Ledger,
    finite: bool = False,
    backward: Affine | None = None,
) -> Affine:
    """The window's gradient at ``weights``, enclosing every correct evaluation.

    ``finite``: the gradients of this window were seen to be finite. ``backward``: the weights of the backward, if they
    differ from the forward's; the proofs for the forward's weights then count for both.

    Raises:
        Unbounded: a correct trainer's gradients may overflow on their way between the ranks.
    """
    precision = problem.precision
    weights, later = as_cast(weights, precision), as_cast(backward or weights, precision)
    value = _at(weights, form, later)
    if weights.exact and later.exact:
        found = proofs(problem, window, weights.center, loss_scale, finite)
        ledger.proofs += found
        if all(proof.exact for proof in found):
            if all(precision.master.holds(entry) for entry in value.center):
                return value
            ledger.refuse("division", precision.master, "the averaged gradient is not representable")
    else:
        ledger.refuse("forward", precision.compute, "the weights already carry a rounding error")
    wire = precision.wire
    # The largest sum before any division, without roundings.
    undivided = max(problem.total_weight(window), Fraction(window.world_size)) * max(form.magnitude(weights.magnitude))
    if precision.compressed and undivided > wire.largest / 2:
        raise Unbounded(f"gradients of window {window.index} may overflow {wire.name} between the ranks")
    return enclosed(problem, window, form, weights, loss_scale, backward=later)


def _at(weights: Affine, form: NormalForm, backward: Affine | None = None) -> Affine:
    """The gradient of the form, without rounding errors."""
    offset = [-entry for entry in form.offset]
    if len(form.model.layers) == 1:
        return weights.transform(form.matrix, offset)
    entries, joined = weights.entries(), weights.symbols.joined
    slopes = joined(form.model.folded(entries)).transform(form.matrix, offset)
    return joined(form.model.slopes(slopes.entries(), entries, (backward or weights).entries()))


def enclosed(
    problem: Problem,
    window: Window,
    form: NormalForm,
    weights: Affine,
    loss_scale: Fraction,
    further_roundings: int = 0,
    backward: Affine | None = None,
) -> Affine:
    """The gradient with its rounding-error bound, for ``further_roundings`` more than the textbook's. ``backward``: the
    weights of the backward, if they differ from the forward's.

    The largest error of each entry is relative to the magnitudes of all its terms, plus possible underflows.
    """
    precision = problem.precision
    compute, master, wire = precision.compute, precision.master, precision.wire
    weights, later = as_cast(weights, precision), as_cast(backward or weights, precision)
    # The terms of the dot product. A further layer has its own terms in the residual, and its own or those of the layer
    # below in the slopes. Each of its factors is cast, multiplied and cast again.
    sums = [max(map(len, layer)) for layer in form.model.layers]
    size = sums[0] + sum(2 * (below + own + 3) for below, own in pairwise(sums))
    # Casts of x, w and y, the dot product, the residual and its cast, and the product with x. Their sum over a
    # micro-batch, or over all samples of a rank in one forward, is a part of the sum over the batch.
    largest_share = max(sum(map(len, share)) for share in window.shares) if precision.mixed else 0
    inner = gamma(3 + size + 3 + largest_share, compute)
    outer = gamma(len(window.batch) + 2 * _SCALINGS + further_roundings, master)
    across = gamma(window.world_size + 4 + further_roundings, wire) if precision.compressed else Fraction(0)
    relative = (1 + inner) * (1 + outer) * (1 + across) - 1
    descale = max(Fraction(1), 1 / loss_scale)
    operations = len(window.batch) + 2 * _SCALINGS + size + further_roundings
    tiny = operations * (compute.quantum * descale + master.quantum + wire.quantum)
    sizes = tuple(map(max, weights.magnitude, later.magnitude))
    errors = zip(form.magnitude(sizes), form.exposure(sizes), strict=True)
    return _at(weights, form, later).widen([relative * magnitude + tiny * exposure for magnitude, exposure in errors])
