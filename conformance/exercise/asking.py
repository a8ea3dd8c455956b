"""Runs the answers in a separate process, so that an endless loop or a crash there ends nothing here."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from conformance.exercise import sandbox
from conformance.exercise.questions import Call

# Seconds: for the process to be scheduled and to answer, beyond the time that calls may take; for it to leave.
_ANSWER_SLACK, _LEAVE_LIMIT = 5.0, 1.0

Kind = Literal["number", "other", "raised", "endless", "died", "signature"]


class UnreadableAnswers(Exception):
    """The file cannot be read as Python. Its text is one line that says why."""


@dataclass(frozen=True)
class Answer:
    """The result of a call. ``value`` is set for a finite number; ``text`` is the result, or what went wrong."""

    kind: Kind
    text: str
    line: int | None = None
    value: Fraction | None = None


class Answers:
    """The functions of ``file``, each call of which may take ``limit`` seconds. A context manager.

    ``trouble`` says how reading the file ended early, if it did; what it defined until then is checked.

    Raises:
        UnreadableAnswers: on entering it; there is no such file, it is not Python, or it takes its process with it.
    """

    def __init__(self, file: Path, limit: float) -> None:
        self.name, self.file, self.limit = str(file), file.absolute(), limit
        self.names: frozenset[str] = frozenset()
        self.trouble: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Answers:
        try:
            self.file.open("rb").close()
        except OSError as error:
            raise UnreadableAnswers(f"{self.name}: {error.strerror}") from None
        try:
            self._start()
        except UnreadableAnswers:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, call: Call) -> Answer:
        """Call the function, with its own copy of the arguments."""
        if self._pipe is None:
            self._start()
        facts = self._exchange(repr((call.function, call.positional, call.named)))
        value = facts.get("value")
        return Answer(facts["kind"], facts["text"], facts["line"], None if value is None else Fraction(value))

    def _start(self) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-P", sandbox.__file__, str(self.file), str(theirs.fileno()), str(self.limit)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._pipe = ours
        facts = self._exchange(None)
        self.names = frozenset(facts.get("names", ()))
        if facts["kind"] == "syntax":
            where = "" if facts["line"] is None else f"{facts['line']}:"
            raise UnreadableAnswers(f"{self.name}:{where} SyntaxError: {facts['text']}")
        if facts["kind"] == "died":
            raise UnreadableAnswers(f"{self.name}: reading it ended the process ({facts['text']})")
        if facts["kind"] == "endless" and not self.names:
            raise UnreadableAnswers(f"{self.name}: reading it did not end within {self.limit:g} s")
        if facts["kind"] != "read":
            ended = f"still running after {self.limit:g} s" if facts["kind"] == "endless" else facts["text"]
            self.trouble = f"line {facts['line']}: {ended}"

    def _exchange(self, request: str | None) -> dict[str, Any]:
        assert self._pipe is not None
        try:
            if request is not None:
                self._pipe.send_bytes(request.encode())
            # The child ends what takes too long by itself, unless that is not Python or keeps every exception; what is
            # ended may take as long once more to clean up.
            if self._pipe.poll(2 * self.limit + _ANSWER_SLACK):
                found: dict[str, Any] = json.loads(self._pipe.recv_bytes())
                return found
        except (EOFError, ConnectionError):
            return {"kind": "died", "text": self._stop(), "line": None}
        self._stop()
        return {"kind": "endless", "text": "", "line": None}

    def _stop(self) -> str:
        """How the process ended."""
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None
        if self._process is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_LIMIT)
        self._process.kill()
        code = self._process.wait()
        self._process = None
        return f"exited {code}" if code >= 0 else f"signal {-code}"
