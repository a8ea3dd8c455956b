"""Removes paths of this machine from trainers' output, because reports are published, and finds source lines."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from pathlib import Path

from conformance.runner.front.client import CHECKPOINTS
from conformance.trace.state.site import around

#: The folders of Python's library and of installed packages, including those of the system or user in a venv.
LIBRARIES = frozenset(
    (
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
        *(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")),
    )
)

_CHECKPOINTS = re.compile(rf"[^\s'\"]*{CHECKPOINTS}\w+")


def nameless(text: str) -> str:
    """``text`` with the same name for the checkpoint folder in every case."""
    return _CHECKPOINTS.sub("(checkpoints)", text)


def shortened(text: str) -> str:
    """``text`` with the paths of installed packages, of Python's library and of the working folder made relative."""
    text = nameless(text)
    # Inner folders before outer ones.
    for path in sorted(LIBRARIES | {os.getcwd()}, key=len, reverse=True):
        if path != os.sep:
            text = text.replace(path.rstrip(os.sep) + os.sep, "")
    return text


def text_of(path: str, line: int, folder: Path | None) -> str | None:
    """The current `around` of a line of a file that an event names; None if several matching files differ in it.

    An installed package may also lie in the working folder. folder: that of the trainer's file, where its other modules
    may be.
    """
    texts = {around(file, line) for file in files_of(path, folder)}
    return texts.pop() or None if len(texts) == 1 else None


def call_of(path: str, function: str, folder: Path | None) -> int | None:
    """The only line of a file that calls this function; None if there are several. path, folder: as in `text_of`."""
    name = function.rpartition(".")[2]
    call = re.compile(rf"(?<!def )\b{name}\(")
    texts = [linecache.getlines(file) for file in files_of(path, folder)] if name.isidentifier() else []
    found = [number for lines in texts for number, text in enumerate(lines, 1) if call.search(text)]
    return found[0] if len(found) == 1 else None


def files_of(path: str, folder: Path | None) -> set[str]:
    """The files that may have this path in events."""
    folders = {os.path.realpath(one) for one in (os.getcwd(), *sys.path, *([str(folder)] if folder else []))}
    # An invalid file name, such as half a surrogate pair, is no file.
    named = [os.path.join(one, path) for one in folders]
    files = {os.path.realpath(file) for file in named if os.path.isfile(file)}
    for file in files:
        linecache.checkcache(file)
    return files
