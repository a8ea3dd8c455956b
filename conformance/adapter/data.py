"""The samples of a task as torch data: a dataset, a sampler of micro-batches, and how samples become a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, Dataset, SequentialSampler


class Batch(NamedTuple):
    """m samples on the task's device, in its dtype."""

    inputs: torch.Tensor
    """(m, features)"""
    targets: torch.Tensor
    """(m, 1)"""
    weights: torch.Tensor
    """(m, 1)"""


class Samples(Dataset[Batch]):
    """The stream of samples: one epoch's samples, `epochs` times over."""

    def __init__(self, samples: dict[str, Any], epochs: int, device: torch.device, dtype: torch.dtype) -> None:
        def column(values: list[Any]) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).view(len(values), -1)

        self._columns = Batch(column(samples["x"]), column(samples["y"]), column(samples["weight"]))
        self.in_epoch = len(samples["y"])
        self.epochs = epochs

    def __len__(self) -> int:
        return self.in_epoch * self.epochs

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return Batch(*(column[index % self.in_epoch] for column in self._columns))

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once; torch's fetcher prefers this over one `__getitem__` a sample."""
        rows = torch.tensor([index % self.in_epoch for index in indices], device=self._columns.inputs.device)
        return Batch(*(column.index_select(0, rows) for column in self._columns))


class MicroBatches(BatchSampler):
    """A rank's micro-batches, given as sample indices of one epoch, for all epochs."""

    def __init__(self, samples: Samples, micro_batches: list[list[int]], micro_batch_size: int) -> None:
        super().__init__(SequentialSampler(samples), micro_batch_size, drop_last=False)
        self._in_epoch = samples.in_epoch
        self._epochs = samples.epochs
        self._micro_batches = micro_batches

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(self._epochs):
            for indices in self._micro_batches:
                yield [epoch * self._in_epoch + index for index in indices]

    def __len__(self) -> int:
        return self._epochs * len(self._micro_batches)


def collate(samples: Batch | list[Batch]) -> Batch:
    """Samples into one batch; what `Samples.__getitems__` fetched already is one."""
    if isinstance(samples, Batch):
        return samples
    return Batch(*(torch.stack(column) for column in zip(*samples, strict=True)))
