"""Trainers that read all epochs as one: their windows continue over the end of an epoch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome, RankOutcome
from conformance.verdict.orders import as_one, crosses

SHORT = Case("ddp", 2, 2, "fp32", "short-epochs")


def test_epochs_of_whole_windows_are_the_same_as_one():
    assert as_one(Case("ddp", 2, 2, "fp32", "many-tensors")) is None


def test_one_epoch_is_one():
    assert as_one(Case("ddp", 2, 2, "fp32", "short-window")) is None


def test_ten_micro_batches_are_five_windows():
    """Each epoch has five of them; the third window has the last one of the first epoch and the first of the second."""
    own, one = SHORT.problem.windows, as_one(SHORT).problem.windows
    assert [window.length for window in own] == [2, 2, 1, 2, 2, 1]
    assert [(window.epoch, window.length) for window in one] == [(0, 2), (0, 2), (0, 2), (1, 2), (1, 2)]
    first_of_second = [own[3].samples[at] for share in own[3].shares for at in share[0]]
    assert sorted(one[2].samples) == sorted((*own[2].samples, *first_of_second))


def test_the_spec_has_the_windows_of_the_problem():
    spec = as_one(SHORT).spec()
    assert (spec["steps"], len(spec["orders"]), spec["epochs"]) == (5, 1, [0])
    assert spec["samples"] == SHORT.spec()["samples"]


@pytest.mark.parametrize(
    ("forwards", "crossed"),
    [
        ([2, 2, 2, 2, 2], True),
        ([2, 2, 1, 2, 2, 1], False),
        ([2, 2, 2, 2], False),
    ],
)
def test_steps_that_end_some_windows_of_one_epoch_do_not_cross(forwards, crossed):
    """Who drops the short window of each epoch unread ends windows of both."""
    recorded = tuple(RankOutcome(rank, trace(forwards), True, "exited 0", "", None) for rank in (0, 1))
    outcome = Outcome(recorded, 0.1, False, recorded=recorded)
    assert crosses(SHORT, as_one(SHORT), outcome) == crossed


def trace(forwards):
    """What the recorder writes of steps after so many forwards each, of eight samples."""
    lines, number = [], 0
    for count in forwards:
        for _ in range(count):
            lines.append({"event": "forward", "forward": number, "rows": [0] * 8})
            lines.append({"event": "backward_begin", "backward": number, "root": number})
            lines.append({"event": "backward_end", "backward": number, "forwards": [number]})
            number += 1
        lines.append({"event": "step", "optimizer": 0, "gradients": [1.0]})
    return tuple(lines)


def test_a_stop_is_no_end_of_a_window():
    """Of five steps three are before the stop, and the rows before it count for those after it."""
    lives = [
        Outcome((), 0.1, False, recorded=(RankOutcome(0, trace(forwards), True, "exited 0", "", None),))
        for forwards in ([2, 2, 2], [2, 2])
    ]
    resumed = replace(SHORT, resumed_at=3)
    assert as_one(resumed).resumed_at == 3
    assert crosses(resumed, as_one(resumed), Outcome((), 0.2, False, lives=tuple(lives)))


def test_all_samples_count_alike():
    problem = as_one(SHORT).problem
    assert set(problem.coefficients(problem.windows[2])) == {Fraction(1, 32)}
