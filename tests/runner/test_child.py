"""Children's ends are noticed and they leave nothing behind, with and without pidfds."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from conformance.runner.system.child import Child


@pytest.fixture(params=["with a descriptor", "without"], autouse=True)
def kernel(request, monkeypatch):
    if request.param == "without":

        def refuse(pid):
            raise PermissionError

        monkeypatch.setattr(os, "pidfd_open", refuse)


def hang():
    threading.Event().wait()
    return 0


def test_a_child_that_leaves():
    child = Child(lambda: 3)
    assert os.waitstatus_to_exitcode(child.end(None)) == 3
    assert child.poll() == child.status == child.end()
    assert child.descriptor is None


def test_a_child_is_killed_with_everything_it_started():
    read, write = os.pipe()

    def body():
        if os.fork() == 0:
            os.write(write, b"x")
            hang()
        return hang()

    child = Child(body)
    os.close(write)
    assert os.read(read, 1) == b"x"
    assert child.poll() is None
    child.kill()
    assert os.waitstatus_to_exitcode(child.end(None)) == -signal.SIGKILL
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_child_is_killed_after_the_patience():
    child = Child(hang)
    assert os.waitstatus_to_exitcode(child.end(0.01)) == -signal.SIGKILL


def test_a_childs_end_can_be_waited_for():
    child = Child(lambda: 0)
    if child.descriptor is not None:
        select.select([child.descriptor], [], [])
        assert child.poll() == 0
    child.end(None)
