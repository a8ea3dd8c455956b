"""Is what is divided by the loss scale limited by hand, with a limit that does not follow the scale?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import hypot, isclose, isfinite

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

_OFTEN = 3
"""Windows at a scale in which the limit is reached."""

_MOST_VALUES, _MOST_SCALES = 64, 16

_NEAR = {"largest element": 1e-6, "norm": 1e-4}
"""By what is limited: to a norm, each gradient is multiplied, and rounded."""

_OVERFLOW = 2.0**15
"""A limit of so much keeps what is added up later from an overflow of float16."""


@dataclass
class _Values:
    """Of an optimizer on a rank, one of the two sizes: by loss scale, the first ones. first: of them all. is_remade:
    whether steps use longer gradients than what is left of these once they are divided."""

    of: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: Finding | None = None
    is_remade: bool = False

    def add(self, scale: float, value: float) -> None:
        if (scale in self.of or len(self.of) < _MOST_SCALES) and len(self.of[scale]) < _MOST_VALUES:
            self.of[scale].append(value)

    def limit(self, near: float) -> tuple[float, list[float]]:
        """The value that most gradients have at the most scales, and these."""
        found: dict[float, list[float]] = {}
        for scale, values in self.of.items():
            middle = sorted(values)[len(values) // 2]
            count = sum(isclose(value, middle, rel_tol=near) for value in values)
            if count >= _OFTEN and 2 * count > len(values):
                same = next((limit for limit in found if isclose(limit, middle, rel_tol=near)), middle)
                found.setdefault(same, []).append(scale)
        return max(found.items(), key=lambda item: len(item[1]), default=(0.0, []))


class ScaledLimits:
    """Of the processes that train together.

    Gradients that carry a loss scale grow with it. If their norm, or the largest of them, is the same number in most
    windows at one scale, and that same number at another one, it is a limit that somebody has set, and one that does
    not follow the scale, as it has to. What a loss bounds itself, such as an absolute error, follows. Who brings
    gradients to one length again after they are divided, or takes their signs, wants no more of them than a direction.
    So may an optimizer of the script's own, which can do that in its step.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int, str], _Values] = defaultdict(_Values)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(len(of.limit(_NEAR[what])[1]) > 1 and not of.is_remade for (_, _, what), of in self._of.items())

    def judge(self, window: Window) -> None:
        # Twice in a window, or before the last backward pass, is another mistake.
        if len(window.unscales) != 1 or window.unscales[0][0] < max(window.places, default=0):
            return
        [(_, unscaled)] = window.unscales
        for what, value in (("largest element", unscaled.largest), ("norm", unscaled.norm)):
            if value and isfinite(value) and value < _OVERFLOW:
                of = self._of[window.optimizer, window.rank, what]
                of.add(unscaled.scale, value)
                of.is_remade |= window.step is not None and window.step.is_own
                of.is_remade |= unscaled.norm is not None and _norm(window) * unscaled.scale > 2 * unscaled.norm
                effect = f"what is limited to {value:.3g} is a gradient times the loss scale"
                rank = (window.rank,)
                law = "watch/unscale-before-clip"
                of.first = of.first or Finding(law, "", window.index, rank, unscaled.site, effect, window.optimizer)

    def finish(self) -> None:
        for (_, _, what), of in self._of.items():
            limit, scales = of.limit(_NEAR[what])
            if len(scales) > 1 and of.first is not None and not of.is_remade:
                found = of.first
                found.says = f"the {what} of the gradients is {limit:.4g} before they are divided by the loss scale, "
                found.says += f"whether that is {scales[0]:g} or {scales[-1]:g}: a limit that does not follow it"
                found.effect = f"what is limited to {limit:.4g} are gradients times the loss scale"
                self._findings.add(found)


def _norm(window: Window) -> float:
    """Of what a step uses, as far as it is read."""
    return hypot(*(float(sketch[2]) for sketch in window.used.values()))
