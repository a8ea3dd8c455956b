"""Cases that go well: every rank runs, delivers in full, and leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.runner.front.client import ForkServer, Outcome

LIMIT = 60.0
Write = Callable[..., str]
MakeSpec = Callable[..., dict[str, Any]]


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


def weights(outcome: Outcome) -> list[Any]:
    return [rank.events[-1]["weights"] for rank in outcome.ranks]


@pytest.mark.parametrize(("backend", "world_size"), [("single", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4)])
def test_every_rank_delivers(write: Write, make_spec: MakeSpec, backend: str, world_size: int) -> None:
    with ForkServer(write("print('rank', task.rank)"), backend) as server:
        outcome = server.run(make_spec(backend, world_size), LIMIT)
    assert not outcome.timed_out
    assert [rank.rank for rank in outcome.ranks] == list(range(world_size))
    for rank in outcome.ranks:
        assert rank.finished
        assert rank.exit == "exited 0"
        assert rank.output == f"rank {rank.rank}\n"
        assert rank.stack is None
        kinds = [event["event"] for event in rank.events]
        assert kinds[0] == "started"
        assert kinds[-1] == "finished"
        assert kinds.count("step") == 3
        assert [event["seq"] for event in rank.events] == list(range(len(kinds)))
        assert {event["rank"] for event in rank.events} == {rank.rank}
    assert len(set(map(str, weights(outcome)))) == 1


def test_accumulation_reaches_the_same_weights(write: Write, make_spec: MakeSpec) -> None:
    """Two ranks read in one micro-batch each what one rank reads in two."""
    target = write()
    with ForkServer(target, "ddp") as ddp, ForkServer(target, "single") as single:
        together = ddp.run(make_spec("ddp", 2), LIMIT)
        alone = single.run(make_spec("single", 1, accumulation=2), LIMIT)
    assert weights(together)[0] == weights(alone)[0]


@pytest.mark.parametrize("world_size", [1, 2])
def test_horovod_ranks_deliver(horovod: Write, make_spec: MakeSpec, world_size: int) -> None:
    with ForkServer(horovod("print(hvd.rank(), hvd.size(), hvd.local_rank())"), "horovod") as server:
        outcome = server.run(make_spec("horovod", world_size), LIMIT)
        assert server.versions["horovod"]
    for rank in outcome.ranks:
        assert rank.finished, rank
        assert rank.exit == "exited 0"
        # Gloo may add a line about a peer that left first.
        assert rank.output.startswith(f"{rank.rank} {world_size} {rank.rank}\n")


def test_ddp_and_horovod_agree(write: Write, horovod: Write, make_spec: MakeSpec) -> None:
    with ForkServer(write(), "ddp") as ddp, ForkServer(horovod(), "horovod") as hvd:
        assert weights(ddp.run(make_spec("ddp"), LIMIT)) == weights(hvd.run(make_spec("horovod"), LIMIT))


def test_the_server_knows_the_trainer(write: Write) -> None:
    with ForkServer(write(), "ddp") as server:
        assert server.declaration.backends == ("single", "ddp")
        assert server.why_slow is None
        assert {"python", "torch"} <= server.versions.keys()


def test_a_single_process_may_set_up_a_group(write: Write, make_spec: MakeSpec) -> None:
    """As frameworks do that always have one; also a second time."""
    group = """
    for _ in range(2):
        dist.init_process_group("gloo")
        model = wrapped = torch.nn.parallel.DistributedDataParallel(model)
        dist.barrier()
        print(dist.get_world_size(), dist.get_rank(), os.environ["LOCAL_WORLD_SIZE"])
        model = wrapped = model.module
        dist.destroy_process_group()
    """
    with ForkServer(write(group, "import os"), "single") as server:
        (rank,) = server.run(make_spec("single", 1), LIMIT).ranks
    assert (rank.finished, rank.output) == (True, "1 0 1\n" * 2)


def test_tcp_rendezvous_reaches_the_same_store(write: Write, make_spec: MakeSpec) -> None:
    with ForkServer(write(template=TCP_RENDEZVOUS), "ddp") as server:
        outcome = server.run(make_spec("ddp"), LIMIT)
    assert [rank.output for rank in outcome.ranks] == ["[1.0]\n", "[1.0]\n"]
    assert all(rank.finished for rank in outcome.ranks)


def test_a_process_group_may_be_set_up_again(write: Write, make_spec: MakeSpec) -> None:
    target = write(
        """
        for _ in range(3):
            dist.destroy_process_group()
            dist.init_process_group("gloo")
            wrapped = torch.nn.parallel.DistributedDataParallel(model)
        """
    )
    with ForkServer(target, "ddp") as server:
        outcome = server.run(make_spec("ddp"), LIMIT)
    assert all(rank.finished for rank in outcome.ranks), outcome


def test_values_that_are_not_finite_arrive_as_text(write: Write, make_spec: MakeSpec) -> None:
    target = write("with torch.no_grad(): model.weight.fill_(float('nan'))")
    with ForkServer(target, "ddp") as server:
        outcome = server.run(make_spec("ddp"), LIMIT)
    assert weights(outcome) == [["nan"], ["nan"]]


def test_much_evidence_and_much_output(write: Write, make_spec: MakeSpec) -> None:
    """More than a pipe holds, and more than is kept of what was printed."""
    target = write("for line in range(20000): print('line', line)")
    spec = make_spec("single", 1)
    spec["steps"], spec["epochs"] = 2000, [0] * 2000
    with ForkServer(target, "single") as server:
        (rank,) = server.run(spec, LIMIT).ranks
    assert rank.finished
    assert sum(event["event"] == "step" for event in rank.events) == 2000
    assert rank.output.endswith("line 19999\n")
    assert len(rank.output) == 20_000
