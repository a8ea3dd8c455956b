"""What a script holds of its case, by the names under which the other parts use it. A script has its own values."""

from __future__ import annotations

from typing import Any

import torch

#: How many processes train.
WORLD_SIZE: int = 1
#: Each sample's inputs and target, and its weight where the loss is weighted.
SAMPLES: list[list[Any]] = []
#: By epoch and rank, windows of micro-batches of sample numbers.
WINDOWS: list[list[list[list[list[int]]]]] = []
#: By epoch and rank, the numbers of the samples in the order of a sampler.
ORDERS: list[list[list[int]]] = []
#: By epoch, those of all ranks, micro-batch by micro-batch.
TURNS: list[list[int]] = []
#: Whether a sampler that does not divide leaves samples out.
DROP_LAST: bool = False
#: By rank, the parameters with which the model begins.
START: list[list[Any]] = []
#: Of large parameters, the positions of the elements that differ from the rest, by name.
USED: dict[str, list[int]] = {}
OPTIMIZER: type[torch.optim.Optimizer] = torch.optim.SGD
#: What it is made with, by parameter group.
GROUPS: list[dict[str, Any]] = []
#: By parameter group, what multiplies the learning rate.
SCHEDULES: list[list[float]] = []
#: What the trainer reads, or should: the name of each entry, its right value, and how large the error may be.
EXPECTED: list[tuple[str, float, float]] = []
#: What is right, too, for a trainer that does as its key says: values, and how large the error may be.
OTHERS: dict[str, list[tuple[float, float]]] = {}
#: When and of what these values are.
MOMENT: str = ""
#: How training is stopped and resumed.
STOP: dict[str, Any] = {}
#: What it is told from there.
GO_ON: dict[str, Any] = {}
#: Seconds after which a rank that has not ended hangs.
LIMIT: int = 30


def make_model() -> torch.nn.Module:
    raise NotImplementedError


def train(task: Any) -> None:
    raise NotImplementedError
