"""Where a silent process hangs: asking for the stacks of its threads, and reading them."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

#: What asks a process for its stacks.
REQUEST = signal.SIGUSR1
_PATIENCE = 2.0
_QUIET = 0.05
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OURS = str(Path(__file__).parents[2]) + os.sep


def answer_requests(descriptor: int) -> None:
    """Have this process write the stacks of all its threads to ``descriptor`` when `request` asks."""
    faulthandler.register(REQUEST, file=descriptor, all_threads=True)


def request(processes: Iterable[tuple[int, int]]) -> None:
    """Ask each (process id, descriptor of its stack file) and wait until the files stop growing.

    A process that cannot answer (stopped, or its handler replaced) costs two seconds and leaves nothing.
    """
    processes = list(processes)
    before = [os.fstat(descriptor).st_size for _, descriptor in processes]
    for pid, _ in processes:
        os.kill(pid, REQUEST)
    deadline = time.monotonic() + _PATIENCE
    last: list[int] = before
    while time.monotonic() < deadline:
        time.sleep(_QUIET)
        sizes = [os.fstat(descriptor).st_size for _, descriptor in processes]
        if sizes == last and all(now > old for now, old in zip(sizes, before, strict=True)):
            return
        last = sizes


def line_of_trainer(dump: str) -> str | None:
    """The outermost line of a dump that is neither ours nor the import system's: "my_trainer.py:7"."""
    for frame in reversed(list(_FRAME.finditer(dump))):
        file = frame["file"]
        if not file.startswith((_OURS, "<")) and f"{os.sep}importlib{os.sep}" not in file:
            return f"{file}:{frame['line']}"
    return None
