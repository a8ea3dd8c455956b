"""Local gradients: a hook on each leaf, always the last one, sees what a backward hands to it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import unsharding
from conformance.watch import records
from conformance.watch.recording.parameters import Known, coarsest, own
from conformance.watch.recording.recording import Recording
from conformance.watch.sketch import Taken

_LIKE_THE_MEAN = 1e-2
"""So near to the mean of the entries of its row, the last one is taken for it: then nothing is said."""


@dataclass(slots=True)
class _Seen:
    """What a backward handed to a leaf. entries: what is left of a sparse one of which the last of each row is kept."""

    known: Known
    pieces: list[Taken]
    dtype: torch.dtype
    is_fresh: bool
    is_sparse: bool
    entries: Taken | None


@dataclass(slots=True)
class _Left:
    """What earlier steps have left in the `.grad` that a pass adds to."""

    known: Known
    taken: Taken
    dtype: torch.dtype
    is_as_used: bool


class Leaves:
    """Takes the gradients of a backward, and notes them when it is over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._taken: list[tuple[Known, list[Taken]]] = []
        self._within: dict[int, list[_Seen]] = {}
        self._fresh: list[int] = []
        self._sparse: list[int] = []
        self._captured: list[int] = []
        self._stale: dict[int, int] = {}
        self._dtype: torch.dtype | None = None
        self._is_armed = False
        self._passes = 0
        self._left: list[_Left] = []
        self._before: list[tuple[Known, Taken]] = []
        self._entries: list[tuple[Known, Taken]] = []
        self._see, self._see_part = harmless(self._noting), harmless(self._noting_part)
        self._see_first = harmless(self._noting_first)
        recording.before_writing.append(harmless(self.close))

    def arm(self) -> None:
        """Before a backward: hook leaves that are new, and make our hook the last one of each again."""
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
                    # The engine goes by the order in which they were put in.
                    hooks[key] = hooks.pop(key)
            is_cut = known.pieces and not known.is_flat
            see = partial(self._see_part, known) if is_cut else partial(self._see, known, None)
            known.handle = parameter.register_hook(_unsaved(see))

    def disarm(self) -> None:
        """Take our hooks off."""
        self._is_armed = False
        for known, _ in self._recording.parameters.all():
            _remove(known)

    def _begin(self, beginning: list[tuple[Known, torch.Tensor]]) -> None:
        """The first backward of a window of these parameters: what have the steps before left in `.grad`?"""
        if not beginning:
            return
        for known, _ in beginning:
            known.advance()
            known.looked_at = self._passes
        # What is used of a flat tensor is not in `.grad`.
        read = [(known, one) for known, one in beginning if known.is_read and not known.is_flat]
        held = [(known, one.grad) for known, one in read if one.grad is not None]
        self._recording.note(
            records.Left(
                [known.number for known, _ in beginning],
                [known.number for known, _ in held],
                coarsest(gradient.dtype for _, gradient in held),
                self._recording.parameters.sketches([(known.sample, gradient) for known, gradient in held]),
                [known.sample for known, _ in held],
                [known.number for known, gradient in held if not known.has_used(gradient)],
            )
        )

    def _look_again(self, known: Known, gradient: torch.Tensor | None) -> None:
        """The first pass of a window is about to add to this gradient. The window began with passes of other
        parameters, since which the script may have cleared it by hand."""
        if gradient is not None and known.is_read and known.looked_at not in (None, self._passes):
            taken = self._recording.sketching.take(own(gradient), known.sample)
            self._left.append(_Left(known, taken, gradient.dtype, known.has_used(gradient)))
        known.looked_at = None

    def follow(self, parameter: Any) -> None:
        """What is computed for the whole of one of FSDP2's parameters is its local gradient."""
        unsharded, sharded = parameter._unsharded_param, parameter.sharded_param
        parameters = self._recording.parameters
        parameter._conformance_gathered = parameters.of(sharded).steps if parameters.knows(sharded) else 0
        sharded._conformance_whole = weakref.ref(parameter)
        # It may be frozen, and unfrozen later.
        if not hasattr(unsharded, "_conformance_shards") and unsharded.requires_grad:
            # It is created once, and kept by FSDP2.
            unsharded._conformance_shards = weakref.ref(sharded)
            unsharded.register_hook(_unsaved(partial(self._see, None, sharded)))

    def see(self, known: Known, gradient: torch.Tensor | None) -> None:
        """What a backward pass computes for a parameter, where no hook on its leaf sees it."""
        self._noting(known, None, gradient)

    @property
    def reached(self) -> list[int]:
        """The parameters that the present backward pass has given gradients by now."""
        return [known.number for known, _ in self._taken]

    def end(self) -> None:
        """A backward is over: what a node of it has asked for, and did not pass on, was added to `.grad` there."""
        for seen in [one for several in self._within.values() for one in several]:
            self._take(seen)
        self._within = {}
        self.close()

    def close(self) -> None:
        """Note what was taken since the last time."""
        if self._captured:
            self._recording.note(records.Captured(self._captured))
            self._captured = []
        if self._stale:
            note = records.Stale([*self._stale], min(self._stale.values()), self._recording.site())
            self._recording.note(note)
            self._stale = {}
        if not self._taken:
            return
        finish = self._recording.sketching.finish
        if self._left:
            numbers = [one.known.number for one in self._left]
            self._recording.note(
                records.Left(
                    numbers,
                    numbers,
                    coarsest(one.dtype for one in self._left),
                    finish([one.taken for one in self._left]),
                    [one.known.sample for one in self._left],
                    [one.known.number for one in self._left if not one.is_as_used],
                )
            )
            self._left = []
        if self._before:
            numbers = [known.number for known, _ in self._before]
            self._recording.note(records.Hooks(numbers, finish([one for _, one in self._before])))
            self._before = []
        if self._entries:
            numbers = [known.number for known, _ in self._entries]
            self._recording.note(records.Entries(numbers, finish([one for _, one in self._entries])))
            self._entries = []
        flat = [one for _, pieces in self._taken for one in pieces]
        self._recording.note(
            records.Local(
                self._recording.backwards,
                [known.number for known, _ in self._taken],
                self._fresh,
                str(self._dtype)[6:],
                finish(flat),
                [known.sample for known, _ in self._taken],
                self._sparse,
            )
        )
        self._taken, self._fresh, self._sparse = [], [], []

    def _noting_first(self, known: Known, gradient: torch.Tensor | None) -> None:
        if gradient is None or torch.compiler.is_compiling() or _is_frozen(known):
            return
        if self._is_armed and known.is_read and not (self._recording.in_grad or self._recording.in_node):
            self._before.append((known, self._recording.sketching.take(gradient, known.sample)))

    def _noting_part(self, known: Known, gradient: torch.Tensor | None) -> None:
        """A tensor that is cut over the ranks gets a gradient itself. FSDP2's get none, and what was gathered in the
        forward pass was seen there."""
        if not self._is_armed or gradient is None or any(one is known for one, _ in self._taken):
            return
        if known.pieces:
            self._recording.parameters.take_part(known)
        self._noting(known, None, gradient)

    def _noting(self, known: Known | None, sharded: torch.Tensor | None, gradient: torch.Tensor | None) -> None:
        # Autograd has no gradient where nobody uses an output of a node of several.
        if not self._is_armed or torch.compiler.is_compiling() or gradient is None:
            return
        if known is None:
            assert sharded is not None
            if not self._recording.parameters.knows(sharded):
                return
            known = self._recording.parameters.of(sharded)
        if self._recording.in_grad:
            self._captured.append(known.number)
            return
        if _is_frozen(known):
            return
        if sharded is not None and (steps := known.steps - _gathered(sharded)) > 1:
            self._stale[known.number] = steps
        parameter = known.reference()
        # FSDP2 keeps what is not reduced yet elsewhere.
        is_here = parameter is not None and sharded is None and not known.is_flat
        held = parameter.grad if parameter is not None and is_here else None
        is_fresh = is_here and held is None
        self._look_again(known, held)
        take = self._recording.sketching.take
        if not known.is_read:
            pieces = []
        elif known.pieces:
            pieces = [take(piece, known.sample) for piece in known.split(own(gradient.detach()))]
        else:
            pieces = [take(own(gradient.detach()), known.sample)]
        is_sparse = gradient.layout == torch.sparse_coo
        last = last_entries(gradient) if is_sparse and known.is_read else None
        entries = take(last, known.sample) if last is not None else None
        seen = _Seen(known, pieces, gradient.dtype, is_fresh, is_sparse, entries)
        if self._recording.in_node:
            self._within.setdefault(known.number, []).append(seen)
        else:
            # It is the sum of what nodes have asked for and passed on.
            self._within.pop(known.number, None)
            self._take(seen)

    def _take(self, seen: _Seen) -> None:
        if self._taken and seen.dtype != self._dtype:
            self.close()
        self._dtype = seen.dtype
        if seen.is_fresh:
            self._fresh.append(seen.known.number)
        self._taken.append((seen.known, seen.pieces))
        if seen.is_sparse:
            self._sparse.append(seen.known.number)
        if seen.entries is not None:
            self._entries.append((seen.known, seen.entries))


