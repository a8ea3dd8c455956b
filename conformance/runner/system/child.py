"""Child processes: fork them, wait for them, and end them together with everything that they started."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn

from conformance.runner.system import linux

#: Seconds between two looks at a child where the kernel cannot report its end.
POLL = 0.01
#: The exit code of a child whose body raised.
HARNESS_FAILED = 70


class Child:
    """A forked process that leads its own session and dies with this one.

    Attributes:
        descriptor: readable once it has ended; None where the kernel has no pidfd, and after `close`.
        status: its wait status, once it was waited for.
    """

    def __init__(self, body: Callable[[], int]) -> None:
        """``body`` returns the exit code. The child exits without Python's teardown."""
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            _become(body, parent)
        self.descriptor = _pidfd(self.pid)
        self.status: int | None = None

    def poll(self) -> int | None:
        """Its wait status, once it has ended and its process group was killed; None while it runs."""
        if self.status is None and self._has_ended:
            self.end()
        return self.status

    def kill(self) -> None:
        """Kill it, unless it has ended, and its process group."""
        if self.status is None:
            _kill(self.pid)

    def end(self, patience: float | None = 0.0) -> int:
        """Wait ``patience`` seconds for its end (None: without limit), kill it and what it has started, and return its
        wait status.
        """
        if self.status is None:
            self.wait(patience)
            self.status = _kill_and_reap(self.pid)
            self.close()
        return self.status

    def wait(self, patience: float | None) -> bool:
        """Whether it ends within ``patience`` seconds."""
        if self.status is not None:
            return True
        if self.descriptor is not None:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            return bool(poll.poll(None if patience is None else patience * 1000))
        deadline = None if patience is None else monotonic() + patience
        while not self._has_ended:
            if deadline is not None and monotonic() >= deadline:
                return False
            sleep(POLL)
        return True

    def close(self) -> None:
        """Close the descriptor; other children, which inherit it, call this too."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    @property
    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def answer_of_child(question: Callable[[], int]) -> int | None:
    """Call ``question`` in a child, so that whatever it starts ends with the child; None if it fails.

    The answer is the child's exit code, from 0 to 69.
    """
    code = os.waitstatus_to_exitcode(Child(question).end(None))
    return code if 0 <= code < HARNESS_FAILED else None


def sweep(spared: set[int]) -> None:
    """Kill and reap all children except ``spared``: processes that a rank or an import started and that outlived it."""
    while leftovers := linux.children() - spared:
        for pid in leftovers:
            _kill_and_reap(pid)


def _become(body: Callable[[], int], parent: int) -> NoReturn:
    code = HARNESS_FAILED
    try:
        os.setsid()
        linux.die_with_parent(parent)
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _pidfd(pid: int) -> int | None:
    """None on systems other than Linux, before Linux 5.3, and in a sandbox that forbids it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # It may not lead a group yet, or its group may be empty; macOS says "not permitted" for the latter.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _kill_and_reap(pid: int) -> int:
    _kill(pid)
    return os.waitpid(pid, 0)[1]
