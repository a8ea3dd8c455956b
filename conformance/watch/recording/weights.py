"""Weights between steps: those that ranks compare, that a script changes, and that no optimizer trains."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, own
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE


def note_weights(recording: Recording, calls: int) -> None:
    """Note `Weighed` after 0 to 8 backward passes, after 10, 12, 14, 16, 20, 24 ..., of all that there are or of those
    with these calls, if there are other ranks."""
    if not recording.is_with_others:
        return
    done = recording.passes[calls]
    recording.passes[calls] += 1
    if _is_time(recording.backwards) or _is_time(done):
        _note_weighed(recording, last=False)


def _is_time(done: int) -> bool:
    return not done & ((1 << max(0, done.bit_length() - 3)) - 1)


def observe(recording: Recording) -> Seams:
    """Notes them for the last time before a process leaves its group."""

    def destroy(original: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_with_others:
            _note_weighed(recording, last=True)
        return original(*args, **kwargs)

    if torch.distributed.is_available():
        yield replaced(torch.distributed, "destroy_process_group", destroy)


def _note_weighed(recording: Recording, *, last: bool) -> None:
    weighed = [(known, one.data) for known, one in recording.parameters.all() if not one.is_sparse]
    numbers = [known.number for known, _ in weighed]
    if numbers:
        values = recording.parameters.sketches([(WHOLE, weights) for _, weights in weighed])
        recording.note(records.Weighed(numbers, values, last))


_LOOKED_AT, _FEW = 8, 64
"""Of so many parameters, spread over them all, so many elements: going back changes all that a step has changed."""


def remember_weights(held: Sequence[tuple[Known, Any]]) -> None:
    """A step is over. Weights may be changed by their `data`, which their versions do not show."""
    for known, parameter in _some(held):
        known.left = _beginning(own(parameter.data)).clone()


def have_weights_changed(held: Sequence[tuple[Known, Any]]) -> Any:
    """Whether they have, since the last step of whatever optimizer: known now or `later`."""
    pairs: dict[tuple[torch.device, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for known, parameter in _some(held):
        now = _beginning(own(parameter.data))
        # A model may be moved to another device in between, or be made of another format.
        if known.left is not None and _kind(known.left) == _kind(now) and known.left.shape == now.shape:
            pairs[_kind(now)].append((known.left, now))
    differ = [torch.ne(*map(torch.cat, zip(*of_kind, strict=True))).any() for of_kind in pairs.values()]
    if len({one.device for one in differ}) == 1:
        return later(bool, torch.stack(differ).any())
    return any(map(bool, differ))


def _kind(tensor: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    return tensor.device, tensor.dtype


def _some(held: Sequence[tuple[Known, Any]]) -> Sequence[tuple[Known, Any]]:
    return held[:: -(-len(held) // _LOOKED_AT) or 1]


def _beginning(weight: torch.Tensor) -> torch.Tensor:
    """A view, however its elements lie in memory."""
    while weight.dim() > 1 and weight.numel():
        weight = weight[0]
    return weight.reshape(-1)[:_FEW]


_LOOKED_AFTER = 3
"""Steps of an optimizer after which to look."""

_SAMPLE = 0
"""Of what is large, as a frozen model may be."""


class Buffers:
    """Looks at each model once. An optimizer that begins later may train other models."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def note(self, optimizer: int) -> None:
        """Note `Buffers` after the third step of an optimizer, if models have any that were not seen yet."""
        if self._recording.steps[optimizer] != _LOOKED_AFTER:
            return
        roots = [root for root in list(self._recording.roots) if root not in self._seen]
        self._seen.update(roots)
        buffers = self._named([(root, name, own(one)) for root in roots for name, one in root.named_buffers()])
        # Of those that are split over ranks, each has a part of its own.
        parameters = [(root, name, one) for root in roots for name, one in root.named_parameters()]
        frozen = self._named(
            [one for one in parameters if not one[2].requires_grad and not hasattr(one[2], "placements")]
        )
        kept = buffers | frozen
        if kept:
            take, finish = self._recording.sketching.take, self._recording.sketching.finish
            sketches = [finish([take(one, _SAMPLE)]).cpu() for one in kept.values()]
            self._recording.note(records.Buffers([*kept], torch.cat(sketches), len(frozen), optimizer))

    def _named(self, found: list[tuple[torch.nn.Module, str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Those that have values, by name, and by the number of the model where several have the name."""
        times = Counter(name for _, name, _ in found)
        several = {name for name, count in times.items() if count > 1}
        return {
            self._name(root, name) if name in several else _plain(name): one
            for root, name, one in found
            if one.numel() and not one.is_meta
        }

    def _name(self, root: torch.nn.Module, name: str) -> str:
        inner = getattr(root, "module", root)
        return f"{type(inner).__name__} {self._recording.numbers.of('root', root)}.{_plain(name)}"


def _plain(name: str) -> str:
    return name.removeprefix("module.")
