"""The Chrome trace: what Perfetto asks of one, and that nothing is lost."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from conformance.laws.law import Broken, Law
from conformance.laws.run import Run
from conformance.report.traces import COLLECTIVES, SPANS, WINDOWS, chrome
from conformance.runner.front.client import ForkServer
from conformance.trace.events import read

from ..laws.building import DEFAULTS
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
    return ranks, json.loads(json.dumps(converted("a case", ranks), allow_nan=False))


def converted(case, ranks, broken=()):
    """The Chrome trace of these lines of each rank."""
    return chrome(case, [tuple(map(read, lines)) for lines in ranks], broken)


def by_track(drawn):
    tracks = defaultdict(list)
    for event in drawn:
        if event["ph"] != "M":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def titles(drawn):
    """The lanes: process and thread, and what stands beside them."""
    named = [event for event in drawn if event["name"] == "thread_name"]
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    assert len(lanes) == len(named)
    return lanes


def test_every_event_is_well_formed_and_every_lane_its_own(traced):
    """A thread of the number 0, or of that of its process, would be drawn in one with the main thread."""
    ranks, trace = traced
    drawn = trace["traceEvents"]
    lanes = titles(drawn)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    for event in drawn:
        assert event["ph"] in "MBEXistf" and isinstance(event["name"], str)
        assert (event["pid"], event["tid"]) in lanes
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event.get("dur", 1) > 0 and event.get("s", "t") == "t"
    assert {pid for pid, _ in lanes} == set(range(len(ranks)))
    assert len({tid for _, tid in lanes}) == len(lanes) == len({(pid, title) for (pid, _), title in lanes.items()})
    assert all(tid not in (0, pid) for pid, tid in lanes)
    names = [event["args"]["name"] for event in drawn if event["name"] == "process_name"]
    assert names == [f"rank {rank} of a case" for rank in range(len(ranks))]


def test_a_lane_says_what_is_in_it(traced):
    """What has no length is drawn without its name."""
    _, trace = traced
    lanes = titles(trace["traceEvents"])
    kinds = defaultdict(set)
    for event in trace["traceEvents"]:
        if event["ph"] == "i":
            kinds[lanes[event["pid"], event["tid"]]].add(event["cat"])
        elif event["ph"] in "BE" and "args" in event:
            assert event["name"] == lanes[event["pid"], event["tid"]]
    assert kinds.pop("process") == {"started", "topology", "model", "optimizer", "start", "finished"}
    assert kinds == {title: {title} for title in kinds}
    assert {"forward", "step", "zero_grad"} <= set(kinds)


def test_windows_hold_their_micro_batches(traced):
    """From the first forward on, and up to the end."""
    ranks, trace = traced
    lanes = titles(trace["traceEvents"])
    for (rank, tid), events in by_track(trace["traceEvents"]).items():
        if lanes[rank, tid] == WINDOWS:
            places = [(event["window"], event["micro_batch"]) for event in ranks[rank] if event["event"] == "forward"]
            assert len(places) == len(set(places)) > 2
            begun, before = [], None
            for window, micro_batch in places:
                begun += [f"window {window}"] * (window != before) + [f"micro-batch {micro_batch}"]
                before = window
            assert [event["name"] for event in events if event["ph"] == "B"] == begun
            [end] = [one["ts"] for one in trace["traceEvents"] if (one["pid"], one["name"]) == (rank, "finished")]
            assert events[-1]["ts"] == end


def test_on_each_track_time_never_goes_back_and_begins_and_ends_match(traced):
    """In category too: what differs there never ends. Arrows apart: they are drawn from track to track."""
    _, trace = traced
    seen = set()
    for events in by_track(trace["traceEvents"]).values():
        times = [event["ts"] for event in events if event["ph"] in "BEXi"]
        assert times == sorted(times)
        opened = []
        for event in events:
            if event["ph"] == "B":
                opened.append((event["name"], event.get("cat")))
                seen.add(event["name"])
            elif event["ph"] == "E":
                assert opened.pop() == (event["name"], event.get("cat"))
        assert opened == []
    assert "backward" in seen and seen & {"no_sync", "skip_synchronize"}


def test_nothing_is_lost(traced):
    """Each event of a rank is drawn once, with all its fields."""
    ranks, trace = traced
    told = [event for event in trace["traceEvents"] if "seq" in event.get("args", {})]
    drawn = {(event["pid"], event["args"]["seq"]): event for event in told}
    assert len(told) == len(drawn)
    assert set(drawn) == {(rank, event["seq"]) for rank, events in enumerate(ranks) for event in events}
    began = min(event["time"] for events in ranks for event in events)
    for rank, events in enumerate(ranks):
        for event in events:
            found = drawn[rank, event["seq"]]
            assert found["ts"] == pytest.approx((event["time"] - began) * 1e6, abs=0.001)
            assert set(found["args"]) == set(event) - {"event", "rank", "time"}
            if event["event"] in SPANS:
                assert found["name"] == SPANS[event["event"]]
            else:
                assert (found["cat"], found["name"]) == (event["event"], read(event).label)


def test_arrows_join_collectives_of_all_ranks(traced):
    """Each has one beginning and one end, goes through every rank of the group, and forwards in time; each of its
    points lies on the collective that it belongs to."""
    ranks, trace = traced
    lanes = titles(trace["traceEvents"])
    slices = {(event["pid"], event["tid"], event["ts"]): event for event in trace["traceEvents"] if event["ph"] == "X"}
    arrows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "stf":
            assert lanes[event["pid"], event["tid"]] == event["cat"] == COLLECTIVES
            assert slices[event["pid"], event["tid"], event["ts"]]["name"] == event["name"]
            arrows[event["id"]].append(event)
    assert all(len({(point["cat"], point["name"]) for point in points}) == 1 for points in arrows.values())
    joined = [event for event in ranks[0] if event["event"] == "collective"]
    assert len(arrows) == len(joined) > 2
    for points in arrows.values():
        assert "".join(point["ph"] for point in points) == "s" + "t" * (len(ranks) - 2) + "f"
        assert sorted(point["pid"] for point in points) == list(range(len(ranks)))
        assert [point["ts"] for point in points] == sorted(point["ts"] for point in points)
        assert points[-1]["bp"] == "e"


def event(kind, seq, time, **fields):
    place = {"window": None, "micro_batch": None, "where": None}
    return {"event": kind, "rank": 0, "seq": seq, "time": time, **place, **DEFAULTS[kind], **fields}


def test_a_trace_that_breaks_off():
    """What had begun ends with it; what was begun before it is left out."""
    entered = event("autocast_enter", 1, 2.0, dtype="float16")
    events = [event("no_sync_exit", 0, 1.0), entered, event("raised", 2, 3.0)]
    drawn = [drawn for drawn in converted("case", [events])["traceEvents"] if drawn["ph"] in "BEi"]
    assert [(event["ph"], event["name"], event["ts"]) for event in drawn] == [
        ("B", "autocast", 1e6),
        ("i", "raised", 2e6),
        ("E", "autocast", 2e6),
    ]


def test_a_collective_that_a_rank_never_entered():
    """It has no arrow."""
    told = {"op": "allreduce_", "bytes": 4, "group": [0, 1], "via": "c10d"}
    first = [event("collective", seq, seq + 1.0, **told) for seq in range(2)]
    second = [{**first[0], "rank": 1}]
    drawn = converted("case", [first, second])["traceEvents"]
    assert [event["ph"] for event in drawn if event["ph"] in "stf"] == ["s", "f"]


def test_no_events_and_a_text_of_several_lines():
    assert {event["ph"] for event in converted("case", [[], []])["traceEvents"]} == {"M"}
    [drawn] = converted("case", [[event("raised", 0, 1.0, traceback="first\n  second\n")]])["traceEvents"][-1:]
    assert drawn["args"]["traceback"] == ["first", "  second"]


def test_broken_laws_have_lanes_of_their_own():
    """Above all others, with a mark wherever one was broken."""
    ranks = [[event("update", seq, seq + 1.0, rank=rank) for seq in (0, 1)] for rank in (0, 1)]
    first, second = ([read(each[seq]) for each in ranks] for seq in (0, 1))
    must = Law("acc/by-hand", "Ranks MUST step once.", "", "loss.backward()\nstep()", judges=iter, scope=Run)
    should = Law("acc/thrift", "Ranks SHOULD not step.", "", "pass", judges=iter, scope=Run)
    twice = [
        Broken(two, "one step", "one is enough", "there were two", (one, two))
        for one, two in zip(first, second, strict=True)
    ]
    broken = [*((must, how) for how in twice), (should, Broken(first[1], "no step", "it costs", "there was one", ()))]
    drawn = converted("case", ranks, broken)["traceEvents"]
    lanes = titles(drawn)
    assert [title for (pid, _), title in lanes.items() if pid == 0][:2] == [
        "broken: acc/by-hand",
        "warning: acc/thrift",
    ]
    marks = [event for event in drawn if event.get("cat") in ("MUST", "SHOULD")]
    assert [(lanes[mark["pid"], mark["tid"]], mark["pid"], mark["ts"], mark["name"]) for mark in marks] == [
        ("broken: acc/by-hand", 0, 1e6, "acc/by-hand"),
        ("broken: acc/by-hand", 1, 1e6, "acc/by-hand"),
        ("warning: acc/thrift", 1, 0.0, "acc/thrift"),
    ]
    assert all(mark["ph"] == "i" for mark in marks)
    said = marks[1]["args"]
    assert said["contradiction"] == "One step, because one is enough. However, there were two: a contradiction."
    assert [each.partition(":")[0] for each in said["shows"]] == ["rank 1", "rank 1"]
    assert (said["says"], said["fix"]) == (must.says, ["loss.backward()", "step()"])
