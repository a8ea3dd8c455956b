"""The window and micro-batch of an event."""

from __future__ import annotations

import pytest

from conformance.trace.hindsight.placing import placed
from conformance.trainers.accumulated import train as accumulated

from ..trainers.tasks import make_spec, of_kind, train

WINDOWS = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8]]]


def lines(*entries):
    """Of each forward; a tuple stands for a backward through the forwards with these numbers, () for a step, "clear"
    for gradients that are cleared, and a number for weights that change to it without a step of an optimizer's."""
    forward, weight = 0, 0.0
    for entry in (*entries, "finished"):
        if isinstance(entry, float):
            weight = entry
        elif isinstance(entry, list):
            yield {"event": "forward", "forward": forward, "rows": entry, "weights": [weight]}
            forward += 1
        elif entry == "finished":
            yield {"event": "finished", "weights": [weight]}
        elif entry == "clear":
            yield {"event": "zero_grad", "parameters": [0]}
        elif entry:
            yield {"event": "backward_end", "forwards": list(entry)}
        else:
            weight += 1.0
            yield {"event": "step", "weights": [weight]}


def placed_from(windows, raw, *others):
    """The events of rank 0, which should read these windows, in their places; the other ranks read ``others``."""
    spec = {
        "samples": {"x": [[float(row)] for row in range(30)]},
        "orders": [[[micro_batch for window in own for micro_batch in window] for own in (windows, *others)]],
        "accumulation": max(map(len, windows)),
        "epochs": [0],
    }
    head = {"rank": 0, "where": ["train.py", 1, "train"]}
    return placed(spec, 0, [{**head, "seq": seq, "time": float(seq), **line} for seq, line in enumerate(raw)])


def places(windows, *entries):
    return places_of(placed_from(windows, lines(*entries)))


def places_of(events):
    """The places of the forwards; None for one that trains nothing."""
    forwards = [event for event in events if event["event"] == "forward"]
    return [None if event["extra"] else (event["window"], event["micro_batch"]) for event in forwards]


