"""The samples of a task as torch data: a dataset and its sampler, the stream of a run, and its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, SequentialSampler

from conformance.workloads.plan import Spec, order_of, stream


class Batch(NamedTuple):
    """m samples on the task's device, in its dtype."""

    inputs: torch.Tensor
    """(m, features)"""
    targets: torch.Tensor
    """(m, 1)"""
    weights: torch.Tensor
    """(m, 1)"""


class Samples(Dataset[Batch]):
    """The samples of one epoch, each a `Batch` of tensors without the first dimension, which torch's own collate
    function stacks."""

    def __init__(self, spec: Spec, device: torch.device, dtype: torch.dtype) -> None:
        def column(values: list[Any]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).view(len(values), -1)

        samples = spec["samples"]
        self._columns = Batch(column(samples["x"]), column(samples["y"]), column(samples["weight"]))

    def __len__(self) -> int:
        return len(self._columns.targets)

    def __getitem__(self, index: int) -> Batch:
        return Batch(*(column[index] for column in self._columns))

    def batch(self, indices: Sequence[int]) -> Batch:
        """Several samples at once."""
        rows = torch.tensor(indices, device=self._columns.inputs.device)
        return Batch(*(column.index_select(0, rows) for column in self._columns))


class Stream(Dataset[Batch]):
    """The samples of the whole run in the order in which they are read, epoch after epoch."""

    def __init__(self, samples: Samples, spec: Spec) -> None:
        self._samples = samples
        self.dealt = list(stream(spec))
        self._numbers = [number for _, micro_batch in self.dealt for number in micro_batch]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self._samples[self._numbers[index]]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once; torch's fetcher prefers this over one `__getitem__` a sample."""
        return self._samples.batch([self._numbers[index] for index in indices])


class Order(DistributedSampler[int]):
    """The numbers of one rank's samples in the epoch that `set_epoch` has named last, as torch's sampler gives them.

    Another `seed` gives other orders; like those of other epochs, they are the plan's only for all ranks together.
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


class MicroBatches(BatchSampler):
    """The indices of the samples in each micro-batch of one rank."""

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


def collate(samples: Batch | list[Batch]) -> Batch:
    """Samples into one batch; what `Stream.__getitems__` fetched already is one."""
    if isinstance(samples, Batch):
        return samples
    return Batch(*(torch.stack(column) for column in zip(*samples, strict=True)))
