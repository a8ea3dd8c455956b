"""Starts processes: fresh interpreters, and children that end together with everything they started.

Only Linux tracks children; on other systems these calls do nothing, and some processes may stay.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 4
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its ``parent`` has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of any descendant that loses its own parent, for `children`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """The ids of this process's children, including those that have ended but were not waited for."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return set()
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def is_exiting(pid: int) -> bool:
    """Whether a process is exiting; its connections may still be open. False if nothing is known of it."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state in "ZX" or bool(int(fields[5]) & _PF_EXITING)


def gather_memory() -> None:
    """Move this process's memory into huge pages, if the kernel can (Linux 6.1 and later).

    A fork copies the page table, and the end of the child frees it. With torch's 250 MB, this is most of the cost of a
    short-lived process.
    """
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in maps.read_text().splitlines():
        extent, permissions, _, _, inode, *_ = line.split()
        first, end = (int(address, 16) for address in extent.split("-"))
        if permissions == "rw-p" and inode == "0":
            first, end = -(-first // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
            if first < end:
                # The call may fail in an older kernel or without free huge pages; small pages work too.
                madvise(first, end - first, _MADV_COLLAPSE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# `python -m` would put the current folder first, which may contain a user's own `torch/` or `types.py`.
_BOOT = "import gc, sys; gc.disable(); sys.path[:] = sys.argv[3:]; from {module} import main; main(*sys.argv[1:3])"


def fresh_python(module: str, first: str, second: str) -> list[str]:
    """The command line that calls ``main(first, second)`` of ``module`` with this process's ``sys.path``.

    The garbage collector is off, as the `gc` module advises for processes that fork: imports create hardly any garbage,
    and collecting it takes an eighth of their time. ``main`` must switch it on.
    """
    return [sys.executable, "-c", _BOOT.format(module=module), first, second, *map(str, sys.path)]


#: Seconds between checks of a child if the kernel cannot report its end.
POLL = 0.01
#: The exit code of a child whose body raised.
HARNESS_FAILED = 70


class Child:
    """A forked process that leads its own session and dies with this one.

    Attributes:
        descriptor: readable once it has ended; None if the kernel has no pidfd, and after `close`.
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
        """Its wait status, or None while it runs. If it has ended, kills its process group."""
        if self.status is None and self._has_ended:
            self.end()
        return self.status

    def kill(self) -> None:
        """Kill it and its process group, unless it has ended."""
        if self.status is None:
            _kill(self.pid)

    def end(self, patience: float | None = 0.0) -> int:
        """Wait ``patience`` seconds for its end (None: without limit), then kill it and its process group; returns its
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
    """Call ``question`` in a child, which takes everything it starts with it; None if it fails.

    The answer is the child's exit code, from 0 to 69.
    """
    code = os.waitstatus_to_exitcode(Child(question).end(None))
    return code if 0 <= code < HARNESS_FAILED else None


def sweep(spared: set[int]) -> None:
    """Kill and reap all children except ``spared``: processes that outlived the rank or import that started them."""
    while leftovers := children() - spared:
        for pid in leftovers:
            _kill_and_reap(pid)


def _become(body: Callable[[], int], parent: int) -> NoReturn:
    code = HARNESS_FAILED
    try:
        os.setsid()
        die_with_parent(parent)
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _pidfd(pid: int) -> int | None:
    """A pidfd of a process; None outside Linux, before Linux 5.3, and in a sandbox that forbids it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # It may not lead a group yet, or its group may be empty, for which macOS reports "not permitted".
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _kill_and_reap(pid: int) -> int:
    _kill(pid)
    return os.waitpid(pid, 0)[1]
