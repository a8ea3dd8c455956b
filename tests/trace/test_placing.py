"""The window and micro-batch of an event."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from conformance.trace.hindsight.placing import placed
from conformance.trainers.accumulated import train as accumulated

from ..trainers.tasks import make_spec, of_kind, train

#: The windows of a rank, each with the rows of its micro-batches.
PLAN = "0+1 2+3 | 4+5 6+7 | 8"


def lines(script):
    """The lines that a rank records.

    "0+1": a forward of these rows; "?": a row that is no sample, "()": unknown rows. "<0+1": a backward through the
    forwards with these numbers. "clear": gradients are cleared. "step". "w1": weights change to this without a step of
    an optimizer.
    """
    forward, weight = 0, 0.0
    for word in script.split():
        if word == "step":
            weight += 1.0
            yield {"event": "step", "weights": [weight]}
        elif word == "clear":
            yield {"event": "zero_grad", "parameters": [0]}
        elif word.startswith("w"):
            weight = float(word[1:])
        elif word.startswith("<"):
            yield {"event": "backward_end", "forwards": rows(word[1:])}
        else:
            yield {"event": "forward", "forward": forward, "rows": rows(word), "weights": [weight]}
            forward += 1
    yield {"event": "finished", "weights": [weight]}


def rows(word):
    return [] if word == "()" else [None if row == "?" else int(row) for row in word.split("+")]


def placed_from(plan, raw, *others, epochs=1):
    """The placed events of rank 0, which should read the windows of this plan in each epoch; other ranks read
    `others`."""
    windows, *others = [[[*map(rows, window.split())] for window in one.split("|")] for one in (plan, *others)]
    spec = {
        "samples": {"x": [[float(row)] for row in range(30)]},
        "orders": [[[micro_batch for window in own for micro_batch in window] for own in (windows, *others)]],
        "accumulation": max(map(len, windows)),
        "epochs": [0] * epochs,
    }
    head = {"rank": 0, "where": ["train.py", 1, "train"]}
    return placed(spec, 0, [{**head, "seq": seq, "time": float(seq), **line} for seq, line in enumerate(raw)])


def places_of(events):
    """The places of the forwards; "-" for one that does not train."""
    forwards = [event for event in events if event["event"] == "forward"]
    return " ".join("-" if event["extra"] else f"{event['window']}.{event['micro_batch']}" for event in forwards)


PLACES = {
    # As planned, also with equal samples.
    "as planned": (PLAN, "0+1 2+3 4+5 6+7 8", "0.0 0.1 1.0 1.1 2.0"),
    "equal samples": ("0+0 0+1 | 0 1", "0+0 0+1 0 1", "0.0 0.1 1.0 1.1"),
    "rows as planned, with steps inside windows": (
        PLAN,
        "0+1 <0 step 2+3 <1 step 4+5 <2 step 6+7 <3 step 8 <4 step",
        "0.0 0.1 1.0 1.1 2.0",
    ),
    # Rows of other ranks, or unknown.
    "samples of other ranks": (PLAN, "0+1 20+21 22+23 6+7 24 25", "0.0 0.1 1.0 1.1 2.0 3.0"),
    "samples of other ranks, forward twice": ("0 | 1 | 0", "20 20 <1 21 21 <3 20 20 <5", "- 0.0 - 1.0 - 2.0"),
    "unknown rows": (PLAN, "() () () ?+?", "0.0 0.1 1.0 1.1"),
    # Not as planned.
    "a whole window at once": (PLAN, "0+1+2+3 4+5", "0.0 1.0"),
    "sample by sample": (PLAN, "0 1 2+3 4", "0.0 0.0 0.1 1.0"),
    "a micro-batch repeated": (PLAN, "0+1 0+1 2+3 4+5", "0.0 0.0 0.1 1.0"),
    "a micro-batch dropped": (PLAN, "0+1 4+5", "0.0 1.0"),
    "a window dropped": (PLAN, "0+1 8", "0.0 2.0"),
    "another order": (PLAN, "2+3 0+1 4+5", "0.1 0.0 1.0"),
    "the plan, and then the plan again": (
        "0 1 | 0 1",
        "0 <0 1 <1 step 0 <2 1 <3 step 0 <4 1 <5 step 0 <6 1 <7 step",
        "0.0 0.1 1.0 1.1 2.0 2.0 3.0 3.0",
    ),
    "a closure called again": (PLAN, "0+1 2+3 2+3", "0.0 0.1 0.1"),
    "two windows at once": (PLAN, "0+1+2+3+4+5+6+7 8", "0.0 2.0"),
    "back to the beginning": (PLAN, "8 0+1", "2.0 2.0"),
    # Rows that recur.
    "two forwards, one backward": ("0 | 1 | 0 | 1", "0 0 <1 1 1 <3 0 0 <4 1 1 <7", "- 0.0 - 1.0 2.0 - - 3.0"),
    "two forwards, all windows alike": ("0 | 0 | 0", "0 0 <1 step 0 0 <2 step 0 <4", "- 0.0 1.0 - 2.0"),
    "two forwards, micro-batches alike": ("0 0 | 0 1", "0 0 <0 0 0 <2 step 0 0 <5 1 <6", "0.0 - 0.1 - - 1.0 1.1"),
    "two micro-batches alike before one backward": (
        "0 0 | 0 0 | 1",
        "0 0 <0+1 step 0 0 <2+3 step 1 <4",
        "0.0 0.1 1.0 1.1 2.0",
    ),
    "two micro-batches alike before either backward": (
        "0 0 | 0 0 | 1",
        "0 0 <0 <1 step 0 0 <2 <3 step 1 <4",
        "0.0 0.1 1.0 1.1 2.0",
    ),
    "two micro-batches before either backward": ("0 1 | 0 1", "0 1 <0 <1 step 0 1 <2+3", "0.0 0.1 1.0 1.1"),
    "a penalty on a separate forward": ("0 | 0", "0 0 <0+1 step 0 <2", "0.0 0.0 1.0"),
    "repeated after the backward": ("0 | 1 | 0", "0 <0 0 step 1 <2 1 step 0 <4", "0.0 - 1.0 - 2.0"),
    "repeated after the backward, all windows alike": ("0 | 0", "0 <0 0 <1 step 0 <2", "0.0 0.0 1.0"),
    "repeated after the backward, micro-batches alike": (
        "0 0 | 1 1",
        "0 <0 0 <1 0 <2 0 <3 step 1 <4",
        "0.0 0.1 0.1 0.1 1.0",
    ),
    "repeated, then not as planned": ("0 1+2 | 3 1", "0 1+2 0 1", "0.0 0.1 0.0 1.1"),
    "gradients made without autograd": ("0 | 0", "0 step 0 step", "0.0 1.0"),
    "no step but new weights": ("0 | 0", "0 <0 w1 0 <1 w2", "0.0 1.0"),
    "new weights with unknown windows": ("0 1 | 0 1", "-1 <0 -1 <1 w1 -1 <2 -1 <3 w2", "0.0 0.1 1.0 1.1"),
    "weights moved between steps": ("0 | 0", "0 <0 w1 0 <1 w0 step 0 <2 step", "0.0 0.0 1.0"),
    "only the last loss backward": ("0 1 | 0 1", "0 1 <1 step 0 1 <3", "0.0 0.1 1.0 1.1"),
    "evaluations before, between and after": (
        "0 1 | 2 3",
        "0 1 2 3 0 <4 1 <5 step 0 1 2 3 2 <10 3 <11 step 0 3",
        "- - - - 0.0 0.1 - - - - 1.0 1.1 - -",
    ),
    # Steps end windows if rows are not as planned.
    "rows that equal other samples": (PLAN, "4+5 <0 1+? <1 step 0+1 <2 8 <3 step 2 <4 step", "0.0 0.1 1.0 1.1 2.0"),
    "each batch twice in one forward": (
        PLAN,
        "0+1+0+1 <0 2+3+2+3 <1 step 4+5+4+5 <2 6+7+6+7 <3 step 8+8 <4 step",
        "0.0 0.1 1.0 1.1 2.0",
    ),
    "windows of the correct number of larger batches": (PLAN, "0+1+2+3 <0 4+5+6+7 <1 step 8 <2", "0.0 0.1 1.0"),
    "a part of each batch first": (
        PLAN,
        "0 <0 0+1 <1 2 <2 2+3 <3 step 4+5 <4 6+7 <5 step 8 <6 step",
        "0.0 0.0 0.1 0.1 1.0 1.1 2.0",
    ),
    # Forwards of other rows, whose gradients no step uses.
    "a warm-up": ("0 | 1", "? <0 clear 0 <1 step", "- 0.0"),
    "another model's loss after each step": ("0 | 1", "0 <0 step ? <1 clear 1 <2 step ? <3", "0.0 - 1.0 -"),
    "other rows whose gradients a step uses": ("0 | 1", "0 <0 ? <1 step 1 <2 step", "0.0 0.0 1.0"),
    "a trainer without samples": ("0 | 1", "? <0 clear ? <1 step ? <2 step", "0.0 0.0 1.0"),
    "samples whose gradients are lost": ("0 | 1", "0 <0 clear 1 <1 step", "0.0 1.0"),
    # Clearing gradients ends windows if steps are missing.
    "rows of other ranks": (
        "0+1 2+3 | 4+5 6+7 | 8 15",
        "9+10+1 <0 step clear 11+12+5 <1 clear 13+14 <2 step",
        "0.0 1.0 2.0",
    ),
    "foreign rows": ("0+1 2+3 | 4+5 6+7 | 8 15", "? <0 clear ? <1 step clear ? <2 step clear", "0.0 1.0 2.0"),
    "steps by hand": ("0+1 2+3 | 4+5 6+7 | 8 15", "9 <0 w1 clear 5 <1 clear 13 <2 clear w2", "0.0 1.0 2.0"),
    # Backwards outside the windows.
    "between windows": (
        PLAN,
        "0+1 <0 2+3 <1 step 6+7 <2 0+1 <3 4+5 <4 6+7 <5 step 8 <6 step",
        "0.0 0.1 - - 1.0 1.1 2.0",
    ),
    "before the first, and after the last": (
        PLAN,
        "0+1 8 <0+1 0+1+2+3 <2 step 4+5 <3 6+7 <4 step 8 <5 step 0+1 <6",
        "- - 0.0 1.0 1.1 2.0 -",
    ),
    "of other rows, and after a short window that is dropped": (
        PLAN,
        "0+1 2+3 <0+1 step 0+? <2 4+5 6+7 <3+4 step 8 <5 4+5 <6",
        "0.0 0.1 - 1.0 1.1 2.0 -",
    ),
    "after the rows of a window, and before its step": (
        PLAN,
        "0+1+2+3 <0 9 <1 step 4+5 <2 6+7 <3 step 8 <4 step",
        "0.0 0.1 1.0 1.1 2.0",
    ),
}


@pytest.mark.parametrize("how", PLACES)
def test_places(how):
    plan, script, places = PLACES[how]
    assert places_of(placed_from(plan, lines(script))) == places


def test_a_rank_that_begins_again_is_placed_in_linear_time():
    """Twice as many epochs, each read twice, take twice as many calls."""

    def calls(epochs):
        raw, counted = [*lines(" ".join(f"0+1 <{number} step" for number in range(2 * epochs)))], Counter()
        sys.setprofile(lambda frame, event, argument: counted.update([event]))
        try:
            placed_from("0+1", raw, epochs=epochs)
        finally:
            sys.setprofile(None)
        return counted.total()

    assert calls(80) < 2.5 * calls(40)


def test_a_rank_that_ended_early_was_about_to_train():
    """Its last forward had no time for a backward."""
    *raw, _ = lines("0 <0 step 1")
    assert places_of(placed_from("0 | 1", raw)) == "0.0 1.0"


def test_the_start_and_the_phase_wait_for_the_first_training_forward():
    dry_run, forward, backward, finished = lines("0 w1 0 <1")
    exchange = {"event": "collective"}
    found = placed_from("0", [dry_run, exchange, forward, backward, exchange, finished])
    assert [event["event"] for event in found] == [
        "forward", "collective", "start", "forward", "backward_end", "collective", "finished"
    ]  # fmt: skip
    assert [event["seq"] for event in found] == list(range(7))
    assert [event["phase"] for event in found if event["event"] == "collective"] == ["construction", "training"]
    assert found[2]["weights"] == found[3]["weights"] == [1.0]


def test_every_epoch_has_its_own_windows():
    spec = make_spec(accumulation=2, size=3, steps=1, epochs=[0, 0])
    found = [(event["window"], event["micro_batch"]) for event in of_kind(train(accumulated, spec), "forward")]
    assert found == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)]


def test_samples_read_for_another_rank():
    """They train in that rank's window, but not in another one."""
    for first, place in (("4", "0.0"), ("6", "-")):
        raw = lines(f"{first} <0 0 <1 1 <2 step 2 <3 3 <4 step")
        assert places_of(placed_from("0 1 | 2 3", raw, "4 5 | 6 7")).split()[0] == place


