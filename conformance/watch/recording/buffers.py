"""What models keep and no optimizer trains: buffers, such as BatchNorm's running means, and frozen parameters."""

from __future__ import annotations

import weakref
from collections import Counter

import torch

from conformance.watch import records
from conformance.watch.recording.parameters import own
from conformance.watch.recording.recording import Recording

_STEPS = 3
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
        if self._recording.steps[optimizer] != _STEPS:
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
