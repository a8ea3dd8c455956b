"""The gradient of a squared-error loss over one accumulation window, with its proof of exactness or its error.

For coefficients c_i (a correct trainer has c_i = weight_i / total weight) the gradient is
``sum_i 2 c_i (x_i . w + b - y_i) x_i = A w - r`` with ``A = 2 sum_i c_i x_i x_i^T`` and ``r = 2 sum_i c_i y_i x_i``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import chain, permutations
from operator import mul

from conformance.oracle.affine import Affine, Unbounded, dot
from conformance.oracle.normal_form import NormalForm, tabulated
from conformance.oracle.rounding import Ledger, StageProof, Sums, gamma, integers, is_dyadic, odd_part
from conformance.workloads.layout import Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import Vector, Workload

#: Multiplications by a constant that one sample's term may pass between the residual and the optimizer, each with a
#: rounded constant: the loss's 2/m, its weight, 1/accumulation, 1/world, the loss scale and its inverse, a rescaling.
_SCALINGS = 8


def total_weight(workload: Workload, window: Window) -> Fraction:
    """What the correct gradient divides by: the samples, or their total weight, over all ranks and micro-batches."""
    if workload.loss == "mean":
        return Fraction(len(window.batch))
    return sum((sample.weight for sample in window.batch), Fraction(0))


def _divisors(loss: str, window: Window, total: Fraction) -> tuple[int, ...]:
    """The odd parts of everything that a correct trainer may divide by on the way; first that of the total."""
    factors = [total.numerator, window.world_size]
    if loss == "mean":
        factors += [window.length, *(len(micro_batch) for share in window.shares for micro_batch in share)]
    return tuple(odd_part(factor) for factor in factors)


def _constants(loss: str, window: Window, total: Fraction) -> Iterator[tuple[Fraction, ...]]:
    """What a correct trainer may multiply a term with on the way, in the order in which it may round.

    Every factor may also be applied on its own, to a loss, a gradient or a sum of gradients; merged into one constant
    before a residual is multiplied with it, factors round one after the other. A quotient is rounded once: the product
    of two rounded reciprocals, as of ``loss * (1 / 3) * (1 / 3)``, is further off than any certificate allows.
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


def as_cast(weights: Affine, precision: Precision) -> Affine:
    """The weights as autocast's forward sees them.

    A weight within a quarter of an ulp of a number of the compute format is cast to that number (half an ulp, or a
    quarter just below a power of two, is where rounding to nearest would leave it), so its own small error is gone.
    """
    compute = precision.compute
    snaps = precision.autocast and all(
        compute.holds(center) and 4 * radius < compute.ulp(center)
        for center, radius in zip(weights.center, weights.radius, strict=True)
    )
    return weights.symbols.exactly(weights.center) if snaps else weights


def gradient(
    workload: Workload,
    window: Window,
    form: NormalForm,
    weights: Affine,
    precision: Precision,
    loss_scale: Fraction,
    ledger: Ledger,
    finite: bool = False,
) -> Affine:
    """The window's gradient at ``weights``, enclosing every correct evaluation in ``precision``.

    ``finite``: the gradients of this window were seen to be finite.

    Raises:
        Unbounded: a correct trainer's gradients may overflow on their way between the ranks.
    """
    weights = as_cast(weights, precision)
    value = weights.transform(form.matrix, [-entry for entry in form.offset])
    if weights.exact:
        total = total_weight(workload, window)
        proofs = _proofs(workload.loss, workload.bias, window, total, weights.center, precision, loss_scale, finite)
        ledger.proofs += proofs
        if all(proof.exact for proof in proofs):
            if all(precision.master.holds(entry) for entry in value.center):
                return value
            ledger.refuse("division", precision.master, "the averaged gradient is not representable")
    else:
        ledger.refuse("forward", precision.compute, "the weights already carry a rounding error")
    wire = precision.wire
    if wire is not precision.master and _largest_sum(workload, window, form, weights) > wire.largest / 2:
        raise Unbounded(f"gradients of window {window.index} may overflow {wire.name} between the ranks")
    return enclosed(workload, window, form, weights, precision, loss_scale)


def _largest_sum(workload: Workload, window: Window, form: NormalForm, weights: Affine) -> Fraction:
    """The magnitude of what ranks may have to add up, before any division, but for the roundings on the way."""
    undivided = max(total_weight(workload, window), Fraction(window.world_size))
    return undivided * max(_magnitudes(form, weights))


def _magnitudes(form: NormalForm, weights: Affine) -> list[Fraction]:
    """The sums of the magnitudes of all terms of each entry of the gradient."""
    sizes = weights.magnitude
    return [dot(row, sizes, offset) for row, offset in zip(form.matrix_magnitude, form.offset_magnitude, strict=True)]


