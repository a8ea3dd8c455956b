"""The samples of a task as torch data: a dataset with its sampler, the stream of a run, and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, SequentialSampler

from conformance.workloads.reading_plan import Spec, order_of, stream, turns_of


class Batch(tuple[torch.Tensor, ...]):
    """m samples on the task's device, in its dtype: `inputs, targets = batch` or, for a weighted loss,
    `inputs, targets, weights = batch`.

    A named tuple, as torch's collate functions and device transfers expect. If a framework returns tuples or dicts,
    rebuild the batch with `Batch(*batch)` or `Batch(**batch)`.
    """

    _fields: tuple[str, ...] = ("inputs", "targets")

    def __new__(cls, inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None) -> Batch:
        if weights is None:
            return super().__new__(Batch, (inputs, targets))
        return super().__new__(WeightedBatch, (inputs, targets, weights))

    @classmethod
    def _make(cls, parts: Iterable[torch.Tensor]) -> Batch:
        return cls(*parts)

    def __getnewargs__(self) -> tuple[torch.Tensor, ...]:
        return tuple(self)

    @property
    def inputs(self) -> torch.Tensor:
        """(m, features)"""
        return self[0]

    @property
    def targets(self) -> torch.Tensor:
        """(m, 1)"""
        return self[1]

    @property
    def weights(self) -> torch.Tensor:
        """(m, 1); ones if the loss is not weighted"""
        return torch.ones_like(self.targets)

    def _replace(self, **parts: torch.Tensor) -> Batch:
        return Batch(**{**self._asdict(), **parts})

    def _asdict(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._fields, self, strict=True))


class WeightedBatch(Batch):
    """A `Batch` with weights, as `Batch(inputs, targets, weights)` returns it."""

    _fields = ("inputs", "targets", "weights")

    @property
    def weights(self) -> torch.Tensor:
        """(m, 1)"""
        return self[2]


#: What a loader yields: a `Batch`; `tuple`: (inputs, targets); `dict`: {"inputs": ..., "targets": ...}, both with
#: weights if the loss is weighted; or the result of a function of a `Batch`.
Format: TypeAlias = Callable[[Batch], Any]


def formatted(batch: Batch, format: Format | None) -> Any:
    """The batch, or the sample, in the loader's format."""
    if format is None:
        return batch
    made: Any = format
    return batch._asdict() if made is dict else made(batch)


class Samples(Dataset[Any]):
    """The samples of one epoch, each a `Batch` of tensors without the first dimension, or in the requested `format`.
    torch's own collate function stacks them."""

    def __init__(self, spec: Spec, device: torch.device, dtype: torch.dtype, format: Format | None = None) -> None:
        def column(values: list[Any]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).view(len(values), -1)

        samples = spec["samples"]
        names = ("x", "y", "weight") if spec["loss"] == "weighted" else ("x", "y")
        self._columns = Batch(*(column(samples[name]) for name in names))
        self._format = format

    def __len__(self) -> int:
        return len(self._columns.targets)

    def __getitem__(self, index: int) -> Any:
        return formatted(self.sample(index), self._format)

    def sample(self, index: int) -> Batch:
        """One sample, always as a `Batch`."""
        return Batch(*(column[index] for column in self._columns))

    def batch(self, indices: Sequence[int]) -> Batch:
        """Several samples as one `Batch`."""
        rows = torch.tensor(indices, device=self._columns.inputs.device)
        return Batch(*(column.index_select(0, rows) for column in self._columns))


class Stream(Dataset[Batch]):
    """The samples of the whole run in reading order, epoch after epoch."""

    def __init__(self, samples: Samples, spec: Spec) -> None:
        self._samples = samples
        self.dealt = list(stream(spec))
        self._numbers = [number for _, micro_batch in self.dealt for number in micro_batch]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self._samples.sample(self._numbers[index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once; torch's fetcher prefers this to one `__getitem__` per sample."""
        return self._samples.batch([self._numbers[index] for index in indices])


class Order(DistributedSampler[int]):
    """The indices of one rank's samples in the epoch of the last `set_epoch`, like torch's sampler.

    Another `seed` gives other orders. As for other epochs, only the orders of all ranks together match the plan.
    """

    def __init__(self, samples: Samples, spec: Spec, rank: int, epoch: int) -> None:
        ends = {"shuffle": len(spec["orders"]) > 1, "drop_last": spec.get("sampler") == "drop"}
        super().__init__(samples, spec["world_size"], rank, **ends)
        self._spec = spec
        self.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(order_of(self._spec, self.rank, self.seed + self.epoch if self.shuffle else 0))

    def __len__(self) -> int:
        return len(order_of(self._spec, self.rank, 0))


class GlobalOrder(Order):
    """The indices of all ranks' samples in the epoch of the last `set_epoch`, one micro-batch per rank in turn."""

    def __init__(self, samples: Samples, spec: Spec) -> None:
        super().__init__(samples, spec, rank=0, epoch=0)

    def __iter__(self) -> Iterator[int]:
        return turns_of(self._spec, self.seed + self.epoch if self.shuffle else 0)

    def __len__(self) -> int:
        return sum(1 for _ in turns_of(self._spec, 0))


class MicroBatches(BatchSampler):
    """The sample indices of each micro-batch of one rank."""

    def __init__(self, samples: Stream, rank: int, micro_batch_size: int) -> None:
        super().__init__(SequentialSampler(samples), micro_batch_size, drop_last=False)
        self._dealt = samples.dealt
        self._rank = rank

    def __iter__(self) -> Iterator[list[int]]:
        position = 0
        for rank, micro_batch in self._dealt:
            if rank == self._rank:
                yield list(range(position, position + len(micro_batch)))
            position += len(micro_batch)

    def __len__(self) -> int:
        return sum(rank == self._rank for rank, _ in self._dealt)


def collate(samples: Batch | list[Batch], format: Format | None = None) -> Any:
    """Collates samples into one batch; `Stream.__getitems__` already returns one."""
    if not isinstance(samples, Batch):
        samples = Batch(*(torch.stack(column) for column in zip(*samples, strict=True)))
    return formatted(samples, format)
