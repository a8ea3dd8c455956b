"""The warm pool: ranks that continue from run to run, and are replaced when one of them fails."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from fixtures.pool import Pool

LIMIT = 60.0

KEEPS_ITS_GROUP = """
import os, threading
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from conformance import Task, trainer
{before}

@trainer(backends=["ddp"])
def train(task: Task) -> None:
    if not dist.is_initialized():
        dist.init_process_group(task.collective_backend)
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model.parameters())
{inside}
    for batch in task.dataloader():
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
"""


@pytest.fixture
def target(write):
    """A trainer whose rank 1 fails in the way named by the case."""
    return write(
        """
        what = task._spec["case"] if task.rank == 1 else ""
        if what == "raises":
            raise ValueError("no such luck")
        if what == "hangs":
            threading.Event().wait()
        if what == "dies":
            os._exit(3)
        """,
        template=KEEPS_ITS_GROUP,
    )


def pids(outcome):
    return [rank.events[0]["pid"] for rank in outcome.ranks]


def without_time(events):
    return [{key: value for key, value in event.items() if key not in ("time", "pid")} for event in events]


def test_every_run_is_complete_and_in_the_same_processes(target, make_spec, descendants):
    """An earlier run in another precision has no effect."""
    with Pool(target, "ddp", 2) as pool:
        first = pool.run({**make_spec("ddp"), "precision": "fp64"}, LIMIT)
        second, third = (pool.run(make_spec("ddp"), LIMIT) for _ in range(2))
    assert pool.restarts == 0
    for outcome in (first, second, third):
        assert (outcome.timed_out, pids(outcome)) == (False, pids(first))
        for rank in outcome.ranks:
            assert (rank.finished, rank.exit) == (True, "exited 0")
            assert (rank.events[0]["event"], rank.events[-1]["event"]) == ("started", "finished")
            assert [event["seq"] for event in rank.events] == list(range(len(rank.events)))
    assert [without_time(rank.events) for rank in second.ranks] == [without_time(rank.events) for rank in third.ranks]
    assert not any(Path("/proc", str(pid)).exists() for pid in pids(first))


@pytest.mark.parametrize(
    ("what", "limit", "exit"),
    [
        ("raises", LIMIT, "exited 1 before it finished"),
        ("dies", LIMIT, "exited 3 before it finished"),
        ("hangs", 2.0, "SIGKILL"),
    ],
)
def test_a_failed_rank_makes_the_pool_replace_all(target, make_spec, what, limit, exit):
    with Pool(target, "ddp", 2) as pool:
        before = pool.run(make_spec("ddp"), LIMIT)
        failed = pool.run({**make_spec("ddp"), "case": what}, limit)
        after = pool.run(make_spec("ddp"), LIMIT)
    assert (failed.timed_out, failed.ranks[1].finished, pool.restarts) == (what == "hangs", False, 1)
    assert exit in failed.ranks[1].exit
    assert (failed.ranks[1].events[-1]["event"] == "raised") == (what == "raises")
    assert all(rank.finished for rank in (*before.ranks, *after.ranks))
    assert not set(pids(before)) & set(pids(after))


def test_a_rank_that_died_between_two_runs_does_not_block_the_others(target, make_spec):
    with Pool(target, "ddp", 2) as pool:
        zero, _ = pids(pool.run(make_spec("ddp"), LIMIT))
        process = os.pidfd_open(zero)
        os.kill(zero, signal.SIGKILL)
        select.select([process], [], [])
        os.close(process)
        failed = pool.run(make_spec("ddp"), LIMIT)
    assert not failed.timed_out
    assert [rank.finished for rank in failed.ranks] == [False, False]
    assert failed.ranks[1].events[0]["event"] == "started"
