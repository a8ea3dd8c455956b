"""Workloads over small dyadic rationals, on which correct trainers are bit-identical.

Weights stay on a coarse grid: each step's targets make the residuals small multiples of the odd divisor, and batches
are drawn until the state after the step lies on the grid. So the required bits do not grow with the number of steps,
and eight of them (bf16's) suffice for a whole run. The arithmetic here only chooses the data; the certificate in
:mod:`conformance.oracle` proves exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from conformance.workloads.descent import Floats, State, after, vector
from conformance.workloads.model import Linear, Model
from conformance.workloads.outliers import Outliers
from conformance.workloads.workload import SGD, Ingredients, Sample, Vector, Workload

STEPS = 6
STEEPER = 4.0
#: The significand bits of bf16.
BITS = 8
_CANDIDATES = 512
_ATTEMPTS = 40
_RESTARTS = 25
#: Samples in the smallest micro-batch of weighted workloads.
_GROUP = 4


@dataclass(frozen=True)
class Recipe(Ingredients):
    """The ingredients of a certified workload.

    Args:
        weights: possible sample weights (including zero).
        totals: the weight of each window in multiples of its number of samples, cyclically.
        first_half_empty_at, last_half_empty_at: at this step that half of the samples has no weight.
        grid: weights after every step are multiples of this.
        residual: residuals are up to ``spread`` times this times the odd part of the divisor.
        short: the number of samples in a short last batch, if any, as a function of batch size and accumulation.
        outliers: at these steps, samples that overflow fp16.
        fine: added to all weights but the first, which then need more bits than a 16-bit format has. Without ``cast``
            the first feature is equally fine.
        cast: targets match weights without ``fine``, as after a cast to a 16-bit format.
        steeper_at: the residuals of these steps are multiplied by STEEPER: only their gradients exceed the norm.
        bits: the significand bits that suffice for the sum of a whole global batch, with any micro-batches.
    """

    optimizer: SGD
    model: Model = Linear(3, bias=True)
    _: KW_ONLY
    weights: tuple[int, ...] | None = None
    totals: Vector = (Fraction(1),)
    first_half_empty_at: int | None = None
    last_half_empty_at: int | None = None
    grid: Fraction = Fraction(1, 4)
    residual: Fraction = Fraction(1, 2)
    spread: int = 2
    largest_weight: int = 4
    short: Callable[[int, int], int] | None = None
    outliers: Mapping[int, Outliers] = field(default_factory=dict)
    steeper_at: tuple[int, ...] = ()
    bits: int = BITS
    fine: Fraction = Fraction(0)
    cast: bool = False
    steps: int = STEPS

    def is_short(self, step: int) -> bool:
        """Whether the batch of a step is a short last one."""
        return self.short is not None and step == self.steps - 1

    def build(self, batch_size: int, accumulation: int = 1) -> Workload:
        for seed in range(self.seed, self.seed + _RESTARTS):
            with suppress(_Stuck):
                return _from_seed(self, batch_size, accumulation, seed)
        raise ValueError(f"workload {self.name}: no batches of {batch_size} samples keep every step on its grid")


class _Stuck(Exception):
    """No further batch keeps the state on its grid."""


def _from_seed(recipe: Recipe, batch_size: int, accumulation: int, seed: int) -> Workload:
    generator = np.random.default_rng([*recipe.name.encode(), batch_size, seed])
    size = recipe.model.size
    state = State(float(recipe.grid) * generator.choice([-4.0, -2.0, 2.0, 4.0], size), np.zeros(size))
    start = vector(state.weights + _fine(recipe))
    batches = []
    for step in range(recipe.steps):
        samples = recipe.short(batch_size, accumulation) if recipe.short and recipe.is_short(step) else batch_size
        batch, moved = _draw(recipe, samples, step, state, generator)
        if step in recipe.outliers:
            # Every rank skips this window, so the state does not change.
            batch = recipe.outliers[step](batch, vector(state.weights))
        elif step in recipe.steeper_at:
            # The clipped step rounds, so later steps are bounded anyway: the exact state does not matter, unless
            # another norm has to exceed the threshold later.
            state = _on_grid(recipe, moved) if step < recipe.steeper_at[-1] else replace(state, steps=moved.steps)
        else:
            state = moved
        batches.append(batch)
    return Workload(**recipe.settings, loss=recipe.loss, batches=tuple(batches), start=start)


def _draw(
    recipe: Recipe, samples: int, step: int, state: State, generator: np.random.Generator
) -> tuple[tuple[Sample, ...], State]:
    """The first of many random batches that leaves the state on the grid."""
    grid = float(recipe.grid)
    for _ in range(_ATTEMPTS):
        rows = generator.choice([-2.0, -1.0, -1.0, 1.0, 1.0, 2.0], (_CANDIDATES, samples, recipe.model.features))
        if isinstance(recipe.model, Linear) and recipe.model.bias:
            rows = np.concatenate([rows, np.ones((_CANDIDATES, samples, 1))], axis=2)
        weights = _sample_weights(recipe, samples, step, generator)
        total = int(weights.sum())
        odd = total // (total & -total)
        # Residuals are multiples of the odd divisor; large ones would push the weights off their grid and need many
        # bits.
        unit, spread = (float(recipe.residual), recipe.spread) if odd < 9 else (float(recipe.residual) / 4, 1)
        if odd == 1:
            # As large as the residuals of other batches: small ones seldom keep the weights on their grid.
            unit *= 2
        if step in recipe.steeper_at:
            unit *= STEEPER
        multiples = generator.integers(1, spread + 1, (_CANDIDATES, samples))
        residuals = odd * unit * multiples * generator.choice([-1.0, 1.0], multiples.shape)
        # Sums of small dyadic numbers are exact in any order.
        factors = 2 * weights * residuals
        by_folded = (factors[:, None] @ rows)[:, 0] / total
        gradients = np.stack(np.broadcast_arrays(*recipe.model.slopes([*by_folded.T], [*state.weights])), axis=1)
        moved = after(recipe, gradients, state)
        leads_on = (
            (moved.weights % grid == 0).all(axis=1)
            & (float(recipe.optimizer.momentum) * moved.buffer % grid == 0).all(axis=1)
            # A cast rounds away a small error, but not that of a zero.
            & (moved.weights != 0).all(axis=1)
            & (np.abs(moved.weights) <= recipe.largest_weight).all(axis=1)
            & (moved.weights != state.weights).any(axis=1)
        )
        if step >= min(recipe.steeper_at, default=recipe.steps):
            leads_on[:] = True  # Steps after a clipped step round anyway.
        fits = np.flatnonzero(leads_on & _clips_as_meant(recipe, gradients, step))
        # Last, because checking every sample's term takes longest, and few candidates are left.
        terms = factors[fits, :, None] * rows[fits]
        fits = fits[(np.abs(terms).sum(axis=1) < 2**recipe.bits * 2 * unit).all(axis=1) & _distinct(terms)]
        if fits.size:
            chosen = int(fits[0])
            seen, held = rows[chosen], state.weights
            if recipe.fine and not recipe.cast:
                seen[:, 0] += _cancelling(factors[chosen], float(recipe.fine))
                held = held + _fine(recipe)
            targets = seen @ np.array(recipe.model.folded([*held])) - residuals[chosen]
            features = seen[:, : recipe.model.features]
            return (
                tuple(map(Sample, map(vector, features), vector(targets), vector(weights))),
                State(moved.weights[chosen], moved.buffer[chosen], moved.steps),
            )
    raise _Stuck


def _on_grid(recipe: Recipe, state: State) -> State:
    """The state of the grid that is nearest to a rounded one."""
    grid, momentum = float(recipe.grid), float(recipe.optimizer.momentum)
    return replace(
        state,
        weights=np.round(state.weights / grid) * grid,
        buffer=np.round(state.buffer * momentum / grid) * grid / momentum,
    )


def _fine(recipe: Recipe) -> Floats:
    """The offset of the weights. It changes no residual, so it is the same in all steps."""
    return float(recipe.fine) * np.minimum(np.arange(recipe.model.size), 1.0)


def _cancelling(factors: Floats, fine: float) -> Floats:
    """``fine`` or its negative for pairs of samples whose gradients it changes by opposite amounts."""
    added = np.zeros(len(factors))
    waiting: dict[float, int] = {}
    for index, factor in enumerate(factors):
        other = waiting.pop(abs(factor), None)
        if other is None:
            waiting[abs(factor)] = index
        else:
            added[other] = fine
            added[index] = -fine * np.sign(factor) * np.sign(factors[other])
    return added


def _distinct(terms: Floats) -> npt.NDArray[np.bool_]:
    """Which candidates, of shape (candidates, samples, parameters), have no two samples with the same gradient.

    Samples of weight zero, which all have a zero gradient, do not count.
    """
    key = terms @ (100.0 ** np.arange(terms.shape[2]))
    ordered = np.sort(key, axis=1)
    same = (np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] != 0)
    return np.asarray(~same.any(axis=1))


def _clips_as_meant(recipe: Recipe, gradients: Floats, step: int) -> npt.NDArray[np.bool_]:
    """Whether clipping shows. By value: in the first window, and in a short one, some entry of each parameter exceeds
    the threshold.

    By norm: the norm of all exceeds it at ``steeper_at``, and never before the first of these.
    """
    anything = np.ones(len(gradients), dtype=bool)
    if recipe.clip is None:
        return anything
    threshold = float(recipe.clip.threshold)
    if recipe.clip.kind == "value":
        exceeds = np.abs(gradients) > threshold
        ends = np.cumsum([tensor.size for tensor in recipe.model.tensors])
        # A trainer may skip one of the parameters; if all entries are clipped, other faults are hidden.
        in_each = np.all([one.any(axis=1) for one in np.split(exceeds, ends[:-1], axis=1)], axis=0)
        return np.asarray(in_each & ~exceeds.all(axis=1)) if step == 0 or recipe.is_short(step) else anything
    norms = np.linalg.norm(gradients, axis=1)
    if step not in recipe.steeper_at:
        return np.asarray(norms < threshold / 2) if step < min(recipe.steeper_at, default=recipe.steps) else anything
    # A clip hides a wrong divisor of a short window, unless half of its norm is within the limit.
    at_least, at_most = (5 / 4, 7 / 4) if recipe.is_short(step) else (2, np.inf)
    return np.asarray((norms > at_least * threshold) & (norms < at_most * threshold))


def _sample_weights(recipe: Recipe, samples: int, step: int, generator: np.random.Generator) -> Floats:
    """Weights that sum to the total of the step: a divisor as exact as the number of samples, but another one.

    Each group of samples weighs about twice as much as the previous one: ranks and micro-batches weigh very different
    amounts, and no mean of means is close to the mean. Every group has some weight, except for half of them if the
    recipe says so.
    """
    if recipe.weights is None:
        return np.ones(samples)
    total = int(recipe.totals[step % len(recipe.totals)] * samples)
    groups = samples // _GROUP if samples % _GROUP == 0 else 1
    weighs = np.ones(groups, dtype=bool)
    weighs[: groups // 2] = step != recipe.first_half_empty_at
    weighs[groups // 2 :] = step != recipe.last_half_empty_at
    size = samples // groups
    doubling = 2.0 ** np.arange(groups) * weighs
    means = total * doubling / doubling.sum() / size
    values = np.array(recipe.weights, dtype=float)
    shares = [_tilted(values, mean) for mean in means]
    for _ in range(_ATTEMPTS):
        drawn = np.stack([generator.choice(values, (_CANDIDATES, size), p=share) for share in shares], axis=1)
        drawn[:, ~weighs] = 0
        weight = drawn.sum(axis=2)
        fits = np.flatnonzero((weight.sum(axis=1) == total) & (weight[:, weighs] > 0).all(axis=1))
        if fits.size:
            return np.asarray(drawn[fits[0]].ravel())
    raise ValueError(f"workload {recipe.name}: no {samples} weights out of {recipe.weights} add up to {total}")


def _tilted(values: Floats, mean: float) -> Floats:
    """The probabilities of ``values`` with about this mean and maximal entropy."""
    candidates = np.geomspace(1 / 16, 16, 33)[:, None] ** values
    candidates /= candidates.sum(axis=1, keepdims=True)
    return np.asarray(candidates[np.abs(candidates @ values - mean).argmin()])
