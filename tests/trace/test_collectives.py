"""torch.distributed's collectives, DDP's included, in a process group of one rank."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def group(monkeypatch):
    """A process group over gloo, bound to loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def operations(recording):
    return [(event["op"], event["bytes"], event["phase"]) for event in recording.of_kind("collective")]


@pytest.mark.usefixtures("group")
def test_ddps_all_reduces_are_seen(record):
    """They are issued in C++, and none under `no_sync`."""
    recording = record()
    model = DistributedDataParallel(recording.task.model())
    construction = operations(recording)
    assert ("broadcast_", 12, "construction") in construction
    assert {phase for _, _, phase in construction} == {"construction"}
    batch = next(iter(recording.task.dataloader()))
    for number in range(2):
        with model.no_sync() if number == 0 else nullcontext():
            recording.task.loss(model(batch.inputs), batch).backward()
    assert operations(recording)[len(construction) :] == [("allreduce_", 12, "training")]
    assert recording.kinds()[-3:] == ["forward", "forward", "collective"]
    assert {event["via"] for event in recording.of_kind("collective")} == {"c10d"}


@pytest.mark.usefixtures("group")
def test_collectives_still_do_their_work(record):
    """With autograd and without; with one tensor and with several; the payload is what the rank puts in."""
    recording = record()
    x = torch.tensor([1.0, 2.0, 3.0])
    dist.all_reduce(x)
    with torch.no_grad():
        dist.broadcast(x.double(), src=0)
    gathered = [torch.zeros(3)]
    dist.all_gather(gathered, x)
    flat = torch.zeros(3)
    dist.all_gather_single(flat, x)
    scattered = torch.zeros(3)
    dist.reduce_scatter(scattered, [x])
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert gathered[0].tolist() == flat.tolist() == scattered.tolist() == x.tolist() == [1.0, 2.0, 3.0]
    assert [(op, size) for op, size, _ in operations(recording)] == [
        ("allreduce_", 12),
        ("broadcast_", 24),
        ("allgather_", 12),
        ("_allgather_base_", 12),
        ("reduce_scatter_", 12),
        ("barrier", 0),
        ("allreduce_", 12),
    ]


@pytest.mark.usefixtures("group")
def test_nothing_is_seen_after_the_recorder_has_left(record):
    recording = record()
    recording.recorder.__exit__(None, None, None)
    dist.all_reduce(torch.ones(3))
    assert recording.events == []


@pytest.mark.usefixtures("group")
def test_topology_is_that_of_the_process_group(record):
    recording = record()
    recording.recorder.finished(recording.task)
    [topology] = recording.of_kind("topology")
    assert (topology["world_size"], topology["via"]) == (1, "torch.distributed")


def test_a_process_group_outlives_its_destruction(record, group):
    """Freed by DDP's reducer, it would hang now and then."""
    recording = record()
    dist.all_reduce(torch.ones(1))
    assert recording.recorder._groups == {dist.group.WORLD}
