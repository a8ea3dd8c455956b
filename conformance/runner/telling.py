"""What a process of a case tells the server: events, and what it raised."""

from __future__ import annotations

import os
import threading
import traceback
from pathlib import Path
from typing import Any

from conformance.runner import protocol

_OURS = str(Path(__file__).parent) + os.sep
_LONGEST_TEXT = 20_000


class Sender:
    """Writes events to the pipe, one line each, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        line = protocol.encode(event)
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


def described(error: BaseException) -> dict[str, str]:
    """{type, message, traceback}, the latter without the runner's own frames."""
    trace = traceback.TracebackException.from_exception(error)
    _trim(trace)
    try:
        message = str(error)
    except Exception as another:
        message = f"(its message cannot be shown: {type(another).__name__})"
    return {
        "type": type(error).__name__,
        "message": message[:_LONGEST_TEXT],
        "traceback": "".join(trace.format())[-_LONGEST_TEXT:],
    }


def _trim(trace: traceback.TracebackException) -> None:
    """Take the runner's own frames out of a traceback and of what led to it."""
    kept = [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    trace.stack = traceback.StackSummary.from_list(kept)
    for other in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if other is not None:
            _trim(other)


def exit_code(error: BaseException) -> int:
    """What Python would exit with."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
