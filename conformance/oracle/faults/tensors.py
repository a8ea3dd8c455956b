"""Known bugs with sparse gradients, and with parameters that some windows do not use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.faults.catalogue import accumulating, distributed, fault
from conformance.oracle.recurrence import Recurrence, times
from conformance.oracle.rounding import gamma
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


def _has_sparse_gradients(problem: Problem) -> bool:
    return problem.workload.model.has_sparse_gradients


class _SparseApart(Recurrence):
    """Treats sparse gradients differently from the others."""

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        sparse = [n for n in self.tensors if self.problem.workload.model.tensors[n].sparse]
        dense = [n for n in self.tensors if n not in sparse]
        others = super().averaged(window, weights, coefficients)
        return self.joined(
            [(others, dense), (super().averaged(window, weights, self.of_sparse(window, coefficients)), sparse)]
        )

    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        """The factor of each sample's squared error in sparse gradients."""
        raise NotImplementedError


@fault(
    "sums the ranks' sparse gradients, but averages all others",
    _has_sparse_gradients,
    distributed,
    fix="divide sparse gradients by the number of ranks too",
    why="A sum over ranks is the mean times the number of ranks",
    edit="change gradient; add the division of sparse gradients above unscale|clip|step",
)
class SparseSummed(_SparseApart):
    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        return times(coefficients, window.world_size)


@fault(
    "keeps only the last entry of each row of a sparse gradient instead of their sum",
    _has_sparse_gradients,
    # Summing micro-batches makes torch add the entries of both.
    lambda problem: not accumulating(problem),
    fix="call `coalesce()`, which sums the entries of a row",
    why="A sparse gradient has several entries for one row, which add up",
    edit="change gradient; add `p.grad = p.grad.coalesce()` above unscale|clip|step",
)
class SparseEntriesLost(_SparseApart):
    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        block = self.problem.workload.model.block
        last = ({block(window.batch[index].x): index for index in chain(*share)}.values() for share in window.shares)
        return only(coefficients, last)


def _leaves_unused(problem: Problem) -> bool:
    return problem.workload.model.may_go_unused


def _users(problem: Problem, window: Window, tensor: int) -> int:
    """The number of ranks that use a parameter in a window; all if none does."""
    own = ((window.batch[index] for index in chain(*share)) for share in window.shares)
    return sum(problem.workload.uses(tensor, samples) for samples in own) or window.world_size


def _has_users_on_some_ranks(problem: Problem) -> bool:
    tensors = range(len(problem.workload.model.tensors))
    return any(_users(problem, window, n) < window.world_size for window in problem.windows for n in tensors)


