"""The exercise done right, on exact numbers with bounds. Mistakes are replacements in the text of this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.exercise.number import ZERO, Number
from conformance.oracle.affine import Enclosure
from conformance.workloads.precision import FP64

Batch = Sequence[Sequence[Number]]


def loss_mse(m: Number, data: Batch) -> Number:
    return mean([loss(m, x, y) for x, y in data])


def loss(m: Number, x: Number, y: Number) -> Number:
    error = y - m * x
    return error * error


def derivative(m: Number, x: Number, y: Number) -> Number:
    return -2 * x * (y - m * x)


def mean(terms: Sequence[Number]) -> Number:
    return sum(terms, ZERO) / len(terms)


def grad_point(m: Number, data: Sequence[Number], N: int) -> Number:
    return derivative(m, *data) / N


def grad_multi(m: Number, data: Batch) -> Number:
    return mean([derivative(m, x, y) for x, y in data])


def train_loop(m: Number, lr: Number, dataset: Batch, iterations: int) -> Number:
    return train_loop_batches(m, lr, [[point] for point in dataset], iterations)


def train_loop_batches(m: Number, lr: Number, dataset: Sequence[Batch], iterations: int) -> Number:
    return train_loop_distributed(m, lr, [dataset], iterations)


def train_loop_distributed(m: Number, lr: Number, shards: Sequence[Sequence[Batch]], iterations: int) -> Number:
    weight = m
    for i in range(iterations):
        gradients = []
        for shard in shards:
            batch = shard[i % len(shard)]
            gradient = grad_multi(weight, batch)
            gradients.append(gradient)
        weight = weight - lr * (sum(gradients, ZERO) / len(gradients))
    return weight


def answer(function: str, arguments: dict[str, Any]) -> Enclosure:
    """What ``function`` returns: a single number, and the radius that rounding explains."""
    given = {name: value if name in ("N", "iterations") else numbers(value) for name, value in arguments.items()}
    result: Number = globals()[function](**given)
    return result.enclosure(FP64)


def numbers(value: Any) -> Any:
    return Number.of(value) if isinstance(value, int | float) else [numbers(each) for each in value]
