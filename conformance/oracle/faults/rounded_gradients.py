"""Known bugs that keep gradients in 16 bits, at each place from the backward to the optimizer's momentum."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from itertools import product, zip_longest
from operator import mul

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.faults.catalogue import (
    CATALOGUE,
    RARE,
    Condition,
    accumulating,
    distributed,
    fault,
    has_momentum,
)
from conformance.oracle.optimizers import Rule, SGDRule
from conformance.oracle.recurrence import Recurrence, times
from conformance.oracle.rounding import cast
from conformance.workloads.layout import Window
from conformance.workloads.model import Linear
from conformance.workloads.precision import BF16, FP16, Format
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Optimizer, Vector


def _needs_more_than_bf16(problem: Problem) -> bool:
    """Whether the first gradient needs more bits than bfloat16 has."""
    workload, window = problem.workload, problem.windows[0]
    if problem.precision.mixed or workload.clip is not None or not isinstance(workload.model, Linear):
        return False
    rows = [workload.model.row(sample.x, Fraction(1)) for sample in window.batch]
    errors = [
        2 * part * (sum(map(mul, row, workload.start), -sample.y))
        for part, row, sample in zip(problem.coefficients(window), rows, window.batch, strict=True)
    ]
    return not all(BF16.holds(sum(map(mul, errors, column), Fraction(0))) for column in zip(*rows, strict=True))


def _has_fine_gradients(problem: Problem) -> bool:
    """Whether gradients need more bits than bfloat16 has. After a clip by norm they do, and at weights that an update
    has rounded."""
    clip, optimizer = problem.workload.clip, problem.workload.optimizer
    clips_by_norm = clip is not None and clip.kind == "norm"
    rounds = problem.workload.steps > 1 and not (isinstance(optimizer, SGD) and BF16.holds(optimizer.lr))
    return not problem.precision.mixed and (clips_by_norm or rounds or _needs_more_than_bf16(problem))


class _In16Bits(Recurrence):
    fmt: Format

    def rounded(self, vector: Affine) -> Affine:
        return cast(vector, self.fmt)

    def added(self, vectors: Iterable[Affine]) -> Affine:
        """The sum, rounded after each addition."""
        return reduce(lambda total, one: self.rounded(total.plus(one)), map(self.rounded, vectors))


class _Averaged(_In16Bits):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        return self.rounded(super().averaged(window, weights, coefficients))


class _Reduced(_In16Bits):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        shares = (only(coefficients, share) for share in window.shares)
        own = (super(_Reduced, self).averaged(window, weights, share) for share in shares)
        # Each rank has the mean over its own samples.
        return self.added(one.scaled(Fraction(window.world_size)) for one in own).scaled(Fraction(1, window.world_size))


class _SumsReduced(_In16Bits):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        total = self.problem.total_weight(window)
        shares = (times(only(coefficients, share), total) for share in window.shares)
        own = (super(_SumsReduced, self).averaged(window, weights, share) for share in shares)
        return self.added(own).scaled(1 / total)


class _Accumulated(_In16Bits):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        def parts(share: Iterable[Iterable[int]]) -> Iterable[Affine]:
            for micro_batch in share:
                own = only(coefficients, [micro_batch])
                yield super(_Accumulated, self).averaged(window, weights, own).scaled(Fraction(window.world_size))

        return self.summed(self.added(parts(share)) for share in window.shares).scaled(Fraction(1, window.world_size))

    def summed(self, ranks: Iterable[Affine]) -> Affine:
        """The sum over the ranks."""
        return reduce(Affine.plus, ranks)


class _AccumulatedAndReduced(_Accumulated):
    def added(self, vectors: Iterable[Affine]) -> Affine:
        """As `+=` adds vectors that are not rounded before."""
        first, *others = vectors
        return reduce(lambda total, one: self.rounded(total.plus(one)), others, self.rounded(first))

    def summed(self, ranks: Iterable[Affine]) -> Affine:
        return self.added(ranks)


class _AccumulatedAverages(_In16Bits):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        own = zip_longest(*window.shares, fillvalue=())
        each = (super(_AccumulatedAverages, self).averaged(window, weights, only(coefficients, one)) for one in own)
        return self.added(each)


class _Momentum(_In16Bits):
    def rule(self, spec: Optimizer) -> Rule:
        rounded = self.rounded

        class Kept(SGDRule):
            def kept(self, momentum: Affine) -> Affine:
                return rounded(momentum)

        return Kept(spec, self.problem.precision.master, self.ledger)


class _MomentumOfRounded(_Momentum):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(weights, self.rounded(vector), step)


class _MomentumStored(_In16Bits):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        moved = super().update(weights, vector, step)
        for rule, _ in self.rules:
            if isinstance(rule, SGDRule) and rule.buffer is not None:
                rule.buffer = self.rounded(rule.buffer)
        return moved


_Place = tuple[type[_In16Bits], str, str, tuple[Condition, ...]]
_PLACES: tuple[_Place, ...] = (
    (_Averaged, "Gradients", "rounds the averaged gradients to {}, before the optimizer", ()),
    (_Reduced, "Reduction", "reduces gradients over the ranks in {}", (distributed,)),
    (
        _SumsReduced,
        "ReductionOfSums",
        "reduces sums of gradients in {}, and divides them later",
        (distributed,),
    ),
    (_Accumulated, "Accumulation", "adds up the gradients of micro-batches in {}", (accumulating,)),
    (
        _AccumulatedAndReduced,
        "AccumulationAndReduction",
        "adds up the gradients of micro-batches in {0} and reduces them over the ranks in {0}",
        (accumulating, distributed),
    ),
    (
        _AccumulatedAverages,
        "AccumulationOfAverages",
        "adds up the micro-batches' gradients, averaged over the ranks, in {}",
        (accumulating, distributed),
    ),
    (_Momentum, "Momentum", "keeps the momentum in {}", (has_momentum,)),
    (_MomentumStored, "MomentumStored", "rounds the momentum to {} after each step", (has_momentum,)),
    (_MomentumOfRounded, "MomentumOfRoundedGradients", "adds gradients in {0} to a momentum in {0}", (has_momentum,)),
)
_OF_REDUCTIONS = (_Reduced, _SumsReduced)
_OF_MOMENTUM = (_Momentum, _MomentumStored, _MomentumOfRounded)


def _edit(kind: type[_In16Bits]) -> str:
    if kind in _OF_MOMENTUM:
        return "change state; find the rounding at or above weights; change step"
    return "change hook" if kind in _OF_REDUCTIONS else "change between; change gradient"


for (_kind, _name, _text, _conditions), _fmt in product(_PLACES, (BF16, FP16)):
    if _kind is _MomentumStored and _fmt is FP16:
        # Float16 has enough bits for the momentum of most cases.
        continue
    fault(
        _text.format(_fmt.dtype),
        *_conditions,
        _has_fine_gradients,
        fix="keep gradients and momentum in the precision of the weights: no casts, no compressing hook",
        why=f"{_fmt.dtype} has {_fmt.p} significant bits, and rounding loses the others",
        is_fine=lambda problem: True,
        edit=_edit(_kind),
        at="exchange" if _kind in _OF_REDUCTIONS else None,
        among=RARE if _kind is _SumsReduced else CATALOGUE,
    )(type(f"{_name}In{_fmt.dtype.capitalize()}", (_kind,), {"fmt": _fmt}))
