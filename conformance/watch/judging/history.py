"""The curves of an optimizer over a run, on one rank: factor, norms, loss scale, learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import hypot, nan

from conformance.watch.judging.equations import Together
from conformance.watch.judging.windows import Scene

_MOST_POINTS = 512

MOST_HISTORIES = 32
"""Only the first optimizers get curves: nobody reads those of hundreds."""

CURVES = {
    "factor": "used gradients over correct ones",
    "local": "norm of this rank's gradients",
    "used": "norm of the gradients used",
    "scale": "loss scale",
    "rate": "learning rate",
}
"""The curves and their labels."""


@dataclass
class Curve:
    """Points (step, value): all of a short run, every second, fourth ... of a longer one."""

    points: list[tuple[int, float]] = field(default_factory=list)
    stride: int = 1

    def add(self, step: int, value: float) -> None:
        if step % self.stride:
            return
        self.points.append((step, value))
        if len(self.points) > _MOST_POINTS:
            self.stride *= 2
            self.points = [point for point in self.points if point[0] % self.stride == 0]


@dataclass
class History:
    """The curves of one optimizer, by the names of CURVES. good: the first correct window."""

    type: str
    curves: dict[str, Curve] = field(default_factory=dict)
    good: Scene | None = None

    def add(self, together: Together, kappa: float | None) -> None:
        """Adds a step. kappa: the factor over the correct one; None makes a gap in the curve."""
        window = together.here[0]
        step = window.step
        if step is None:
            return
        values = {
            "factor": nan if kappa is None else kappa,
            "local": _norm(one.norm for of in window.new.values() for one in of),
            "used": _norm(sketch[2] for sketch in window.used.values()),
            "scale": window.scales[0] if window.scales and window.scales != [1.0] else None,
            "rate": step.rates[0] if step.rates else None,
        }
        for name, value in values.items():
            if value is not None:
                self.curves.setdefault(name, Curve()).add(window.index, float(value))


def _norm(norms: Iterable[float]) -> float:
    return hypot(*map(float, norms))
