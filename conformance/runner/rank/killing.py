"""Kills a rank while it saves, as `kill -9` would, at a place that is the same in each run.

Once a checkpoint is whole and another window was stepped, no file may grow beyond a few bytes: the system ends the
process in the write that would make one larger. What it has written until then stays in the file, and nothing in the
process has its turn any more. To kill it between two files, the first one that it writes may grow.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

#: How a process ends that is killed so.
KILLED = "killed by SIGXFSZ"

BETWEEN_FILES = "killed-between-files"
#: The ways to end a case's first life that kill its processes, as `conformance.cases.case.Resumed` names them.
KILLS = ("killed", BETWEEN_FILES)

#: Bytes. A file that only names another one may be smaller, but nothing that holds weights is.
LARGEST = 64

Send = Callable[[Mapping[str, Any]], None]


def killed_in_save(send: Send, spec: Mapping[str, Any], rank: int) -> Send:
    """``send``, which also has this process killed where the case asks for that. Rank 0 alone is: the others find out
    that it is gone, after they have saved what is theirs to save. Call it in the main thread.
    """
    life = spec.get("life") or {}
    if spec.get("resumed") not in KILLS or rank or life["checkpoint_dir"] is None:
        return send
    folder, whole = Path(life["checkpoint_dir"]), life["save_after"][0]
    _, hard = unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Python ignores it, so that writes fail instead.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # A model may have several optimizers, which all step in each window.
    steps, is_armed = Counter[int | None](), False
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (LARGEST, hard))
    first_file = _FirstFile(folder, then=limit)

    def counting(event: Mapping[str, Any]) -> None:
        nonlocal is_armed
        if is_armed:
            # The evidence has no such limit.
            sys.setprofile(None)
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        send(event)
        # Of steps that no optimizer of torch's takes, there is a report.
        if event["event"] in ("step", "skip", "report"):
            steps[event.get("optimizer")] += 1
            is_armed |= max(steps.values()) > whole and bool(_files(folder))
            first_file.expect()
        if is_armed and spec["resumed"] == BETWEEN_FILES and not first_file.is_whole:
            sys.setprofile(first_file.look)
        elif is_armed:
            limit()

    return counting


class _FirstFile:
    """The next file that this process writes in a folder; ``then`` is called when it is whole."""

    def __init__(self, folder: Path, then: Callable[[], None]) -> None:
        self._folder, self._then = folder, then
        self.expect()

    def expect(self) -> None:
        """What there is by now is not it."""
        self._before, self.is_whole = _files(self._folder), False

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        """For `sys.setprofile`, which calls it whenever a function returns."""
        if not event.endswith("return"):
            return
        written = [path for path, state in _files(self._folder).items() if self._before.get(path) != state]
        if written and not {os.path.realpath(path) for path in written} & _open_files():
            sys.setprofile(None)
            self.is_whole = True
            self._then()


def _files(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Those that may hold weights, each with what changes when it is written."""
    found = {}
    # A thread of the trainer's may rename a file meanwhile.
    with suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            if path.is_file() and (state := path.stat()).st_size > LARGEST:
                found[path] = state.st_ino, state.st_size, state.st_mtime_ns
    return found


def _open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # That of the listing is closed by now.
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
