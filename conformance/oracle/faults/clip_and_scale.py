"""Known bugs of clipping and the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from math import isqrt
from typing import TypeAlias

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import InTurn, Rows, only
from conformance.oracle.faults.catalogue import (
    RARE,
    Condition,
    accumulating,
    clips,
    computes_roughly,
    distributed,
    fault,
    has_groups,
)
from conformance.oracle.optimizers import clipped
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem

#: Micro-batches.
_Part: TypeAlias = Iterable[Iterable[int]]
#: A root is rounded to a multiple of its inverse, far below all formats.
_FINE = 10**30


def _has_several_parameters(problem: Problem) -> bool:
    return len(problem.workload.model.tensors) > 1


def _by_norm(problem: Problem) -> bool:
    return problem.workload.clip is not None and problem.workload.clip.kind == "norm"


def _scaled(problem: Problem) -> bool:
    return problem.precision.scaled


@fault(
    "does not clip",
    clips,
    fix="call `task.clip_(model.parameters())` before each step",
    why="Gradients above the threshold are used as they are",
    edit="clip above step",
)
class NotClipped(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return vector


@fault(
    "clips gradients that still carry the loss scale",
    clips,
    _scaled,
    at="clip",
    fix="call `scaler.unscale_(optimizer)` before you clip",
    why="Scaled gradients are compared with the threshold, so unscaling leaves them far below it",
    edit="unscale above clip",
)
class ClipBeforeUnscale(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return super().clip(vector.scaled(self.loss_scale)).scaled(1 / self.loss_scale)


class _ClipsMultiple(Recurrence):
    """Clips a multiple of the gradients, and then makes them what they should be."""

    multiple: Callable[[Problem, Window], Fraction]

    def clip(self, vector: Affine) -> Affine:
        multiple = type(self).multiple(self.problem, self.window)
        return super().clip(vector.scaled(multiple)).scaled(1 / multiple) if multiple else vector


# One order of calls gives two multiples: of what ranks have averaged, and of what they have not.
_MULTIPLES: tuple[tuple[str, str, Condition, Callable[[Problem, Window], Fraction]], ...] = (
    ("Samples", "samples", clips, lambda problem, window: problem.total_weight(window)),
    ("Samples", "samples", distributed, lambda problem, window: problem.total_weight(window) / window.world_size),
    ("MicroBatches", "micro-batches", accumulating, lambda problem, window: Fraction(window.length)),
    ("MicroBatches", "micro-batches", distributed, lambda problem, window: Fraction(window.length * window.world_size)),
    ("Ranks", "ranks", distributed, lambda problem, window: Fraction(window.world_size)),
    ("Ranks", "ranks", distributed, lambda problem, window: Fraction(1, window.world_size)),
)
for _name, _what, _condition, _multiple in _MULTIPLES:
    fault(
        f"clips gradients before their average over the {_what} is complete",
        clips,
        _condition,
        at="clip",
        fix=f"complete the average over the {_what} before you clip",
        why="The threshold is for the average, and is compared with a multiple of it",
        edit="clip right above step",
        among=RARE,
    )(type(f"ClipsBeforeAverageOver{_name}", (_ClipsMultiple,), {"multiple": _multiple}))


@fault(
    "clips each rank's gradient before averaging over ranks",
    clips,
    distributed,
    at="clip",
    fix="clip after the gradients are averaged over the ranks",
    why="Each rank clips by its own norm, and a mean of clipped gradients is not the clipped mean",
    edit="clip right above step",
)
class ClipBeforeAllReduce(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return _sum_of_clipped(self, window, weights, window.shares)


@fault(
    "clips every micro-batch's gradient instead of the window's",
    clips,
    accumulating,
    at="clip",
    fix="clip once, after the window's last backward pass",
    why="The threshold is for the whole window; each part of it is cut separately",
    edit="clip above step",
)
class ClipPerMicroBatch(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return _sum_of_clipped(self, window, weights, list(zip(*window.shares, strict=True)))


def _sum_of_clipped(rule: Recurrence, window: Window, weights: Affine, parts: Sequence[_Part]) -> Affine:
    """The mean of the clipped gradients of ``parts``, which together are all micro-batches."""
    total = rule.symbols.exactly([Fraction(0)] * len(weights))
    for own in _of_parts(rule, window, weights, parts):
        total = total.plus(rule.clip(own).scaled(Fraction(1, len(parts))))
    return total


def _of_parts(rule: Recurrence, window: Window, weights: Affine, parts: Sequence[_Part]) -> Iterator[Affine]:
    """Yields the gradients of ``parts``, whose mean is the gradient of the window."""
    coefficients = rule.coefficients(window)
    for part in parts:
        yield rule.trained(window, weights, times(only(coefficients, part), len(parts)))


@fault(
    "clips by the largest norm of the ranks' gradients before averaging",
    _by_norm,
    distributed,
    at="clip",
    fix="clip by the norm of the averaged gradients",
    why="The norm of the mean is smaller than the largest norm, so the clip cuts too much",
    edit="change gradient; clip above step",
)
class ClipsByLargestNormOfRanks(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        vector, clip = self.trained(window, weights, self.coefficients(window)), self.problem.workload.clip
        own = list(_of_parts(self, window, weights, window.shares))
        return clipped(vector, clip, self.problem.precision.master, self.ledger, measured=own) if clip else vector


def _several_own(kind: type[InTurn | Rows]) -> Condition:
    return lambda problem: len({*kind(problem).owners(problem.layout.world_size)}) > 1


@fault(
    "clips the gradients of each rank's own parameters by the norm of only these",
    _by_norm,
    _several_own(InTurn),
    is_fine=computes_roughly,
    at="clip",
    fix="add the squared norms of all ranks' parameters (all-reduce) before the root",
    why="The norm of a part is smaller than the norm of all, so the clip cuts too little",
    edit="change clip|gradient",
)
class ClipsOwnParameters(InTurn):
    def clip(self, vector: Affine) -> Affine:
        owners, ranks = self.owners(self.window.world_size), range(self.window.world_size)
        parts = (vector.where([owner == rank for owner in owners]) for rank in ranks)
        return reduce(Affine.plus, map(super().clip, parts))


@fault(
    "clips each rank's rows of the sharded gradients by the norm of only these rows",
    _by_norm,
    _several_own(Rows),
    is_fine=computes_roughly,
    at="clip",
    fix="add the squared norms of all ranks' shards (all-reduce, or `full_tensor()` of the norm) before the root",
    why="The norm of some rows is smaller than the norm of all, so the clip cuts too little",
    edit="change clip|gradient",
)
class ClipsOwnRows(Rows, ClipsOwnParameters):
    pass


@fault(
    "clips each parameter separately, with the threshold that is meant for the norm of all",
    _by_norm,
    _has_several_parameters,
    at="clip",
    fix="pass all parameters to one call of `clip_grad_norm_`",
    why="Each parameter is cut by its own norm: too little, and the direction changes",
    edit="change clip|gradient",
)
class ClipsEachParameter(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return self.joined((super(ClipsEachParameter, self).clip(self.only(vector, [n])), [n]) for n in self.tensors)


def _has_tied(problem: Problem) -> bool:
    return any(tensor.places > 1 and not tensor.frozen for tensor in problem.workload.model.tensors)


@fault(
    "clips by a norm that counts a tied parameter once for each of its places",
    _by_norm,
    _has_tied,
    at="clip",
    fix="add each parameter's gradient to the norm once: `model.parameters()` has tied parameters once",
    why="The norm is too large, so the clip cuts too much",
)
class CountsTiedInEachPlace(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        clip, kinds = self.problem.workload.clip, self.problem.workload.model.tensors
        roots = (Fraction(isqrt(kind.places * _FINE**2), _FINE) for kind in kinds)
        counted = self.joined((vector.scaled(root), [number]) for number, root in enumerate(roots))
        assert clip is not None
        return clipped(vector, clip, self.problem.precision.master, self.ledger, measured=[counted])


@fault(
    "clips each parameter group separately, with the threshold that is meant for the norm of all",
    _by_norm,
    has_groups,
    at="clip",
    fix="pass the parameters of all groups to one call of `clip_grad_norm_`",
    why="Each group is cut by its own norm: too little, and the direction changes",
    edit="change clip|gradient",
)
class ClipsEachGroup(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        groups = range(1 + len(self.problem.workload.groups))
        own = ([n for n in self.tensors if self.group_of(n) == group] for group in groups)
        return self.joined((super(ClipsEachGroup, self).clip(self.only(vector, some)), some) for some in own)


class Recorded(Recurrence):
    """What a rank was seen to do, which some predictions need: the parameters of each of a window's clips, and of each
    optimizer."""

    clips: Sequence[frozenset[int]] = ()
    optimizers: Sequence[frozenset[int]] = ()


class _ClipsParts(Recorded):
    def parts(self) -> Sequence[frozenset[int]]:
        """The parameters of each clip."""
        raise NotImplementedError

    def clip(self, vector: Affine) -> Affine:
        clip, parts = super().clip, [sorted(part) for part in self.parts() or [frozenset(self.tensors)]]
        others = [tensor for tensor in self.tensors if not any(tensor in part for part in parts)]
        return self.joined([(vector, others), *((clip(self.only(vector, part)), part) for part in parts)])


@fault(
    "clips each optimizer's parameters separately, with the threshold that is meant for the norm of all",
    _by_norm,
    _has_several_parameters,
    at="clip",
    fix="pass the parameters of all optimizers to one call of `clip_grad_norm_`",
    why="Each optimizer's parameters are cut by their own norm: too little, and the direction changes",
    edit="change clip|gradient",
    among=RARE,
)
class ClipsEachOptimizer(_ClipsParts):
    def parts(self) -> Sequence[frozenset[int]]:
        is_by_optimizer = not self.clips or {*self.clips} == {*self.optimizers}
        return self.optimizers if is_by_optimizer else ()


@fault(
    "clips parts of the parameters separately, with the threshold that is meant for the norm of all",
    _by_norm,
    _has_several_parameters,
    at="clip",
    fix="pass all parameters to one call of `clip_grad_norm_`",
    why="Each part is cut by its own norm: too little, and the direction changes",
    edit="change clip|gradient",
    among=RARE,
)
class ClipsEachPart(_ClipsParts):
    def parts(self) -> Sequence[frozenset[int]]:
        return self.clips if {*self.clips} != {*self.optimizers} else ()


@fault(
    "clips only the first parameter",
    clips,
    _has_several_parameters,
    at="clip",
    fix="pass all parameters to one clip call",
    why="The other parameters are not cut",
    edit="change clip|gradient",
)
class ClipsFirstParameter(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first, others = self.tensors[:1], self.tensors[1:]
        return self.joined([(super().clip(self.only(vector, first)), first), (vector, others)])


@fault(
    "clips while some gradients still carry the loss scale",
    _by_norm,
    _has_several_parameters,
    _scaled,
    at="clip",
    fix="unscale the gradients of all parameters before you clip",
    why="Gradients that still carry the scale dominate the norm, so all are cut too much",
    edit="unscale above clip",
)
class ClipsBeforeAllAreUnscaled(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first, others = self.tensors[:1], self.tensors[1:]
        clipped = super().clip(self.joined([(vector, first), (vector.scaled(self.loss_scale), others)]))
        return self.joined([(clipped, first), (clipped.scaled(1 / self.loss_scale), others)])


@fault(
    "steps with gradients that still carry the loss scale",
    _scaled,
    fix="step with `scaler.step(optimizer)`, which unscales first",
    why="The step moves along gradients that are larger by the loss scale",
    edit="change step to `scaler.step({})`",
)
class ScaleLeftIn(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return super().window_gradient(window, weights).scaled(self.loss_scale)


@fault(
    "divides gradients by the loss scale twice",
    _scaled,
    fix="unscale once a window; remove the other division",
    why="The second division makes gradients smaller by the loss scale",
    edit="change unscale|step",
)
class UnscaledTwice(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return super().window_gradient(window, weights).scaled(1 / self.loss_scale)


@fault(
    "divides gradients by the loss scale before the clip and again in the step",
    clips,
    _scaled,
    fix="unscale before the clip only; remember it, so the step does not unscale again",
    why="The step divides the clipped gradients by the scale again",
    edit="change unscale|step",
)
class UnscaledTwiceToClip(UnscaledTwice):
    pass


def _grows(problem: Problem) -> bool:
    return problem.precision.scaled and problem.workload.scale.growth_interval < len(problem.windows)


class _UnscaledByAnother(Recurrence):
    """Divides gradients by the loss scale of another window, ``away`` from their own."""

    away: int

    def over_samples(self, window: Window) -> Fraction:
        seen = () if self.history is None else self.history.scales
        # The scaler of a recurrence is updated before the step.
        scales = dict(enumerate([*self._scales, *seen[len(self._scales) :], self._scaler.scale]))
        return super().over_samples(window) * self.loss_scale / scales.get(window.index + self.away, self.loss_scale)


for _name, _away, _what in (
    ("Next", 1, "after its update, which is for the next window"),
    ("Old", -1, "of the window before"),
):
    fault(
        f"divides gradients by the loss scale {_what}",
        _grows,
        fix="divide gradients by the scale that their loss was multiplied by, and update it after that",
        why="Where the scale changes, gradients are wrong by the ratio of the two scales",
        edit="change gradient; find the division by the loss scale at or above clip|step",
        among=RARE,
    )(type(f"UnscaledBy{_name}Scale", (_UnscaledByAnother,), {"away": _away}))
