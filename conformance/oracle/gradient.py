"""The gradient of a squared-error loss over one accumulation window, with its proof of exactness or its error.

For coefficients c_i (a correct trainer has c_i = weight_i / total weight) the gradient is
``sum_i 2 c_i (x_i . w + b - y_i) x_i = A w - r`` with ``A = 2 sum_i c_i x_i x_i^T`` and ``r = 2 sum_i c_i y_i x_i``.
"""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.affine import Affine, Unbounded, dot
from conformance.oracle.exactness import proofs
from conformance.oracle.normal_form import NormalForm
from conformance.oracle.rounding import Ledger, gamma, nearest
from conformance.workloads.layout import Window
from conformance.workloads.precision import Precision
from conformance.workloads.problem import Problem

#: Multiplications by a constant that one sample's term may pass between the residual and the optimizer, each with a
#: rounded constant: the loss's 2/m, its weight, 1/accumulation, 1/world, the loss scale and its inverse, a rescaling.
_SCALINGS = 8


def as_cast(weights: Affine, precision: Precision) -> Affine:
    """The weights as autocast's forward sees them: rounded to the compute format.

    An exact weight is rounded to nearest. One within a quarter of an ulp of a number of the compute format is cast to
    that number (half an ulp, or a quarter just below a power of two, is where rounding to nearest would leave it), so
    the cast removes its error.
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
) -> Affine:
    """The window's gradient at ``weights``, enclosing every correct evaluation.

    ``finite``: the gradients of this window were seen to be finite.

    Raises:
        Unbounded: a correct trainer's gradients may overflow on their way between the ranks.
    """
    precision = problem.precision
    weights = as_cast(weights, precision)
    value = weights.transform(form.matrix, [-entry for entry in form.offset])
    if weights.exact:
        found = proofs(problem, window, weights.center, loss_scale, finite)
        ledger.proofs += found
        if all(proof.exact for proof in found):
            if all(precision.master.holds(entry) for entry in value.center):
                return value
            ledger.refuse("division", precision.master, "the averaged gradient is not representable")
    else:
        ledger.refuse("forward", precision.compute, "the weights already carry a rounding error")
    wire = precision.wire
    # The largest sum that ranks may add up before any division, but for the roundings on the way.
    undivided = max(problem.total_weight(window), Fraction(window.world_size)) * max(_magnitudes(form, weights))
    if precision.compressed and undivided > wire.largest / 2:
        raise Unbounded(f"gradients of window {window.index} may overflow {wire.name} between the ranks")
    return enclosed(problem, window, form, weights, loss_scale)


def _magnitudes(form: NormalForm, weights: Affine) -> list[Fraction]:
    """The sums of the magnitudes of all terms of each entry of the gradient."""
    sizes = weights.magnitude
    return [dot(row, sizes, offset) for row, offset in zip(form.matrix_magnitude, form.offset_magnitude, strict=True)]


def enclosed(
    problem: Problem,
    window: Window,
    form: NormalForm,
    weights: Affine,
    loss_scale: Fraction,
    further_roundings: int = 0,
) -> Affine:
    """The gradient with its rounding-error bound, for ``further_roundings`` more than the textbook's.

    The largest error of each entry is relative to the magnitudes of all its terms, plus what may underflow.
    """
    precision = problem.precision
    compute, master, wire = precision.compute, precision.master, precision.wire
    weights = as_cast(weights, precision)
    size = len(weights)
    # Casting x, w and y, the dot product, the residual and its cast, and the product with x. Their sum over a
    # micro-batch, or over all samples of a rank that computes them in one forward, is a part of the sum over the batch.
    largest_share = max(sum(map(len, share)) for share in window.shares) if precision.mixed else 0
    inner = gamma(3 + size + 3 + largest_share, compute)
    outer = gamma(len(window.batch) + 2 * _SCALINGS + further_roundings, master)
    across = gamma(window.world_size + 4 + further_roundings, wire) if precision.compressed else Fraction(0)
    relative = (1 + inner) * (1 + outer) * (1 + across) - 1
    descale = max(Fraction(1), 1 / loss_scale)
    operations = len(window.batch) + 2 * _SCALINGS + size + further_roundings
    tiny = operations * (compute.quantum * descale + master.quantum + wire.quantum)
    magnitudes = zip(_magnitudes(form, weights), form.row_magnitude, strict=True)
    value = weights.transform(form.matrix, [-entry for entry in form.offset])
    return value.widen([relative * magnitude + tiny * (1 + row) for magnitude, row in magnitudes])
