"""What is seen of messages between ranks, in real ranks over gloo."""

from __future__ import annotations

from conformance.runner.front.client import ForkServer

from ..trainers.tasks import make_spec

TRAINERS = f"{__file__.rpartition('/')[0]}/messages.py"


def ranks(function, **changes):
    spec = make_spec(world_size=2, size=4, steps=1, backend="ring", **changes)
    with ForkServer(f"{TRAINERS}:{function}", backend="ring") as server:
        outcome = server.run(spec, time_limit=60.0)
    assert [(rank.exit, rank.output) for rank in outcome.ranks] == [("exited 0", "")] * 2
    return [rank.events for rank in outcome.ranks]


def messages(events):
    return [event for event in events if event["event"] in ("send", "receive")]


def test_every_way_to_send_and_to_receive():
    """Blocking, not blocking, in a batch, of a tag, from anyone, and within a group of other numbers."""
    for rank, events in enumerate(ranks("every_way")):
        found = messages(events)
        assert {event["via"] for event in found} == {"c10d"}
        assert [
            (event["event"], event["peer"], event["elements"], event["bytes"], event["tag"]) for event in found
        ] == [
            ("send" if rank == 0 else "receive", 1 - rank, 2, 8, 0),
            ("send" if rank == 0 else "receive", 1 - rank, 3, 24, 5),
            *[("send", 1 - rank, 1, 4, 0), ("receive", 1 - rank, 1, 4, 0)],
            ("send", 1, 4, 16, 0) if rank == 0 else ("receive", None, 4, 16, 0),
        ]
        assert {tuple(event["group"]) for event in found} == {(0, 1)}
        assert {event["phase"] for event in found} == {"construction"}


def test_what_they_carry():
    """Gradients and parameters by their memory, flat copies, and pieces of such a copy until the next forward."""
    for events in ranks("carries"):
        told = [(event["event"], event["of"], event["elements"]) for event in messages(events)]
        assert told == [
            ("send", "parameters", 2), ("receive", "parameters", 2),
            ("send", "gradients", 2), ("receive", "gradients", 2),
            ("send", "gradients", 3), ("receive", None, 3),
            ("send", "gradients", 1), ("receive", "gradients", 1),
            ("send", None, 3), ("receive", None, 3),
        ]  # fmt: skip


def test_what_was_at_the_same_address_before_says_nothing():
    """Memory that is given back is soon given out again."""
    for events in ranks("reuses"):
        assert [(event["event"], event["of"]) for event in messages(events)] == [
            ("send", "parameters"), ("receive", None),
            ("send", None), ("receive", None),
            ("send", None), ("receive", None),
        ]  # fmt: skip


def test_what_changes_gradients_meanwhile_is_told_with_the_messages_in_between():
    """So that no law takes it for something that was done by hand to one rank's gradients."""
    for events in ranks("averages"):
        [change] = [event for event in events if event["event"] == "gradient_change"]
        assert [event["event"] for event in messages(events) if change["since"] < event["seq"] < change["seq"]] == [
            "send",
            "receive",
        ]


def test_the_group_is_known_before_it_is_gone():
    """A worker that never steps has left it when its function returns."""
    for rank, events in enumerate(ranks("averages")):
        [topology] = [event for event in events if event["event"] == "topology"]
        assert (topology["world_size"], topology["rank_reached"]) == (2, rank)
        assert not [event for event in events if event["event"] == "step"]
