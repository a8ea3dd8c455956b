"""Finds the processes of a command that train, and those without a recorder, in /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from conformance.watch.ledger import NAME
from conformance.watch.supervisor import descendants

_TORCH = b"/libtorch_python"

_Life: TypeAlias = tuple[bytes, ...]
"""Identifies one run of a program: process numbers are reused, and `exec` keeps them."""


class Trainers:
    """The descendants of a process that have loaded torch.

    unreached: the command lines of those that have not mapped the ledger in a folder, by process.
    """

    def __init__(self, process: int, folder: Path) -> None:
        self._process = process
        # As the kernel escapes newlines in paths.
        self._ledger = os.fsencode(os.path.realpath(folder / NAME)).replace(b"\n", b"\\012")
        self._reached: set[_Life] = set()
        self.unreached: dict[int, list[str]] = {}

    def look(self) -> dict[int, list[str]]:
        """Looks for new ones. Returns the command lines of running processes that have a recorder, or that are Python
        and may load torch later."""
        alive = {}
        for pid in descendants(self._process):
            life = _life(pid)
            if life not in self._reached:
                maps = _read(pid, "maps")
                if _TORCH in maps and self._ledger in maps:
                    self._reached.add(life)
                elif _TORCH in maps:
                    self.unreached[pid] = _command(pid)
                    continue
            if life in self._reached or _is_python(pid):
                alive[pid] = _command(pid)
        return alive


def _life(pid: int) -> _Life:
    """The process number, its start, and the random address of the program's stack."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (str(pid).encode(), *fields[19:20], *fields[25:26])


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _command(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")


def _read(pid: int, name: str) -> bytes:
    """The content of a file in /proc; empty if the process has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
