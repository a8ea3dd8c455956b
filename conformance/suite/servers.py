"""The servers that run the cases of a run, one for each trainer and backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from conformance.adapter.declaration import Declaration
from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer, Outcome
from conformance.suite.options import TIME_LIMIT
from conformance.suite.patience import Patience


class Server(Protocol):
    """What runs the cases of one trainer and backend: a `ForkServer`, or several of them on as many machines."""

    declaration: Declaration
    versions: dict[str, str]
    gpus: dict[str, Any]
    refused: dict[str, str]
    why_slow: str | None

    def start(self) -> None:
        """Raises TrainerError, Unavailable, RunnerError."""

    def close(self) -> None:
        """End what `start` has begun, also where it raised."""

    def run(self, spec: dict[str, Any], time_limit: float) -> Outcome:
        """Raises RunnerError."""


class Servers:
    """The fork servers of this process, one for each trainer and backend, started when first needed.

    Attributes:
        time_limit: seconds for the import of a trainer.
        option: what a command line needs to run cases on the same machines.
        patience: which trainers are no longer waited for.
        hosts: the machines that ranks run on, if not only this one.
    """

    option: str = ""
    hosts: Sequence[str] = ()

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        self.patience = Patience()
        self._stack = ExitStack()
        self._servers: dict[tuple[str, str], Server] = {}

    def get(self, target: str, backend: str) -> Server:
        """Raises TrainerError, Unavailable, RunnerError."""
        if (target, backend) not in self._servers:
            server = self.open(target, backend)
            # At the end of the run, also if it raises: what it could not import, no other must import again.
            self._stack.callback(server.close)
            server.start()
            self._servers[target, backend] = server
        return self._servers[target, backend]

    @property
    def slow(self) -> list[str]:
        """Why running servers cannot fork their ranks, and what to do; each reason once."""
        reasons = [server.why_slow for server in self._servers.values()]
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def open(self, target: str, backend: str) -> Server:
        """A server that is not started yet."""
        return ForkServer(target, backend, self.time_limit)

    def why_not(self, case: Case) -> str | None:
        """Why a case cannot be run here, whatever the trainer."""
        return None

    def close(self) -> None:
        self._servers.clear()
        self._stack.close()
