"""Changes of gradients that no call which we know accounts for: clipping, division, zeroing by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from conformance.trace.observers.horovod import MODULE
from conformance.trace.state.watched import Found
from conformance.trace.values import Number, own_part, values

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

Seen: TypeAlias = list[Any]
"""Of each parameter: its gradient's values or, in a large model, identity and version; None without a gradient."""

_MOST_PARAMETERS = 8
_PROBE = 16
_ROUNDINGS = 4


class Gradients:
    """Looks at the `.grad` of the watched parameters, and remembers what it saw.

    The gradients of a small model are compared by value. Those of a large one are too many: it looks at the identity
    and the version of some that are spread evenly over it, and does not see a change through `.grad.data`, which counts
    no version.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: Seen = []
        self._parameters: Found = ()
        self._looked_at: list[tuple[int, torch.Tensor]] = []
        self._zeroed: Seen | None = None
        self._since = -1
        self._is_stale = True

    def look(self) -> None:
        """Note `gradient_change`, or `zero_grad` by hand, if gradients have changed since they were last known."""
        parameters = self._recorder.watched.current
        if self._are_changing() or self._is_stale or parameters is not self._parameters:
            self.known()
            return
        before, now = self._seen, self._see()
        if before == now:
            return
        since = self._since
        self._remember(now)
        cleared: list[_Change] = []
        others: list[_Change] = []
        for (number, parameter), old, new in zip(self._looked_at, before, now, strict=True):
            if old != new:
                change = _Change(number, parameter, old, new)
                (cleared if _is_zero(parameter.grad) else others).append(change)
        if cleared:
            to_none = {change.parameter.grad is None for change in cleared}
            self._recorder.note(
                "zero_grad",
                by="hand",
                optimizer=None,
                parameters=[change.number for change in cleared],
                set_to_none=to_none.pop() if len(to_none) == 1 else None,
            )
        if others:
            self._recorder.note(
                "gradient_change",
                parameters=[change.number for change in others],
                factor=_factor(others) if self._recorder.watched.is_readable else None,
                since=since,
            )
        self._since = self._recorder.last_seq

    def known(self, *, are_zero: bool = False) -> None:
        """What changed until now is accounted for; `are_zero`: by zeroing it.

        While they are averaged, gradients change at any time. What happens until then is not told apart.
        """
        if self._recorder.watched.current is not self._parameters:
            self._parameters = self._recorder.watched.current
            self._looked_at = self._choose()
        self._remember(self._see())
        self._is_stale = self._are_changing()
        if are_zero:
            self._zeroed = self._seen

    def state(self) -> str | None:
        """Of the gradients of all that is trained: "none", "zero" or "some"; None without a watched model."""
        places = zip(self._looked_at, self._seen, strict=True)
        seen = [gradient for (_, parameter), gradient in places if parameter.requires_grad]
        if not seen:
            return None
        if all(gradient is None for gradient in seen):
            return "none"
        if self._recorder.watched.is_readable:
            is_zero = not any(value for gradient in seen for value in gradient or ())
        else:
            is_zero = self._seen == self._zeroed
        return "zero" if is_zero else "some"

    def changing(self) -> None:
        """A collective that is accounted for is about to change them."""
        self._is_stale = True

    def _are_changing(self) -> bool:
        """Whether they are being averaged: Horovod does so in a thread of its own."""
        horovod = sys.modules.get(MODULE)
        return self._recorder.collectives.are_under_way or (horovod is not None and bool(horovod._handle_map))

    def _remember(self, seen: Seen) -> None:
        self._seen = seen
        self._since = self._recorder.last_seq

    def _choose(self) -> list[tuple[int, torch.Tensor]]:
        places = [(number, parameter) for number, parameter in enumerate(self._parameters) if parameter is not None]
        if self._recorder.watched.is_readable:
            return places
        trained = [(number, parameter) for number, parameter in places if parameter.requires_grad]
        return trained[:: -(-len(trained) // _MOST_PARAMETERS) or 1]

    def _see(self) -> Seen:
        gradients = [parameter.grad for _, parameter in self._looked_at]
        if self._recorder.watched.is_readable:
            return [None if gradient is None else _values(gradient) for gradient in gradients]
        return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]


@dataclass
class _Change:
    """What became of the values, or of identity and version, of a parameter's gradient."""

    number: int
    parameter: torch.Tensor
    old: Any
    new: Any


def _factor(changes: list[_Change]) -> float | None:
    """What all elements of these gradients were multiplied by, up to rounding; None if there is no such factor."""
    if not all(change.old and change.new for change in changes):
        return None
    pairs = [pair for change in changes for pair in zip(change.old, change.new, strict=True)]
    if any(isinstance(value, str) for pair in pairs for value in pair):
        return None
    old, new = max(pairs, key=lambda pair: abs(pair[0]))
    if old == 0.0:
        return None
    factor: float = new / old
    tolerance = _ROUNDINGS * max(torch.finfo(change.parameter.dtype).eps for change in changes)
    is_uniform = all(abs(new - factor * old) <= tolerance * abs(factor * old) for old, new in pairs)
    return factor if is_uniform else None


def _is_zero(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return True
    part = own_part(gradient)
    # Most gradients show at once that they are not.
    return not part.flatten()[:_PROBE].any() and not part.any()


def _values(gradient: torch.Tensor) -> list[Number]:
    part = own_part(gradient)
    return values([part], [part.numel()])
