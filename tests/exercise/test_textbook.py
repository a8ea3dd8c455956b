"""The right answers are the exercise's, hold for every correct evaluation, and no mistake looks like them."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.exercise.asking import Answer
from conformance.exercise.marking import diagnosed, judged
from conformance.exercise.questions import CASES, DISTINGUISHING, QUESTIONS, calls
from conformance.exercise.right import answer
from conformance.exercise.wrong import CATALOGUE, answering, candidates
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.data_sets import exercise
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem


@pytest.mark.parametrize("function", QUESTIONS)
def test_the_exercise_own_cases(function):
    for call in CASES[function]:
        [right] = answer(function, call.arguments).center
        if call.golden is not None:
            assert (float(right) if call.digits is None else round(float(right), call.digits)) == call.golden


def factored(x, y, m):
    return -2 * x * (y - m * x)


def expanded(x, y, m):
    return 2 * m * x * x - 2 * x * y


def plain(values):
    return sum(values)


def backwards(values):
    return sum(reversed(list(values)))


class Evaluation:
    """A correct answer in floats: with this derivative, this order of summation, N applied to each term or at last."""

    def __init__(self, derivative, add, each):
        self.derivative, self.add, self.each = derivative, add, each

    def loss_mse(self, m, data):
        if self.derivative is expanded:
            return self.add([(y * y - 2 * m * x * y + m * m * x * x) / len(data) for x, y in data])
        return self.add([(y - m * x) ** 2 for x, y in data]) / len(data)

    def grad_point(self, m, data, N):
        return self.derivative(*data, m) * (1 / N) if self.each else self.derivative(*data, m) / N

    def grad_multi(self, m, data):
        if self.each:
            return self.add([self.grad_point(m, point, len(data)) for point in data])
        return self.add([self.derivative(x, y, m) for x, y in data]) / len(data)

    def train_loop(self, m, lr, dataset, iterations):
        return self.train_loop_batches(m, lr, [[point] for point in dataset], iterations)

    def train_loop_batches(self, m, lr, dataset, iterations):
        return self.train_loop_distributed(m, lr, [dataset], iterations)

    def train_loop_distributed(self, m, lr, shards, iterations):
        for iteration in range(iterations):
            gradients = [self.grad_multi(m, shard[iteration % len(shard)]) for shard in shards]
            if self.each:
                # Every worker steps on its own, and their weights are averaged.
                m = self.add([m - lr * gradient for gradient in gradients]) / len(gradients)
            else:
                m = m - lr * (self.add(gradients) / len(gradients))
        return m


EVALUATIONS = [
    Evaluation(derivative, add, each)
    for derivative in (factored, expanded)
    for add in (plain, backwards, math.fsum)
    for each in (False, True)
]


@pytest.mark.parametrize("function", QUESTIONS)
@given(data=st.data())
def test_every_correct_evaluation_is_right(function, data):
    call = data.draw(calls(function))
    for evaluation in EVALUATIONS:
        value = getattr(evaluation, function)(**call.arguments)
        assert judged(call, Answer("number", repr(value), value=Fraction(value))).conforms


@given(calls("train_loop_batches").filter(lambda call: len({len(b) for b in call.arguments["dataset"]}) == 1))
def test_training_is_the_oracles_recurrence(call):
    given_ = call.arguments
    batches, iterations = given_["dataset"], given_["iterations"]
    epochs = -(-iterations // len(batches))
    workload = exercise("q11", batches, given_["lr"], epochs)
    problem = Problem(workload, Layout.of(workload), PRECISIONS["fp64"])
    steps = Recurrence(problem).run(iterations).steps
    from_zero = given_ | {"m": 0}
    assert steps[-1].weights.center == answer("train_loop_batches", from_zero).center


def test_training_starts_where_it_is_told():
    arguments = {"m": 0.3, "lr": 0.1, "dataset": [(2, 1)], "iterations": 1}
    [right] = answer("train_loop", arguments).center
    assert right == Fraction(0.3) - Fraction(0.1) * (-4 * (1 - 2 * Fraction(0.3)))


def numbers(answer, function):
    return [answer(function, call.arguments) for call in DISTINGUISHING[function]]


@pytest.mark.parametrize("function", QUESTIONS)
def test_no_mistake_looks_right_or_like_another(function):
    """On the inputs that are always tried, every mistake parts from the right answer and from all other mistakes."""
    enclosures = {"right": numbers(answer, function)}
    for mistake in CATALOGUE:
        if function in mistake.functions:
            try:
                enclosures[mistake.text] = numbers(answering([mistake]), function)
            except ZeroDivisionError:
                # No number where there is one point only: whoever makes it sees an exception.
                enclosures[mistake.text] = None
    told = {name: boxes for name, boxes in enclosures.items() if boxes is not None}
    alike = [
        (one, other)
        for one in told
        for other in told
        if one < other
        and all(a.gap(b) is not None and a.gap(b) <= 1 for a, b in zip(told[one], told[other], strict=True))
    ]
    # Single precision allows for so much that it is tried last.
    assert [pair for pair in alike if not pair[0].startswith("computes in single precision")] == []
    assert CATALOGUE[-1].text.startswith("computes in single precision")
    assert [name for name in enclosures if name not in told and "points less one" not in name] == []


@pytest.mark.parametrize("function", QUESTIONS)
def test_one_mistake_is_tried_before_two(function):
    sizes = [len(mistakes) for mistakes in candidates(function)]
    assert sizes == sorted(sizes)
    assert set(sizes) == {1, 2}


def test_right_numbers_have_no_diagnosis():
    tried = [
        judged(call, Answer("number", "", value=answer("grad_multi", call.arguments).center[0]))
        for call in DISTINGUISHING["grad_multi"]
    ]
    assert diagnosed("grad_multi", tried) == ()
