"""Whether this process can still be forked into ranks that start clean."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from time import monotonic

import torch
import torch.distributed

# Seconds.
_SETTLE = 0.2


def why_not_fork() -> str | None:
    """What makes forking this process unsafe, in words, or None.

    A forked child has only the thread that forked, so what another thread had locked stays locked for ever;
    CUDA and the connections of a process group do not survive a fork at all.
    """
    if threads := _other_threads():
        plural = "s" if len(threads) > 1 else ""
        return f"{len(threads)} thread{plural} running ({', '.join(threads)})"
    if _cuda_started():
        return "CUDA initialised"
    if torch.distributed.GroupMember.WORLD is not None:
        return "a process group of torch.distributed initialised"
    return None


def _other_threads() -> list[str]:
    """Names of the other threads that stay; one that was joined may take a moment to disappear."""
    deadline = monotonic() + _SETTLE
    while (threads := _threads_now()) and monotonic() < deadline:
        time.sleep(_SETTLE / 20)
    return threads


def _threads_now() -> list[str]:
    """Native threads go by the name that the kernel knows."""
    main = threading.main_thread()
    python = {thread.native_id: thread.name for thread in threading.enumerate() if thread is not main}
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return sorted(python.values())
    names = []
    for task in tasks.iterdir():
        number = int(task.name)
        with suppress(FileNotFoundError, ProcessLookupError):
            name = python.get(number) or (task / "comm").read_text().strip()
            names += [name] if number != os.getpid() else []
    return sorted(names)


def _cuda_started() -> bool:
    return bool(torch.cuda.is_initialized()) or _child_finds_cuda_spoilt()


def _child_finds_cuda_spoilt() -> bool:
    """Asking the driver how many devices there are is enough to spoil CUDA, and only a child can tell."""
    if torch.version.cuda is None:
        return False
    child = os.fork()
    if not child:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    _, status = os.waitpid(child, 0)
    return status != 0