def test_as_planned():
    forwards = [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert places(WINDOWS, *forwards) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


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
    assert places(WINDOWS, *forwards) == expected


def test_equal_samples_are_counted():
    windows = [[[0, 0], [0, 1]], [[0], [1]]]
    assert places(windows, [0, 0], [0, 1], [0], [1]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("windows", "entries", "expected"),
    [
        pytest.param(
            [[[0]], [[1]], [[0]], [[1]]],
            [[0], [0], (1,), [1], [1], (3,), [0], [0], (4,), [1], [1], (7,)],
            [None, (0, 0), None, (1, 0), (2, 0), None, None, (3, 0)],
            id="twice forward, once backward",
        ),
        pytest.param(
            [[[0]], [[0]], [[0]]],
            [[0], [0], (1,), (), [0], [0], (2,), (), [0], (4,)],
            [None, (0, 0), (1, 0), None, (2, 0)],
            id="twice forward, all windows alike",
        ),
        pytest.param(
            [[[0], [0]], [[0], [1]]],
            [[0], [0], (0,), [0], [0], (2,), (), [0], [0], (5,), [1], (6,)],
            [(0, 0), None, (0, 1), None, None, (1, 0), (1, 1)],
            id="twice forward, micro-batches alike",
        ),
        pytest.param(
            [[[0], [0]], [[0], [0]], [[1]]],
            [[0], [0], (0, 1), (), [0], [0], (2, 3), (), [1], (4,)],
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
            id="two micro-batches alike before one backward",
        ),
        pytest.param(
            [[[0], [0]], [[0], [0]], [[1]]],
            [[0], [0], (0,), (1,), (), [0], [0], (2,), (3,), (), [1], (4,)],
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
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
            [[0], [0], (0, 1), (), [0], (2,)],
            [(0, 0), (0, 0), (1, 0)],
            id="a penalty on a forward of its own",
        ),
        pytest.param(
            [[[0]], [[1]], [[0]]],
            [[0], (0,), [0], (), [1], (2,), [1], (), [0], (4,)],
            [(0, 0), None, (1, 0), None, (2, 0)],
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
        pytest.param([[[0]], [[0]]], [[0], (), [0], ()], [(0, 0), (1, 0)], id="gradients made without autograd"),
        pytest.param([[[0]], [[0]]], [[0], (0,), 1.0, [0], (1,), 2.0], [(0, 0), (1, 0)], id="no step but new weights"),
        pytest.param(
            [[[0], [1]], [[0], [1]]],
            [[-1], (0,), [-1], (1,), 1.0, [-1], (2,), [-1], (3,), 2.0],
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            id="new weights where rows do not show the window",
        ),
        pytest.param(
            [[[0]], [[0]]],
            [[0], (0,), 1.0, [0], (1,), 0.0, (), [0], (2,), ()],
            [(0, 0), (0, 0), (1, 0)],
            id="weights moved between steps",
        ),
        pytest.param(
            [[[0], [1]], [[0], [1]]],
            [[0], [1], (1,), (), [0], [1], (3,)],
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            id="only the last loss backward",
        ),
        pytest.param(
            [[[0], [1]], [[2], [3]]],
            [[0], [1], [2], [3], [0], (4,), [1], (5,), (), [0], [1], [2], [3], [2], (10,), [3], (11,), (), [0], [3]],
            [None] * 4 + [(0, 0), (0, 1)] + [None] * 4 + [(1, 0), (1, 1)] + [None] * 2,
            id="evaluations before, between and after",
        ),
    ],
)
def test_rows_that_recur(windows, entries, expected):
    assert places(windows, *entries) == expected


def test_what_goes_forward_twice_with_samples_of_other_ranks():
    entries = [[20], [20], (1,), [21], [21], (3,), [20], [20], (5,)]
    expected = [None, (0, 0), None, (1, 0), None, (2, 0)]
    assert places([[[0]], [[1]], [[0]]], *entries) == expected


def test_a_rank_that_ended_early_was_about_to_train():
    """What it forwarded last has had no time for a backward."""
    raw = [line for line in lines([0], (0,), (), [1]) if line["event"] != "finished"]
    assert places_of(placed_from([[[0]], [[1]]], raw)) == [(0, 0), (1, 0)]


def test_the_start_and_the_phase_wait_for_the_first_training_forward():
    dry_run, forward, backward, finished = lines([0], 1.0, [0], (1,))
    exchange = {"event": "collective"}
    found = placed_from([[[0]]], [dry_run, exchange, forward, backward, exchange, finished])
    assert [event["event"] for event in found] == [
        "forward", "collective", "start", "forward", "backward_end", "collective", "finished"
    ]  # fmt: skip
    assert [event["seq"] for event in found] == list(range(7))
    assert [event["phase"] for event in found if event["event"] == "collective"] == ["construction", "training"]
    assert found[2]["weights"] == found[3]["weights"] == [1.0]


def test_every_epoch_has_windows_of_its_own():
    spec = make_spec(accumulation=2, size=3, steps=1, epochs=[0, 0])
    found = [(event["window"], event["micro_batch"]) for event in of_kind(train(accumulated, spec), "forward")]
    assert found == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)]


def test_samples_of_other_ranks_are_counted_against_the_plan():
    forwards = [[0, 1], [20, 21], [22, 23], [6, 7], [24], [25]]
    assert places(WINDOWS, *forwards) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]


def test_rows_that_cannot_be_told_are_counted_by_the_micro_batch():
    assert places(WINDOWS, [], [], [], [None, None]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(
            [[4, 5], (0,), [1, None], (1,), (), [0, 1], (2,), [8], (3,), (), [2], (4,), ()],
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
            id="rows that equal other samples",
        ),
        pytest.param(
            [[0, 1, 0, 1], (0,), [2, 3, 2, 3], (1,), (), [4, 5, 4, 5], (2,), [6, 7, 6, 7], (3,), (), [8, 8], (4,), ()],
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
            id="each batch twice in one forward",
        ),
        pytest.param(
            [[0, 1, 2, 3], (0,), [4, 5, 6, 7], (1,), (), [8], (2,)],
            [(0, 0), (0, 1), (1, 0)],
            id="windows of the right number of larger batches",
        ),
        pytest.param(
            [[0], (0,), [0, 1], (1,), [2], (2,), [2, 3], (3,), (), [4, 5], (4,), [6, 7], (5,), (), [8], (6,), ()],
            [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (2, 0)],
            id="a part of each batch first",
        ),
    ],
)
def test_steps_end_windows_where_rows_are_not_as_planned(entries, expected):
    assert places(WINDOWS, *entries) == expected


