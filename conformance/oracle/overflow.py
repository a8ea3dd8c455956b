"""Whether a window overflows at a given loss scale, whatever the trainer's order of operations."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from conformance.oracle.affine import Enclosure, dot
from conformance.oracle.gradient import total_weight
from conformance.oracle.rounding import gamma
from conformance.workloads.layout import Window
from conformance.workloads.precision import Format
from conformance.workloads.workload import LossScale, Workload

Overflow = Literal["certain", "possible", "impossible"]


def overflow(workload: Workload, window: Window, weights: Enclosure, scale: Fraction, fmt: Format) -> Overflow:
    """Classify a window at ``weights``.

    The smallest that a correct trainer can make the scaled gradient of a prediction is ``2 c e scale / W`` with all
    divisions before the backward pass (a total weight W below one is left out: it would enlarge it). If that exceeds
    the format's range for one sample, whatever the forward pass rounds off its error e, the overflow is certain. The
    largest is the undivided sum of magnitudes over as many samples as a rank reads, whichever it is dealt; if that and
    every sum of magnitudes in the forward pass fit, the overflow is impossible.
    """
    total = total_weight(workload, window)
    grow = 2 * scale * max(Fraction(1), window.world_size / total)
    sizes = [abs(center) + radius for center, radius in zip(weights.center, weights.radius, strict=True)]
    largest = max(sizes)
    # Casting x, w and y, the products, their sum, and the residual.
    rounding = gamma(len(sizes) + 4, fmt)
    scaled = []
    for sample in window.batch:
        row = (*sample.x, Fraction(1)) if workload.bias else sample.x
        center = dot(row, weights.center, -sample.y)
        lengths = [abs(x) for x in row]
        forward = dot(lengths, sizes, Fraction(0))
        spread = Fraction(0) if weights.exact else dot(lengths, weights.radius, Fraction(0))
        least = abs(center) - spread - rounding * (forward + abs(sample.y))
        weight = sample.weight if workload.loss == "weighted" else 1
        if 2 * scale * weight * least / max(total, Fraction(1)) > 2 * fmt.largest:
            return "certain"
        widest = max([Fraction(1), *lengths])
        scaled.append(grow * weight * (abs(center) + spread) * widest)
        largest = max(largest, widest, forward)
    of_a_rank = max(sum(map(len, share)) for share in window.shares)
    largest = max(largest, sum(sorted(scaled)[-of_a_rank:], Fraction(0)))
    return "possible" if largest > fmt.largest / 2 else "impossible"


class Scaler:
    """The control loop of :class:`torch.amp.GradScaler` (its ``update`` in torch/amp/grad_scaler.py)."""

    def __init__(self, spec: LossScale) -> None:
        self._spec = spec
        self._clean = 0
        self.scale = spec.initial

    def update(self, *, overflowed: bool) -> None:
        if overflowed:
            self.scale *= self._spec.backoff_factor
            self._clean = 0
            return
        self._clean += 1
        if self._clean == self._spec.growth_interval:
            self.scale *= self._spec.growth_factor
            self._clean = 0
