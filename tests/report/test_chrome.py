"""The Chrome trace: what Perfetto asks of one, and that nothing is lost."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from conformance.report.chrome import COLLECTIVES, TRACKS, chrome
from conformance.runner.client import ForkServer

from ..trainers.tasks import make_spec, scaler

SPECS = {
    "ddp": make_spec(backend="ddp", accumulation=2, size=2, world_size=2, precision="fp16", scaler=scaler()),
    "horovod": make_spec(backend="horovod", accumulation=2, size=1, world_size=3, steps=3),
}


@pytest.fixture(scope="module", params=SPECS)
def traced(request):
    """The events of each rank of a real run, and the Chrome trace as it is read from its file."""
    spec = SPECS[request.param]
    with ForkServer(request.param, backend=request.param) as server:
        outcome = server.run(spec, time_limit=60.0)
    assert all(rank.finished for rank in outcome.ranks)
    ranks = [list(rank.events) for rank in outcome.ranks]
    return ranks, json.loads(json.dumps(chrome("a case", ranks), allow_nan=False))


def by_track(drawn):
    tracks = defaultdict(list)
    for event in drawn:
        if event["ph"] != "M":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def test_every_event_is_well_formed(traced):
    _, trace = traced
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    for event in trace["traceEvents"]:
        assert event["ph"] in "MBEXistf"
        assert isinstance(event["pid"], int)
        assert event["tid"] in TRACKS.values()
        assert isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "i":
            assert event["s"] == "t"


def test_time_never_goes_back_on_a_track(traced):
    """Arrows apart: they are drawn from track to track."""
    _, trace = traced
    for events in by_track(trace["traceEvents"]).values():
        times = [event["ts"] for event in events if event["ph"] in "BEXi"]
        assert times == sorted(times)


def test_begins_and_ends_match(traced):
    _, trace = traced
    seen = set()
    for events in by_track(trace["traceEvents"]).values():
        opened = []
        for event in events:
            if event["ph"] == "B":
                opened.append(event["name"])
                seen.add(event["name"])
            elif event["ph"] == "E":
                assert opened.pop() == event["name"]
        assert opened == []
    assert "backward" in seen
    assert seen & {"no_sync", "skip_synchronize"}


def test_nothing_is_lost(traced):
    """Each event of a rank is drawn once, with all its fields."""
    ranks, trace = traced
    drawn = {(event["pid"], event["args"]["seq"]): event for event in trace["traceEvents"] if event["ph"] in "BEXi"}
    assert set(drawn) == {(rank, event["seq"]) for rank, events in enumerate(ranks) for event in events}
    began = min(event["time"] for events in ranks for event in events)
    for rank, events in enumerate(ranks):
        for event in events:
            found = drawn[rank, event["seq"]]
            assert found["ts"] == pytest.approx((event["time"] - began) * 1e6, abs=0.001)
            assert set(found["args"]) == set(event) - {"event", "rank", "time"}


def test_arrows_join_collectives_of_all_ranks(traced):
    """Each has one beginning and one end, goes through every rank of the group, and forwards in time; each of its
    points lies on the collective that it belongs to."""
    ranks, trace = traced
    slices = {(event["pid"], event["ts"]): event for event in trace["traceEvents"] if event["ph"] == "X"}
    arrows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "stf":
            assert (event["cat"], event["tid"]) == (COLLECTIVES, TRACKS[COLLECTIVES])
            assert slices[event["pid"], event["ts"]]["name"] == event["name"]
            arrows[event["id"]].append(event)
    joined = [event for event in ranks[0] if event["event"] == "collective"]
    assert len(arrows) == len(joined) > 2
    for points in arrows.values():
        assert "".join(point["ph"] for point in points) == "s" + "t" * (len(ranks) - 2) + "f"
        assert sorted(point["pid"] for point in points) == list(range(len(ranks)))
        assert [point["ts"] for point in points] == sorted(point["ts"] for point in points)
        assert points[-1]["bp"] == "e"


def test_ranks_are_processes(traced):
    ranks, trace = traced
    names = [event for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in names] == [f"rank {rank} of a case" for rank in range(len(ranks))]


def event(kind, seq, time, **fields):
    place = {"window": 0, "micro_batch": 0, "where": None}
    return {"event": kind, "rank": 0, "seq": seq, "time": time, **place, **fields}


def test_a_trace_that_breaks_off():
    """What had begun ends with it; what was begun before it is left out."""
    events = [event("no_sync_exit", 0, 1.0), event("autocast_enter", 1, 2.0), event("raised", 2, 3.0)]
    drawn = [drawn for drawn in chrome("case", [events])["traceEvents"] if drawn["ph"] in "BEi"]
    assert [(event["ph"], event["name"], event["ts"]) for event in drawn] == [
        ("B", "autocast", 1e6),
        ("i", "raised", 2e6),
        ("E", "autocast", 2e6),
    ]


def test_a_collective_that_a_rank_never_entered():
    """It has no arrow."""
    told = {"op": "allreduce_", "bytes": 4, "group": [0, 1], "via": "c10d"}
    first = [event("collective", seq, seq + 1.0, **told) for seq in range(2)]
    drawn = chrome("case", [first, first[:1]])["traceEvents"]
    assert [event["ph"] for event in drawn if event["ph"] in "stf"] == ["s", "f"]


def test_no_events():
    assert {event["ph"] for event in chrome("case", [[], []])["traceEvents"]} == {"M"}
