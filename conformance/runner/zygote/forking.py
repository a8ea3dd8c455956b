"""Checks whether this process can be forked into clean ranks, and counts GPUs without starting CUDA in it.

`conformance.runner.zygote.trainer_importer` checks after it has imported a trainer. If forks are unsafe,
`conformance.runner.zygote.server` starts ranks in fresh interpreters, and reports why."""

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

_SETTLE = 0.2
"""Seconds."""


@dataclass(frozen=True)
class Unsafe:
    """The reason why a fork is unsafe, and the work that a trainer should do later instead."""

    what: str
    instead: str


def why_not_fork() -> Unsafe | None:
    """Why forking this process is unsafe; None if it is safe.

    A forked child has only the thread that forked, so a lock that another thread held is never released. CUDA and the
    connections of a process group do not survive a fork.
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
    """Names of the other threads, after a short wait because a joined thread disappears with a delay."""
    deadline = monotonic() + _SETTLE
    while (threads := _threads_now()) and monotonic() < deadline:
        sleep(_SETTLE / 20)
    return threads


def _threads_now() -> list[str]:
    """Names of the other threads now; native threads by the kernel's names."""
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

    A query of the CUDA runtime for the number of devices causes that, and only a child can detect it. Without NVML,
    `torch.cuda.is_available()` makes that query, and many trainers call it on import. Without a GPU it does no harm.
    """
    if torch.version.cuda is None:
        return False
    if torch.cuda.is_initialized():
        return True
    # Another query of the runtime does no more harm.
    return answer_of_child(torch.cuda._is_in_bad_fork) != 0 and torch.cuda.device_count() > 0


def gpus() -> dict[str, Any]:
    """{"devices": number of CUDA devices that ranks can use, "reason": why there are none, or None}."""
    if torch.version.cuda is None:
        return {"devices": 0, "reason": f"torch {torch.__version__} is built without CUDA"}
    # In a child, because without NVML, as on a machine without a driver, torch's query starts CUDA.
    count = answer_of_child(torch.cuda.device_count)
    if count is None:
        return {"devices": 0, "reason": "torch cannot count the CUDA devices: torch.cuda.device_count() fails"}
    return {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}
