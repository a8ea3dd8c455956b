"""Wrong gradients that are the correct ones with a factor for each parameter, rank or micro-batch."""

from __future__ import annotations

from fractions import Fraction

import pytest

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine
from conformance.oracle.recurrence import Recurrence
from conformance.verdict.combinations import combination
from conformance.verdict.comparison import outside
from conformance.workloads.layout import Window


class _SomeParameters(Recurrence):
    """As if only the last bucket were divided by the number of ranks."""

    def trained(self, window: Window, weights: Affine, coefficients):
        vector = super().trained(window, weights, coefficients)
        return self.joined((vector.scaled(Fraction(2 if n < 3 else 1)), [n]) for n in self.tensors)


class _SecondRankHalved(Recurrence):
    def counted(self, window: Window):
        second = {index for part in window.shares[1] for index in part}
        return tuple(c / 2 if index in second else c for index, c in enumerate(super().counted(window)))


class _SecondMicroBatchTripled(Recurrence):
    def counted(self, window: Window):
        second = {index for share in window.shares for index in share[1]}
        return tuple(3 * c if index in second else c for index, c in enumerate(super().counted(window)))


class _OneReceiveBuffer(Recurrence):
    """One rank's message counts for another one's as well, whichever came last in a window."""

    def counted(self, window: Window):
        last = 1 + window.index % 2
        of = {index: (1, 0, 0)[rank] for rank, share in enumerate(window.shares) for part in share for index in part}
        of |= dict.fromkeys((index for part in window.shares[last] for index in part), 2)
        own = [c * of[index] for index, c in enumerate(super().counted(window))]
        return tuple(c / sum(own) for c in own)


@pytest.mark.parametrize(
    ("name", "textbook", "kind", "factors"),
    [
        ("ddp-w2-acc2-fp32-many-tensors", _SomeParameters, "parameter", dict.fromkeys(range(3), 2)),
        ("ddp-w2-acc2-fp32-momentum", _SecondRankHalved, "rank", {1: Fraction(1, 2)}),
        ("ddp-w2-acc3-fp32-momentum", _SecondMicroBatchTripled, "micro-batch", {1: 3}),
        ("ddp-w3-acc2-fp32-momentum", _OneReceiveBuffer, "rank", {1: 2, 2: 0}),
        ("ddp-w3-acc2-fp32-weighted", _OneReceiveBuffer, "rank", {1: 2, 2: 0}),
    ],
)
def test_factors_of_parts_are_solved_for(follow, name, textbook, kind, factors):
    judgement = follow(name, textbook).expect("FAIL (numerics)")
    found = judgement.suspects.combination
    assert judgement.suspects.explained_by == ()
    assert (found.kind, {part: one for part, one in found.factors if one != 1}) == (kind, factors)
    assert [one.diagnosis for one in judgement.guards if not one.passed] == [f"factors by {kind}"]


def test_factors_that_change_from_window_to_window_are_no_combination(follow):
    class OtherInEachWindow(Recurrence):
        def trained(self, window: Window, weights: Affine, coefficients):
            vector = super().trained(window, weights, coefficients)
            return self.joined((vector.scaled(Fraction(2 + window.index if n < 3 else 1)), [n]) for n in self.tensors)

    judgement = follow("ddp-w2-acc2-fp32-many-tensors", OtherInEachWindow).expect("FAIL (numerics)")
    assert judgement.suspects.combination is None


def test_as_many_unknowns_as_numbers_prove_no_combination(follow):
    """Four numbers of one window have factors of four ranks, whatever the numbers are."""
    run = follow("ddp-w4-fp32-momentum", _SecondRankHalved)
    problem, [first, *_] = run.case.problem, run.expect("FAIL (numerics)").ranks

    def found(windows):
        def explains(deviation):
            steps = Reading((), problem).recurrence(None, deviation).steps(windows)
            return all(
                outside(step.gradient, seen.gradients) is None for step, seen in zip(steps, first.steps, strict=False)
            )

        return combination(problem, first, explains)

    assert found(1) is None
    assert found(2).factors == ((0, 1), (1, Fraction(1, 2)), (2, 1), (3, 1))


def test_a_step_that_is_undone_in_part_is_named(follow):
    class SomeUndone(Recurrence):
        def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
            moved, first = super().update(weights, vector, step), [0, 1, 2]
            return self.joined([(weights, first), (moved, [n for n in self.tensors if n not in first])])

    judgement = follow("ddp-w2-acc2-fp32-many-tensors", SomeUndone).expect("FAIL (numerics)")
    [undone] = [one for one in judgement.guards if not one.passed]
    assert undone.diagnosis == "steps undone"
