"""Observes casts that lose bits: numbers that a narrower format cannot represent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import caller
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.values import own_part

_CASTS = ("to", "type", "half", "bfloat16", "float")
Exact: TypeAlias = Callable[..., torch.Tensor]
_IN_PLACE: dict[str, Exact] = {
    "copy_": lambda before, source, **_: source,
    "add_": lambda before, source, alpha=1, **_: before + alpha * source,
    "__iadd__": lambda before, source: before + source,
}
"""What each operation would write into a target of enough bits."""

_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The significand bits of each format."""

_RECORDER = __name__.partition(".observers")[0]


def observe(recording: Recording) -> Seams:
    """Records `narrowed`."""

    def cast(original: Callable[..., Any], source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(source, *args, **kwargs)
        if isinstance(result, torch.Tensor) and _is_narrower(result, source):
            note(result, source)
        return result

    def write(
        exact: Callable[..., torch.Tensor],
        original: Callable[..., Any],
        target: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or not _is_narrower(target, source):
            return original(target, *args, **kwargs)
        before = own_part(target).double()
        result = original(target, *args, **kwargs)
        note(target, exact(before, own_part(source).double(), **kwargs))
        return result

    def note(result: torch.Tensor, source: torch.Tensor) -> None:
        frame = caller(sys._getframe(1))
        if frame is None or str(frame.f_globals.get("__name__")).startswith(_RECORDER):
            return
        narrow, wide = own_part(result), own_part(source)
        # Not a number differs from itself.
        if narrow.shape == wide.shape and bool((narrow.double() != wide.double()).logical_and(wide == wide).any()):
            dtype = str(result.dtype).removeprefix("torch.")
            recording.note("narrowed", dtype=dtype, elements=result.numel(), **_registered(recording, frame))

    for name in _CASTS:
        yield replaced(torch.Tensor, name, cast)
    for name, exact in _IN_PLACE.items():
        yield replaced(torch.Tensor, name, partial(write, exact))


def _registered(recording: Recording, frame: FrameType) -> dict[str, Any]:
    """The line that registered the communication hook in progress, if the hook is not the trainer's own code."""
    for outside, (where, called_from) in recording.hooks:
        if recording.sites.of(frame)[0] == outside:
            return {"where": where} if called_from is None else {"where": where, "called_from": called_from}
    return {}


def _is_narrower(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = _BITS.get(one.dtype)
    return bits is not None and bits < _BITS.get(other.dtype, 0)
