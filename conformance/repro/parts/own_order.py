"""Where the order of the samples is the trainer's own: which it has read, and the right answer for these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from conformance.repro.parts.case import GROUPS, OPTIMIZER, SAMPLES, START, WINDOWS, WORLD_SIZE, make_model
from conformance.repro.parts.task import Task


def note_reading(task: Task, read: list[int]) -> None:
    """Lets ``read`` have the numbers of the samples that go forward for a gradient."""
    numbers = {tuple(row): number for number, row in enumerate(SAMPLES[0])}

    def note(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if module in task.models and outputs.requires_grad:
            read.extend(numbers[tuple(row)] for row in inputs[0].tolist())

    register_module_forward_hook(note)


def not_once(read: Sequence[Sequence[int]]) -> Iterator[str]:
    """What is wrong with what the ranks have read. Each sample must be read once in an epoch, on one rank."""
    samples = len(SAMPLES[0])
    length = samples // WORLD_SIZE
    for epoch in range(len(WINDOWS)):
        times = Counter(number for own in read for number in own[epoch * length : (epoch + 1) * length])
        wrong = [number for number in range(samples) if times[number] != 1]
        if wrong:
            yield (
                f"epoch {epoch}: observed {times[wrong[0]]} times sample {wrong[0]}, expected each of the {samples} "
                f"samples once; {len(wrong)} are not"
            )
    for rank, own in enumerate(read):
        if len(own) > len(WINDOWS) * length:
            yield f"rank {rank}: observed {len(own)} samples, expected {len(WINDOWS) * length}"


def plainly_trained(read: Sequence[Sequence[int]]) -> list[float]:
    """The weights of one process that steps along the mean over all that the ranks have read for a step."""
    model = make_model().double()
    with torch.no_grad():
        for parameter, start in zip(model.parameters(), START[0], strict=True):
            parameter.copy_(torch.tensor(start))
    optimizer = OPTIMIZER(model.parameters(), **GROUPS[0])
    inputs, targets = (torch.tensor(column, dtype=torch.float64) for column in SAMPLES)
    size = Task.accumulation * Task.micro_batch_size
    for begin in range(0, len(read[0]), size):
        numbers = [number for own in read for number in own[begin : begin + size]]
        torch.nn.functional.mse_loss(model(inputs[numbers]), targets[numbers].view(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(one) for parameter in model.parameters() for one in parameter.detach().flatten()]
