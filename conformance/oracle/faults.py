"""The catalogue of numeric faults: what trainers get wrong, as one changed decision of the recurrence.

Each fault says what its trajectory would be. A comparison has *power* against a fault if the fault's enclosure and
the right answer's have no point in common at some step: then no trainer with that fault can pass. And a trajectory
that lies in a fault's enclosure tells the author what to look for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Layout, Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import SGD, AdamW, Vector, Workload

Applies = Callable[[Workload, Layout, Precision], bool]


@dataclass(frozen=True)
class Fault:
    """``text`` completes "the numbers are those of a trainer that ..."; ``applies`` says in which cases it shows."""

    name: str
    text: str
    recurrence: type[Recurrence]
    applies: Applies


CATALOGUE: list[Fault] = []


def fault(name: str, text: str, applies: Applies) -> Callable[[type[Recurrence]], type[Recurrence]]:
    """Add a recurrence with one wrong decision to the catalogue."""

    def add(recurrence: type[Recurrence]) -> type[Recurrence]:
        CATALOGUE.append(Fault(name, text, recurrence, applies))
        return recurrence

    return add


def applicable(workload: Workload, layout: Layout, precision: Precision) -> list[Fault]:
    return [fault for fault in CATALOGUE if fault.applies(workload, layout, precision)]


def _distributed(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return layout.world_size > 1


def _accumulating(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return layout.accumulation > 1


def _always(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return True


def _scaled(coefficients: Vector, factor: Fraction) -> Vector:
    return tuple(factor * c for c in coefficients)


def _only(coefficients: Vector, indices: set[int], factor: Fraction = Fraction(1)) -> Vector:
    return tuple(factor * c if i in indices else Fraction(0) for i, c in enumerate(coefficients))


@fault("sum-over-ranks", "sums the ranks' gradients instead of averaging them", _distributed)
class SumOverRanks(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(window.world_size))


@fault("world-divided-twice", "divides by the world size twice", _distributed)
class WorldDividedTwice(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(1, window.world_size))


@fault("sum-over-window", "adds up the micro-batches without dividing by their number", _accumulating)
class SumOverWindow(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(window.length))


@fault("window-divided-twice", "divides by the accumulation length twice", _accumulating)
class WindowDividedTwice(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(1, window.length))


@fault(
    "nominal-length",
    "divides a short accumulation window by the nominal length",
    lambda workload, layout, precision: any(w.length < w.nominal for w in layout.windows(workload)),
)
class NominalLength(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(window.length, window.nominal))


@fault(
    "loss-summed",
    "reduces the loss by a sum where a mean belongs",
    lambda workload, layout, precision: layout.micro_batch_size > 1 and workload.loss == "mean",
)
class LossSummed(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _scaled(super().coefficients(window), Fraction(len(window.shares[0][0])))


@fault("not-synchronised", "steps on its own rank's gradient, without averaging over ranks", _distributed)
class NotSynchronised(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        own = set(chain.from_iterable(window.shares[0]))
        scaled = _only(super().coefficients(window), own)
        return _scaled(scaled, 1 / sum(scaled, Fraction(0))) if any(scaled) else scaled


@fault(
    "zero-grad-in-window",
    "clears gradients inside the window, so that only its last micro-batch counts",
    _accumulating,
)
class ZeroGradInWindow(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        last = set(chain.from_iterable(share[-1] for share in window.shares))
        return _only(super().coefficients(window), last)


@fault("first-micro-batch-only", "loses every micro-batch of a window but the first", _accumulating)
class FirstMicroBatchOnly(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        first = set(chain.from_iterable(share[0] for share in window.shares))
        return _only(super().coefficients(window), first)


@fault("sample-dropped", "drops one sample of the batch", _always)
class SampleDropped(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        right = super().coefficients(window)
        last = max(index for index, c in enumerate(right) if c)
        return _only(right, set(range(len(right))) - {last})


@fault(
    "sample-repeated",
    "reads a sample twice and its neighbour never",
    lambda workload, layout, precision: workload.batch_size > 1,
)
class SampleRepeated(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        right = super().coefficients(window)
        if len(right) < 2:
            return right
        return (*right[:-2], right[-2] + right[-1], Fraction(0))


@fault(
    "mean-of-micro-batch-means",
    "averages the micro-batches' weighted means instead of dividing by the global weight",
    lambda workload, layout, precision: workload.loss == "weighted" and layout.accumulation * layout.world_size > 1,
)
class MeanOfMicroBatchMeans(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _mean_of_means(window, [mb for share in window.shares for mb in share])


@fault(
    "mean-of-rank-means",
    "averages the ranks' weighted means instead of dividing by the global weight",
    lambda workload, layout, precision: workload.loss == "weighted" and layout.world_size > 1,
)
class MeanOfRankMeans(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return _mean_of_means(window, [tuple(chain.from_iterable(share)) for share in window.shares])


def _mean_of_means(window: Window, groups: list[tuple[int, ...]]) -> Vector:
    result = [Fraction(0)] * len(window.batch)
    for group in groups:
        weight = sum((window.batch[index].weight for index in group), Fraction(0))
        for index in group:
            result[index] = window.batch[index].weight / weight / len(groups) if weight else Fraction(0)
    return tuple(result)


@fault(
    "sample-weights-ignored",
    "ignores the samples' weights",
    lambda workload, layout, precision: workload.loss == "weighted",
)
class WeightsIgnored(Recurrence):
    def coefficients(self, window: Window) -> Vector:
        return (Fraction(1, len(window.batch)),) * len(window.batch)


def _clips(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return workload.clip is not None


@fault("not-clipped", "does not clip", _clips)
class NotClipped(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return vector


@fault(
    "clip-before-unscale",
    "clips gradients that still carry the loss scale",
    lambda workload, layout, precision: _clips(workload, layout, precision) and precision.scaled,
)
class ClipBeforeUnscale(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return super().clip(vector.scaled(self.loss_scale)).scaled(1 / self.loss_scale)


@fault(
    "clip-before-all-reduce",
    "clips each rank's gradient before averaging over ranks",
    lambda workload, layout, precision: _clips(workload, layout, precision) and layout.world_size > 1,
)
class ClipBeforeAllReduce(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        right = self.coefficients(window)
        groups = [set(chain.from_iterable(share)) for share in window.shares]
        return _sum_of_clipped(self, window, weights, [_only(right, group, Fraction(len(groups))) for group in groups])


@fault(
    "clip-per-micro-batch",
    "clips every micro-batch's gradient instead of the window's",
    lambda workload, layout, precision: _clips(workload, layout, precision) and layout.accumulation > 1,
)
class ClipPerMicroBatch(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        right = self.coefficients(window)
        groups = [set(chain.from_iterable(share[t] for share in window.shares)) for t in range(window.length)]
        return _sum_of_clipped(self, window, weights, [_only(right, group, Fraction(len(groups))) for group in groups])


def _sum_of_clipped(rule: Recurrence, window: Window, weights: Affine, parts: list[Vector]) -> Affine:
    total = rule.symbols.exactly([Fraction(0)] * len(weights))
    for number, part in enumerate(parts):
        total = total.plus(rule.clip(rule.averaged(window, weights, part, number)).scaled(Fraction(1, len(parts))))
    return total


@fault(
    "scale-left-in",
    "steps on gradients that still carry the loss scale",
    lambda workload, layout, precision: precision.scaled,
)
class ScaleLeftIn(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return super().window_gradient(window, weights).scaled(self.loss_scale)


@fault("ascends", "adds the gradient instead of subtracting it", _always)
class Ascends(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(weights, vector.scaled(Fraction(-1)), step)


@fault("steps-twice", "applies every gradient twice", _always)
class StepsTwice(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(super().update(weights, vector, step), vector, step)


def _decays(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return bool(workload.optimizer.weight_decay) and (workload.steps > 1 or any(workload.start))


@fault("no-weight-decay", "forgets the weight decay", _decays)
class NoWeightDecay(Recurrence):
    def optimizer(self) -> SGD | AdamW:
        return replace(super().optimizer(), weight_decay=Fraction(0))


@fault("weight-decay-twice", "applies the weight decay twice", _decays)
class WeightDecayTwice(Recurrence):
    def optimizer(self) -> SGD | AdamW:
        right = super().optimizer()
        return replace(right, weight_decay=2 * right.weight_decay)


def _has_momentum(workload: Workload, layout: Layout, precision: Precision) -> bool:
    return isinstance(workload.optimizer, SGD) and bool(workload.optimizer.momentum) and workload.steps > 1


@fault("momentum-lost", "forgets the momentum", _has_momentum)
class MomentumLost(Recurrence):
    def optimizer(self) -> SGD | AdamW:
        right = super().optimizer()
        return replace(right, momentum=Fraction(0), nesterov=False) if isinstance(right, SGD) else right


@fault(
    "schedule-per-micro-batch",
    "advances the learning-rate schedule once per micro-batch",
    lambda workload, layout, precision: (
        workload.schedule is not None and layout.accumulation > 1 and workload.steps > 1
    ),
)
class SchedulePerMicroBatch(Recurrence):
    def learning_rate(self, step: int) -> Fraction:
        return super().learning_rate(min(step * self.layout.accumulation, self.workload.steps - 1))


@fault(
    "schedule-ignored",
    "never advances the learning-rate schedule",
    lambda workload, layout, precision: workload.schedule is not None and workload.steps > 1,
)
class ScheduleIgnored(Recurrence):
    def learning_rate(self, step: int) -> Fraction:
        return super().learning_rate(0)
