"""Which gradients have steps used before, bit by bit? In bounded memory."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

_MOST = 64
"""Of each parameter, those that came last."""


class Uses:
    """Of one rank."""

    def __init__(self) -> None:
        self._of: dict[int, dict[bytes, int]] = defaultdict(dict)

    def again(self, step: int, used: dict[int, npt.NDArray[np.float64]]) -> dict[int, int]:
        """By parameters whose gradient a step has used before, the number of the last such step. From now on all of
        these are known."""
        found = {}
        for number, sketch in used.items():
            known, key = self._of[number], sketch.tobytes()
            if key in known and sketch[2]:
                found[number] = known.pop(key)
            known[key] = step
            if len(known) > _MOST:
                del known[next(iter(known))]
        return found
