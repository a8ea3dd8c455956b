"""The events of a resumed rank: two lives in one sequence, each placed in the plan separately."""

import pytest

from conformance.cases.case import Case
from conformance.laws.plan import Plan
from conformance.trace.hindsight.placing import placed
from conformance.trace.lives import joined, lives

CASE = Case("single", 1, 1, "fp32", "momentum", resumed_at=3)
ROWS = [[row for micro_batch in window for row in micro_batch] for window in Plan(CASE.spec()).rows(0)]


def life(*windows):
    """The events of a process that trains these windows."""
    lines = [{"event": "started", "pid": 1}]
    for number, window in enumerate(windows):
        lines += [
            {"event": "forward", "forward": number, "rows": ROWS[window], "weights": [float(number)]},
            {"event": "backward_begin", "backward": number, "gradients": "none"},
            {"event": "backward_end", "backward": number, "forwards": [number]},
            {"event": "step", "optimizer": 0, "step": number, "gradients": [1.0], "weights": [number + 1.0]},
        ]
    lines.append({"event": "finished", "weights": [float(len(windows))]})
    head = {"rank": 0, "where": None}
    return [{**head, "seq": seq, "time": float(seq), **line} for seq, line in enumerate(lines)]


def spec(**of_life):
    return {**CASE.spec(), "life": {"stop_after": None, "checkpoint_dir": None, "resume_from": None, **of_life}}


def until(*windows):
    """The spec of a process that saves after these windows."""
    return spec(checkpoint_dir="/nowhere", save_after=list(windows))


def windows_of(spec, lines):
    events = placed(spec, 0, lines)
    return [event["window"] for event in events if event["event"] == "step"]


@pytest.mark.parametrize("trained", [[0, 1, 2], [0, 1], [0, 1, 2, 3, 4, 5]])
def test_windows_before_the_stop(trained):
    assert windows_of(until(3), life(*trained)) == trained


def test_windows_before_a_kill():
    assert windows_of(until(2, 4), life(0, 1, 2, 3)) == [0, 1, 2, 3]


@pytest.mark.parametrize("trained", [[3, 4, 5], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [4, 5]])
def test_windows_after_the_resume(trained):
    """Its rows identify the windows, also if it has lost its position."""
    assert windows_of(spec(resume_from="/nowhere"), life(*trained)) == trained


def test_unknown_rows_continue_with_the_next_window():
    lines = [
        {**line, "rows": [None] * len(line["rows"])} if line["event"] == "forward" else line for line in life(0, 1, 2)
    ]
    assert windows_of(spec(resume_from="/nowhere"), lines) == [3, 4, 5]


def test_numbers_continue_and_lives_can_be_separated_again():
    first, second = life(0), life(1)
    second[-1:] = [
        {**second[-1], "event": "gradient_change", "since": -1},
        {**second[-1], "event": "step", "seq": len(second), "unfinished": [2], "unfinished_elsewhere": []},
    ]
    both = joined(first, second)
    assert [event["seq"] for event in both] == list(range(len(first) + len(second)))
    assert both[-2]["since"] == len(first) - 1
    assert both[-1]["unfinished"] == [len(first) + 2]
    assert [len(one) for one in lives(3, both)] == [len(first), len(second)]
    assert lives(None, both) == [both]
    assert lives(3, []) == [[]]


@pytest.mark.parametrize(
    ("resumes", "read", "places"),
    [
        (False, [(0, 0), (0, 1), (1, 0)], [(0, 0), (0, 1), (1, 0)]),
        (False, [(0, 0), (0, 1)], [(0, 0), (0, 1)]),
        (True, [(1, 1), (2, 0), (2, 1)], [(1, 1), (2, 0), (2, 1)]),
        (True, [(1, 0), (1, 1), (2, 0), (2, 1)], [(1, 0), (1, 1), (2, 0), (2, 1)]),
        (True, [(2, 0), (2, 1)], [(2, 0), (2, 1)]),
    ],
)
def test_a_stop_inside_a_window(resumes, read, places):
    case = Case("single", 1, 2, "fp32", "momentum", resumed_at=1, resumed="inside-window")
    rows = [list(window) for window in Plan(case.spec()).rows(0)]
    lines = [{"event": "started", "pid": 1}]
    for number, (window, micro_batch) in enumerate([*read, *((3, place) for place in (0, 1) if resumes)]):
        lines += [
            {"event": "forward", "forward": number, "rows": rows[window][micro_batch], "weights": [1.0]},
            {"event": "backward_begin", "backward": number, "gradients": "none"},
            {"event": "backward_end", "backward": number, "forwards": [number]},
        ]
        if micro_batch:
            lines.append({"event": "step", "optimizer": 0, "step": number, "gradients": [1.0], "weights": [1.0]})
    head = {"rank": 0, "where": None}
    whole = [{**head, "seq": seq, "time": float(seq), **line} for seq, line in enumerate(lines)]
    of_life = {"resume_from": "/nowhere"} if resumes else {"checkpoint_dir": "/nowhere", "save_after": [1]}
    asked = {**case.spec(), "life": {"stop_after": None, "checkpoint_dir": None, "resume_from": None, **of_life}}
    found = [event for event in placed(asked, 0, whole) if event["event"] == "forward"]
    assert [(event["window"], event["micro_batch"]) for event in found][: len(places)] == places
