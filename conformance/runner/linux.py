"""What Linux offers for keeping track of children; elsewhere these do nothing, and less is cleaned up."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, the process that started it, is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of any descendant that loses its own, so that `children` shows it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """The process ids of this process's children, ended ones that were not waited for included."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return set()
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
