"""The samples of a task as torch data: a dataset, a sampler of micro-batches, and how samples become a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

from conformance.workloads.plan import Spec, stream


class Batch(NamedTuple):
    """m samples on the task's device, in its dtype."""

    inputs: torch.Tensor
    """(m, features)"""
    targets: torch.Tensor
    """(m, 1)"""
    weights: torch.Tensor
    """(m, 1)"""


class Samples(Dataset[Batch]):
    """The samples of the whole run in the order in which they are read, epoch after epoch."""

    def __init__(self, spec: Spec, device: torch.device, dtype: torch.dtype) -> None:
        def column(values: list[Any]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).view(len(values), -1)

        samples = spec["samples"]
        self._columns = Batch(column(samples["x"]), column(samples["y"]), column(samples["weight"]))
        self.dealt = list(stream(spec))
        self._numbers = [number for _, micro_batch in self.dealt for number in micro_batch]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return Batch(*(column[self._numbers[index]] for column in self._columns))

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once; torch's fetcher prefers this over one `__getitem__` a sample."""
        rows = torch.tensor([self._numbers[index] for index in indices], device=self._columns.inputs.device)
        return Batch(*(column.index_select(0, rows) for column in self._columns))


class MicroBatches(BatchSampler):
    """The indices of the samples in each micro-batch of one rank."""

    def __init__(self, samples: Samples, rank: int, micro_batch_size: int) -> None:
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
    """Samples into one batch; what `Samples.__getitems__` fetched already is one."""
    if isinstance(samples, Batch):
        return samples
    return Batch(*(torch.stack(column) for column in zip(*samples, strict=True)))
