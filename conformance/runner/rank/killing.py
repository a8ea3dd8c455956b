"""Kills a rank while it saves, as `kill -9` would, at a place that is the same in each run.

Once a checkpoint is whole and another window was stepped, no file may grow beyond a few bytes: the system ends the
process in the write that would make one larger. What it has written until then stays in the file, and nothing in the
process has its turn any more.
"""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: How a process ends that is killed so.
KILLED = "killed by SIGXFSZ"

#: Bytes. A file that only names another one may be smaller, but nothing that holds weights is.
LARGEST = 64

Send = Callable[[Mapping[str, Any]], None]


def killed_in_save(send: Send, spec: Mapping[str, Any], rank: int) -> Send:
    """``send``, which also has this process killed where the case asks for that. Rank 0 alone is: the others find out
    that it is gone, after they have saved what is theirs to save. Call it in the main thread.
    """
    life = spec.get("life") or {}
    if spec.get("resumed") != "killed" or rank or life["checkpoint_dir"] is None:
        return send
    folder, whole = Path(life["checkpoint_dir"]), life["save_after"][0]
    _, hard = unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Python ignores it, so that writes fail instead.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # A model may have several optimizers, which all step in each window.
    steps, is_armed = Counter[int](), False

    def counting(event: Mapping[str, Any]) -> None:
        nonlocal is_armed
        if is_armed:
            # The evidence has no such limit.
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        send(event)
        if event["event"] in ("step", "skip"):
            steps[event["optimizer"]] += 1
            is_armed |= max(steps.values()) > whole and _has_checkpoint(folder)
        if is_armed:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, hard))

    return counting


def _has_checkpoint(folder: Path) -> bool:
    # A thread of the trainer's may rename a file meanwhile.
    with suppress(FileNotFoundError):
        return any(path.is_file() and path.stat().st_size > LARGEST for path in folder.rglob("*"))
    return False
