"""`zero_grad` of optimizers and modules. Gradients that are set to None by hand show at the next backward."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import clearing
from conformance.trace.state.optimizers import held_by
from conformance.watch import records
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE

_OFTEN = 16
"""Times that weights are compared: a script does the same in each window."""


class Moving:
    """Whether the script changes weights by their `data` before it clears gradients that no step has used, as one that
    looks for sharp minima does. Their versions do not show that, so they are read, once there is reason to."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_armed = self._moves = False
        self._compared = 0
        self._before: dict[int, tuple[int, torch.Tensor]] | None = None

    def begin(self) -> None:
        """A backward pass begins."""
        if self._is_armed and not self._moves and self._compared < _OFTEN:
            self._before = self._weights()

    def has_moved(self, numbers: list[int]) -> bool:
        """Whether these parameters have since the last backward pass, other than by their versions; or it is not
        known."""
        if self._moves or self._compared >= _OFTEN:
            return self._moves
        self._is_armed = True
        if self._before is None:
            return True
        now = self._weights()
        known = [(self._before[number], now[number]) for number in numbers if number in self._before and number in now]
        if any(before != after for (before, _), (after, _) in known):
            return False
        self._compared += 1
        self._moves = any(not torch.equal(before, after) for (_, before), (_, after) in known)
        return self._moves

    def _weights(self) -> dict[int, tuple[int, torch.Tensor]]:
        """By parameter, its version and sketch."""
        held = [(known.number, one) for known, one in self._recording.parameters.all() if not one.is_sparse]
        sketches = self._recording.parameters.sketches([(WHOLE, one.data) for _, one in held])
        return {number: (one._version, sketch) for (number, one), sketch in zip(held, sketches, strict=True)}


def observe(recording: Recording, moving: Moving) -> Seams:
    """Notes `Cleared`."""

    def by_optimizer(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        note(held_by(optimizer))
        return original(optimizer, *args, **kwargs)

    def by_module(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        note(list(module.parameters()))
        return original(module, *args, **kwargs)

    def note(parameters: list[Any]) -> None:
        numbers = recording.parameters.numbers(parameters)
        if numbers:
            moved = recording.parameters.waits(parameters) and moving.has_moved(numbers)
            recording.note(records.Cleared(numbers, recording.versions(), recording.site(), moved, recording.within))

    yield from clearing(by_optimizer, by_module)
