"""How Linux keeps track of children. On other systems these functions do nothing, and less is cleaned up."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 4
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which started it, has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of any descendant that loses its own, so that `children` shows it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """The process ids of this process's children, including those that ended but were not waited for."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return set()
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def is_exiting(pid: int) -> bool:
    """Whether a process has begun to exit; its connections may still be open. False if nothing is known of it."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state in "ZX" or bool(int(fields[5]) & _PF_EXITING)


def gather_memory() -> None:
    """Move this process's memory into huge pages, if the kernel can (Linux 6.1 and later).

    A fork copies the page table, and the end of the child frees it. With torch's quarter of a gigabyte, that is most
    of the cost of a short-lived process.
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
                # An older kernel refuses, and so does one that has no free huge pages; small pages work too.
                madvise(first, end - first, _MADV_COLLAPSE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
