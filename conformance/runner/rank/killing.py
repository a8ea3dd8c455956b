"""Kills a rank while it saves, as `kill -9` would, at the same place in each run.

After the first complete checkpoint and one more window, a file size limit of a few bytes applies: the system ends the
process in the first write beyond it. Earlier writes stay in the file, and no more code of the process runs. For a kill
between two files, the limit starts after the first file.
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

#: The `exit` of a process that was killed like this.
KILLED = "killed by SIGXFSZ"

BETWEEN_FILES = "killed-between-files"
#: The kinds of `conformance.cases.case.Resumed` that kill the processes of a case's first life.
KILLS = ("killed", BETWEEN_FILES)

#: Bytes. A file that only names another one may be smaller, a file with weights may not.
LARGEST = 64

Send = Callable[[Mapping[str, Any]], None]


def killed_in_save(send: Send, spec: Mapping[str, Any], rank: int) -> Send:
    """``send``, which also gets this process killed if the case wants that. Only rank 0 is killed; the others first
    save their parts, and then find it gone. Call this in the main thread.
    """
    life = spec.get("life") or {}
    if spec.get("resumed") not in KILLS or rank or life["checkpoint_dir"] is None:
        return send
    folder, whole = Path(life["checkpoint_dir"]), life["save_after"][0]
    _, hard = unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Python ignores this signal by default, and then the write would fail instead.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # Counted per optimizer, because several optimizers of a model all step in each window.
    steps, is_armed = Counter[int | None](), False
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (LARGEST, hard))
    first_file = _FirstFile(folder, then=limit)

    def counting(event: Mapping[str, Any]) -> None:
        nonlocal is_armed
        if is_armed:
            # The evidence may grow.
            sys.setprofile(None)
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        send(event)
        # Steps without a torch optimizer are visible as reports.
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
    """The next file that this process writes in a folder; ``then`` is called when it is complete."""

    def __init__(self, folder: Path, then: Callable[[], None]) -> None:
        self._folder, self._then = folder, then
        self.expect()

    def expect(self) -> None:
        """Ignore all files until now."""
        self._before, self.is_whole = _files(self._folder), False

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function for `sys.setprofile`, which checks the files whenever a function returns."""
        if not event.endswith("return"):
            return
        written = [path for path, state in _files(self._folder).items() if self._before.get(path) != state]
        if written and not {os.path.realpath(path) for path in written} & _open_files():
            sys.setprofile(None)
            self.is_whole = True
            self._then()


def _files(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """The files that may contain weights, each with a state that changes when it is written."""
    found = {}
    # A thread of the trainer may rename a file meanwhile.
    with suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            if path.is_file() and (state := path.stat()).st_size > LARGEST:
                found[path] = state.st_ino, state.st_size, state.st_mtime_ns
    return found


def _open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is closed by now.
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
