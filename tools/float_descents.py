"""The notebook's gradient descents on its regression: ordinary, accumulated, mini-batch, and over a ring.

The quadratic forms are exact; the descents are in double precision, as the notebook's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import dist
from operator import add

import numpy as np
import numpy.typing as npt

from conformance.oracle.normal_form import NormalForm
from conformance.workloads.data_sets import COEFFICIENTS, EPOCHS, LEARNING_RATE, SAMPLES, SHARD, multivariate
from conformance.workloads.layout import Window
from conformance.workloads.model import Linear
from tools.ring import played

NODES = SAMPLES // SHARD

Weights = tuple[float, ...]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Descents:
    """The weights after each epoch, starting with the initial ones. ``nodes``: each node's final weights.

    ``ordinary``: all samples at once. ``accumulated``: one step with the shards' gradients, each weighted with its
    share of the samples. ``mini_batch``: a step after every shard, with the mean over the shard.
    """

    ordinary: tuple[Weights, ...]
    accumulated: tuple[Weights, ...]
    mini_batch: tuple[Weights, ...]
    nodes: tuple[Weights, ...]


def distance(weights: Sequence[float]) -> float:
    """The Euclidean distance to the coefficients of the targets."""
    return dist(weights, COEFFICIENTS)


@cache
def descents() -> Descents:
    workload = multivariate()
    start = np.array([float(value) for value in workload.start])
    [whole] = _forms(1)
    shards = _forms(NODES)
    share = 1 / NODES

    def ordinary(weights: Floats) -> Floats:
        return weights - LEARNING_RATE * _slope(whole, weights)

    def accumulated(weights: Floats) -> Floats:
        gradient = np.zeros_like(weights)
        for shard in shards:
            gradient += share * _slope(shard, weights)
        return weights - LEARNING_RATE * gradient

    def mini_batch(weights: Floats) -> Floats:
        for shard in shards:
            weights = weights - LEARNING_RATE * _slope(shard, weights)
        return weights

    def track(epoch: Callable[[Floats], Floats]) -> tuple[Weights, ...]:
        weights, visited = start, [tuple(start.tolist())]
        for _ in range(EPOCHS):
            weights = epoch(weights)
            visited.append(tuple(weights.tolist()))
        return tuple(visited)

    nodes = [start] * NODES
    for _ in range(EPOCHS):
        gradients = [share * _slope(shard, weights) for shard, weights in zip(shards, nodes, strict=True)]
        reduced = played([gradient.tolist() for gradient in gradients], add)[-1]
        nodes = [weights - LEARNING_RATE * np.array(sums) for weights, sums in zip(nodes, reduced, strict=True)]
    final = tuple(tuple(weights.tolist()) for weights in nodes)
    return Descents(track(ordinary), track(accumulated), track(mini_batch), final)


def _forms(parts: int) -> list[tuple[Floats, Floats]]:
    """The normal equations of each of ``parts`` equal, consecutive shards."""
    [batch] = multivariate().batches
    size = len(batch) // parts
    forms = []
    for part in range(parts):
        samples = batch[part * size : (part + 1) * size]
        window = Window(0, 0, tuple(range(size)), samples, ((tuple(range(size)),),), 1)
        form = NormalForm.of(window, (Fraction(1, size),) * size, Linear(1))
        matrix = np.array([[float(entry) for entry in row] for row in form.matrix])
        forms.append((matrix, np.array([float(entry) for entry in form.offset])))
    return forms


def _slope(form: tuple[Floats, Floats], weights: Floats) -> Floats:
    matrix, offset = form
    return np.asarray(matrix @ weights - offset)
