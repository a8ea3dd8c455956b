"""The textbook and its state between windows, apart from the numbers of training."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Sample, Workload


def problem(x, y, epochs=1):
    batches = ((Sample((Fraction(x),), Fraction(y)),),)
    one = {"batches": batches, "start": (Fraction(1),), "epochs": epochs}
    workload = Workload("one", SGD(Fraction(1, 4)), Linear(1), **one)
    return Problem(workload, Layout.of(workload), PRECISIONS["fp32"])


class DoubledLater(Recurrence):
    """Doubles every gradient from the second epoch on."""

    def over_samples(self, window):
        return Fraction(2 if window.index else 1)


def test_what_changes_with_the_epoch_is_followed():
    for textbook, gradients in ((Recurrence, [-2, -1]), (DoubledLater, [-2, -2])):
        assert [step.gradient.center[0] for step in textbook(problem(1, 2, epochs=2)).steps()] == gradients


def test_the_same_form_is_kept_for_the_next_epoch():
    rule = Recurrence(problem(1, 2, epochs=2))
    first, second = rule.problem.windows
    assert rule.form(first, rule.coefficients(first)) is rule.form(second, rule.coefficients(second))


def test_what_follows_a_run_without_a_scaler_proves_its_range_too():
    """The gradient, 2^129, overflows fp32, and no evidence rules that out."""
    huge = problem(2**63, -(2**64 - 2**63))
    right = Recurrence(huge).run()
    assert "may overflow" in right.certificate.reason
    assert Recurrence(huge, right.history).run().certificate == right.certificate
