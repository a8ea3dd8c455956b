"""Waiting for the ranks of one case: who delivered, who failed first, and when to stop waiting."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from time import monotonic

from conformance.runner.case.peers import Peers
from conformance.runner.case.seat import Seat, called
from conformance.runner.system import stacks
from conformance.runner.system.protocol import Channel
from conformance.runner.system.signals import ChildSignals

# Seconds. Importing torch and a trainer in fresh interpreters, several at once, may take long.
START_LIMIT = 120.0
# A peer's collectives fail at once or hang for ever when a rank is gone; this lets the former be told.
GRACE = 2.0
# From the release to the exit, between which a rank has nothing left to do.
LEAVE_LIMIT = 5.0


def late(time_limit: float | None) -> str:
    """Why nobody waits any longer for ranks that run since ``time_limit`` seconds, or (None) did not even start."""
    if time_limit is None:
        return f"because it had not started after {START_LIMIT:g} s"
    return f"at the time limit of {time_limit:g} s"


class Supervision:
    """Watches ``seats`` until every process is gone; calls ``release`` once all of them, and their peers, are through.

    ``check`` is called whenever a child process has ended, and raises if the case cannot go on.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        time_limit: float,
        peers: Peers,
        *,
        check: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self._seats = seats
        self._peers = peers
        self._check = check
        self._time_limit = time_limit
        self._release = release
        self._started = self._failed = self._through = self._released = False
        self._told: tuple[bool, float, int] | None = None
        self._deadline = monotonic() + START_LIMIT
        self._late: list[Seat] = []

    @property
    def first_failed(self) -> int | None:
        """The rank whose failure came first, so that the others' may be its consequence."""
        if self._peers.first_failed is not None:
            return self._peers.first_failed
        return None if self._first_here is None else self._first_here[-1]

    @property
    def _first_here(self) -> tuple[bool, float, int] | None:
        return min((seat.failure for seat in self._seats if seat.failure), default=None)

    @property
    def timed_out(self) -> bool:
        return any(not seat.delivered for seat in self._late)

    def watch(self, signals: ChildSignals, client: Channel) -> None:
        """Raises ClientGone, and what ``check`` raises."""
        with selectors.DefaultSelector() as selector:
            selector.register(signals.descriptor, selectors.EVENT_READ)
            selector.register(client, selectors.EVENT_READ)
            for seat in self._seats:
                selector.register(seat.descriptor, selectors.EVENT_READ, seat)
            while not (self._peers.released and all(seat.gone for seat in self._seats)):
                ended = False
                for key, _ in selector.select(max(0.0, self._deadline - monotonic())):
                    if key.fileobj is client:
                        self._peers.hear()
                    elif key.fileobj == signals.descriptor:
                        signals.drain()
                        ended = True
                    elif not key.data.read():
                        selector.unregister(key.fileobj)
                if ended:
                    self._check()
                    for seat in self._seats:
                        seat.reap()
                self._advance()

    def _advance(self) -> None:
        now = monotonic()
        if not self._started and all(seat.started or seat.gone for seat in self._seats):
            self._started = True
            self._deadline = now + self._time_limit + self._peers.patience
            self._peers.tell(started=True)
        if self._first_here is not None and self._first_here != self._told:
            self._told = self._first_here
            self._peers.tell(failed=self._told[-1], raised=self._told[0])
        if not self._failed and self.first_failed is not None:
            self._failed = True
            self._deadline = now + GRACE
        if not self._through and all(seat.through for seat in self._seats):
            self._through = True
            self._peers.tell(through=True)
        if self._through and self._peers.released and not self._released:
            self._released = True
            self._release()
            self._deadline = now + LEAVE_LIMIT
        elif now >= self._deadline or (self._peers.late is not None and not self._through and not self._late):
            self._stop_waiting()
            self._deadline = now + LEAVE_LIMIT

    def _stop_waiting(self) -> None:
        waited_for = [seat for seat in self._seats if not (seat.gone if self._released else seat.through)]
        if self._released:
            because = "because it did not leave after it delivered"
        elif self.first_failed is not None:
            because = f"after {called(self.first_failed)} failed"
        else:
            self._late = waited_for
            because = self._peers.late or late(self._time_limit if self._started else None)
            self._peers.tell(late=because)
            stacks.request([(seat.pid, seat.stack_file) for seat in waited_for])
        for seat in waited_for:
            seat.kill(because)
