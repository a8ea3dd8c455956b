"""The plan of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from conformance.workloads.model import Model, model_of
from conformance.workloads.precision import PRECISIONS, Precision
from conformance.workloads.reading_plan import PlannedWindow, planned_windows, rows


@dataclass(frozen=True, eq=False)
class Plan:
    """The work that the ranks were given: the spec of a case, as `Case.spec` writes it."""

    spec: Mapping[str, Any]

    @cached_property
    def backend(self) -> str:
        return str(self.spec["backend"])

    @cached_property
    def precision(self) -> Precision:
        return PRECISIONS[self.spec["precision"]]

    @cached_property
    def world_size(self) -> int:
        return int(self.spec["world_size"])

    @cached_property
    def accumulation(self) -> int:
        """Micro-batches in a full window."""
        return int(self.spec["accumulation"])

    @property
    def clip(self) -> Mapping[str, Any] | None:
        """{"kind": "norm" or "value", "threshold"}, or None."""
        clip: Mapping[str, Any] | None = self.spec["clip"]
        return clip

    @property
    def is_weighted(self) -> bool:
        """Whether the loss weighs samples."""
        return bool(self.spec["loss"] == "weighted")

    @property
    def schedule_by(self) -> str | None:
        """The unit of the learning-rate schedule, "step" or "epoch"; None without a schedule."""
        is_scheduled = self.spec["schedule"] or any(group.get("schedule") for group in self.spec["groups"])
        return str(self.spec["schedule_by"]) if is_scheduled else None

    @cached_property
    def learning_rates(self) -> tuple[tuple[float, ...], ...]:
        """The rates of all parameter groups in order, by step or epoch; a single entry without a schedule."""
        groups = [self.spec["optimizer"], *self.spec["groups"]]
        multipliers = [group.get("schedule") or self.spec["schedule"] or [1.0] for group in groups]
        rates = [group["lr"] for group in groups]
        return tuple(
            tuple(rate * factor for rate, factor in zip(rates, factors, strict=True))
            for factors in zip_longest(*multipliers, fillvalue=1.0)
        )

    @property
    def micro_batch_size(self) -> int:
        return int(self.spec["micro_batch_size"])

    @cached_property
    def model(self) -> Model:
        return model_of(self.spec["model"])

    def micro_batches(self, rank: int, window: int) -> tuple[tuple[int, ...], ...]:
        """The numbers of the samples in each micro-batch that ``rank`` should read in ``window``; () if it has none."""
        return self._numbered[rank].get(window, ())

    @cached_property
    def epochs(self) -> Mapping[int, int]:
        """The epoch of each window that rank 0 reads, by window."""
        return {one.number: one.epoch for one in self.windows[0]}

    def with_data(self, window: int) -> int:
        """The number of ranks that should read samples in ``window``."""
        return sum(bool(self.micro_batches(rank, window)) for rank in range(self.world_size))

    def rows(self, rank: int) -> Iterator[list[list[int]]]:
        """The rows of each micro-batch of each window that ``rank`` should read; samples with equal inputs are one."""
        row_of = rows(self.spec)
        for window in self.windows[0]:
            yield [[row_of[sample] for sample in one] for one in self.micro_batches(rank, window.number)]

    @cached_property
    def windows(self) -> tuple[Sequence[PlannedWindow], ...]:
        """The windows that each rank should go through; the first rank has samples in all."""
        return tuple(planned_windows(self.spec, rank) for rank in range(self.world_size))

    @cached_property
    def _numbered(self) -> Sequence[Mapping[int, tuple[tuple[int, ...], ...]]]:
        return [{window.number: window.micro_batches for window in windows} for windows in self.windows]
