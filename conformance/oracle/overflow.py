"""Decides whether a window overflows at a loss scale, for any order of operations of the trainer."""

from __future__ import annotations

from fractions import Fraction
from operator import mul, sub
from typing import Literal

from conformance.oracle.affine import Enclosure
from conformance.oracle.normal_form import tabulated
from conformance.oracle.rounding import gamma, integers
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import LossScale

Overflow = Literal["certain", "possible", "impossible"]


def overflow(problem: Problem, window: Window, weights: Enclosure, scale: Fraction) -> Overflow:
    """Classifies a window at ``weights``.

    For a sample of weight c and error e, the scaled gradient of the prediction in a correct trainer is at least
    ``2 c e scale / W``, with all divisions before the backward pass (a total weight W below one is left out, because it
    would enlarge the gradient). If this exceeds the format's range for one sample, for any rounding of e in the forward
    pass, the overflow is certain. The gradient is at most the undivided sum of magnitudes over as many samples as a
    rank reads, whichever these are. If this sum and every sum of magnitudes in the forward pass fit, the overflow is
    impossible.
    """
    workload, fmt, total = problem.workload, problem.precision.compute, problem.total_weight(window)
    grow = 2 * scale * max(Fraction(1), window.world_size / total)
    # In integers, because fractions are slow: weights are multiples of 1 / fine, samples of 1 / table.unit, and slopes
    # of 1 / steep. Outputs of a layer have one more factor of 1 / fine than its inputs.
    model = workload.model
    table, depth = tabulated(window, model), len(model.layers)
    (point, radii), fine = integers([weights.center, weights.radius])
    one = fine**depth
    unit, steep = table.unit * one, table.unit * fine ** (depth - 1)
    sizes = [abs(center) + radius for center, radius in zip(point, radii, strict=True)]
    folded, least_sizes, most_sizes = (model.folded(each) for each in (point, list(map(abs, point)), sizes))
    spreads = list(map(sub, most_sizes, least_sizes))
    # The factors of gradients of hidden values.
    above = enumerate(model.multiples(sizes)[1:])
    steepest = max([steep, *(max(multiples) * table.unit * fine**number for number, multiples in above)])
    # Casts of x, w and y, the products, their sum, and the residual; a further layer has one more cast on both sides.
    rounding = gamma(sum(max(map(len, layer)) for layer in model.layers) + 2 * depth + 2, fmt)
    # The largest weight times least error without a certain overflow, times rounding.denominator and units.
    enough = fmt.largest * max(total, Fraction(1)) * rounding.denominator * unit * table.unit // scale
    widest = max(sizes) * steep
    scaled = []
    for row, target, own in zip(table.rows, table.targets, table.weights, strict=True):
        weight = own if workload.loss == "weighted" else table.unit
        lengths = list(map(abs, row))
        error = abs(sum(map(mul, row, folded)) - target * one)
        forward = sum(map(mul, lengths, most_sizes))
        spread = sum(map(mul, lengths, spreads))
        least = (error - spread) * rounding.denominator - rounding.numerator * (forward + abs(target) * one)
        if weight * least > enough:
            return "certain"
        scaled.append(weight * (error + spread) * max(steepest, *model.slopes(lengths, sizes)))
        values = (max(each) * fine ** (depth - k) for k, each in enumerate(model.values(lengths, sizes)))
        widest = max(widest, forward, *values)
    of_a_rank = max(sum(map(len, share)) for share in window.shares)
    summed = grow * Fraction(sum(sorted(scaled)[-of_a_rank:]), unit * table.unit * steep)
    return "possible" if max(Fraction(widest, unit), summed) > fmt.largest / 2 else "impossible"


class Scaler:
    """The control loop of :class:`torch.amp.GradScaler` (its ``update`` in torch/amp/grad_scaler.py).

    clean: the number of windows since the scale last changed.
    """

    def __init__(self, spec: LossScale, clean: int = 0) -> None:
        self._spec = spec
        self.clean = clean
        self.scale = spec.init_scale

    def update(self, *, overflowed: bool) -> None:
        if overflowed:
            self.scale *= self._spec.backoff_factor
            self.clean = 0
            return
        self.clean += 1
        if self.clean == self._spec.growth_interval:
            self.scale *= self._spec.growth_factor
            self.clean = 0