@fault(
    "averages a parameter's gradients over only the ranks that use it",
    _leaves_unused,
    _has_users_on_some_ranks,
    fix="divide by all ranks; those that do not use a parameter contribute zeros",
    why="Ranks that do not use a parameter contribute zeros; leaving them out makes the mean larger",
    edit="change gradient",
    at="exchange",
)
class AveragedOverUsers(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        vector = super().averaged(window, weights, coefficients)
        factors = [Fraction(window.world_size, _users(self.problem, window, n)) for n in self.tensors]
        return self.joined((vector.scaled(factor), [n]) for n, factor in enumerate(factors))


@fault(
    "steps a parameter that a window does not use with its stale gradient of an earlier window",
    _leaves_unused,
    fix="set gradients to None after each step: `zero_grad(set_to_none=True)`",
    why="A gradient that nothing replaces stays in `.grad`, and the step uses it again",
    edit="zero_grad below step",
)
class GradientKept(Recurrence):
    _last: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        vector = super().window_gradient(window, weights)
        used = [n for n in self.tensors if self.problem.workload.uses(n, window.batch)]
        if self._last is not None and len(used) < len(self.tensors):
            vector = self.only(vector, used).plus(self.only(self._last, set(self.tensors).difference(used)))
        self._last = vector
        return vector

    def steps_on(self, tensor: int) -> bool:
        return self.trains(tensor, self.window.index)


def _begins_without_some(problem: Problem) -> bool:
    return any(not _begins_with(problem, tensor) for tensor in range(len(problem.workload.model.tensors)))


def _begins_with(problem: Problem, tensor: int) -> bool:
    """Whether the first micro-batch uses a parameter."""
    first = problem.windows[0]
    return problem.workload.uses(tensor, (first.batch[index] for index in first.shares[0][0]))


@fault(
    "never steps parameters that the first micro-batch does not use",
    _leaves_unused,
    _begins_without_some,
    fix="give `model.parameters()` to the optimizer, whether they have gradients or not",
    why="The optimizer does not hold these parameters, so they stay",
    edit="change optimizer; change the optimizer's parameters above step",
)
class OptimizerOfFirstMicroBatch(Recurrence):
    def steps_on(self, tensor: int) -> bool:
        return super().steps_on(tensor) and _begins_with(self.problem, tensor)


def _ending_with(problem: Problem, window: Window, tensor: int) -> list[int]:
    """The ranks whose last micro-batch of a window uses a parameter."""
    last = ([window.batch[index] for index in share[-1]] if share else [] for share in window.shares)
    return [rank for rank, samples in enumerate(last) if problem.workload.uses(tensor, samples)]


def _ends_without_some(problem: Problem) -> bool:
    """Whether the last micro-batch of some rank does not use a parameter that its window uses."""
    tensors = range(len(problem.workload.model.tensors))
    return any(
        problem.workload.uses(tensor, window.batch) and len(_ending_with(problem, window, tensor)) < window.world_size
        for window in problem.windows
        for tensor in tensors
    )


@fault(
    "loses a parameter's gradients if the window's last micro-batch does not use it",
    _leaves_unused,
    accumulating,
    _ends_without_some,
    fix="keep what was accumulated for parameters whose gradient is None in a later micro-batch",
    why="A gradient of None in the last micro-batch replaces what earlier ones have added",
    edit="change backward",
)
class GradientLostWithoutLastUse(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        by_ranks: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for n in self.tensors:
            by_ranks[tuple(_ending_with(self.problem, window, n))].append(n)
        return self.joined(
            (super(GradientLostWithoutLastUse, self).averaged(window, weights, _of(ranks, window, coefficients)), own)
            for ranks, own in by_ranks.items()
        )

    def steps_on(self, tensor: int) -> bool:
        return super().steps_on(tensor) and bool(_ending_with(self.problem, self.window, tensor))


def _of(ranks: Sequence[int], window: Window, coefficients: Vector) -> Vector:
    """The coefficients of the samples of some ranks; zero for others."""
    return only(coefficients, (chain(*window.shares[rank]) for rank in ranks))


def _rows(problem: Problem) -> list[range]:
    """The elements of each row of the matrices whose elements are all tracked and have dense gradients."""
    found, first = list[range](), 0
    for tensor in problem.workload.model.tensors:
        if len(tensor.shape) > 1 and tensor.used is None and not tensor.sparse:
            size = tensor.numel // tensor.shape[0]
            found += [range(first + place, first + place + size) for place in range(0, tensor.numel, size)]
        first += tensor.size
    return found


@fault(
    "subtracts each row's mean from the gradient of a matrix",
    lambda problem: bool(_rows(problem)),
    fix="do not centralise gradients: the task does not ask for it",
    why="Without its mean, a row's gradient has another direction",
    edit="change gradient; change step",
)
class GradientsCentralised(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        vector, fmt = super().window_gradient(window, weights), self.problem.precision.master
        entries = vector.entries()
        for row in _rows(self.problem):
            mean = reduce(Affine.plus, (entries[at] for at in row)).scaled(Fraction(1, len(row)))
            size = max(entries[at].magnitude[0] for at in row)
            radius = gamma(len(row) + 2, fmt) * 2 * size + fmt.quantum
            for at in row:
                entries[at] = entries[at].plus(mean.scaled(Fraction(-1))).widen([radius])
        return self.symbols.joined(entries)
