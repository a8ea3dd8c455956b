"""Forking children that close what is not theirs, and ending them with everything that they started."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from conformance.runner.system import linux

_HARNESS_FAILED = 70


def fork(body: Callable[[], int]) -> int:
    """Run ``body`` in a child that leads its own session and dies with this process; returns its process id.

    What ``body`` returns is the child's exit code. The child leaves without Python's teardown.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = _HARNESS_FAILED
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


def answer_of_child(question: Callable[[], int]) -> int | None:
    """What ``question`` answers in a child, so that whatever it starts ends with that; None if it fails.

    The answer is the child's exit code: a number from 0 to 69.
    """
    _, status = os.waitpid(fork(question), 0)
    code = os.waitstatus_to_exitcode(status)
    return code if 0 <= code < _HARNESS_FAILED else None


def ended(pid: int) -> int | None:
    """The wait status of a child that has ended, once its process group was killed; None while it runs."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    kill(pid)
    return os.waitpid(pid, 0)[1]


def kill(pid: int) -> None:
    """Kill a child that was not waited for yet, and its process group."""
    os.kill(pid, signal.SIGKILL)
    # It may not lead a group yet, or its group may be empty; macOS says "not permitted" for the latter.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_and_reap(pid: int) -> None:
    kill(pid)
    os.waitpid(pid, 0)


def sweep(spared: set[int]) -> None:
    """Kill and reap all children but ``spared``: what ranks had started, and what outlived them."""
    while strangers := linux.children() - spared:
        for pid in strangers:
            kill_and_reap(pid)
