"""Whether this process can be forked into ranks that start clean, and counts GPUs without starting CUDA in it.

`conformance.runner.zygote.importer` asks after it has imported a trainer, and `conformance.runner.zygote.server` tells
why ranks are started by fresh interpreters instead."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

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
    """What makes forking this process unsafe; None if nothing does.

    A forked child has only the thread that forked, so a lock that another thread held is never released. CUDA and the
    connections of a process group do not survive a fork at all.
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
    """Names of the other threads; a joined thread disappears a little later."""
    deadline = monotonic() + _SETTLE
    while (threads := _threads_now()) and monotonic() < deadline:
        sleep(_SETTLE / 20)
    return threads


def _threads_now() -> list[str]:
    """Native threads have the names that the kernel knows."""
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
    """Whether a child could not use CUDA although there is a GPU.

    Asking the CUDA runtime for the number of devices is enough to cause that, and only a child can find out. Without
    NVML `torch.cuda.is_available()` asks it, and many trainers call that on import; without a GPU it does no harm.
    """
    if torch.version.cuda is None:
        return False
    if torch.cuda.is_initialized():
        return True
    # Asking the runtime once more does no further harm.
    return answer_of_child(torch.cuda._is_in_bad_fork) != 0 and torch.cuda.device_count() > 0


def gpus() -> dict[str, Any]:
    """{"devices": how many CUDA devices ranks can use, "reason": why there are none, or None}."""
    if torch.version.cuda is None:
        return {"devices": 0, "reason": f"torch {torch.__version__} is built without CUDA"}
    # Without NVML, as on a machine without a driver, torch asks the CUDA runtime, which starts CUDA.
    count = answer_of_child(torch.cuda.device_count)
    if count is None:
        return {"devices": 0, "reason": "torch cannot count the CUDA devices: torch.cuda.device_count() fails"}
    return {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}
