"""Collectives and messages of torch.distributed, and handles that nobody waits for."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from conformance.runner.front.client import ForkServer
from conformance.trace.observers.collectives import reduction
from conformance.trace.state.handles import Handles

from ..trainers.tasks import make_spec


def operations(recording):
    return [(event["op"], event["bytes"], event["phase"]) for event in recording.of_kind("collective")]


@pytest.mark.usefixtures("group")
def test_ddps_all_reduces_are_seen(record):
    """DDP issues them in C++, and none under `no_sync`."""
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
    assert recording.kinds("forward", "collective")[-3:] == ["forward", "forward", "collective"]
    assert {event["via"] for event in recording.of_kind("collective")} == {"c10d"}


@pytest.mark.usefixtures("group")
def test_collectives_still_do_their_work(record):
    """With and without autograd, with one or several tensors. The payload is the rank's input."""
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
def test_the_fields_of_a_collective(record):
    """Elements and bytes of the rank's input, the reduction, the ranks of the group."""
    recording = record()
    dist.all_reduce(torch.ones(3, dtype=torch.float64), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(2), src=0, group=dist.new_group([0]))
    reduced, broadcast = recording.of_kind("collective")
    told = ("op", "bytes", "elements", "reduce", "group", "via", "during", "of")
    assert [reduced[name] for name in told] == ["allreduce_", 24, 3, "max", [0], "c10d", None, None]
    assert "integers" not in reduced
    dist.broadcast(torch.ones(2, dtype=torch.int64), src=0)
    dist.broadcast_object_list(["text"], src=0)
    assert [event.get("integers") for event in recording.of_kind("collective")] == [None, None, True, True, True]
    assert [broadcast[name] for name in told] == ["broadcast_", 8, 2, None, [0], "c10d", None, None]
    assert reduced["where"][0].endswith("test_collectives.py")
    assert reduced["where"][2] == "test_the_fields_of_a_collective"


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("make", ["before", "inside"])
def test_inference_mode(record, make):
    """Collectives are seen in the mode, also for tensors made in it."""
    recording = record()
    x = torch.ones(3)
    with torch.inference_mode():
        dist.all_reduce(x if make == "before" else torch.ones(3))
        dist.barrier()
    assert [op for op, _, _ in operations(recording)] == ["allreduce_", "barrier"]


@pytest.mark.usefixtures("group")
def test_sparse_tensors(record):
    recording = record()
    with torch.sparse.check_sparse_tensor_invariants(True):
        dist.all_reduce(torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,)))
    assert [op for op, _, _ in operations(recording)] == ["allreduce_"]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("as_view", [False, True])
def test_ddp_carries_parameters_and_gradients(record, as_view):
    """DDP uses its own buffers. The first broadcast of its construction carries sizes, and its search for unused
    parameters carries integers."""
    recording = record()
    model = DistributedDataParallel(
        recording.task.model(), find_unused_parameters=True, gradient_as_bucket_view=as_view
    )
    assert [event["elements"] for event in recording.of_kind("collective") if event["of"] == "parameters"] == [3]
    assert len(recording.of_kind("collective")) > 1
    batch = next(iter(recording.task.dataloader()))
    recording.task.loss(model(batch.inputs), batch).backward()
    trained = [event for event in recording.of_kind("collective") if event["phase"] == "training"]
    assert [(event["of"], event["elements"], event["reduce"], event["during"]) for event in trained] == [
        ("gradients", 3, "sum", "backward"),
        (None, 2, "sum", "backward"),
    ]


@pytest.mark.usefixtures("group")
def test_ddps_communication_hooks_carry_gradients(record):
    """A Python hook issues collectives itself, here with compressed copies."""
    recording = record()
    model = DistributedDataParallel(recording.task.model())
    model.register_comm_hook(None, fp16_compress_hook)
    assert model._comm_hooks == [(fp16_compress_hook, None)]
    batch = next(iter(recording.task.dataloader()))
    recording.task.loss(model(batch.inputs), batch).backward()
    last = recording.of_kind("collective")[-1]
    assert (last["of"], last["bytes"], last["elements"], last["during"]) == ("gradients", 6, 3, "backward")


def in_place(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)


