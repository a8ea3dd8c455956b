"""The servers that run cases, one for each trainer and backend, and when to stop waiting for a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

from conformance.adapter.declaration import Declaration
from conformance.cases.case import Case
from conformance.results.result_lines import CaseRecord
from conformance.runner.front.client import ForkServer, Outcome
from conformance.suite.options import TIME_LIMIT


class Server(Protocol):
    """Runs the cases of one trainer and backend: a `ForkServer`, or one on each of several machines."""

    declaration: Declaration
    versions: dict[str, str]
    gpus: dict[str, Any]
    refused: dict[str, str]
    why_slow: str | None

    def start(self) -> None:
        """Raises TrainerError, Unavailable, RunnerError."""

    def close(self) -> None:
        """Stops what `start` started, even if it raised."""

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Raises RunnerError."""


class Servers:
    """The fork servers of this process, one for each trainer and backend, started on first use.

    Attributes:
        time_limit: seconds for the import of a trainer.
        option: the command-line option that runs cases on the same machines.
        patience: the trainers that are no longer waited for.
        hosts: the machines of the ranks, if not only this one.
    """

    option: str = ""
    hosts: Sequence[str] = ()

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        self.patience = Patience()
        self._stack = ExitStack()
        self._servers: dict[tuple[str, str], Server] = {}
        self._signs = set[object]()

    def get(self, target: str, backend: str) -> Server:
        """Raises TrainerError, Unavailable, RunnerError."""
        if (target, backend) not in self._servers:
            server = self.open(target, backend)
            # Closed at the end of the run, even if it raises: no other server must repeat a failed import.
            self._stack.callback(server.close)
            server.start()
            self._servers[target, backend] = server
        return self._servers[target, backend]

    def is_first(self, failed: CaseRecord) -> bool:
        """Whether no earlier case failed with the same signs."""
        guards = tuple(one.name for one in failed.guards if not one.holds)
        laws = tuple(one.law for one in failed.findings)
        reason = failed.reason.code if failed.reason else None
        signs = failed.target, failed.verdict, reason, guards, laws, failed.mistake, failed.explained_by
        is_new = signs not in self._signs
        self._signs.add(signs)
        return is_new

    @property
    def slow(self) -> list[str]:
        """Why running servers cannot fork their ranks, and what to do; each reason once."""
        reasons = [server.why_slow for server in self._servers.values()]
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def open(self, target: str, backend: str) -> Server:
        """Creates a server without starting it."""
        return ForkServer(target, backend, self.time_limit)

    def why_not(self, case: Case) -> str | None:
        """Why a case cannot run here, with any trainer; None if it can."""
        return None

    def close(self) -> None:
        self._servers.clear()
        self._stack.close()


#: After so many cases in a row hang in the same place, the rest of them is not run.
ENOUGH = 3

Kind: TypeAlias = tuple[str, str]
"""A trainer's target and a backend."""
Place: TypeAlias = frozenset[str | None]
"""The lines in which ranks hang."""


class Patience:
    """Counts hangs of each trainer and backend. A case that ends, or hangs elsewhere, resets the count."""

    def __init__(self) -> None:
        self._hung: dict[Kind, tuple[Place, int]] = {}

    def note(self, kind: Kind, place: Place | None) -> None:
        """Notes the end of a case; ``place``: where it hung, or None."""
        if place is None:
            self._hung.pop(kind, None)
            return
        before, count = self._hung.get(kind, (place, 0))
        self._hung[kind] = place, count + 1 if before == place else 1

    def lost_with(self, kind: Kind) -> str | None:
        """Why no further case is run; None if cases still run."""
        place, count = self._hung.get(kind, (frozenset(), 0))
        if count < ENOUGH:
            return None
        lines = sorted(line for line in place if line is not None)
        where = f" at {' and '.join(lines)}" if lines else ""
        return f"{count} cases of {kind[0]} on {kind[1]} in a row hung in the same place{where}"
