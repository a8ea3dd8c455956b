"""The line to edit and those to look at: the likeliest first, each with its role; a line that only shows the bug is not
its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.report.card import Card, cards
from conformance.results import Results
from conformance.results.result_lines import (
    CaseRecord,
    Finding,
    FirstDifference,
    Guard,
    Lines,
    Moment,
    Reason,
    Step,
    Timeline,
)

BROKEN = Finding("amp/unscale-before-clip", "MUST", "It MUST.", "", "", "", "", 1, (0,), where="train.py:31")
PARTED = replace(BROKEN, law="ddp/identical-weights", where="train.py:98")
#: A step at line 75, wrong after the stop.
WRONG = FirstDifference(4, "weights", "weight[0]", 1.0, 2.0, where="train.py:75")
STEPS = (Step(3, 3, (1.0,), (1.0,)), Step(4, 4, (2.0,), (3.0,)))
CALLED = Timeline((Moment(0, 0.0, "step", "", "train.py:75"), Moment(0, 1.0, "schedule", "", "train.py:79")))
#: At line 75, a wrong gradient in a window with an all-reduce of a total, one of gradients, a clip and a schedule.
EXCHANGED = Moment(0, 1.0, "collective", "", "train.py:72")
GRADIENT = {
    "first_difference": replace(WRONG, quantity="gradient"),
    "timeline": Timeline(
        (
            Moment(0, 0.0, "collective", "", "train.py:71"),
            Moment(0, 0.5, "backward_begin", ""),
            EXCHANGED,
            Moment(0, 2.0, "clip", "", "train.py:73"),
            Moment(0, 3.0, "schedule", "", "train.py:79"),
        )
    ),
}
ELSEWHERE = Guard("", False, "", "", "resumes at another place in the data")
RESUMED = {
    "first_difference": WRONG,
    "steps": STEPS,
    "timeline": CALLED,
    "resumed_at": 4,
    "read_at": Lines("train.py:42"),
}


@pytest.fixture
def case(results: Results) -> CaseRecord:
    found = next(one for one in results.cases if one.verdict == "FAIL (numerics)")
    return replace(found, target="train.py", findings=(), reason=None, timeline=None, explained_by=(), steps=())


def shown(results: Results, *cases: CaseRecord) -> Card:
    [card] = cards(replace(results, cases=cases))
    return card


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"findings": (BROKEN,)}, [("before", 31)]),
        ({"findings": (PARTED,)}, [("at or before", 98)]),
        ({"findings": (replace(PARTED, origin=Lines("train.py:53")),)}, [("at", 53)]),
        ({"first_difference": WRONG, "timeline": CALLED}, [("at or before", 75), ("schedule", 79)]),
        (RESUMED, [("resumes at", 42), ("at or before", 75), ("schedule", 79)]),
        (
            RESUMED | {"saved_at": Lines("train.py:90")},
            [("resumes at", 42), ("saves at", 90), ("at or before", 75), ("schedule", 79)],
        ),
        (RESUMED | {"guards": (ELSEWHERE,)}, [("from", 42)]),
        (RESUMED | {"read_at": None}, [("at or before", 75), ("schedule", 79)]),
        # Its numbers were wrong before the stop.
        (RESUMED | {"resumed_at": 5}, [("at or before", 75), ("schedule", 79)]),
        (RESUMED | {"findings": (BROKEN,)}, [("before", 31)]),
        (RESUMED | {"findings": (PARTED,)}, [("resumes at", 42), ("at or before", 98)]),
        (GRADIENT, [("at or before", 75), ("clip", 73)]),
        (GRADIENT | {"explained_by": ("clips-each-parameter",)}, [("at", 73)]),
        (GRADIENT | {"explained_by": ("reduction-in-bfloat16",)}, [("at", 72), ("at or before", 75), ("clip", 73)]),
        (
            # Two lines leave it open.
            GRADIENT
            | {
                "explained_by": ("reduction-in-bfloat16",),
                "timeline": Timeline(
                    (Moment(0, 0.5, "backward_begin", ""), EXCHANGED, replace(EXCHANGED, where="a.py:9"))
                ),
            },
            [("at or before", 75)],
        ),
        (GRADIENT | {"explained_by": ("schedule-twice",)}, [("at", 79)]),
        (GRADIENT | {"explained_by": ("not-clipped",)}, [("at or before", 75), ("clip", 73)]),
        ({"reason": Reason(where="train.py:60"), "first_difference": None}, [("at", 60)]),
        ({"verdict": "CRASH", "reason": Reason(where="train.py:60")}, [("raised at", 60)]),
    ],
)
def test_what_is_likeliest_comes_first(
    results: Results, case: CaseRecord, fields: dict[str, object], places: list[tuple[str, int]]
) -> None:
    card = shown(results, replace(case, **fields))
    edits = [(card.edit.role, card.edit.place.at)] if card.edit else []
    looked = [(one.label, one.at) for one in card.places]
    assert [*edits, *looked] == [(role, f"train.py:{line}") for role, line in places]
    # A call that is missing before a wrong one does not change the place of the problem.
    role = "at" if places[0][0] == "before" else places[0][0]
    assert (card.role, card.own_line) == (role, ("train.py", places[0][1]))


def test_a_bug_that_cases_without_a_resume_have_is_not_at_the_resume(results: Results, case: CaseRecord) -> None:
    resumed = replace(case, id=f"{case.id}-resumed-at-4", **RESUMED)
    assert shown(results, resumed).role == "resumes at"
    plain = replace(resumed, id=case.id, resumed_at=None, read_at=None)
    assert shown(results, resumed, plain).role == "at or before"


def test_a_title_has_the_role_of_a_line_that_is_not_wrong_by_itself(results: Results, case: CaseRecord) -> None:
    at, seen = (shown(results, replace(case, findings=(one,))).headline for one in (BROKEN, PARTED))
    assert at == "The trainer clips before it unscales (train.py:31)"
    assert seen.endswith("(at or before train.py:98)")


@pytest.mark.parametrize(("line", "does"), [(33, "add"), (32, "move")])
def test_the_unscaling_of_a_scalers_step_does_not_move(
    results: Results, case: CaseRecord, line: int, does: str
) -> None:
    at = Lines("train.py:33")
    calls = {"scaler_step": at, "step": at, "unscale": Lines(f"train.py:{line}")}
    card = shown(results, replace(case, findings=(BROKEN,), calls=calls))
    assert card.edit is not None and card.edit.does.startswith(does)