def test_rows_as_planned_show_steps_inside_windows():
    entries = [[0, 1], (0,), (), [2, 3], (1,), (), [4, 5], (2,), (), [6, 7], (3,), (), [8], (4,), ()]
    assert places(WINDOWS, *entries) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([[None], (0,), "clear", [0], (1,), ()], [None, (0, 0)], id="a warm-up"),
        pytest.param(
            [[0], (0,), (), [None], (1,), "clear", [1], (2,), (), [None], (3,)],
            [(0, 0), None, (1, 0), None],
            id="another model's loss after each step",
        ),
        pytest.param(
            [[0], (0,), [None], (1,), (), [1], (2,), ()],
            [(0, 0), (0, 0), (1, 0)],
            id="other rows of which a step uses the gradients",
        ),
        pytest.param(
            [[None], (0,), "clear", [None], (1,), (), [None], (2,), ()],
            [(0, 0), (0, 0), (1, 0)],
            id="a trainer without samples",
        ),
        pytest.param([[0], (0,), "clear", [1], (1,), ()], [(0, 0), (1, 0)], id="samples whose gradients are lost"),
    ],
)
def test_other_rows_whose_gradients_no_step_uses(entries, expected):
    assert places([[[0]], [[1]]], *entries) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(
            [[9, 10, 1], (0,), (), "clear", [11, 12, 5], (1,), "clear", [13, 14], (2,), ()],
            [(0, 0), (1, 0), (2, 0)],
            id="rows of other ranks",
        ),
        pytest.param(
            [[None], (0,), "clear", [None], (1,), (), "clear", [None], (2,), (), "clear"],
            [(0, 0), (1, 0), (2, 0)],
            id="rows that are none",
        ),
        pytest.param(
            [[9], (0,), 1.0, "clear", [5], (1,), "clear", [13], (2,), "clear", 2.0],
            [(0, 0), (1, 0), (2, 0)],
            id="steps by hand",
        ),
    ],
)
def test_gradients_that_are_cleared_end_windows_where_steps_are_missing(entries, expected):
    windows = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [15]]]
    assert places(windows, *entries) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(
            [[0, 1], (0,), [2, 3], (1,), (), [6, 7], (2,), [0, 1], (3,), [4, 5], (4,), [6, 7], (5,), (), [8], (6,), ()],
            [(0, 0), (0, 1), None, None, (1, 0), (1, 1), (2, 0)],
            id="between windows",
        ),
        pytest.param(
            [[0, 1], [8], (0, 1), [0, 1, 2, 3], (2,), (), [4, 5], (3,), [6, 7], (4,), (), [8], (5,), (), [0, 1], (6,)],
            [None, None, (0, 0), (1, 0), (1, 1), (2, 0), None],
            id="before the first, and after the last",
        ),
        pytest.param(
            [[0, 1], [2, 3], (0, 1), (), [0, None], (2,), [4, 5], [6, 7], (3, 4), (), [8], (5,), [4, 5], (6,)],
            [(0, 0), (0, 1), None, (1, 0), (1, 1), (2, 0), None],
            id="of other rows, and after a short window that is dropped",
        ),
        pytest.param(
            [[0, 1, 2, 3], (0,), [9], (1,), (), [4, 5], (2,), [6, 7], (3,), (), [8], (4,), ()],
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
            id="after the rows of a window, and before its step",
        ),
    ],
)
def test_what_goes_backward_beside_the_windows(entries, expected):
    assert places(WINDOWS, *entries) == expected


