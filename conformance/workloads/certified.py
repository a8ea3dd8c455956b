"""Workloads over small dyadic rationals, on which correct trainers agree to the bit.

Weights stay on a coarse grid: each step's targets are chosen so that the residuals are small multiples of the odd
divisor, and batches are drawn until the state after the step lies on the grid. So the bits needed do not grow with the
number of steps, and eight of them (bf16's) are enough for a whole run. The arithmetic here only chooses the data;
exactness is proved by the certificate in :mod:`conformance.oracle`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from conformance.workloads.workload import SGD, Clip, LossScale, Sample, Vector, Workload

STEPS = 6
#: Times any loss scale of the recipes it is far outside fp16's range.
OUTLIER = Fraction(-(2**15))
STEEPER = 4.0
#: The significand bits of bf16: enough to add up a whole global batch, whatever its micro-batches are.
_BITS = 8
_CANDIDATES = 512
_ATTEMPTS = 400

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """What a certified workload is made of.

    Args:
        weights: possible sample weights of a weighted loss (zero included); None for the plain mean.
        grid: weights after every step are multiples of this.
        residual: residuals are up to ``spread`` times this times the odd part of the divisor.
        short: samples in a short last batch, if there is one.
        overflow_at: the batch of this step ends with a sample that overflows fp16.
        seed: another one draws other numbers, for workloads in which the first ones hide a fault in some layout.
        steeper_at: the residuals of this step are multiplied by STEEPER, so that only its gradient exceeds a norm.
    """

    name: str
    summary: str
    optimizer: SGD
    features: int = 3
    bias: bool = False
    schedule: Vector | None = None
    clip: Clip | None = None
    weights: tuple[int, ...] | None = None
    grid: Fraction = Fraction(1, 4)
    residual: Fraction = Fraction(1, 2)
    spread: int = 2
    largest_weight: int = 4
    short: int | None = None
    scale: LossScale = LossScale(Fraction(2**7))
    ranks_start_apart: bool = False
    overflow_at: int | None = None
    steeper_at: int | None = None
    steps: int = STEPS
    seed: int = 0


def certified(recipe: Recipe, batch_size: int) -> Workload:
    """The workload of ``recipe`` with global batches of ``batch_size`` samples, always the same one.

    Raises:
        ValueError: no such workload was found; the recipe asks for too much.
    """
    generator = np.random.default_rng([*recipe.name.encode(), batch_size, recipe.seed])
    size = recipe.features + recipe.bias
    state = _State(float(recipe.grid) * generator.choice([-4.0, -2.0, 2.0, 4.0], size), np.zeros(size))
    start = _vector(state.weights)
    batches = []
    for step in range(recipe.steps):
        samples = recipe.short if recipe.short and step == recipe.steps - 1 else batch_size
        batch, after = _draw(recipe, samples, state, generator)
        if recipe.overflow_at == step:
            # Every rank skips this window, so the state does not change.
            batch = (*batch[:-1], replace(batch[-1], y=OUTLIER))
        elif recipe.steeper_at == step:
            # The clipped step rounds, so what follows is bounded anyway: the exact state does not matter.
            state = replace(state, steps=after.steps)
        else:
            state = after
        batches.append(batch)
    return Workload(
        name=recipe.name,
        batches=tuple(batches),
        optimizer=recipe.optimizer,
        start=start,
        bias=recipe.bias,
        loss="mean" if recipe.weights is None else "weighted",
        schedule=recipe.schedule,
        clip=recipe.clip,
        scale=recipe.scale,
        ranks_start_apart=recipe.ranks_start_apart,
        summary=recipe.summary,
    )


@dataclass(frozen=True)
class _State:
    """Weights and momentum buffer, shape (..., parameters); doubles hold all these small dyadic numbers exactly."""

    weights: Floats
    buffer: Floats
    steps: int = 0


def _draw(
    recipe: Recipe, samples: int, state: _State, generator: np.random.Generator
) -> tuple[tuple[Sample, ...], _State]:
    """The first of many random batches after which the state lies on the grid."""
    grid = float(recipe.grid)
    for _ in range(_ATTEMPTS):
        rows = generator.choice([-2.0, -1.0, -1.0, 1.0, 1.0, 2.0], (_CANDIDATES, samples, recipe.features))
        if recipe.bias:
            rows = np.concatenate([rows, np.ones((_CANDIDATES, samples, 1))], axis=2)
        weights = _sample_weights(recipe, samples, generator)
        odd = samples // (samples & -samples)
        # Residuals are multiples of the odd divisor; large ones would throw the weights off their grid and need many
        # bits.
        unit, spread = (float(recipe.residual), recipe.spread) if odd < 9 else (float(recipe.residual) / 4, 1)
        if recipe.steeper_at == state.steps:
            unit *= STEEPER
        multiples = generator.integers(1, spread + 1, (_CANDIDATES, samples))
        residuals = odd * unit * multiples * generator.choice([-1.0, 1.0], multiples.shape)
        # Sums of small dyadic numbers are exact in any order.
        factors = 2 * weights * residuals
        gradients = (factors[:, None] @ rows)[:, 0] / samples
        after = _after(recipe, gradients, state)
        fits = np.flatnonzero(
            (after.weights % grid == 0).all(axis=1)
            & (float(recipe.optimizer.momentum) * after.buffer % grid == 0).all(axis=1)
            # A cast rounds away a small error, but not that of a zero.
            & (after.weights != 0).all(axis=1)
            & (np.abs(after.weights) <= recipe.largest_weight).all(axis=1)
            & (after.weights != state.weights).any(axis=1)
            & _clips_as_meant(recipe, gradients, state.steps)
        )
        # Last, because checking every sample's term takes longest, and few candidates are left.
        terms = factors[fits, :, None] * rows[fits]
        fits = fits[(np.abs(terms).sum(axis=1) < 2**_BITS * 2 * unit).all(axis=1) & _distinct(terms)]
        if fits.size:
            chosen = int(fits[0])
            targets = rows[chosen] @ state.weights - residuals[chosen]
            features = rows[chosen][:, : recipe.features]
            return (
                tuple(map(Sample, map(_vector, features), _vector(targets), _vector(weights))),
                _State(after.weights[chosen], after.buffer[chosen], after.steps),
            )
    raise ValueError(f"workload {recipe.name}: no batch of {samples} samples keeps step {state.steps} on its grid")


def _distinct(terms: Floats) -> npt.NDArray[np.bool_]:
    """Which candidates, of shape (candidates, samples, parameters), hold no two samples with the same gradient.

    Samples of weight zero, which all have the gradient zero, do not count.
    """
    key = terms @ (100.0 ** np.arange(terms.shape[2]))
    ordered = np.sort(key, axis=1)
    same = (np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] != 0)
    return np.asarray(~same.any(axis=1))


def _clips_as_meant(recipe: Recipe, gradients: Floats, step: int) -> npt.NDArray[np.bool_]:
    """By value: at the first step some entry exceeds the threshold. By norm: at ``steeper_at`` and never before."""
    if recipe.clip is None:
        return np.ones(len(gradients), dtype=bool)
    threshold = float(recipe.clip.threshold)
    if recipe.clip.kind == "value":
        return np.asarray((np.abs(gradients) > threshold).any(axis=1) | (step > 0))
    norms = np.linalg.norm(gradients, axis=1)
    if recipe.steeper_at is None or step < recipe.steeper_at:
        return np.asarray(norms < threshold / 2)
    return np.asarray((norms > 2 * threshold) | (step > recipe.steeper_at))


def _sample_weights(recipe: Recipe, samples: int, generator: np.random.Generator) -> Floats:
    """Weights that add up to the number of samples, which is as exact a divisor as the plain mean's.

    They ascend, so that ranks and micro-batches weigh very different amounts and no mean of means comes near the mean.
    """
    if recipe.weights is None:
        return np.ones(samples)
    for _ in range(_ATTEMPTS):
        drawn = generator.choice(np.array(recipe.weights, dtype=float), samples)
        if drawn.sum() == samples:
            return np.sort(drawn)
    raise ValueError(f"workload {recipe.name}: no {samples} weights out of {recipe.weights} add up to {samples}")


def _after(recipe: Recipe, gradients: Floats, state: _State) -> _State:
    spec = recipe.optimizer
    momentum, decay = float(spec.momentum), float(spec.weight_decay)
    if recipe.clip and recipe.clip.kind == "value":
        gradients = np.clip(gradients, -float(recipe.clip.threshold), float(recipe.clip.threshold))
    gradients = gradients + decay * state.weights
    taken = 1 - float(spec.dampening) if state.steps and momentum else 1.0
    buffer = momentum * state.buffer + taken * gradients
    move = gradients + momentum * buffer if spec.nesterov else buffer
    rate = float(spec.lr * (recipe.schedule[state.steps] if recipe.schedule else 1))
    return _State(state.weights - rate * move, buffer, state.steps + 1)


def _vector(values: Floats) -> Vector:
    return tuple(map(Fraction, values.tolist()))
