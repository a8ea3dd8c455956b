"""Reports events and exceptions of a case's process to the server.

Events are evidence for later. They go to a file, which outlives the process; a pipe would wake the server for each
event. Only events that the server waits for are also sent as notices.
"""

from __future__ import annotations

import os
import resource
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress

# Imported by name, before a trainer can replace them.
from os import getpid, write
from pathlib import Path
from typing import Any

from conformance.adapter.declaration import Misuse, Unsupported
from conformance.runner.system import protocol
from conformance.runner.system.descriptors import Known

_OURS = str(Path(__file__).parents[1]) + os.sep
_LONGEST_TEXT = 20_000
#: Read before a trainer can lower it.
_FILE_SIZE = resource.getrlimit(resource.RLIMIT_FSIZE)

#: The events that the server acts upon at once.
NOTICES = frozenset({"started", "finished", "raised"})
#: The exit code of a process whose descriptors for evidence or notices were closed or replaced.
DESCRIPTORS_LOST = 71


class Sender:
    """Writes events to the file ``evidence``, and those that the server waits for also to the pipe ``notices``: one
    line each, from any thread of the process that created it.

    An event's "at", a time on the system's clock, is only for the server. Never raises into a trainer: an event that
    cannot be written ends the evidence.

    Attributes:
        has_ended: a write failed, so the server will not hear that this process has finished.
        lost: the write failed because a descriptor was closed or replaced.
    """

    def __init__(self, evidence: int, notices: int) -> None:
        self._evidence = Known.of(evidence)
        self._notices = Known.of(notices)
        self._process = getpid()
        self._lock = threading.Lock()
        self.has_ended = False
        self.lost = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        # A process that the trainer forked is not this rank, and its events would get in between.
        if self.has_ended or getpid() != self._process:
            return
        kept = {name: value for name, value in event.items() if name != "at"} if "at" in event else event
        try:
            self._write(self._evidence, protocol.encode(kept))
        except OSError as error:
            self.has_ended = True
            if resource.getrlimit(resource.RLIMIT_FSIZE) != _FILE_SIZE:
                self.notify({"event": "limited"})
            else:
                self.notify({"event": "unwritable", "reason": str(error.strerror)})
            return
        if event["event"] in NOTICES and not self.has_ended:
            self.notify({name: event[name] for name in ("event", "at") if name in event})

    def notify(self, notice: Mapping[str, Any]) -> None:
        """Send the server a notice."""
        if getpid() != self._process:
            return
        with suppress(OSError):
            # The first line break ends anything that a trainer wrote into the pipe.
            self._write(self._notices, b"\n" + protocol.encode(notice))

    def _write(self, descriptor: Known, line: bytes) -> None:
        """Raises OSError."""
        with self._lock:
            while line:
                if not descriptor.is_intact:
                    self.has_ended = self.lost = True
                    return
                line = line[write(descriptor.number, line) :]


def described(error: BaseException) -> dict[str, Any]:
    """{type, message, traceback, declined, misused}, the traceback without the runner's own frames. Never raises."""
    try:
        # Exactly `str`, because a subclass of the trainer may have other methods.
        message = str.__str__(str(error))
    except BaseException as another:
        message = f"(its message cannot be shown: {_name_of(type(another))})"
    return {
        "type": _name_of(type(error)),
        "message": shortened(message),
        "traceback": _formatted(error),
        # `isinstance` would trust a trainer's class that claims to be another one.
        "declined": issubclass(type(error), Unsupported),
        "misused": issubclass(type(error), Misuse),
    }


def _name_of(kind: type[BaseException]) -> str:
    """The name of a class, even if its metaclass overrides `__name__`."""
    return str(type.__dict__["__name__"].__get__(kind))


def _formatted(error: BaseException) -> str:
    try:
        trace = traceback.TracebackException.from_exception(error)
        _trim(trace)
        return "".join(trace.format())[-_LONGEST_TEXT:]
    except BaseException:
        # Its message or files cannot be shown, it has too many causes, or its properties raise.
        trace = BaseException.__dict__["__traceback__"].__get__(error)
        calls = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
        shown = [(code, line) for code, line in calls if not code.co_filename.startswith(_OURS)]
        return "".join(f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in shown)[
            -_LONGEST_TEXT:
        ]


def shortened(text: str) -> str:
    """``text`` without its middle if it is long: messages start with the event, and often end with the reason."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}\n[...]\n{text[-half:]}"


def _trim(trace: traceback.TracebackException) -> None:
    """Remove the runner's own frames from a traceback and its causes."""
    kept = [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    trace.stack = traceback.StackSummary.from_list(kept)
    for other in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
        if other is not None:
            _trim(other)


def exit_code(error: BaseException) -> int:
    """The exit code that Python would use."""
    if not issubclass(type(error), SystemExit):
        return 1
    code = SystemExit.__dict__["code"].__get__(error)
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
