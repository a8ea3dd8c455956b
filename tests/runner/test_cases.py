"""Successful cases: every rank runs, delivers and leaves."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer

LIMIT = 60.0

TCP_RENDEZVOUS = """
import os
import torch
import torch.distributed as dist
from conformance import Task, trainer

@trainer(backends=["ddp"])
def train(task: Task) -> None:
    task.model()
    address = "tcp://" + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
    dist.init_process_group("gloo", address, rank=task.rank, world_size=task.world_size)
    reduced = torch.tensor([float(task.rank)])
    dist.all_reduce(reduced)
    print(reduced.tolist())
"""
# Some frameworks always create a group, even for one process, and again.
GROUP_OF_ONE = """
for _ in range(2):
    dist.init_process_group("gloo")
    model = wrapped = torch.nn.parallel.DistributedDataParallel(model)
    dist.barrier()
    print(dist.get_world_size(), dist.get_rank(), os.environ["LOCAL_WORLD_SIZE"])
    model = wrapped = model.module
    dist.destroy_process_group()
"""
GROUP_AGAIN = """
for _ in range(3):
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
print("again")
"""


def weights(outcome):
    return [rank.events[-1]["weights"] for rank in outcome.ranks]


@pytest.mark.parametrize(("backend", "world_size"), [("single", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4)])
def test_every_rank_delivers(write, ran, backend, world_size):
    outcome = ran(write("print('rank', task.rank)"), backend, world_size)
    assert not outcome.timed_out
    assert [rank.rank for rank in outcome.ranks] == list(range(world_size))
    for rank in outcome.ranks:
        assert (rank.finished, rank.exit, rank.stack) == (True, "exited 0", None)
        assert rank.output == f"rank {rank.rank}\n"
        kinds = [event["event"] for event in rank.events]
        assert (kinds[0], kinds[-1], kinds.count("step")) == ("started", "finished", 3)
        assert [event["seq"] for event in rank.events] == list(range(len(kinds)))
        assert {event["rank"] for event in rank.events} == {rank.rank}
    assert len(set(map(str, weights(outcome)))) == 1


def test_accumulation_reaches_the_same_weights(write, make_spec, ran):
    """Two ranks with one micro-batch each read the same samples as one rank with two."""
    target = write()
    with ForkServer(target, "single") as single:
        alone = single.run(make_spec("single", 1, accumulation=2), LIMIT)
    assert weights(ran(target))[0] == weights(alone)[0]


@pytest.mark.parametrize("world_size", [1, 2])
def test_horovod_ranks_deliver(write, horovod, make_spec, ran, world_size):
    with ForkServer(horovod("print(hvd.rank(), hvd.size(), hvd.local_rank())"), "horovod") as server:
        outcome = server.run(make_spec("horovod", world_size), LIMIT)
        assert server.versions["horovod"]
    for rank in outcome.ranks:
        assert (rank.finished, rank.exit) == (True, "exited 0"), rank
        # Gloo may add a line about a peer that left first.
        assert rank.output.startswith(f"{rank.rank} {world_size} {rank.rank}\n")
    if world_size == 2:
        assert weights(outcome) == weights(ran(write()))


def test_the_server_knows_the_trainer(write):
    with ForkServer(write(), "ddp") as server:
        assert (server.declaration.backends, server.why_slow) == (("single", "ddp"), None)
        assert {"python", "torch"} <= server.versions.keys()


@pytest.mark.parametrize(
    ("inside", "template", "backend", "printed"),
    [
        (GROUP_OF_ONE, {}, "single", "1 0 1\n" * 2),
        (GROUP_AGAIN, {}, "ddp", "again\n"),
        ("", {"template": TCP_RENDEZVOUS}, "ddp", "[1.0]\n"),
    ],
    ids=["of one process", "again", "by tcp"],
)
def test_process_groups_that_a_trainer_sets_up(write, ran, inside, template, backend, printed):
    outcome = ran(write(inside, "import os", **template), backend)
    assert {(rank.finished, rank.output) for rank in outcome.ranks} == {(True, printed)}


def test_non_finite_values_arrive_as_text(alone):
    assert alone("with torch.no_grad(): model.weight.fill_(float('nan'))").events[-1]["weights"] == ["nan"]


def test_much_evidence_and_much_output(write, make_spec):
    """More than fits into a pipe, and more output than is kept."""
    spec = make_spec("single", 1)
    spec["steps"], spec["epochs"] = 2000, [0] * 2000
    with ForkServer(write("for line in range(20000): print('line', line)"), "single") as server:
        (rank,) = server.run(spec, LIMIT).ranks
    assert rank.finished
    assert sum(event["event"] == "step" for event in rank.events) == 2000
    assert rank.output.endswith("line 19999\n")
    assert len(rank.output) == 20_000
