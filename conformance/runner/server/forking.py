"""Whether this process can still be forked into ranks that start clean."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
import torch.distributed

from conformance.runner.system.child import answer_of_child

# Seconds.
_SETTLE = 0.2


@dataclass(frozen=True)
class Unsafe:
    """What makes a fork unsafe, and what to do about it where the trainer causes it."""

    what: str
    instead: str


def why_not_fork() -> Unsafe | None:
    """What makes forking this process unsafe, or None.

    A forked child has only the thread that forked, so what another thread had locked stays locked for ever;
    CUDA and the connections of a process group do not survive a fork at all.
    """
    if threads := _other_threads():
        plural = "s" if len(threads) > 1 else ""
        return Unsafe(f"{len(threads)} thread{plural} running ({', '.join(threads)})", "Start threads")
    if _cuda_started():
        return Unsafe("CUDA initialised", "Use CUDA")
    if torch.distributed.GroupMember.WORLD is not None:
        return Unsafe("a process group of torch.distributed initialised", "Set it up")
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
    """Whether a child would find CUDA unusable, where there is a GPU to use.

    Asking the CUDA runtime how many devices there are is enough, and only a child can tell. `torch.cuda.is_available()`
    does so where there is no NVML, and many trainers call it on import; with no GPU that harms nothing.
    """
    if torch.version.cuda is None:
        return False
    if torch.cuda.is_initialized():
        return True
    # Asked once more, the runtime spoils nothing more.
    return answer_of_child(torch.cuda._is_in_bad_fork) != 0 and torch.cuda.device_count() > 0
