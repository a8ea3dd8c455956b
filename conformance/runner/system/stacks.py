"""Shows where a process hangs: requests and reads the stacks of its threads."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, sleep

_REQUEST = signal.SIGUSR1
_PATIENCE = 2.0
_QUIET = 0.05
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OURS = str(Path(__file__).parents[2]) + os.sep


class Answering(ABC):
    """A process that can be asked for its stacks."""

    @abstractmethod
    def ask_for_stack(self) -> bool:
        """Request the stacks; False if it cannot answer."""

    @abstractmethod
    def stack_size(self) -> int:
        """Number of bytes of the answer so far."""


def answer_requests(descriptor: int) -> None:
    """Have this process write the stacks of all its threads to ``descriptor`` on `request`."""
    faulthandler.register(_REQUEST, file=descriptor, all_threads=True)


def ask(pid: int) -> None:
    """Request the stacks of a process that has called `answer_requests`."""
    os.kill(pid, _REQUEST)


def request(asked: Iterable[Answering]) -> None:
    """Request the stacks of each, and wait until the answers are complete.

    A process that cannot answer (stopped, or its handler replaced) takes two seconds and writes nothing.
    """
    before = {one: one.stack_size() for one in asked}
    waiting = [one for one in before if one.ask_for_stack()]
    last: list[int] = []
    deadline = monotonic() + _PATIENCE
    while monotonic() < deadline:
        sleep(_QUIET)
        sizes = [one.stack_size() for one in waiting]
        if sizes == last and all(now > before[one] for one, now in zip(waiting, sizes, strict=True)):
            return
        last = sizes


def line_of_trainer(dump: str) -> str | None:
    """The outermost line of a dump outside this package and the import system: "my_trainer.py:7"."""
    for frame in reversed(list(_FRAME.finditer(dump))):
        file = frame["file"]
        if not file.startswith((_OURS, "<")) and f"{os.sep}importlib{os.sep}" not in file:
            return f"{file}:{frame['line']}"
    return None
