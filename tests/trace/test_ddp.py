"""DDP around the task's model: its construction and `no_sync`, in a process group of one rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(autouse=True)
def group(monkeypatch):
    """A process group over gloo, bound to loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Own(DistributedDataParallel):
    """Somebody's own wrapper."""

    def __init__(self, module, **kwargs):
        super().__init__(module, **kwargs)
        self.is_mine = True


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, Own])
def test_wrap(record, wrapper):
    """Noted once, when it is done, for what it is around: the model, or something that contains it."""
    recording = record()
    recording.task.model()
    wrapper(torch.nn.Sequential(recording.task.model()), find_unused_parameters=True)
    [wrap] = recording.of_kind("wrap")
    assert recording.kinds()[-1] == "wrap"
    assert (wrap["model"], wrap["wrapper"], wrap["find_unused"]) == (1, wrapper.__name__, True)


def test_other_models(record):
    """What becomes of them is no part of the trace."""
    recording = record()
    other = DistributedDataParallel(torch.nn.Linear(5, 5))
    with other.no_sync():
        assert other.require_backward_grad_sync is False
    assert recording.kinds("wrap", "no_sync_enter", "no_sync_exit") == []


@pytest.mark.parametrize("wrapper", [DistributedDataParallel, Own])
def test_no_sync(record, wrapper):
    """Entered and left, and it still does what it is for."""
    recording = record()
    model = wrapper(recording.task.model())
    with model.no_sync():
        assert model.require_backward_grad_sync is False
        recording.recorder.note("inside")
    assert model.require_backward_grad_sync is True
    assert recording.kinds()[-3:] == ["no_sync_enter", "inside", "no_sync_exit"]
    assert {event["where"][2] for event in recording.events[-3:]} == {"test_no_sync"}


def test_no_sync_that_is_left_by_an_error(record):
    recording = record()
    model = DistributedDataParallel(recording.task.model())
    with pytest.raises(MemoryError), model.no_sync():
        raise MemoryError
    assert recording.kinds()[-1] == "no_sync_exit"


def test_no_sync_as_a_decorator(record):
    """As any `contextlib.contextmanager` can be used."""
    recording = record()
    model = DistributedDataParallel(recording.task.model())

    @model.no_sync()
    def accumulate():
        return model.require_backward_grad_sync

    assert [accumulate(), accumulate()] == [False, False]
    assert recording.kinds("no_sync_enter", "no_sync_exit") == ["no_sync_enter", "no_sync_exit"] * 2


def test_a_recorder_that_is_entered_again_goes_on(record):
    """As in a worker whose work comes in calls: it knows the wrappers and the optimizers that it saw before."""
    recording = record()
    wrapper = DistributedDataParallel(recording.task.model())
    other = torch.optim.SGD([torch.ones(3, requires_grad=True)])
    other.step()
    recording.recorder.__exit__(None, None, None)
    recording.recorder.__enter__()
    other.step()
    with wrapper.no_sync():
        wrapper(torch.ones(1, 2)).sum().backward()
    kinds = recording.kinds("wrap", "foreign_optimizer", "no_sync_enter", "forward", "no_sync_exit")
    assert kinds == ["wrap", "foreign_optimizer", "no_sync_enter", "forward", "no_sync_exit"]
