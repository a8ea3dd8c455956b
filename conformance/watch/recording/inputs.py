"""What models are fed while they train, and the order of a sampler."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.recording import Recording

_MOST_ROWS, _MOST_ROOTS = 256, 8
_MOST_FETCHED = 2


class Inputs:
    """The first input of the first forward after each backward. probe: whether that input wants a gradient. fetched: of
    each batch that a loader gave since, the loader's number."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._handle: RemovableHandle | None = None
        self._enter = harmless(self._entering)
        self.probe = False
        self.fetched: list[int] = []

    def begin(self) -> None:
        """The next forward is of another micro-batch."""
        self.probe = False
        self.fetched.clear()
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._enter)

    @property
    def loader(self) -> int | None:
        """The one that gave the one batch since the last backward."""
        return self.fetched[0] if len(self.fetched) == 1 else None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this, forwards are noted."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Modules that come now are inside the first. A hook that all of them call costs more than what it does."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _entering(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not module.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if "backward" in self._recording.inside:
            return
        self.end()
        if module not in self._recording.roots and len(self._recording.roots) < _MOST_ROOTS:
            self._recording.roots.add(module)
            self._recording.parameters.note_names(module)
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        self.probe = any(one.requires_grad for one in tensors)
        wrapped = hasattr(module, "require_backward_grad_sync") or type(module).__name__.startswith("FSDP")
        rows: list[int] = []
        for one in tensors:
            if one.dim() and one.numel() and not one.requires_grad:
                rows = fingerprints(one)
                break
        self._recording.note(records.Entered(rows, wrapped, self._recording.site()))


def fingerprints(batch: torch.Tensor) -> list[int]:
    """One for each of the first rows."""
    some = batch.detach()[:_MOST_ROWS].cpu().contiguous()
    some = some.view(torch.uint8) if some.dtype != torch.bool else some
    flat = some.reshape(some.shape[0], -1)
    return [zlib.crc32(bytes(row)) for row in flat.numpy()]


def observe(recording: Recording, inputs: Inputs) -> Seams:
    """Notes `Entered` and `Epoch`."""

    def go_through(original: Any, sampler: Any) -> Any:
        recording.note(records.Epoch(recording.numbers.of("sampler", sampler), sampler.epoch, bool(sampler.shuffle)))
        return original(sampler)

    def fetch(original: Any, iterator: Any) -> Any:
        result = original(iterator)
        if len(inputs.fetched) < _MOST_FETCHED:
            inputs.fetched.append(recording.numbers.of("loader", iterator._index_sampler))
        return result

    yield replaced(_BaseDataLoaderIter, "__next__", fetch)
    yield inputs.waiting()
    yield replaced(DistributedSampler, "__iter__", go_through)