def enclosed(
    workload: Workload,
    window: Window,
    form: NormalForm,
    weights: Affine,
    precision: Precision,
    loss_scale: Fraction,
    further_roundings: int = 0,
) -> Affine:
    """The gradient with its rounding-error bound, of which ``further_roundings`` are not the textbook's."""
    weights = as_cast(weights, precision)
    value = weights.transform(form.matrix, [-entry for entry in form.offset])
    return value.widen(_radii(workload, window, form, weights, precision, loss_scale, further_roundings))


@lru_cache(maxsize=256)
def _proofs(
    loss: str,
    bias: bool,
    window: Window,
    total: Fraction,
    weights: Vector,
    precision: Precision,
    scale: Fraction,
    finite: bool,
) -> tuple[StageProof, ...]:
    """The proofs up to the first refusal. Faults begin where the right answer does: what holds there is kept."""
    ledger = Ledger()
    ledger.window = window.index
    _proved(loss, bias, window, total, weights, precision, scale, ledger, finite)
    return tuple(ledger.proofs)


def _proved(
    loss: str,
    bias: bool,
    window: Window,
    total: Fraction,
    weights: Vector,
    precision: Precision,
    scale: Fraction,
    ledger: Ledger,
    finite: bool,
) -> bool:
    compute, master, wire = precision.compute, precision.master, precision.wire
    if not is_dyadic(total):
        return ledger.refuse("division", master, "the total weight is not a dyadic rational")
    if not is_dyadic(scale) or odd_part(scale.numerator) != 1:
        return ledger.refuse("loss scale", master, f"{scale} is not a power of two")

    # In integers: weights are multiples of 1 / fine, samples of 1 / unit, and products of both of 1 / (fine unit).
    table = tabulated(window, bias)
    [point], fine = integers([weights])
    unit = table.unit
    inputs = [weight * unit for weight in point]
    inputs += [value * fine for value in chain(*table.rows, table.targets, table.weights)]
    dots: list[list[int]] = []
    residuals: list[int] = []
    terms: list[list[int]] = []
    for row, target, weight in zip(table.rows, table.targets, table.weights, strict=True):
        dots.append([*map(mul, row, point), -target * fine])
        residuals.append(2 * sum(dots[-1]) * (weight if loss == "weighted" else unit))
        terms.append([residuals[-1] * x for x in row])
    forward = Sums.over([*_each(inputs), *dots], fine * unit)
    if not (ledger.sums("forward", forward, compute) and ledger.range("forward", forward, compute)):
        return False

    divisors = _divisors(loss, window, total)
    by = divisors[0]
    if any(by % divisor for divisor in divisors):
        return ledger.refuse("division", master, f"a correct trainer may divide by {max(divisors)}, the total does not")
    if any(residual % by for residual in residuals):
        return ledger.refuse("division", master, f"a residual is not a multiple of {by}")
    constants = _constants(loss, window, total)
    if not (ledger.constants("division", constants, master) and ledger.divisors("division", divisors, wire)):
        return False

    # All terms of the window, because a trainer may deal samples otherwise, and put them through the model at once.
    columns = [list(column) for column in zip(*terms, strict=True)]
    everything = Sums.over(columns, fine * unit**3)
    stages = (
        ("backward", Sums.over([*_each(residual * unit for residual in residuals), *columns], fine * unit**3), compute),
        ("accumulation", everything, master),
        ("all-reduce", everything, wire),
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


def _each(values: Iterable[int]) -> list[list[int]]:
    """A group of its own for every value; the same one again would prove nothing new."""
    return [[value] for value in dict.fromkeys(values)]


def _radii(
    workload: Workload,
    window: Window,
    form: NormalForm,
    weights: Affine,
    precision: Precision,
    scale: Fraction,
    further_roundings: int,
) -> list[Fraction]:
    """The largest error of each entry: relative to the magnitudes of all its terms, plus what may underflow."""
    compute, master, wire = precision.compute, precision.master, precision.wire
    size = len(weights)
    # Casting x, w and y, the dot product, the residual and its cast, and the product with x. Their sum over a
    # micro-batch, or over all that a rank reads where a trainer puts it through the model at once, is a part of the
    # sum over the batch.
    largest_share = max(sum(map(len, share)) for share in window.shares) if precision.autocast else 0
    inner = gamma(3 + size + 3 + largest_share, compute)
    outer = gamma(len(window.batch) + 2 * _SCALINGS + further_roundings, master)
    across = gamma(window.world_size + 4 + further_roundings, wire) if wire is not master else Fraction(0)
    relative = (1 + inner) * (1 + outer) * (1 + across) - 1
    descale = max(Fraction(1), 1 / scale)
    operations = len(window.batch) + 2 * _SCALINGS + size + further_roundings
    tiny = operations * (compute.quantum * descale + master.quantum + wire.quantum)
    return [
        relative * magnitude + tiny * (1 + row)
        for magnitude, row in zip(_magnitudes(form, weights), form.row_magnitude, strict=True)
    ]
