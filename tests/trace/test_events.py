"""Lines of a trace become events or one clear error; events have labels."""

from __future__ import annotations

import re

import pytest

from conformance.trace.events import KINDS, Clip, MalformedEvent, Step, check_all, read
from conformance.trace.short_texts import enumerated, number, size, vector

HEAD = {"rank": 1, "seq": 0, "time": 0.5, "window": None, "micro_batch": None, "where": ["train.py", 41, "train"]}
CLIP = {"kind": "norm", "threshold": 1.0, "norm_type": 2.0, "norm": 3.25, "parameters": [0], "gradients": None}


def clip(**changes):
    return {"event": "clip", **HEAD, **CLIP, **changes}


def test_a_line_becomes_an_event_of_its_kind():
    event = read(clip())
    assert isinstance(event, Clip)
    assert (event.kind, event.threshold, event.where) == ("norm", 1.0, ["train.py", 41, "train"])
    assert str(event) == "clip norm 1 (of norm 3.25) (train.py:41)"


def test_a_call_within_a_framework_is_shown_with_the_trainers_line():
    assert read(clip(called_from=["mine.py", 7, "fit"])).line == "train.py:41, called from mine.py:7"
    assert read(clip(where=None)).line == "an unknown line"


def test_reading_does_not_change_the_line():
    line = clip()
    read(line)
    assert line == clip()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({**HEAD, "event": "clap"}, "'clap' is not a kind of event"),
        (HEAD, "None is not a kind of event"),
        ({**HEAD, "event": "step"}, "step has no field 'forwards'"),
        (clip(colour="red"), "clip has an unknown field 'colour'"),
        (clip(norm="inf", threshold=None), "clip has a value of the wrong type in the field 'threshold': None"),
        (clip(parameters="01"), "clip has a value of the wrong type in the field 'parameters': '01'"),
    ],
)
def test_a_malformed_line_is_named(line, complaint):
    with pytest.raises(MalformedEvent, match=f"^event 2 of rank 1: {re.escape(complaint)}$"):
        check_all([clip(), clip(norm="inf"), line], rank=1)


def test_kinds_are_named_as_in_traces():
    assert {"backward_begin", "zero_grad", "scale_loss_exit"} <= KINDS.keys()
    assert KINDS["step"] is Step
    assert "attempt" not in KINDS


def test_words():
    assert [number(value) for value in (1.0, 0.1 + 0.2, "inf")] == ["1", "0.3", "inf"]
    assert vector([0.5, None, "nan", 1.0]) == "(0.5, –, nan, 1)"
    assert vector([1.0, 2.0, 3.0, 4.0, 5.0]) == "(1, 2, 3, …)"
    assert [enumerated(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (12, "12 B"), (2.5, "2.5 B"), (999.4, "999 B"), (999.7, "1 kB"), (1000, "1 kB"), (1234, "1.23 kB"),
        (999_499, "999 kB"), (999_700, "1 MB"), (5e7, "50 MB"), (999.7e6, "1 GB"), (1.5e9, "1.5 GB"),
    ],
)  # fmt: skip
def test_size(count: float, shown: str) -> None:
    assert size(count) == shown
