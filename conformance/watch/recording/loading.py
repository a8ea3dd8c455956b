"""What loaders give: which batches, of which samples, and who dealt them out to the ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.holdings import (
    MOST_ROWS,
    fingerprint,
    fingerprint_of_whole,
    fingerprints,
    is_plain,
    settings,
    tensors,
)
from conformance.watch.recording.later import later
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.surroundings import world

NONE = -1
_BATCHED_BY = ("torch.", "accelerate.", "builtins")
"""What makes batches of any samples, or of lists of them."""


class Loading:
    """What loaders gave since the last backward.

    fetched: by the numbers of loaders, how many batches. dealt: the sampler of the last batch that was not evaluated;
    `NONE` if it is not dealt out to ranks; None if it is not known. samplers: those `DistributedSampler`s that gave
    batches. draws: whether a batch sampler of the script's own made any of these batches, or each is one item of the
    data, which may be a task or a batch by itself. drawn: a number for each sample of the last batch, equal on all
    ranks that hold the same data; () where it is not known. sizes: of the tensors in that batch.
    """

    def __init__(self) -> None:
        self.fetched: dict[int, int] = {}
        self.dealt: int | None = None
        self.samplers: set[int] = set()
        self.draws = False
        self.drawn: Sequence[int] = ()
        self.sizes: Sequence[int] = ()

    def begin(self) -> None:
        """A backward begins."""
        self.fetched.clear()
        self.samplers.clear()
        self.draws = False
        self.drawn = self.sizes = ()

    @property
    def loader(self) -> int | None:
        """The only one that gave batches."""
        return next(iter(self.fetched)) if len(self.fetched) == 1 else None

    @property
    def batches(self) -> int:
        """How many all loaders gave."""
        return sum(self.fetched.values())


def observe(recording: Recording, loading: Loading) -> Seams:
    """Notes `Epoch` and `First`."""
    readings: WeakKeyDictionary[Any, _Reading] = WeakKeyDictionary()
    begun: dict[int, int] = {}

    def go_through(original: Any, sampler: Any) -> Any:
        number, data = recording.numbers.of("sampler", sampler), sampler.dataset
        begun[number] = sampler.epoch
        shuffles, replicas = bool(sampler.shuffle), sampler.num_replicas
        of = fingerprint(data), fingerprint_of_whole(data)
        recording.note(records.Epoch(number, sampler.epoch, shuffles, replicas, *of))
        return original(sampler)

    def choose(original: Any, iterator: Any) -> Any:
        indices = original(iterator)
        if world() > 1 and iterator._dataset_kind == _DatasetKind.Map:
            if iterator not in readings:
                readings[iterator] = _Reading(_identity(iterator._dataset))
            # Workers are told of batches long before these are asked for.
            readings[iterator].waiting[getattr(iterator, "_send_idx", 0)] = indices
        return indices

    def fetch(original: Any, iterator: Any) -> Any:
        result = original(iterator)
        source = iterator._index_sampler
        # Batches may be given as a list, of which there are no weak references.
        number = recording.numbers.of("loader", source if hasattr(type(source), "__weakref__") else iterator)
        loading.fetched[number] = loading.fetched.get(number, 0) + 1
        is_item = not iterator._auto_collation or getattr(source, "batch_size", None) == 1
        loading.draws |= is_item or not type(source).__module__.startswith(_BATCHED_BY)
        sampler = getattr(source, "sampler", source)
        of_sampler = recording.numbers.of("sampler", sampler) if isinstance(sampler, DistributedSampler) else None
        if of_sampler is not None:
            loading.dealt = of_sampler
            loading.samplers.add(of_sampler)
        else:
            loading.dealt = NONE if isinstance(sampler, (RandomSampler, SequentialSampler)) else None
        batch = [one for one in tensors([result]) if one.dim()]
        are_plain = all(map(is_plain, batch))
        reading = readings.get(iterator)
        indices = reading and reading.waiting.pop(getattr(iterator, "_rcvd_idx", 1) - 1, None)
        is_known = _deals_each_once(sampler) and getattr(iterator, "_in_order", True) and are_plain
        loading.drawn, is_labelled = _drawn(reading.held, indices, batch) if reading and is_known else ((), False)
        loading.sizes = [one.numel() for one in batch if are_plain]
        if of_sampler in begun:
            rows = later(fingerprints, batch[0][:MOST_ROWS]) if are_plain and batch and batch[0].numel() else []
            epoch, site, is_all = begun.pop(of_sampler), recording.site(), _is_one_batch(source)
            recording.note(records.First(of_sampler, epoch, rows, [*loading.drawn], is_labelled, is_all, site))
        return result

    yield replaced(_BaseDataLoaderIter, "_next_index", choose)
    yield replaced(_BaseDataLoaderIter, "__next__", fetch)
    yield replaced(DistributedSampler, "__iter__", go_through)


@dataclass
class _Reading:
    """Of a loader's data. held: a fingerprint of these. waiting: the samples of batches that it has not given yet."""

    held: str | None
    waiting: dict[int, Any] = field(default_factory=dict)


def _identity(data: Any) -> str | None:
    held = fingerprint(data)
    return None if held is None else f"{held} {settings(data)}"


def _deals_each_once(sampler: Any) -> bool:
    """Whether it is one of torch's that give each sample once in an epoch. Others may give ranks the same on
    purpose, or by chance."""
    is_torchs = type(sampler) in (DistributedSampler, RandomSampler, SequentialSampler)
    return is_torchs and not getattr(sampler, "replacement", False)


def _is_one_batch(source: Any) -> bool:
    """Whether a batch is all that there is, and so has no order."""
    try:
        return len(source) <= 1
    except (TypeError, NotImplementedError):
        return False


def _drawn(held: str | None, indices: Any, batch: Sequence[torch.Tensor]) -> tuple[Sequence[int], bool]:
    """A number for each sample, and whether labels are in it that say something. Samples are the same if they have the
    same place in the same data, and the same label, if there is one."""
    if held is None or not isinstance(indices, (list, tuple)) or not all(type(one) is int for one in indices):
        return (), False
    if any(len(one) != len(indices) or one.device.type != "cpu" for one in batch):
        return (), False
    exact = [one for one in batch if one.numel() and not (one.is_floating_point() or one.is_complex())]
    labels = fingerprints(min(exact, key=torch.numel)[:MOST_ROWS]) if exact else [0] * len(indices)
    places = indices[:MOST_ROWS]
    texts = (f"{held} {one} {label}" for one, label in zip(places, labels, strict=False))
    drawn = [zlib.crc32(text.encode(errors="backslashreplace")) for text in texts]
    return drawn, len({*labels}) > 1
