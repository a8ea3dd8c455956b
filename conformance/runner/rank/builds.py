"""Builds of torch extensions, whose locks outlive a rank that is killed: every later build waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Notify: TypeAlias = Callable[[Mapping[str, Any]], None]


def report_locks(notify: Notify) -> None:
    """Have the server told which lock files this process holds, and which one it waits for."""
    baton: Any = import_module("torch.utils.file_baton").FileBaton
    acquire, release, wait = baton.try_acquire, baton.release, baton.wait

    def path(self: Any) -> str:
        return str(Path(self.lock_file_path).absolute())

    def try_acquire(self: Any) -> Any:
        acquired = acquire(self)
        if acquired:
            notify({"event": "locked", "path": path(self)})
        return acquired

    def release_and_report(self: Any) -> None:
        release(self)
        notify({"event": "unlocked", "path": path(self)})

    def wait_and_report(self: Any) -> None:
        notify({"event": "waits", "path": path(self)})
        wait(self)
        notify({"event": "waits", "path": None})

    baton.try_acquire, baton.release, baton.wait = try_acquire, release_and_report, wait_and_report
