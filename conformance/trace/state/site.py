"""Finds the lines of the user's code that led to a call."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from conformance.adapter.declaration import ATTRIBUTE

Site: TypeAlias = list[str | int]
"""[file, line, function]."""

Called: TypeAlias = tuple[Site | None, Site | None]
"""The innermost call in the user's code and, if that is elsewhere, the innermost in the trainer's own."""

_OURS = __name__.partition(".")[0]
_RECORDERS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(_RECORDERS)), "")
_NOT_THE_USERS = {"torch", "horovod", "apex"}
_STDLIB = os.path.join(sysconfig.get_path("stdlib"), "")
_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages; the second is Debian's."""


@dataclass(frozen=True)
class _Code:
    """A code object of the user. `file`: its path as events name it. `is_installed`: whether it belongs to Python or an
    installed package, or has no file because it was created at runtime."""

    itself: CodeType
    path: str
    file: str
    function: str
    is_installed: bool


_libraries: dict[int, CodeType] = {}
"""All code seen in this process that is not the user's, which forked processes inherit.

By identity, because equal code may be from different files.
"""


class Sites:
    """Finds the calls in the user's code on the stack.

    trainer_file: the file of the trainer under test as its frames name it (`co_filename`), or None.
    folders: folders besides `sys.path` to which file names may be relative.
    whole_project: whether all code that is not installed counts as the trainer's own.
    """

    def __init__(self, trainer_file: str | None = None, *folders: str, whole_project: bool = False) -> None:
        self.trainer_file = trainer_file
        self._folders = folders
        self._whole_project = whole_project
        self._known: dict[int, _Code] = {}
        self._files: dict[str, str] = {}
        self._thread = threading.get_ident()
        self._last: Called = None, None

    def of(self, frame: FrameType | None) -> Called:
        """The innermost call in the user's code and, if that is elsewhere, the innermost in the trainer's own.

        The autograd engine runs backwards on a GPU in its own thread, where no caller is visible. There the result is
        that of the previous event, the start of the backward.
        """
        where: Site | None = None
        has_own_files = self.trainer_file is not None or self._whole_project
        for code, here in self._calls(frame):
            if not has_own_files or self._is_trainers(code):
                self._last = (here, None) if where is None else (where, here)
                return self._last
            where = where or here
        if where is not None or threading.get_ident() == self._thread:
            self._last = where, None
        return self._last

    def is_users(self, frame: FrameType) -> bool:
        """Whether the frame runs the user's code."""
        identity = id(frame.f_code)
        return identity not in _libraries and (identity in self._known or self._of_user(frame) is not None)

    def own(self, frame: FrameType | None) -> list[Site]:
        """All calls in the trainer's own files on the stack, innermost first."""
        return [here for code, here in self._calls(frame) if self._is_trainers(code)]

    def _calls(self, frame: FrameType | None) -> Iterator[tuple[_Code, Site]]:
        """All calls in the user's code on the stack, innermost first; not those of helpers that call what they are
        given, such as timers: the line that calls these decides."""
        passed = None
        while frame is not None:
            # Most frames belong to libraries, so these are checked first.
            identity = id(frame.f_code)
            code = None if identity in _libraries else self._known.get(identity) or self._of_user(frame)
            if code is not None:
                here: Site = [code.file, frame.f_lineno, code.function]
                if not code.is_installed and _forwards(code.itself, frame.f_lineno):
                    passed = passed or (code, here)
                else:
                    passed = None
                    yield code, here
            frame = frame.f_back
        if passed is not None:
            yield passed

    def _is_trainers(self, code: _Code) -> bool:
        return code.path == self.trainer_file or (self._whole_project and not code.is_installed)

    def path(self, file: str) -> str:
        """The path of a file that sites name `file`."""
        return os.path.abspath(next((path for path, name in self._files.items() if name == file), file))

    def _of_user(self, frame: FrameType) -> _Code | None:
        """The code of a frame, seen for the first time; None if it is not the user's."""
        itself = frame.f_code
        path = itself.co_filename
        if path != self.trainer_file and not _is_users(frame.f_globals, path):
            _libraries[id(itself)] = itself
            return None
        # Before Python 3.11 code objects have no qualified name.
        function = getattr(itself, "co_qualname", itself.co_name)
        # The file name is cached because a trainer may change the working directory.
        file = self._files.get(path) or self._files.setdefault(path, shortened(path, self._folders))
        code = self._known[id(itself)] = _Code(itself, path, file, function, _is_installed(path))
        return code


_FORWARD = re.compile(r"\b(\w+)\(\*\w+")


def _forwards(code: CodeType, line: int) -> bool:
    """Whether a line of a function calls a variable with the function's own `*args`."""
    if not code.co_flags & inspect.CO_VARARGS:
        return False
    called = _FORWARD.search(linecache.getline(code.co_filename, line))
    return called is not None and called[1] in (*code.co_varnames, *code.co_freevars)


def _is_installed(path: str) -> bool:
    return _is_pythons(path) or not _PACKAGES.isdisjoint(Path(path).parts) or not os.path.isfile(path)


def _is_pythons(path: str) -> bool:
    """Whether a file is of Python's own library, which has the folder of installed packages in it."""
    return path.startswith(_STDLIB) and _PACKAGES.isdisjoint(Path(path).parts)


def _is_users(module: dict[str, Any], path: str) -> bool:
    """Whether code is the user's. Modules of this package count if they define a trainer, as the reference trainers."""
    # A seam has the globals of the function it replaces.
    if path.startswith(_RECORDERS):
        return False
    package = str(module.get("__name__")).partition(".")[0]
    if package == _OURS and path.startswith(_PACKAGE):
        return any(hasattr(value, ATTRIBUTE) for value in list(module.values()))
    return not (package in _NOT_THE_USERS or path.startswith(("<frozen ", "<string>")) or _is_pythons(path))


def shortened(path: str, more: Sequence[str] = ()) -> str:
    """`path` relative to the longest folder that contains it, of `sys.path`, `more` and the working directory."""
    entries: list[object]
    try:
        entries = [os.getcwd(), *sys.path]
    except OSError:
        # The working directory was removed, so entries relative to it do not exist.
        entries = [entry for entry in map(str, sys.path) if os.path.isabs(entry)]
    # Trainers also put objects of other types on `sys.path`, which Python ignores.
    folders = {os.path.abspath(entry) for entry in [*entries, *more] if isinstance(entry, str)}
    inside = [folder for folder in folders if path.startswith(folder.rstrip(os.sep) + os.sep)]
    return os.path.relpath(path, max(inside, key=len)) if inside else path


BEFORE, AFTER = 10, 6
"""The numbers of neighbours of a line, as far as its file has them."""

_FEWEST = 4
"""Lines of a text: older records have three, which start one line before."""


def around(file: str, line: int) -> str:
    """The text of a line with `BEFORE` lines before and `AFTER` lines after it; "" if it is blank or missing."""
    if not linecache.getline(file, line).strip():
        return ""
    lines = linecache.getlines(file)[max(0, line - 1 - BEFORE) : line + AFTER]
    return "\n".join([*(text.rstrip() for text in lines), *[""] * (_FEWEST - len(lines))])


def first_around(line: int, count: int) -> int:
    """The number of the first of ``count`` lines that `around` gives for a line."""
    before = BEFORE if count >= _FEWEST else min(1, count - 1)
    return max(1, line - before)
