"""Standard output and error, however they are: closed, left by their reader, or of a terminal that lacks characters.

A command does its work and ends with its exit code all the same.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

#: What stands for the characters that we use and that ASCII lacks.
_PLAIN = str.maketrans(
    {
        "✓": "+", "≤": "<=", "≠": "!=", "§": "S", "⇄": "<->", "∞": "oo", "✗": "x", "○": "o", "–": "-", "−": "-",
        "·": ".", "→": "->", "▶": ">", "‥": "..", "◇": "<>", "…": "...", "÷": "/", "±": "+-", "‖": "|", "×": "x",
        "√": "sqrt",
    }
)  # fmt: skip


@contextmanager
def robust() -> Iterator[None]:
    """Until the end of the block, nothing that is printed can fail."""
    _open_missing()
    with redirect_stdout(_robust(sys.stdout, 1)), redirect_stderr(_robust(sys.stderr, 2)):
        yield


def _open_missing() -> None:
    """Give closed standard descriptors to nobody: else the next file that is opened gets them, and what is printed."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _robust(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):
            return stream  # not a file, so whoever has put it there knows
    encoding = "utf-8" if stream is None else stream.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(_Robust(descriptor, "w", closefd=False)),
        encoding=encoding,
        errors=_ERRORS,
        line_buffering=True,
    )


class _Robust(io.FileIO):
    """What cannot be written is dropped."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]  # typeshed names the type in a private module
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]  # as above


_ERRORS = "conformance-plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    plain = character.translate(_PLAIN)
    return plain if plain != character else character.encode("unicode_escape").decode(), error.start + 1


codecs.register_error(_ERRORS, _plain)
