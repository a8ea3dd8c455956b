"""The gradient of a squared-error loss over one accumulation window, with its proof of exactness or its error.

For coefficients c_i (a correct trainer has c_i = weight_i / total weight) the gradient by the folded weights w is
``sum_i 2 c_i (x_i . w - y_i) x_i = A w - r`` with ``A = 2 sum_i c_i x_i x_i^T`` and ``r = 2 sum_i c_i y_i x_i``. In a
model of one layer these are its weights. In one of several, the gradient by its weights is the slope of the prediction
with that in place of the inputs.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from conformance.oracle.affine import Affine, Unbounded
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
    backward: Affine | None = None,
) -> Affine:
    """The window's gradient at ``weights``, enclosing every correct evaluation.

    ``finite``: the gradients of this window were seen to be finite. ``backward``: the weights that the backward finds,
    if others than the forward's; what is proved for these is taken for proved then.

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
    # The largest sum that ranks may add up before any division, but for the roundings on the way.
    undivided = max(problem.total_weight(window), Fraction(window.world_size)) * max(form.magnitude(weights.magnitude))
    if precision.compressed and undivided > wire.largest / 2:
        raise Unbounded(f"gradients of window {window.index} may overflow {wire.name} between the ranks")
    return enclosed(problem, window, form, weights, loss_scale, backward=later)


def _at(weights: Affine, form: NormalForm, backward: Affine | None = None) -> Affine:
    """The gradient of the form, without what rounds."""
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
    weights that the backward finds, if others than the forward's.

    The largest error of each entry is relative to the magnitudes of all its terms, plus what may underflow.
    """
    precision = problem.precision
    compute, master, wire = precision.compute, precision.master, precision.wire
    weights, later = as_cast(weights, precision), as_cast(backward or weights, precision)
    # The terms of the dot product; a further layer has its own in the residual and, or those below it, in the slopes.
    # Each of its factors is cast, multiplied and cast again.
    sums = [max(map(len, layer)) for layer in form.model.layers]
    size = sums[0] + sum(2 * (below + own + 3) for below, own in pairwise(sums))
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
    sizes = tuple(map(max, weights.magnitude, later.magnitude))
    errors = zip(form.magnitude(sizes), form.exposure(sizes), strict=True)
    return _at(weights, form, later).widen([relative * magnitude + tiny * exposure for magnitude, exposure in errors])
