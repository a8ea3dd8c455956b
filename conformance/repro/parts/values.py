"""The values of a case, by the names that the other parts use. Each script has its own."""

from __future__ import annotations

from typing import Any

import torch

#: How many processes train.
WORLD_SIZE: int = 1
#: Each sample's inputs and target, and its weight if the loss is weighted.
SAMPLES: list[list[Any]] = []
#: By epoch and rank, windows of micro-batches of sample numbers.
WINDOWS: list[list[list[list[list[int]]]]] = []
#: By epoch and rank, the numbers of the samples in the order of a sampler.
ORDERS: list[list[list[int]]] = []
#: By epoch, the samples of all ranks, micro-batch by micro-batch.
TURNS: list[list[int]] = []
#: Whether a sampler drops samples that do not divide evenly.
DROP_LAST: bool = False
#: By rank, the model's initial parameters.
START: list[list[Any]] = []
#: By the name of a large parameter, the positions of the elements that differ from the rest.
USED: dict[str, list[int]] = {}
OPTIMIZER: type[torch.optim.Optimizer] = torch.optim.SGD
#: By parameter group, the optimizer's arguments.
GROUPS: list[dict[str, Any]] = []
#: By parameter group, the factors of the learning rate.
SCHEDULES: list[list[float]] = []
#: The name of each value, its correct value, and its largest allowed error.
EXPECTED: list[tuple[str, float, float]] = []
#: Other correct values, with the largest allowed errors, by what a trainer does that has them.
OTHERS: dict[str, list[tuple[float, float]]] = {}
#: The step and the quantity of these values.
MOMENT: str = ""
#: The task's settings until training stops.
STOP: dict[str, Any] = {}
#: The task's settings when it resumes.
GO_ON: dict[str, Any] = {}
#: Seconds after which a running rank is considered hung.
LIMIT: int = 30


def make_model() -> torch.nn.Module:
    raise NotImplementedError


def train(task: Any) -> None:
    raise NotImplementedError
