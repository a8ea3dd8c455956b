"""The outcome of a stopped rank has its earlier reports, but no exception caused by the stop of its peers."""

from __future__ import annotations

import os
import socket

import pytest
from torch.utils.file_baton import FileBaton

from conformance.runner.case.launched import Worker
from conformance.runner.case.rank_process import RankProcess
from conformance.runner.rank.preparing import report_locks
from conformance.runner.rank.reporting import Sender
from conformance.runner.system.descriptors import Descriptors
from conformance.runner.system.protocol import Channel

LIMIT = "at the time limit of 3 s"
STARTED = {"event": "started", "rank": 0, "seq": 0, "pid": 7}
RAISED = {
    "event": "raised",
    "rank": 0,
    "seq": 1,
    "type": "RuntimeError",
    "message": "Connection closed by peer",
    "traceback": "",
    "at": 1.0,
}


@pytest.fixture(params=["process", "worker"])
def rank(request):
    """A rank that has started and raised, before any of its reports are read."""
    yield from forked() if request.param == "process" else entered()


def forked():
    descriptors = Descriptors()
    hold, release = descriptors.pipe()
    has_raised, raised = descriptors.pipe()

    def become(pipes):
        descriptors.close(release)
        send = Sender(pipes.evidence, pipes.notices)
        send(STARTED)
        send(RAISED)
        os.write(raised, b"x")
        os.read(hold, 1)
        return 1

    process = RankProcess(0, descriptors, hold, become)
    os.read(has_raised, 1)
    yield process
    process.child.end()
    descriptors.close_all_but(())


def entered():
    server, worker = map(Channel, socket.socketpair())
    rank = Worker(0)
    assert rank.enter(server, {})
    worker.send(STARTED)
    worker.send(RAISED)
    yield rank
    rank.close()
    worker.close()


def end(rank):
    if isinstance(rank, RankProcess):
        rank.child.end(None)
    while rank.read():
        continue


def test_an_exception_after_a_rank_was_stopped_is_not_its_failure(rank):
    """It raises because its peers were stopped just before."""
    rank.kill(LIMIT)
    end(rank)
    outcome = rank.outcome(None)
    assert [event["event"] for event in outcome.events] == ["started"]
    assert (rank.failure, outcome.exit) == (None, f"killed {LIMIT}")


def test_an_exception_before_a_rank_was_stopped_is_its_failure(rank):
    rank.read()
    rank.kill("after rank 0 failed")
    end(rank)
    outcome = rank.outcome(0)
    assert [event["event"] for event in outcome.events] == ["started", "raised"]
    assert rank.failure is not None


@pytest.mark.parametrize("waits", [False, True])
def test_a_rank_builds_while_it_has_the_lock_or_waits_for_it(tmp_path, waits):
    """Meanwhile the time limit of its case does not count, see `test_supervision`."""
    baton = FileBaton(str(tmp_path / "lock"))
    descriptors = Descriptors()
    hold, release = descriptors.pipe()

    def become(pipes):
        descriptors.close(release)
        report_locks(Sender(pipes.evidence, pipes.notices).notify)
        if waits:
            baton.wait()
        else:
            baton.try_acquire()
            os.read(hold, 1)
            baton.release()
        return 0

    if waits:
        baton.try_acquire()
    rank = RankProcess(0, descriptors, hold, become)
    while not rank.is_building:
        rank.read()
    if waits:
        baton.release()
    descriptors.close(release)
    while rank.read():
        continue
    assert not rank.is_building
    assert rank.child.end(None) == 0
    descriptors.close_all_but(())
