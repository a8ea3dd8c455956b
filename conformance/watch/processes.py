"""What the kernel says of the processes of a command: which train, and which of them without a recorder."""

from __future__ import annotations

from pathlib import Path

from conformance.watch.ledger import NAME, started
from conformance.watch.supervisor import descendants

_TORCH = b"/libtorch_python"


class Trainers:
    """The descendants of a process that have loaded torch.

    unreached: the command lines of those that have not mapped the ledger in a folder, by process.
    """

    def __init__(self, process: int, folder: Path) -> None:
        self._process, self._ledger = process, str(folder / NAME).encode()
        self._reached: set[tuple[int, int]] = set()
        self.unreached: dict[int, list[str]] = {}

    def look(self) -> set[int]:
        """Look for new ones; returns those with a recorder that still run."""
        alive = set()
        for pid in descendants(self._process):
            known = pid, started(pid)
            if known not in self._reached and pid not in self.unreached:
                maps = _read(pid, "maps")
                if _TORCH not in maps:
                    continue
                if self._ledger not in maps:
                    self.unreached[pid] = _read(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
                    continue
                self._reached.add(known)
            if known in self._reached:
                alive.add(pid)
        return alive


def _read(pid: int, name: str) -> bytes:
    """Nothing if the process has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
