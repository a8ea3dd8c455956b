"""A case whose workers the trainer starts itself: its function runs in one process, the driver, and each rank is a
process that stands in for the worker which enters as that rank.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.adapter.job import Job
from conformance.adapter.loading import Train
from conformance.runner.case import driver, keeper, relay
from conformance.runner.case.case import Case
from conformance.runner.case.peers import Alone
from conformance.runner.case.seat import DRIVER, Seat
from conformance.runner.outcome import RankOutcome
from conformance.runner.rank.environment import LOOPBACK
from conformance.runner.rank.rank import Pipes
from conformance.runner.system.protocol import Channel


class LaunchedCase(Case):
    """``spec``, by way of the function that ``load`` returns in the driver."""

    def __init__(self, load: Callable[[], Train], spec: dict[str, Any], session: Any, client: Channel) -> None:
        super().__init__(spec, client, Alone(client))
        self._load = load
        self._session = session

    def _start(self, hold: int) -> None:
        world_size = int(self._spec["world_size"])
        token = secrets.token_hex(16)
        is_over, open_until_done = self._descriptors.pipe()
        ports = [self._start_stand_in(rank, hold, token, is_over) for rank in range(world_size)]
        self._descriptors.close(is_over)
        ticket = {"host": LOOPBACK, "ports": ports, "token": token}
        job = Job(world_size, int(self._spec["steps"]), ticket, self._session)

        def become(pipes: Pipes) -> int:
            return driver.run(self._load, job, pipes, open_until_done)

        self._fork(Seat, DRIVER, hold, become, open_until_done)
        self._descriptors.close(open_until_done)

    def _start_stand_in(self, rank: int, hold: int, token: str, is_over: int) -> int:
        """Returns the port at which the worker enters."""
        with keeper.listen(LOOPBACK) as listener:

            def become(pipes: Pipes) -> int:
                return relay.stand_in(listener, token, self._spec, pipes, is_over)

            self._fork(StandIn, rank, hold, become, is_over)
            return int(listener.getsockname()[1])

    def _outcomes(self, first_failed: int | None) -> tuple[RankOutcome, ...]:
        *ranks, trainer = super()._outcomes(first_failed)
        return tuple(_with_driver(rank, trainer) for rank in ranks)


class StandIn(Seat):
    """The seat of a worker, by way of the process that stands in for it."""

    @property
    def failure(self) -> tuple[bool, float, int] | None:
        failed = super().failure
        # Where nobody entered, the driver is to blame.
        if failed is None or not self.started:
            return None
        # What came first. A framework ends all workers when one has raised, so that a death may be the consequence.
        _, at, rank = failed
        return False, at, rank

    def _note(self, notice: dict[str, Any]) -> None:
        if notice["event"] == relay.GONE:
            self._failed_at = notice["at"]
        else:
            super()._note(notice)

    def _exit(self, after: int | None) -> str:
        if not self.started:
            return f"no worker entered the case as rank {self.rank}"
        if self.killed_because or self.delivered or self.raised:
            return super()._exit(after)
        text = f"the worker of rank {self.rank} was gone before it finished"
        return text if after is None else f"{text}, after rank {after} failed"


def _with_driver(rank: RankOutcome, driver: RankOutcome) -> RankOutcome:
    """The outcome of a rank, completed by what the driver has seen of it.

    A trainer's run is finished when its function has returned.
    """
    output = driver.output
    if rank.finished and driver.finished:
        return replace(rank, output=output)
    has_entered = bool(rank.events)
    if rank.finished:
        return replace(rank, finished=False, exit=_said(driver), stack=driver.stack, output=output)
    if has_entered and rank.events[-1]["event"] == "raised":
        return replace(rank, output=output)
    exit = rank.exit if driver.finished and has_entered else f"{rank.exit}; {_said(driver)}"
    return replace(rank, exit=exit, stack=rank.stack if has_entered else driver.stack, output=output)


def _said(driver: RankOutcome) -> str:
    """How the trainer's function ended, in words."""
    if driver.finished:
        return "the trainer's function returned"
    raised = driver.events[-1] if driver.events and driver.events[-1]["event"] == "raised" else None
    if raised is None:
        return f"the process of the trainer's function {driver.exit}"
    message = next(iter(raised["message"].strip().splitlines()), "")
    return f"the trainer's function raised {raised['type']}: {message}".rstrip(": ")
