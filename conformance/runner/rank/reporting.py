"""What a process of a case reports to the server: events and exceptions.

Events are evidence for later. They go to a file, which outlives the process; a pipe would wake the server for each
event. Only events that the server waits for are also sent as notices.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.runner.system import protocol

_OURS = str(Path(__file__).parents[1]) + os.sep
_LONGEST_TEXT = 20_000

#: The events that the server acts upon at once.
NOTICES = frozenset({"started", "finished", "raised"})


class Sender:
    """Writes events to the file ``evidence``, and those that the server waits for also to the pipe ``notices``: one
    line each, from any thread.

    An event's "at", a time on the system's clock, is for the server only.
    """

    def __init__(self, evidence: int, notices: int) -> None:
        self._evidence = evidence
        self._notices = notices
        self._lock = threading.Lock()

    def __call__(self, event: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in event.items() if name != "at"} if "at" in event else event
        self._write(self._evidence, kept)
        if event["event"] in NOTICES:
            self._write(self._notices, {name: event[name] for name in ("event", "at") if name in event})

    def _write(self, descriptor: int, message: Mapping[str, Any]) -> None:
        line = protocol.encode(message)
        with self._lock:
            while line:
                line = line[os.write(descriptor, line) :]


def described(error: BaseException) -> dict[str, str]:
    """{type, message, traceback}, the traceback without the runner's own frames."""
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
    """Remove the runner's own frames from a traceback and its causes."""
    kept = [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    trace.stack = traceback.StackSummary.from_list(kept)
    for other in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
        if other is not None:
            _trim(other)


def exit_code(error: BaseException) -> int:
    """What Python would exit with."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
