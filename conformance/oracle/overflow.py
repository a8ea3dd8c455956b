"""Whether the backward pass of a window overflows at a given loss scale, whatever the trainer's order of operations."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from conformance.oracle.affine import Enclosure
from conformance.oracle.gradient import total_weight
from conformance.workloads.layout import Window
from conformance.workloads.precision import Format
from conformance.workloads.workload import LossScale, Workload

Overflow = Literal["certain", "possible", "impossible"]


def overflow(workload: Workload, window: Window, weights: Enclosure, scale: Fraction, fmt: Format) -> Overflow:
    """Classify a window at ``weights``.

    The smallest that a correct trainer can make the scaled gradient of a prediction is ``2 c e scale / W`` with all
    divisions before the backward pass; if that exceeds the format's range for one sample, the overflow is certain. The
    largest is the undivided sum of magnitudes over a micro-batch; if that fits, the overflow is impossible.
    """
    total = total_weight(workload, window)
    columns = range(len(weights.center))
    possible = False
    for micro_batch in (mb for share in window.shares for mb in share):
        sums = [Fraction(0)] * len(weights.center)
        for index in micro_batch:
            sample = window.batch[index]
            row = (*sample.x, Fraction(1)) if workload.bias else sample.x
            center = sum((x * w for x, w in zip(row, weights.center, strict=True)), -sample.y)
            spread = sum((abs(x) * r for x, r in zip(row, weights.radius, strict=True)), Fraction(0))
            weight = sample.weight if workload.loss == "weighted" else 1
            least, most = max(Fraction(0), abs(center) - spread), abs(center) + spread
            # Twice the range: no rounding of the forward pass in this format brings it back below.
            if 2 * weight * least * scale / total > 2 * fmt.largest:
                return "certain"
            possible |= 2 * weight * most * scale > fmt.largest / 2
            for j in columns:
                sums[j] += 2 * weight * most * abs(row[j]) * scale
        possible |= any(value > fmt.largest / 2 for value in sums)
    return "possible" if possible else "impossible"


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
