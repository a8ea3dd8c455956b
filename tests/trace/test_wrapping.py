"""Models wrapped in DDP and sharded by FSDP2."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance.runner.front.client import ForkServer
from conformance.trace.hindsight.shards import joined

from ..trainers.tasks import make_spec


@pytest.fixture(autouse=True)
def group(monkeypatch):
    """A process group over gloo, bound to loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Own(DistributedDataParallel):
    """A user's subclass of DDP."""

    def __init__(self, module, **kwargs):
        super().__init__(module, **kwargs)
        self.is_mine = True


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, Own])
def test_wrap(record, wrapper):
    """Noted once, after the construction, for a wrapper of the model or of a module that contains it."""
    recording = record()
    recording.task.model()
    wrapper(torch.nn.Sequential(recording.task.model()), find_unused_parameters=True)
    [wrap] = recording.of_kind("wrap")
    assert recording.kinds()[-1] == "wrap"
    assert (wrap["model"], wrap["wrapper"], wrap["find_unused"]) == (1, wrapper.__name__, True)


def test_other_models(record):
    """Their events are not in the trace."""
    recording = record()
    other = DistributedDataParallel(torch.nn.Linear(5, 5))
    with other.no_sync():
        assert other.require_backward_grad_sync is False
    assert recording.kinds("wrap", "no_sync_enter", "no_sync_exit") == []


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, Own])
def test_no_sync(record, wrapper):
    """Its entry and exit are noted, and it still works."""
    recording = record()
    model = wrapper(recording.task.model())
    with model.no_sync():
        assert model.require_backward_grad_sync is False
        recording.recorder.note("inside")
    assert model.require_backward_grad_sync is True
    assert recording.kinds()[-3:] == ["no_sync_enter", "inside", "no_sync_exit"]
    assert {event["where"][2] for event in recording.events[-3:]} == {"test_no_sync"}


def test_an_error_in_no_sync(record):
    recording = record()
    model = DistributedDataParallel(recording.task.model())
    with pytest.raises(MemoryError), model.no_sync():
        raise MemoryError
    assert recording.kinds()[-1] == "no_sync_exit"


def test_no_sync_as_a_decorator(record):
    """Like any `contextlib.contextmanager`."""
    recording = record()
    model = DistributedDataParallel(recording.task.model())

    @model.no_sync()
    def accumulate():
        return model.require_backward_grad_sync

    assert [accumulate(), accumulate()] == [False, False]
    assert recording.kinds("no_sync_enter", "no_sync_exit") == ["no_sync_enter", "no_sync_exit"] * 2


def test_a_recorder_that_is_entered_again_continues(record):
    """As in a worker that works in separate calls: it still knows earlier wrappers and optimizers."""
    recording = record()
    wrapper = DistributedDataParallel(recording.task.model())
    outside = torch.ones(2, requires_grad=True)
    outside.sum().backward()
    other = torch.optim.SGD([outside])
    other.step()
    recording.recorder.__exit__(None, None, None)
    recording.recorder.__enter__()
    other.step()
    with wrapper.no_sync():
        wrapper(torch.ones(1, 2)).sum().backward()
    kinds = recording.kinds("wrap", "foreign_optimizer", "no_sync_enter", "forward", "no_sync_exit")
    assert kinds == ["wrap", "foreign_optimizer", "no_sync_enter", "forward", "no_sync_exit"]


TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"


def test_fully_shard():
    """All-gathers carry parameters, reduce-scatters gradients, once per window. Each rank shows its shards: the first
    rank has the only row of the weight."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=2, backend="ddp")
    with ForkServer(f"{TRAINERS}:fully_sharded", backend="ddp") as server:
        outcome = server.run(spec, time_limit=60.0)
    assert [(rank.exit, rank.output) for rank in outcome.ranks] == [("exited 0", "")] * 2
    first, second = (rank.events for rank in outcome.ranks)
    for events in (first, second):
        collectives = [event for event in events if event["event"] == "collective" and event["phase"] == "training"]
        told = [(event["op"], event["of"], event["reduce"], event["during"]) for event in collectives]
        gather = ("_allgather_base_", "parameters", None)
        scatter = ("_reduce_scatter_base_", "gradients", "avg", "backward")
        assert [entry for entry in told if entry[0] != gather[0]] == [scatter] * 2
        assert {entry[:3] for entry in told if entry[0] == gather[0]} == {gather}
        assert {tuple(event["group"]) for event in collectives} == {(0, 1)}
        assert [event["event"] for event in events if event["event"] in ("forward", "step")] == [
            *("forward", "forward", "step"),
            *("forward", "forward", "step"),
        ]
        assert [event["parameters"] for event in events if event["event"] == "optimizer"] == [[0, 1]]
        assert [event["event"] for event in events if event["event"] == "gradient_change"] == []
    weights = [[event["weights"] for event in events if event["event"] == "step"] for events in (first, second)]
    assert all(isinstance(value, float) for values in weights[0] for value in values)
    assert weights[1] == [[None, None, None]] * 2
    held = [[event["held"] for event in events if event["event"] == "shards"] for events in (first, second)]
    assert held == [[[0, 1, 2]], [[]]]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_columns(precision):
    """Each rank has a column of the weight, and shows it in full precision although forwards use cast weights."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=2, backend="fsdp2", precision=precision)
    with ForkServer("fsdp2", backend="fsdp2") as server:
        ranks = [rank.events for rank in server.run(spec, time_limit=60.0).ranks]
    held = [[event["held"] for event in events if event["event"] == "shards"] for events in ranks]
    assert held == [[[0, 2]], [[1]]]
    for events, places in zip(ranks, ([0, 2], [1]), strict=True):
        for step in (event for event in events if event["event"] == "step"):
            assert [at for at, value in enumerate(step["weights"]) if value is not None] == places
            assert [at for at, value in enumerate(step["gradients"]) if value is not None] == places
    steps, forwards = (
        [
            [event["weights"] for event in events if event["event"] == kind and event["weights"]]
            for events in joined(ranks)
        ]
        for kind in ("step", "forward")
    )
    assert steps[0] == steps[1]
    assert [used[-1] for used in forwards] == [steps[0][0]] * 2