def last_entries(gradient: torch.Tensor) -> torch.Tensor | None:
    """What is left of a sparse gradient if the last entry of each row is kept; None where no row has several, or where
    it is their mean as well, which may be meant."""
    if gradient.is_coalesced() or gradient.sparse_dim() != 1:
        return None
    gradient = gradient.detach()
    rows, of, counts = gradient._indices()[0].unique(return_inverse=True, return_counts=True)
    if len(rows) == len(of):
        return None
    places = torch.arange(len(of), device=of.device)
    last = torch.zeros_like(rows).scatter_reduce_(0, of, places, "amax", include_self=False)
    kept, result = gradient._values()[last], gradient.coalesce()
    mean = result.values() / counts.view(-1, *[1] * (kept.dim() - 1))
    if torch.allclose(kept, mean, rtol=_LIKE_THE_MEAN, atol=0):
        return None
    result.values().copy_(kept)
    return result


def _is_frozen(known: Known) -> bool:
    """Whether it was frozen after a forward: the backward pass calls its hooks all the same, and adds nothing to it."""
    parameter = known.reference()
    return parameter is not None and not parameter.requires_grad


def _unsaved(hook: Any) -> Any:
    """A hook that torch drops from a tensor that is saved, without a warning."""
    hook.__torch_unserializable__ = True
    return hook


def _remove(known: Known) -> None:
    for handle in (known.handle, known.first):
        if handle is not None:
            handle.remove()
    known.handle = known.first = None


def _gathered(sharded: Any) -> int:
    """How many steps came before FSDP2 gathered what a backward pass goes through."""
    steps: int = sharded._conformance_whole()._conformance_gathered
    return steps


def is_unreduced(parameter: torch.Tensor) -> bool:
    """Whether FSDP2 has gradients of it that it has not reduced yet."""
    whole = getattr(parameter, "_conformance_whole", lambda: None)()
    if whole is None:
        return False
    return whole.unsharded_accumulated_grad is not None or whole._unsharded_param.grad is not None


def observe(recording: Recording, leaves: Leaves) -> Seams:
    """Follows FSDP2's parameters: gradients are computed for the whole of one, which exists only meanwhile."""

    def unshard(original: Any, parameter: Any, *args: Any, **kwargs: Any) -> None:
        original(parameter, *args, **kwargs)
        leaves.follow(parameter)

    yield from unsharding(unshard)
