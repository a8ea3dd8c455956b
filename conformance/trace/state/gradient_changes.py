"""Finds changes of gradients that no recorded call explains: clipping, division or zeroing by hand."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from conformance.trace.state.identities import Stamp
from conformance.trace.state.payloads import Payloads
from conformance.trace.state.watched import Found, Watched
from conformance.trace.tensor_values import Number, own_part

Seen: TypeAlias = list[Any]
"""For each parameter: its gradient's values or, in a large model, the gradient's stamp; None without a gradient."""

_MOST_PARAMETERS = 8
_PROBE = 16
_ROUNDINGS = 4


@dataclass(frozen=True)
class Change:
    """Changes of gradients since the event `since`: parameters with cleared gradients, and with otherwise changed ones.

    set_to_none: whether the cleared gradients were set to None; None if only some were.
    factor: the factor by which all changed gradients were multiplied, None if there is no such factor, "nan" if they
        were not finite and now are.
    before: all gradients before the change; None for a large model.
    """

    since: int
    cleared: list[int]
    set_to_none: bool | None
    changed: list[int]
    factor: Number
    before: list[Number] | None


class Gradients:
    """Remembers the `.grad` of the watched parameters, to find changes.

    Compares the gradients of a small model by value. For a large model, compares identity and version of some
    gradients, spread evenly, and misses changes through `.grad.data`, which make no new version.

    since: the event after which they were last known.
    is_stale: whether a collective is changing them. Until it has finished, other changes are not reported.
    """

    def __init__(self, watched: Watched, payloads: Payloads) -> None:
        self._watched = watched
        self._payloads = payloads
        self._seen: Seen = []
        self._parameters: Found = ()
        self._looked_at: list[tuple[int, torch.Tensor]] = []
        self._zeroed: Seen | None = None
        self.since = -1
        self.is_stale = True

    def look(self, seq: int) -> Change | None:
        """The changes since the gradients were last known; `seq` is the last event."""
        if self._payloads.are_changing_gradients or self.is_stale or self._watched.current is not self._parameters:
            self.known(seq)
            return None
        before, now, since = self._seen, self._see(), self.since
        if before == now:
            return None
        self._seen, self.since = now, seq
        changed = [
            _Change(number, parameter, old, new)
            for (number, parameter), old, new in zip(self._looked_at, before, now, strict=True)
            # Zeros instead of no gradient clear nothing.
            if old != new and not (old is None and _is_zero(parameter.grad))
        ]
        if not changed:
            return None
        cleared = _cleared(changed)
        others = [change for change in changed if change not in cleared]
        to_none = {change.parameter.grad is None for change in cleared}
        return Change(
            since,
            cleared=[change.number for change in cleared],
            set_to_none=to_none.pop() if len(to_none) == 1 else None,
            changed=[change.number for change in others],
            factor=_factor(others) if others and self._watched.is_readable else None,
            before=self._watched.laid_out(dict(zip(map(itemgetter(0), self._looked_at), before, strict=True))),
        )

    def known(self, seq: int, *, are_zero: bool = False) -> None:
        """Take the current gradients, after the event `seq`, as known; `are_zero`: they were zeroed."""
        if self._watched.current is not self._parameters:
            self._parameters = self._watched.current
            self._looked_at = self._choose()
        self._seen, self.since = self._see(), seq
        self.is_stale = self._payloads.are_changing_gradients
        if are_zero:
            self._zeroed = self._seen

    def state(self) -> str | None:
        """The gradients to which backwards add, of all trained parameters: "none", "zero" or "some"; None without a
        model. For stepped parameters, as of the last look."""
        computing = self._watched.computing
        if computing is not self._watched.current:
            gradients = [one.grad for one in computing if one is not None and one.requires_grad]
            if all(gradient is None for gradient in gradients):
                return "none"
            return "zero" if all(map(_is_zero, gradients)) else "some"
        looked_at = zip(self._looked_at, self._seen, strict=True)
        seen = [gradient for (_, parameter), gradient in looked_at if parameter.requires_grad]
        if not seen:
            return None
        if all(gradient is None for gradient in seen):
            return "none"
        if self._watched.is_readable:
            is_zero = not any(value for gradient in seen for value in gradient or ())
        else:
            is_zero = self._seen == self._zeroed
        return "zero" if is_zero else "some"

    def _choose(self) -> list[tuple[int, torch.Tensor]]:
        numbered = [(number, parameter) for number, parameter in enumerate(self._parameters) if parameter is not None]
        if self._watched.is_readable:
            return numbered
        trained = [(number, parameter) for number, parameter in numbered if parameter.requires_grad]
        return trained[:: -(-len(trained) // _MOST_PARAMETERS) or 1]

    def _see(self) -> Seen:
        see = self._watched.sight if self._watched.is_readable else _stamp
        return [None if (gradient := one.grad) is None else see(number, gradient) for number, one in self._looked_at]


def _stamp(number: int, gradient: torch.Tensor) -> Stamp:
    return Stamp(gradient)


@dataclass(eq=False)
class _Change:
    """The old and new values, or stamps, of a parameter's gradient."""

    number: int
    parameter: torch.Tensor
    old: Any
    new: Any


def _cleared(changes: list[_Change]) -> list[_Change]:
    """The changes that cleared gradients. Zeros do not count if other gradients changed to something else or if they
    replace non-finite numbers, because then they were computed."""
    to_none = [change for change in changes if change.parameter.grad is None]
    to_zero = [change for change in changes if change.parameter.grad is not None and _is_zero(change.parameter.grad)]
    is_computed = len(to_none) + len(to_zero) < len(changes) or any(map(_was_not_finite, to_zero))
    return to_none if is_computed else [change for change in changes if change in to_none or change in to_zero]


def _was_not_finite(change: _Change) -> bool:
    # A stamp does not know values.
    return not isinstance(change.old, Stamp) and any(isinstance(value, str) for value in change.old or ())


def _factor(changes: list[_Change]) -> Number:
    """The factor by which all elements of these gradients were multiplied, up to rounding; None if there is no such
    factor, "nan" if they were not finite and now are."""
    if any(map(_was_not_finite, changes)) and not any(isinstance(now, str) for one in changes for now in one.new or ()):
        return "nan"
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
    # Most gradients have a nonzero element among the first ones.
    return not part.flatten()[:_PROBE].any() and not part.any()
