"""What a script prints, and how it ends. A script takes one of these for its `main`."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from conformance.repro.parts.ranks import launch
from conformance.repro.parts.stand_in import Task
from conformance.repro.parts.values import (
    EXPECTED,
    GROUPS,
    MOMENT,
    OPTIMIZER,
    OTHERS,
    SAMPLES,
    START,
    WINDOWS,
    WORLD_SIZE,
    make_model,
)


def compare() -> None:
    """Exits with 1 if a value is not the expected one on a rank, or the ranks have different ones."""
    conclude_values(differing(launch()))


def compare_with_others() -> None:
    """As `compare`, where several answers are right, by what the trainer decides."""
    found = launch()
    wrong = differing(found)
    for name, others in OTHERS.items():
        pairs = [pair for values in found for pair in zip(others, values, strict=True)]
        if all(abs(observed - expected) <= allowed for (expected, allowed), observed in pairs):
            print(f"these values are those of a trainer that {name}, which is right, too")
            wrong = []
    conclude_values([*wrong, f"nor are they those of a trainer that {' or '.join(OTHERS)}"] if wrong else [])


def differing(found: list[list[float]]) -> list[str]:
    """What is not as expected."""
    wrong = list[str]()
    for rank, values in enumerate(found):
        for (name, expected, allowed), observed in zip(EXPECTED, values, strict=True):
            error = abs(observed - expected)
            if not error <= allowed:  # NaN is wrong, too
                off = f", off by {error:.3g}, of which rounding is at most {allowed:.3g}" if allowed else ""
                wrong.append(f"{MOMENT}, {name} on rank {rank}: observed {observed!r}, expected {expected!r}{off}")
    if not wrong and any(values != found[0] for values in found):
        wrong.append(f"{MOMENT}: observed {found}, expected the same values on all ranks")
    return wrong


def conclude_values(wrong: list[str]) -> None:
    print(*wrong, "the trainer is wrong here" if wrong else f"{MOMENT}, all values are as expected", sep="\n")
    sys.exit(bool(wrong))


def compare_with_plain() -> None:
    """Exits with 1 unless each sample is read once in an epoch, and makes the weights of training in one process."""
    found = launch()
    read = [own for _, own in found]
    wrong = list(not_once(read))
    if not wrong:
        expected = plainly_trained(read)
        wrong = [
            f"weight {at} on rank {rank}: observed {value!r}, expected {right!r}"
            for rank, (weights, _) in enumerate(found)
            for at, (value, right) in enumerate(zip(weights, expected, strict=True))
            if value != right
        ]
    right = "all samples are read once, and the weights are as expected"
    print(*wrong, "the trainer is wrong here" if wrong else right, sep="\n")
    sys.exit(bool(wrong))


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


def end() -> None:
    """Exits with 1 if training does not come to its end."""
    try:
        launch()
    except Exception as error:
        traceback.print_exc()
        print(f"observed: {type(error).__name__}, see above\nexpected: training ends without an error")
        sys.exit(1)
    print("training ends without an error, as expected")