def all_in_one(parameters):
    buffer = torch.cat([parameter.grad.flatten() for parameter in parameters]) / dist.get_world_size()
    dist.all_reduce(buffer)
    for parameter, average in zip(parameters, buffer.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(average.view_as(parameter))


def compressed(parameters):
    for parameter in parameters:
        half = parameter.grad.half()
        dist.all_reduce(half)
        parameter.grad = half.float()


def asynchronously(parameters):
    works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
    for work in works:
        work.wait()


def functionally(parameters):
    for parameter in parameters:
        parameter.grad.copy_(all_reduce(parameter.grad, "sum", dist.group.WORLD))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("average", [in_place, all_in_one, compressed, asynchronously, functionally])
def test_averaging_by_hand(with_model, average):
    """Every way of averaging carries gradients and is no change of them by hand."""
    recording, model = with_model()
    batch = next(iter(recording.task.dataloader()))
    recording.task.loss(model(batch.inputs), batch).backward()
    average(list(model.parameters()))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    dist.all_reduce(torch.tensor([1.0, 2.0, 5.0]))
    assert {event["of"] for event in recording.of_kind("collective")[:-1]} == {"gradients"}
    assert recording.of_kind("collective")[-1]["of"] is None
    assert recording.of_kind("gradient_change") == []
    dist.broadcast(model.weight.data, src=0)
    assert recording.of_kind("collective")[-1]["of"] == "parameters"


@pytest.mark.usefixtures("group")
def test_nothing_is_seen_after_the_recorder_has_ended(record):
    recording = record()
    recording.recorder.__exit__(None, None, None)
    dist.all_reduce(torch.ones(3))
    assert recording.of_kind("collective") == []


@pytest.mark.usefixtures("group")
def test_topology_is_that_of_the_process_group(record):
    recording = record()
    recording.recorder.finished()
    [topology] = recording.of_kind("topology")
    assert (topology["world_size"], topology["via"]) == (1, "torch.distributed")


def test_a_process_group_outlives_its_destruction(record, group):
    """If DDP's reducer frees it, the process sometimes hangs."""
    recording = record()
    dist.all_reduce(torch.ones(1))
    assert recording.recorder._groups == {dist.group.WORLD}


def test_a_reduction_that_torch_hides_from_python():
    """torch 2.6 boxes it in an object without methods."""
    assert reduction(object()) == "unknown"


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
    """Blocking, asynchronous, in a batch, with a tag, from any rank, and in a group with other rank numbers."""
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


def test_payloads_of_messages():
    """Gradients and parameters by their memory, flat copies, and pieces of a copy until the next forward."""
    for events in ranks("carries"):
        told = [(event["event"], event["of"], event["elements"]) for event in messages(events)]
        assert told == [
            ("send", "parameters", 2), ("receive", "parameters", 2),
            ("send", "gradients", 2), ("receive", "gradients", 2),
            ("send", "gradients", 3), ("receive", None, 3),
            ("send", "gradients", 1), ("receive", "gradients", 1),
            ("send", None, 3), ("receive", None, 3),
        ]  # fmt: skip


def test_earlier_contents_of_an_address_do_not_matter():
    """Freed memory is soon reused."""
    for events in ranks("reuses"):
        assert [(event["event"], event["of"]) for event in messages(events)] == [
            ("send", "parameters"), ("receive", None),
            ("send", None), ("receive", None),
            ("send", None), ("receive", None),
        ]  # fmt: skip


def test_a_gradient_change_spans_the_messages_in_between():
    """Otherwise a law would take it for a change by hand of one rank's gradients."""
    for events in ranks("averages"):
        [change] = [event for event in events if event["event"] == "gradient_change"]
        assert [event["event"] for event in messages(events) if change["since"] < event["seq"] < change["seq"]] == [
            "send",
            "receive",
        ]


def test_the_topology_is_noted_before_the_group_is_destroyed():
    """A worker that never steps has left the group when its function returns."""
    for rank, events in enumerate(ranks("averages")):
        [topology] = [event for event in events if event["event"] == "topology"]
        assert (topology["world_size"], topology["rank_reached"]) == (2, rank)
        assert not [event for event in events if event["event"] == "step"]


class Handle:
    pass


def issue(handles, kinds, memory):
    """Issues collectives of these kinds that write to `memory`; returns the trainer's handles."""
    issued = []
    for seq, kind in enumerate(kinds.split()):
        elsewhere = {
            "view": [memory[1:]],
            "other": [torch.zeros(2)],
            "barrier": [],
            "gpu": [torch.zeros(2, device="meta")],
        }
        issued.append({"functional": None, "number": 7}.get(kind, Handle()))
        handles.issuing()
        handles.noted(seq)
        group = "another" if kind == "group" else "world"
        handles.issued(issued[-1], group, elsewhere.get(kind, [memory]), ends_all=kind == "barrier")
    return issued


@pytest.mark.parametrize(
    ("kinds", "waits", "here", "elsewhere"),
    [
        ("own view other", [], [0, 1], [2]),
        # Handles are objects, or Horovod's numbers; waiting again has no effect.
        ("own own", [0, 0], [1], []),
        ("number", [0, 0], [], []),
        # A barrier ends the earlier collectives of its group.
        ("own group barrier own", [2], [1, 3], []),
        # On a GPU, streams decide.
        ("gpu", [], [], []),
    ],
)
def test_handles_that_nobody_has_waited_for(kinds, waits, here, elsewhere):
    """Those that write to the same memory, also through a view, but not to a later tensor at the same address."""
    handles, memory = Handles(), torch.zeros(2)
    issued = issue(handles, kinds, memory)
    for which in waits:
        handles.waited(issued[which])
    # A handle that was never issued.
    handles.waited(Handle())
    expected = {"unfinished": here, "unfinished_elsewhere": elsewhere}
    assert handles.unfinished([memory]) == {name: found for name, found in expected.items() if found}
    later = {"unfinished_elsewhere": sorted([*here, *elsewhere])} if here or elsewhere else {}
    assert handles.unfinished([torch.zeros(2)]) == later


def test_functional_collectives_are_waited_for_by_their_memory():
    """Waiting through any view ends all that write to the memory, except those with a handle of the trainer."""
    handles, memory = Handles(), torch.zeros(2)
    issue(handles, "functional functional own", memory)
    handles.waited_for(torch.zeros(2))
    assert handles.unfinished([memory]) == {"unfinished": [0, 1, 2]}
    handles.waited_for(memory[1:])
    assert handles.unfinished([memory]) == {"unfinished": [2]}


def test_a_collective_that_was_not_noted_is_unknown():
    """A backend may have operators that are not watched, so a call may note nothing."""
    handles, memory = Handles(), torch.zeros(2)
    handles.noted(0)
    handles.issuing()
    handles.issued(Handle(), "world", [memory])
    assert handles.unfinished([memory]) == {}
