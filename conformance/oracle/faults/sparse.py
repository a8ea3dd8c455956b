"""Sparse gradients."""

from __future__ import annotations

from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.faults.catalogue import accumulating, distributed, fault
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


def _has_sparse_gradients(problem: Problem) -> bool:
    return problem.workload.model.has_sparse_gradients


class _SparseApart(Recurrence):
    """Does otherwise with sparse gradients than with the others."""

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        sparse = [n for n in self.tensors if self.problem.workload.model.tensors[n].sparse]
        dense = [n for n in self.tensors if n not in sparse]
        others = super().averaged(window, weights, coefficients)
        return self.joined(
            [(others, dense), (super().averaged(window, weights, self.of_sparse(window, coefficients)), sparse)]
        )

    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        """What each sample's squared error is multiplied with in sparse gradients."""
        raise NotImplementedError


@fault("sums the ranks' sparse gradients, and averages all others", _has_sparse_gradients, distributed)
class SparseSummed(_SparseApart):
    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        return times(coefficients, window.world_size)


@fault(
    "takes of each row of a sparse gradient only the last of its entries, which add up",
    _has_sparse_gradients,
    # To add up micro-batches, torch adds entries of both.
    lambda problem: not accumulating(problem),
)
class SparseEntriesLost(_SparseApart):
    def of_sparse(self, window: Window, coefficients: Vector) -> Vector:
        block = self.problem.workload.model.block
        last = ({block(window.batch[index].x): index for index in chain(*share)}.values() for share in window.shares)
        return only(coefficients, last)
