"""How a command ends and prints: exit codes, signals that act like Ctrl-C, output that cannot fail."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import TextIO

from conformance.report.text import one_line

CONFORMING, NOT_CONFORMING, USAGE, HARNESS, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 130


def say(line: str, code: int) -> int:
    """Print a line to standard error, with control characters escaped. Returns the exit code."""
    print(f"conformance: {one_line(line)}", file=sys.stderr)
    return code


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """The first of these signals raises KeyboardInterrupt. Later ones are ignored, so the report gets written.

    A signal that `nohup` ignores stays ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (*_ENDING, signal.SIGINT)}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore(*more: signal.Signals) -> None:
    """Ignore these signals, and ``more``, in the block above: the run is ending already."""
    for number in (*_ENDING, *more):
        # With SIG_IGN, Python complains about a signal that has just arrived.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


#: ASCII for our other characters.
_PLAIN = str.maketrans(
    {
        "✓": "+", "≤": "<=", "≠": "!=", "§": "S", "⇄": "<->", "∞": "oo", "✗": "x", "○": "o", "–": "-", "−": "-",
        "·": ".", "→": "->", "▶": ">", "‥": "..", "◇": "<>", "…": "...", "÷": "/", "±": "+-", "‖": "|", "×": "x",
        "√": "sqrt",
    }
)  # fmt: skip


@contextmanager
def robust() -> Iterator[None]:
    """Printing cannot fail within the block."""
    _open_missing()
    with redirect_stdout(_robust(sys.stdout, 1)), redirect_stderr(_robust(sys.stderr, 2)):
        yield


def _open_missing() -> None:
    """Open closed standard descriptors on /dev/null, or the next opened file gets them, and our output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one


def _robust(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):
            return stream  # not a file: a caller has replaced it
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(_Robust(descriptor, "w", closefd=False)),
        encoding=encoding,
        errors=ERRORS,
        line_buffering=True,
    )


class _Robust(io.FileIO):
    """Drops output that cannot be written."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # typeshed names the type in a private module
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]  # as above


ERRORS = "conformance-plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    plain = character.translate(_PLAIN)
    return plain if plain != character else character.encode("unicode_escape").decode(), error.start + 1


codecs.register_error(ERRORS, _plain)