def test_samples_of_another_rank_are_read_for_it():
    """In its own windows; those of another window are beside them."""
    own, other = [[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]

    def found(first):
        entries = [*first, [0], (1,), [1], (2,), (), [2], (3,), [3], (4,), ()]
        return places_of(placed_from(own, lines(*entries), other))[0]

    assert found([[4], (0,)]) == (0, 0)
    assert found([[6], (0,)]) is None


def test_windows_of_which_no_forward_was_seen():
    """They begin with the first sign of gradients, and each backward is a micro-batch."""
    exchange, begin, step = {"event": "collective"}, {"event": "backward_begin"}, {"event": "step"}
    end = {"event": "backward_end", "forwards": []}
    window = [begin, end, begin, end, exchange, step]
    found = placed_from(
        [[[0], [1]], [[2], [3]]], [exchange, *window, {"event": "update"}, *window, {"event": "finished"}]
    )
    at = [(event["event"], event["window"], event["micro_batch"]) for event in found]
    assert at[:2] == [("collective", None, None), ("start", None, None)]
    assert [place for kind, *place in at if kind == "backward_begin"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [place for kind, *place in at if kind == "step"] == [[0, 1], [1, 1]]
    assert [place for kind, *place in at if kind == "update"] == [[0, 1]]
    assert [event["phase"] for event in found if event["event"] == "collective"] == ["construction", *["training"] * 2]


def test_gradients_by_hand_begin_a_window():
    exchange = {"event": "collective", "of": "gradients"}
    raw = [{"event": "model"}, exchange, {"event": "step"}, {"event": "schedule"}, exchange, {"event": "step"}]
    found = placed_from([[[0]], [[1]]], [*raw, {"event": "finished"}])
    assert [event["window"] for event in found if event["event"] in ("collective", "step")] == [0, 0, 1, 1]
    assert {event["phase"] for event in found if event["event"] == "collective"} == {"training"}


def test_a_forward_within_a_backward_belongs_to_the_window_of_that_backward():
    forward, end, finished = lines([0], (0,))
    found = placed_from([[[0]]], [{"event": "backward_begin"}, forward, end, finished])
    assert [(event["event"], event["window"]) for event in found] == [
        ("start", None), ("backward_begin", 0), ("forward", 0), ("backward_end", 0), ("finished", 0)
    ]  # fmt: skip
    assert found[2]["weights"] == [0.0]


def test_events_carry_the_window_of_the_last_forward():
    events = train(accumulated, make_spec(accumulation=2, size=4))
    found = {}
    for event in events:
        found.setdefault(event["event"], []).append((event["window"], event["micro_batch"]))
    assert found["forward"] == [(0, 0), (0, 1), (1, 0), (1, 1)] == found["backward_end"]
    assert found["start"] == [(None, None)]
    assert found["step"] == [(0, 1), (1, 1)]
    assert found["zero_grad"] == [(None, None), (0, 1)]


class TestRanksThatRunOutOfData:
    OTHERS = ([[[4]], [[5]], [[6]]],)

    def windows(self, *raw):
        """The windows of what follows the second step, up to the end."""
        events = placed_from([[[0]], [[1]]], raw, *self.OTHERS)
        [second] = [event["seq"] for event in events if event["event"] == "step"][1:2]
        return [(event["event"], event["window"]) for event in events[second + 1 :]]

    def begun(self):
        return lines([0], (0,), (), [1], (1,), ())

    def test_what_answers_the_others_is_in_their_window(self):
        *begun, finished = self.begun()
        answers = {"event": "collective", "of": "gradients"}
        assert self.windows(*begun, {"event": "zero_grad"}, answers, finished) == [
            ("zero_grad", 1),
            ("collective", 2),
            ("finished", 2),
        ]

    def test_so_is_a_step_of_theirs_and_a_batch_that_is_read_again(self):
        *begun, finished = self.begun()
        again = [{"event": "forward", "forward": 2, "rows": [1], "weights": [2.0]}]
        again += [{"event": "backward_end", "forwards": [2]}, {"event": "step", "weights": [3.0]}]
        assert {window for _, window in self.windows(*begun, *again, finished)} == {2}

    def test_where_no_rank_goes_on_the_end_is_in_the_last_window(self):
        events = placed_from([[[0]], [[1]]], self.begun(), [[[4]], [[5]]])
        assert events[-1]["window"] == 1

    def test_without_a_step_nothing_shows_that_the_last_window_is_over(self):
        *begun, _, finished = self.begun()
        events = placed_from([[[0]], [[1]]], [*begun, finished], *self.OTHERS)
        assert events[-1]["window"] == 1
