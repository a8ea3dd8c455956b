"""Observes operations of Python on tensors: casts that lose bits, and changes of gradients in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import caller
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.site import Call
from conformance.trace.values import own_part

_CASTS = ("to", "type", "half", "bfloat16", "float")
_IN_PLACE: dict[str, Callable[..., torch.Tensor]] = {
    "copy_": lambda before, source, **_: source,
    "add_": lambda before, source, alpha=1, **_: before + alpha * source,
    "__iadd__": lambda before, source: before + source,
}
"""What each operation would write into a target of enough bits."""

_CHANGING = (*_IN_PLACE, "mul_", "div_", "sub_", "clamp_", "zero_", "__imul__", "__itruediv__", "__isub__")

_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The significand bits of each format."""

_RECORDER = __name__.partition(".observers")[0]


def observe(recording: Recording) -> Seams:
    """Records `narrowed`, and remembers the line that changed gradients last."""

    def cast(original: Callable[..., Any], source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(source, *args, **kwargs)
        if isinstance(result, torch.Tensor) and _is_narrower(result, source):
            note(result, source)
        return result

    def change(name: str, original: Callable[..., Any], target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        source = args[0] if args and name in _IN_PLACE else None
        may_round = isinstance(source, torch.Tensor) and _is_narrower(target, source)
        before = own_part(target).double() if may_round else None
        result = original(target, *args, **kwargs)
        if before is not None and before.shape == (added := own_part(args[0]).double()).shape:
            note(target, _IN_PLACE[name](before, added, **kwargs))
        # Optimizers and scalers have events of their calls.
        if recording.during is None and recording.watched.owners([target]):
            recording.changed_at = recording.sites.of(caller(sys._getframe()))
        return result

    def note(result: torch.Tensor, source: torch.Tensor) -> None:
        frame = caller(sys._getframe(1))
        if frame is None or str(frame.f_globals.get("__name__")).startswith(_RECORDER):
            return
        narrow, wide = own_part(result), own_part(source)
        # Not a number differs from itself.
        if narrow.shape == wide.shape and bool((narrow.double() != wide.double()).logical_and(wide == wide).any()):
            dtype = str(result.dtype).removeprefix("torch.")
            recording.note("narrowed", _registered(recording, frame), dtype=dtype, elements=result.numel())

    for name in _CASTS:
        yield replaced(torch.Tensor, name, cast)
    for name in _CHANGING:
        yield replaced(torch.Tensor, name, partial(change, name))


def _registered(recording: Recording, frame: FrameType) -> Call | None:
    """The line that registered the communication hook in progress, if the hook is not the trainer's own code."""
    calls = (registered for outside, registered in recording.hooks if recording.sites.of(frame)[0] == outside)
    return next(calls, None)


def _is_narrower(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = _BITS.get(one.dtype)
    return bits is not None and bits < _BITS.get(other.dtype, 0)
