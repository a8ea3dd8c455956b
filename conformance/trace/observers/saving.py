"""Files that a rank begins to write in the folder of its checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced

#: What is told of each file that is opened, now.
_listeners: list[Callable[[object], None]] = []


def observe(recording: Recording) -> Seams:
    """Records `save`, of files that are written from their beginning."""
    if recording.life is None or recording.life["checkpoint_dir"] is None:
        return
    folder = Path(recording.life["checkpoint_dir"]).resolve()

    def note(file: object) -> None:
        if isinstance(file, str | bytes | os.PathLike):
            path = Path(os.fsdecode(file)).resolve()
            if path.is_relative_to(folder):
                recording.note("save", path=path.relative_to(folder).as_posix())

    def writer(original: Callable[[Any], Any], file: Any) -> Any:
        # It opens a file by itself, of which Python does not know.
        harmless(note)(file)
        return original(file)

    _listen()
    yield replaced(torch.serialization, "_open_zipfile_writer", writer)
    yield _told(harmless(note))


@contextmanager
def _told(listener: Callable[[object], None]) -> Any:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@cache
def _listen() -> None:
    """Once in a process: nothing takes an audit hook off."""

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and _listeners and isinstance(args[2], int) and args[2] & os.O_TRUNC:
            for listener in tuple(_listeners):
                listener(args[0])

    sys.addaudithook(heard)
