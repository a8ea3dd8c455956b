"""The window and micro-batch of an event."""

from __future__ import annotations

import pytest

from conformance.adapter import loading
from conformance.trace.state.progress import Progress

from ..trainers.tasks import make_spec, train

WINDOWS = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8]]]


def places(progress, *forwards):
    """Of each forward; a tuple stands for a backward through the forwards with these numbers, () for a step."""
    found = []
    for entry in forwards:
        if isinstance(entry, list):
            progress.forward(entry, len(found))
            found.append((progress.window, progress.micro_batch))
        elif not entry:
            progress.stepped()
        for number in entry if isinstance(entry, tuple) else ():
            progress.used(number)
    return found


def test_as_planned():
    progress = Progress(WINDOWS)
    assert (progress.window, progress.micro_batch) == (None, None)
    forwards = [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert places(progress, *forwards) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(
    ("forwards", "expected"),
    [
        pytest.param([[0, 1, 2, 3], [4, 5]], [(0, 0), (1, 0)], id="a whole window at once"),
        pytest.param([[0], [1], [2, 3], [4]], [(0, 0), (0, 0), (0, 1), (1, 0)], id="sample by sample"),
        pytest.param([[0, 1], [0, 1], [2, 3], [4, 5]], [(0, 0), (0, 0), (0, 1), (1, 0)], id="one once more"),
        pytest.param([[0, 1], [4, 5]], [(0, 0), (1, 0)], id="a micro-batch dropped"),
        pytest.param([[0, 1], [8]], [(0, 0), (2, 0)], id="a window dropped"),
        pytest.param([[2, 3], [0, 1], [4, 5]], [(0, 1), (0, 0), (1, 0)], id="another order"),
        pytest.param([[0, 1], [2, 3], [2, 3]], [(0, 0), (0, 1), (0, 1)], id="a closure called again"),
        pytest.param([[0, 1, 2, 3, 4, 5, 6, 7], [8]], [(0, 0), (2, 0)], id="two windows at once"),
        pytest.param([[8], [0, 1]], [(2, 0), (2, 0)], id="back to the beginning"),
    ],
)
def test_not_as_planned(forwards, expected):
    assert places(Progress(WINDOWS), *forwards) == expected


def test_equal_samples_are_counted():
    progress = Progress([[[0, 0], [0, 1]], [[0], [1]]])
    assert places(progress, [0, 0], [0, 1], [0], [1]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("windows", "entries", "expected"),
    [
        pytest.param(
            [[[0]], [[1]], [[0]], [[1]]],
            [[0], [0], (1,), [1], [1], (3,), [0], [0], (4,), [1], [1], (7,)],
            [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 0)],
            id="twice forward, once backward",
        ),
        pytest.param(
            [[[0]], [[0]], [[0]]],
            [[0], [0], (1,), (), [0], [0], (2,), (), [0]],
            [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0)],
            id="twice forward, all windows alike",
        ),
        pytest.param(
            [[[0], [0]], [[0], [1]]],
            [[0], [0], (0,), [0], [0], (2,), (), [0], [0], (5,), [1]],
            [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1)],
            id="twice forward, micro-batches alike",
        ),
        pytest.param(
            [[[0], [0]], [[0], [0]], [[1]]],
            [[0], [0], (0, 1), (), [0], [0], (2, 3), (), [1]],
            [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0)],
            id="two micro-batches alike before one backward",
        ),
        pytest.param(
            [[[0], [0]], [[0], [0]], [[1]]],
            [[0], [0], (0,), (1,), (), [0], [0], (2,), (3,), (), [1]],
            [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0)],
            id="two micro-batches alike before either backward",
        ),
        pytest.param(
            [[[0], [1]], [[0], [1]]],
            [[0], [1], (0,), (1,), (), [0], [1], (2, 3)],
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            id="two micro-batches before either backward",
        ),
        pytest.param(
            [[[0]], [[0]]],
            [[0], [0], (0, 1), (), [0]],
            [(0, 0), (0, 0), (1, 0)],
            id="a penalty on a forward of its own",
        ),
        pytest.param(
            [[[0]], [[1]], [[0]]],
            [[0], (0,), [0], (), [1], (2,), [1], (), [0], (4,)],
            [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0)],
            id="once more after the backward",
        ),
        pytest.param(
            [[[0]], [[0]]],
            [[0], (0,), [0], (1,), (), [0], (2,)],
            [(0, 0), (0, 0), (1, 0)],
            id="the same, and all windows alike",
        ),
        pytest.param(
            [[[0], [0]], [[1], [1]]],
            [[0], (0,), [0], (1,), [0], (2,), [0], (3,), (), [1], (4,)],
            [(0, 0), (0, 1), (0, 1), (0, 1), (1, 0)],
            id="the same, and micro-batches alike",
        ),
        pytest.param(
            [[[0], [1, 2]], [[3], [1]]],
            [[0], [1, 2], [0], [1]],
            [(0, 0), (0, 1), (0, 0), (1, 1)],
            id="once more, and then not as planned",
        ),
        pytest.param([[[0]], [[0]]], [[0], (), [0]], [(0, 0), (1, 0)], id="gradients made without autograd"),
        pytest.param(
            [[[0], [1]], [[0], [1]]],
            [[0], [1], (1,), (), [0], [1], (3,)],
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            id="only the last loss backward",
        ),
    ],
)
def test_rows_that_recur(windows, entries, expected):
    assert places(Progress(windows), *entries) == expected


def test_what_goes_forward_twice_with_samples_of_other_ranks():
    entries = [[20], [20], (1,), [21], [21], (3,), [20], [20], (5,)]
    expected = [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0)]
    assert places(Progress([[[0]], [[1]], [[0]]]), *entries) == expected


def test_every_epoch_has_windows_of_its_own():
    spec = make_spec(accumulation=2, size=3, steps=1, epochs=2)
    progress = Progress.of(spec, 0)
    epoch = [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert places(progress, *epoch, *epoch) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)]


def test_samples_of_other_ranks_are_counted_against_the_plan():
    progress = Progress(WINDOWS)
    forwards = [[0, 1], [20, 21], [22, 23], [6, 7], [24], [25]]
    assert places(progress, *forwards) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]


def test_rows_that_cannot_be_told_are_counted_by_the_micro_batch():
    assert places(Progress(WINDOWS), [], [], [], [None, None]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_without_a_plan_there_is_no_window():
    assert places(Progress.of(None, 0), [0, 1]) == [(None, None)]


def test_events_carry_the_window_of_the_last_forward():
    events = train(loading.load("accumulated")[0], make_spec(accumulation=2, size=4))
    found = {}
    for event in events:
        found.setdefault(event["event"], []).append((event["window"], event["micro_batch"]))
    assert found["forward"] == [(0, 0), (0, 1), (1, 0), (1, 1)] == found["backward_end"]
    assert found["start"] == [(None, None)]
    assert found["step"] == [(0, 1), (1, 1)]
    assert found["zero_grad"] == [(None, None), (0, 1)]
