"""The samples of a script's case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, DistributedSampler

from conformance.repro.parts.values import DROP_LAST, ORDERS, SAMPLES, TURNS, WORLD_SIZE


class Batch(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def weights(self) -> torch.Tensor:
        return torch.ones_like(self.targets)


class WeightedBatch(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


class Epoch:
    """One pass over the data."""

    def __init__(self, number: int, windows: list[list[Batch]]) -> None:
        self.number, self._windows = number, windows

    def windows(self) -> Iterator[list[Batch]]:
        yield from self._windows


class Samples(Dataset[Any]):
    def __init__(self, dtype: torch.dtype, format: Any) -> None:
        self._dtype, self._format = dtype, format

    def __len__(self) -> int:
        return len(SAMPLES[0])

    def __getitem__(self, number: int) -> Any:
        columns = (torch.tensor(column[number], dtype=self._dtype).view(-1) for column in SAMPLES)
        return formatted(Batch(*columns), self._format)


class Order(DistributedSampler[int]):
    def __init__(self, samples: Samples, rank: int, epoch: int) -> None:
        super().__init__(samples, WORLD_SIZE, rank, shuffle=len(ORDERS) > 1, drop_last=DROP_LAST)
        self.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(ORDERS[(self.seed + self.epoch) % len(ORDERS)][self.rank])

    def __len__(self) -> int:
        return len(ORDERS[0][self.rank])


class GlobalOrder(Order):
    def __init__(self, samples: Samples) -> None:
        super().__init__(samples, 0, 0)

    def __iter__(self) -> Iterator[int]:
        return iter(TURNS[(self.seed + self.epoch) % len(TURNS)])

    def __len__(self) -> int:
        return len(TURNS[0])


def batch_of(numbers: Sequence[int], dtype: torch.dtype) -> Batch:
    columns = (torch.tensor([column[number] for number in numbers], dtype=dtype) for column in SAMPLES)
    return Batch(*(column.view(len(numbers), -1) for column in columns))


def collate(samples: list[Batch], format: Any) -> Any:
    return formatted(Batch(*map(torch.stack, zip(*samples, strict=True))), format)


def formatted(batch: Batch, format: Any) -> Any:
    if format is None:
        return batch
    return batch._asdict() if format is dict else format(batch)
