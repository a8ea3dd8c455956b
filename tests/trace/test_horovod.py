"""Horovod as seen in real ranks."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer
from conformance.trace.observers.horovod import sleeping_until

from ..trainers.tasks import make_spec, sgd

TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"


def ranks(target, backend, spec):
    with ForkServer(target, backend=backend) as server:
        outcome = server.run({**spec, "backend": backend}, time_limit=60.0)
    assert [(rank.exit, rank.output) for rank in outcome.ranks] == [("exited 0", "")] * spec["world_size"]
    return [rank.events for rank in outcome.ranks]


SHOWN = ("broadcast", "allreduce", "forward", "synchronize", "step", "skip_synchronize_enter", "skip_synchronize_exit")


def shown(events):
    kinds = (event.get("op", event["event"]) for event in events)
    return [kind for kind in kinds if kind in SHOWN]


def test_collectives_and_nested_steps():
    """Each gradient is averaged separately; Horovod's step and the step that it wraps count as one."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=1)
    for events in ranks("horovod", "horovod", spec):
        assert shown(events) == [
            *("broadcast", "broadcast", "forward", "forward", "allreduce", "allreduce"),
            *("synchronize", "skip_synchronize_enter", "step", "skip_synchronize_exit"),
        ]
        collectives = [event for event in events if event["event"] == "collective"]
        assert {(event["via"], *event["group"]) for event in collectives} == {("horovod", 0, 1)}
        assert [event["phase"] for event in collectives] == ["construction"] * 2 + ["training"] * 2
        assert [event["reduce"] for event in collectives] == [None, None, "avg", "avg"]
        assert [event["during"] for event in collectives] == [None, None, "backward", "backward"]
        assert [event["of"] for event in collectives] == ["parameters"] * 2 + ["gradients"] * 2
        assert sorted((event["bytes"], event["elements"]) for event in collectives) == [(4, 1), (4, 1), (8, 2), (8, 2)]
        [optimizer] = [event for event in events if event["event"] == "optimizer"]
        assert (optimizer["horovod"], optimizer["backward_passes_per_step"]) == (True, 2)
        [synchronize] = [event for event in events if event["event"] == "synchronize"]
        assert (synchronize["in_step"], synchronize["optimizer"]) == (False, optimizer["optimizer"])
        assert [event["synchronizes"] for event in events if event["event"] == "step"] == [False]
        assert [event for event in events if event["event"] == "gradient_change"] == []


def test_a_step_that_synchronizes():
    """The step issues the averages that a short window has not started, here compressed."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=1, precision="fp16-compression")
    for share in spec["orders"][0]:
        share.pop()
    for events in ranks("horovod_plain", "horovod", spec):
        assert shown(events)[2:] == ["forward", "synchronize", "allreduce", "allreduce", "step"]
        told = ("bytes", "during", "of")
        averages = [event for event in events if event.get("op") == "allreduce"]
        assert sorted([event[name] for name in told] for event in averages) == [
            [2, "synchronize", "gradients"],
            [4, "synchronize", "gradients"],
        ]
        assert [event["in_step"] for event in events if event["event"] == "synchronize"] == [True]
        assert [event["synchronizes"] for event in events if event["event"] == "step"] == [True]


def test_a_late_import_of_horovod():
    """In the trainer's function, after the recorder has started, between the model and its broadcast."""
    [events] = ranks(f"{TRAINERS}:imports_horovod_late", "single", make_spec(steps=1))
    assert shown(events) == ["broadcast"] * 2 + ["forward", "synchronize", "step"]
    [optimizer] = [event for event in events if event["event"] == "optimizer"]
    assert optimizer["horovod"] is True


@pytest.mark.parametrize(("decay", "weights"), [(0.0, [0.5, -0.5, 0.25]), (0.5, [0.484375, -0.484375, 0.2421875])])
def test_a_step_that_only_makes_optimizer_state(decay, weights):
    """Horovod 0.28.1 steps with zero gradients to broadcast a new optimizer's state, which decays the weights."""
    spec = make_spec(world_size=2, size=4, steps=1, optimizer=sgd(weight_decay=decay))
    for events in ranks(f"{TRAINERS}:broadcasts_optimizer_state", "horovod", spec):
        assert [event["weights"] for event in events if event["event"] == "state_init"] == [weights]
        assert len([event for event in events if event["event"] == "step"]) == 1


def test_a_process_group_that_is_destroyed_too_early():
    """If the recorder did not keep the group alive, about one such run in five would hang in torch 2.13."""
    spec = make_spec(world_size=2, size=4, backend="ddp")
    with ForkServer(f"{TRAINERS}:destroys_the_group_first", backend="ddp") as server:
        outcomes = [server.run(spec, time_limit=30.0) for _ in range(20)]
    assert [rank.exit for outcome in outcomes for rank in outcome.ranks] == ["exited 0"] * 40


def test_horovods_wait_is_called_only_when_it_is_done():
    """Earlier, it would spin."""
    answers, waited = iter([False, False, True]), []
    sleeping_until(lambda handle: next(answers))(waited.append, 7)
    assert waited == [7]
    assert next(answers, "no answer left") == "no answer left"
