"""Records local gradients with a hook on each leaf, always the last one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import flattening, unsharding
from conformance.watch import records
from conformance.watch.recording.parameters import IN_FLAT, Known, coarsest
from conformance.watch.recording.recording import Recording
from conformance.watch.sketch import Taken, own


@dataclass(slots=True)
class _Left:
    """The old gradient in a `.grad` that a backward pass adds to."""

    known: Known
    taken: Taken
    dtype: torch.dtype
    is_as_used: bool


@dataclass(slots=True)
class _Seen:
    """A gradient that a backward pass gave a leaf. before: the same before the script's hooks."""

    known: Known
    pieces: list[Taken]
    dtype: torch.dtype
    is_fresh: bool
    before: Taken | None = None
    left: _Left | None = None


class Leaves:
    """Reads the gradients of a backward pass, and notes them when it ends."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._taken: list[_Seen] = []
        self._within: dict[int, list[_Seen]] = {}
        self._before: dict[int, Taken] = {}
        self._left: dict[int, _Left] = {}
        self._captured: list[int] = []
        self._stale: dict[int, int] = {}
        self._is_armed = False
        self._passes = 0
        self._see, self._see_part = harmless(self._noting), harmless(self._noting_part)
        self._see_first, self._see_all = harmless(self._noting_first), harmless(self._noting_all)
        recording.before_writing.append(harmless(self.close))

    def arm(self) -> None:
        """Before a backward pass: hooks new leaves, and makes our hook the last one of each again."""
        self._is_armed = True
        self._passes += 1
        known_ones = self._recording.parameters.all()
        self._begin([(known, parameter) for known, parameter in known_ones if not known.is_in_window])
        for known, parameter in known_ones:
            if known.is_cut_otherwise or not parameter.requires_grad:
                continue
            hooks = parameter._backward_hooks
            if known.handle is not None and hooks and next(reversed(hooks)) == known.handle.id:
                continue
            others = len(hooks or ()) - (known.handle is not None) - (known.first is not None)
            _remove(known)
            if others:
                known.first = parameter.register_hook(_unsaved(partial(self._see_first, known)))
                hooks = parameter._backward_hooks or {}
                for key in [key for key in hooks if key != known.first.id]:
                    # The engine runs hooks in the order of insertion.
                    hooks[key] = hooks.pop(key)
            is_cut = known.pieces and not (known.is_flat or known.is_gathered)
            see = partial(self._see_part, known) if is_cut else partial(self._see, known, None)
            known.handle = parameter.register_hook(_unsaved(see))

    def disarm(self) -> None:
        """Removes our hooks."""
        self._is_armed = False
        for known, _ in self._recording.parameters.all():
            _remove(known)

    def _begin(self, beginning: list[tuple[Known, torch.Tensor]]) -> None:
        """Starts a window of these parameters: notes their old gradients."""
        if not beginning:
            return
        left = []
        for known, one in beginning:
            known.advance()
            known.looked_at = self._passes
            if known.is_read and one.grad is not None:
                left.append(self._left_in(known, one.grad))
        self._note_left([known.number for known, _ in beginning], left)

    def _left_in(self, known: Known, gradient: torch.Tensor) -> _Left:
        # A shard in a flat tensor gets only its part of what is in the whole `.grad`.
        part = known.split(own(gradient.detach()))[known.piece] if known.is_flat else gradient
        taken = self._recording.sketching.take(part, known.sample)
        return _Left(known, taken, gradient.dtype, known.has_used(gradient))

    def _note_left(self, parameters: list[int], left: Sequence[_Left]) -> None:
        self._recording.note(
            records.Left(
                parameters,
                [one.known.number for one in left],
                coarsest(one.dtype for one in left),
                self._recording.sketching.finish([one.taken for one in left]),
                [one.known.sample for one in left],
                [one.known.number for one in left if not one.is_as_used],
            )
        )

    def _look_again(self, known: Known, gradient: torch.Tensor | None) -> None:
        """Reads an old gradient again before its first addition in a window: since the window began with passes of
        other parameters, the script may have cleared it by hand."""
        if gradient is not None and known.is_read and known.looked_at not in (None, self._passes):
            self._left[known.number] = self._left_in(known, gradient)
        known.looked_at = None

    def follow(self, parameter: Any) -> None:
        """Hooks the whole, unsharded tensor of an FSDP2 parameter: its gradient is the local one."""
        unsharded, sharded = parameter._unsharded_param, parameter.sharded_param
        known = self._recording.parameters.find(sharded)
        parameter._conformance_gathered = 0 if known is None else known.steps
        sharded._conformance_whole = weakref.ref(parameter)
        # A frozen one may be unfrozen later. FSDP2 creates the tensor only once.
        if not hasattr(unsharded, "_conformance_shards") and unsharded.requires_grad:
            unsharded._conformance_shards = weakref.ref(sharded)
            unsharded.register_hook(_unsaved(partial(self._see, None, sharded)))

    def split(self, handle: Any) -> None:
        """Hooks a flat parameter of FSDP1 that optimizers know as several: its gradient has those of all."""
        flat, begin, parts = handle.flat_param, 0, []
        given = iter(zip(flat._params or (), flat._shapes, strict=False))
        for length, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not is_padding and (one := next(given, None)) is not None:
                parameter, shape = one
                place = (begin, length, flat._sharded_size.numel(), handle.world_size, [*shape])
                setattr(parameter, IN_FLAT, place)
                parts.append((weakref.ref(parameter), begin, length))
            begin += length
        if parts:
            flat.register_hook(_unsaved(partial(self._see_all, parts)))

    def _noting_all(self, parts: Sequence[tuple[Any, int, int]], gradient: torch.Tensor | None) -> None:
        if gradient is None:
            return
        for reference, begin, length in parts:
            known = self._recording.parameters.find(reference())
            if known is not None:
                self._noting(known, None, gradient[begin : begin + length])

    def see(self, known: Known, gradient: torch.Tensor | None) -> None:
        """Takes the gradient of a parameter where no hook on its leaf sees it."""
        self._noting(known, None, gradient)

    @property
    def reached(self) -> list[int]:
        """The parameters that got gradients in this backward pass so far."""
        return [one.known.number for one in self._taken]

    def end(self) -> None:
        """Ends a backward pass. Gradients that a node computed and did not pass on were added to `.grad` there."""
        for seen in [one for several in self._within.values() for one in several]:
            self._take(seen)
        self._within = {}
        self.close()

    def close(self) -> None:
        """Notes the gradients since the last time."""
        note, finish = self._recording.note, self._recording.sketching.finish
        if self._captured:
            note(records.Captured(self._captured))
            self._captured = []
        if self._stale:
            note(records.Stale([*self._stale], min(self._stale.values()), self._recording.site()))
            self._stale = {}
        taken, self._taken = self._taken, []
        if not taken:
            return
        if left := [one.left for one in taken if one.left is not None]:
            self._note_left([one.known.number for one in left], left)
        if before := {one.known.number: one.before for one in taken if one.before is not None}:
            note(records.Hooks([*before], finish([*before.values()])))
        note(
            records.Local(
                self._recording.backwards,
                [one.known.number for one in taken],
                [one.known.number for one in taken if one.is_fresh],
                str(taken[0].dtype)[6:],
                finish([piece for one in taken for piece in one.pieces]),
                [one.known.sample for one in taken],
            )
        )

    def _noting_first(self, known: Known, gradient: torch.Tensor | None) -> None:
        if gradient is None or torch.compiler.is_compiling() or _is_frozen(known):
            return
        is_asked = self._recording.is_inside("grad") or self._recording.is_inside("node")
        if self._is_armed and known.is_read and not is_asked:
            self._before[known.number] = self._recording.sketching.take(gradient, known.sample)

    def _noting_part(self, known: Known, gradient: torch.Tensor | None) -> None:
        """Takes the gradient of a sharded tensor itself. FSDP2's tensors get none here, and gathered ones were already
        seen."""
        if not self._is_armed or gradient is None or known.number in self.reached:
            return
        if known.pieces:
            self._recording.parameters.take_part(known)
        self._noting(known, None, gradient)

    def _noting(self, known: Known | None, sharded: torch.Tensor | None, gradient: torch.Tensor | None) -> None:
        # Autograd has no gradient for an unused output of a node with several.
        if not self._is_armed or torch.compiler.is_compiling() or gradient is None:
            return
        known = self._recording.parameters.find(sharded) if known is None else known
        if known is None:
            return
        if self._recording.is_inside("grad"):
            self._captured.append(known.number)
            return
        if _is_frozen(known):
            return
        if sharded is not None and (steps := known.steps - _gathered(sharded)) > 1:
            self._stale[known.number] = steps
        seen = self._seen(known, gradient, is_elsewhere=sharded is not None or known.is_flat or known.is_gathered)
        if self._recording.is_inside("node"):
            self._within.setdefault(known.number, []).append(seen)
        else:
            # It includes the gradients that nodes computed and passed on.
            self._within.pop(known.number, None)
            self._take(seen)

    def _seen(self, known: Known, gradient: torch.Tensor, *, is_elsewhere: bool) -> _Seen:
        """Reads a gradient. is_elsewhere: unreduced gradients are not in `.grad`, as with FSDP2."""
        parameter = known.reference()
        is_here = parameter is not None and not is_elsewhere
        held = parameter.grad if parameter is not None and is_here else None
        self._look_again(known, held)
        take = self._recording.sketching.take
        parts = [] if not known.is_read else known.split(own(gradient.detach())) if known.pieces else [gradient]
        pieces = [take(part, known.sample) for part in parts]
        return _Seen(known, pieces, gradient.dtype, is_here and held is None)

    def _take(self, seen: _Seen) -> None:
        if self._taken and seen.dtype != self._taken[0].dtype:
            self.close()
        seen.before = self._before.pop(seen.known.number, None)
        seen.left = self._left.pop(seen.known.number, None)
        self._taken.append(seen)


def _is_frozen(known: Known) -> bool:
    """Whether it was frozen after a forward pass. The backward pass still calls its hooks, but adds nothing to it."""
    parameter = known.reference()
    return parameter is not None and not parameter.requires_grad


def _unsaved(hook: Any) -> Any:
    """Marks a hook that torch drops without a warning when it saves the tensor."""
    hook.__torch_unserializable__ = True
    return hook


def _remove(known: Known) -> None:
    for handle in (known.handle, known.first):
        if handle is not None:
            handle.remove()
    known.handle = known.first = None


def _gathered(sharded: Any) -> int:
    """The number of steps before FSDP2 gathered the parameter for this backward pass."""
    steps: int = sharded._conformance_whole()._conformance_gathered
    return steps


def is_unreduced(parameter: torch.Tensor) -> bool:
    """Whether FSDP2 has unreduced gradients of a parameter."""
    whole = getattr(parameter, "_conformance_whole", lambda: None)()
    if whole is None:
        return False
    return whole.unsharded_accumulated_grad is not None or whole._unsharded_param.grad is not None


def observe(recording: Recording, leaves: Leaves) -> Seams:
    """Follows FSDP2's parameters, whose gradients are computed for a temporary unsharded tensor, and those that FSDP1
    has in flat ones."""

    def unshard(original: Any, parameter: Any, *args: Any, **kwargs: Any) -> None:
        original(parameter, *args, **kwargs)
        leaves.follow(parameter)

    def shard(original: Any, handle: Any) -> None:
        original(handle)
        if handle._use_orig_params:
            leaves.split(handle)

    yield from unsharding(unshard)
    yield from flattening(shard)
