"""The warm pool: ranks that stay up from run to run, and are replaced when one of them fails."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.pool import Pool

LIMIT = 60.0
Write = Callable[..., str]
MakeSpec = Callable[..., dict[str, Any]]

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
def target(write: Write) -> str:
    """Fails in the way that the name of the case asks for, on rank 1."""
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


def pids(outcome: Any) -> list[int]:
    return [rank.events[0]["pid"] for rank in outcome.ranks]


def without_time(events: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key not in ("time", "pid")} for event in events]


def test_every_run_is_whole_and_in_the_same_processes(target: str, make_spec: MakeSpec) -> None:
    with Pool(target, "ddp", 2) as pool:
        outcomes = [pool.run(make_spec("ddp"), LIMIT) for _ in range(3)]
    assert pool.restarts == 0
    first = outcomes[0]
    for outcome in outcomes:
        assert not outcome.timed_out
        assert pids(outcome) == pids(first)
        for rank, one in zip(outcome.ranks, first.ranks, strict=True):
            assert rank.finished
            assert rank.exit == "exited 0"
            assert (rank.events[0]["event"], rank.events[-1]["event"]) == ("started", "finished")
            assert [event["seq"] for event in rank.events] == list(range(len(rank.events)))
            weights = [event["weights"] for event in rank.events if event["event"] == "step"]
            assert weights == [event["weights"] for event in one.events if event["event"] == "step"]


def test_a_run_knows_nothing_of_the_one_before(target: str, make_spec: MakeSpec) -> None:
    with Pool(target, "ddp", 2) as pool:
        pool.run({**make_spec("ddp"), "precision": "fp64"}, LIMIT)
        second = pool.run(make_spec("ddp"), LIMIT)
        third = pool.run(make_spec("ddp"), LIMIT)
    assert [without_time(rank.events) for rank in second.ranks] == [without_time(rank.events) for rank in third.ranks]


@pytest.mark.parametrize(
    ("what", "limit", "exit"),
    [("raises", LIMIT, "exited 1 before it finished"), ("dies", LIMIT, "exited 3 before it finished")],
)
def test_a_rank_that_fails_costs_the_pool_its_ranks(
    target: str, make_spec: MakeSpec, what: str, limit: float, exit: str
) -> None:
    with Pool(target, "ddp", 2) as pool:
        before = pool.run(make_spec("ddp"), limit)
        failed = pool.run({**make_spec("ddp"), "case": what}, limit)
        after = pool.run(make_spec("ddp"), limit)
    assert not failed.timed_out
    assert failed.ranks[1].exit == exit
    assert not failed.ranks[1].finished
    assert (failed.ranks[1].events[-1]["event"] == "raised") == (what == "raises")
    assert pool.restarts == 1
    assert all(rank.finished for rank in (*before.ranks, *after.ranks))
    assert not set(pids(before)) & set(pids(after))


def test_a_rank_that_hangs_is_killed(target: str, make_spec: MakeSpec) -> None:
    with Pool(target, "ddp", 2) as pool:
        hung = pool.run({**make_spec("ddp"), "case": "hangs"}, 2.0)
        after = pool.run(make_spec("ddp"), LIMIT)
    assert hung.timed_out
    assert not hung.ranks[1].finished
    assert "SIGKILL" in hung.ranks[1].exit
    assert all(rank.finished for rank in after.ranks)


def test_a_rank_that_died_between_two_runs_does_not_keep_the_others_from_theirs(
    target: str, make_spec: MakeSpec
) -> None:
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


def test_nothing_stays_behind(target: str, make_spec: MakeSpec, descendants: Callable[[int], dict[int, Path]]) -> None:
    with Pool(target, "ddp", 2) as pool:
        ranks = [Path("/proc", str(pid)) for pid in pids(pool.run(make_spec("ddp"), LIMIT))]
        assert all(rank.exists() for rank in ranks)
    assert not any(rank.exists() for rank in ranks)