def test_windows_without_visible_forwards():
    """They start with the first sign of gradients, and each backward is a micro-batch."""
    exchange, begin, step = {"event": "collective"}, {"event": "backward_begin"}, {"event": "step"}
    end = {"event": "backward_end", "forwards": []}
    window = [begin, end, begin, end, exchange, step]
    found = placed_from("0 1 | 2 3", [exchange, *window, {"event": "update"}, *window, {"event": "finished"}])
    at = [(event["event"], event["window"], event["micro_batch"]) for event in found]
    assert at[:2] == [("collective", None, None), ("start", None, None)]
    assert [place for kind, *place in at if kind == "backward_begin"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [place for kind, *place in at if kind == "step"] == [[0, 1], [1, 1]]
    assert [place for kind, *place in at if kind == "update"] == [[0, 1]]
    assert [event["phase"] for event in found if event["event"] == "collective"] == ["construction", *["training"] * 2]


def test_gradients_by_hand_start_a_window():
    exchange = {"event": "collective", "of": "gradients"}
    raw = [{"event": "model"}, exchange, {"event": "step"}, {"event": "schedule"}, exchange, {"event": "step"}]
    found = placed_from("0 | 1", [*raw, {"event": "finished"}])
    assert [event["window"] for event in found if event["event"] in ("collective", "step")] == [0, 0, 1, 1]
    assert {event["phase"] for event in found if event["event"] == "collective"} == {"training"}


def test_a_forward_within_a_backward_belongs_to_the_window_of_that_backward():
    forward, end, finished = lines("0 <0")
    found = placed_from("0", [{"event": "backward_begin"}, forward, end, finished])
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
    OTHERS = "4 | 5 | 6"

    def windows(self, *raw):
        """The windows of the events after the second step."""
        events = placed_from("0 | 1", raw, self.OTHERS)
        [second] = [event["seq"] for event in events if event["event"] == "step"][1:2]
        return [(event["event"], event["window"]) for event in events[second + 1 :]]

    def trained(self):
        return lines("0 <0 step 1 <1 step")

    def test_answers_to_other_ranks_are_in_their_window(self):
        *trained, finished = self.trained()
        answers = {"event": "collective", "of": "gradients"}
        assert self.windows(*trained, {"event": "zero_grad"}, answers, finished) == [
            ("zero_grad", 1),
            ("collective", 2),
            ("finished", 2),
        ]

    def test_so_are_their_step_and_a_repeated_batch(self):
        *trained, finished = self.trained()
        again = [{"event": "forward", "forward": 2, "rows": [1], "weights": [2.0]}]
        again += [{"event": "backward_end", "forwards": [2]}, {"event": "step", "weights": [3.0]}]
        assert {window for _, window in self.windows(*trained, *again, finished)} == {2}

    def test_if_no_rank_continues_the_end_is_in_the_last_window(self):
        events = placed_from("0 | 1", self.trained(), "4 | 5")
        assert events[-1]["window"] == 1

    def test_without_a_step_the_last_window_does_not_end(self):
        *trained, _, finished = self.trained()
        events = placed_from("0 | 1", [*trained, finished], self.OTHERS)
        assert events[-1]["window"] == 1
