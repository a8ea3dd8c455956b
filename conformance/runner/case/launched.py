"""A case whose workers the trainer starts itself: its function runs in one process, the driver, and each rank is the
worker that enters as that rank.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from conformance.adapter.declaration import Job
from conformance.adapter.loading import Train
from conformance.runner.case import driver, rendezvous_host
from conformance.runner.case.case import Case
from conformance.runner.case.supervision import DRIVER
from conformance.runner.case.worker import Worker
from conformance.runner.outcome import RankOutcome
from conformance.runner.rank.environment import LOOPBACK
from conformance.runner.rank.rank import Pipes
from conformance.runner.system.callers import Caller, Callers
from conformance.runner.system.protocol import Channel, Lines, to_json


class LaunchedCase(Case):
    """A case whose driver calls the function that ``load`` returns; ``session`` is what its session yields."""

    def __init__(self, load: Callable[[], Train], session: Any, request: dict[str, Any], client: Channel) -> None:
        super().__init__(request, client)
        self._load = load
        self._session = session
        self._token = secrets.token_hex(16)

    def _start(self, hold: int) -> None:
        world_size = int(self._spec["world_size"])
        self._callers = Callers(rendezvous_host.listen(LOOPBACK), self._token)
        self._clearing.callback(self._callers.close)
        self._workers = [Worker(rank) for rank in range(world_size)]
        for worker in self._workers:
            self._clearing.callback(worker.close)
        self._members += self._workers
        host, port = self._callers.address
        ticket = {"host": host, "port": port, "world_size": world_size, "token": self._token}
        folders = [self._spec.get("life", {}).get(kind) for kind in ("checkpoint_dir", "resume_from")]
        saved = [None if folder is None else Path(folder) for folder in folders]
        job = Job(world_size, int(self._spec["steps"]), ticket, self._session, *saved)

        def become(pipes: Pipes) -> int:
            self._callers.close()
            return driver.run(self._load, job, pipes)

        self._driver = self._fork(DRIVER, hold, become)

    def _watch(self) -> None:
        self._listen_to(self._callers, self._admit)
        super()._watch()

    def _admit(self) -> bool:
        """Let waiting workers enter; always True, as more may come."""
        with suppress(TimeoutError):
            while (caller := self._callers.next(monotonic())) is not None:
                worker = self._called(caller)
                if worker is None or not worker.enter(caller.channel, self._spec):
                    caller.channel.close()
                else:
                    self._listen_to(worker, partial(self._hear, worker))
        return True

    def _hear(self, worker: Worker) -> bool:
        """Read what a worker reports. Where a peer may be why it raised, one that failed has failed before: its report
        may be read later, and one that dies may still close its connections, in whatever order."""
        began = monotonic()
        more = worker.read()
        for other in self._workers if worker.lost_a_peer else ():
            if other is not worker:
                other.note_earlier_failure(began)
        return more

    def _called(self, caller: Caller) -> Worker | None:
        """The rank that a caller asks for."""
        match caller.message:
            case {"rank": int(rank)} if 0 <= rank < len(self._workers):
                return self._workers[rank]
        return None

    def _note_exits(self) -> None:
        super()._note_exits()
        if self._driver.delivered or self._driver.has_exited:
            # A worker that connected before the driver ended may still enter.
            self._admit()
            for worker in self._workers:
                worker.refuse()

    def _outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        *ranks, trainer = super()._outcomes(first_failed)
        return tuple(_with_driver(rank, trainer) for rank in ranks)


def _with_driver(rank: RankOutcome, driver: RankOutcome) -> RankOutcome:
    """The outcome of a rank, with how the driver ended: no rank is finished before the trainer's function returns."""
    output = driver.output
    if rank.finished and driver.finished:
        return replace(rank, output=output)
    has_entered = bool(rank.events)
    if rank.finished:
        return replace(rank, finished=False, exit=_how_it_ended(driver), stack=driver.stack, output=output)
    if not has_entered and (declined := _declined(driver)) is not None:
        return replace(rank, events=Lines([_as_of(rank.rank, declined)]), output=output)
    if has_entered and rank.events[-1]["event"] == "raised":
        return replace(rank, output=output)
    exit = rank.exit if driver.finished and has_entered else f"{rank.exit}; {_how_it_ended(driver)}"
    return replace(rank, exit=exit, stack=rank.stack if has_entered else driver.stack, output=output)


def _declined(driver: RankOutcome) -> dict[str, Any] | None:
    """What the trainer's function raised to decline the case."""
    last = driver.events[-1] if driver.events else {}
    return last if last.get("declined") else None


def _as_of(rank: int, raised: dict[str, Any]) -> bytes:
    """What the driver raised, as the only event of a rank."""
    at = {"rank": rank, "seq": 0, "time": 0.0, "window": None, "micro_batch": None, "where": None}
    return to_json({**at, **{name: value for name, value in raised.items() if name != "at"}})


def _how_it_ended(driver: RankOutcome) -> str:
    """How the trainer's function ended, in words."""
    if driver.finished:
        return "the trainer's function returned"
    raised = driver.events[-1] if driver.events and driver.events[-1]["event"] == "raised" else None
    if raised is None:
        return f"the process of the trainer's function {driver.exit}"
    # Frameworks put the reason last, below a traceback of their own.
    message = " ".join(raised["message"].split())
    return f"the trainer's function raised {raised['type']}: {message}".rstrip(": ")
