"""Waiting for the ranks of one case: who delivered, who failed first, and when to stop waiting."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from time import monotonic

from conformance.runner import stacks
from conformance.runner.protocol import Channel
from conformance.runner.seat import Seat
from conformance.runner.signals import ChildSignals

# Seconds. Importing torch and a trainer in fresh interpreters, several at once, may take long.
START_LIMIT = 120.0
# A peer's collectives fail at once or hang for ever when a rank is gone; this lets the former be told.
GRACE = 2.0
# From the release to the exit, between which a rank has nothing left to do.
LEAVE_LIMIT = 5.0


class ClientGone(Exception):
    """The process that asked for the case is gone; nobody waits for its outcome."""


class Supervision:
    """Watches ``seats`` until every process is gone; calls ``release`` once all of them are through.

    ``check`` is called whenever a child process has ended, and raises if the case cannot go on.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        time_limit: float,
        *,
        check: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self._seats = seats
        self._check = check
        self._time_limit = time_limit
        self._release = release
        self._started = self._failed = self._released = False
        self._deadline = monotonic() + START_LIMIT
        self._late: list[Seat] = []

    @property
    def first_failed(self) -> int | None:
        """The rank whose failure came first, so that the others' may be its consequence."""
        return min((seat.failure for seat in self._seats if seat.failure), default=(None,))[-1]

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
            while not all(seat.gone for seat in self._seats):
                ended = False
                for key, _ in selector.select(max(0.0, self._deadline - monotonic())):
                    if key.fileobj is client:
                        raise ClientGone
                    if key.fileobj == signals.descriptor:
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
            self._deadline = now + self._time_limit
        if not self._failed and self.first_failed is not None:
            self._failed = True
            self._deadline = now + GRACE
        if not self._released and all(seat.through for seat in self._seats):
            self._released = True
            self._release()
            self._deadline = now + LEAVE_LIMIT
        elif now >= self._deadline:
            self._stop_waiting()
            self._deadline = now + LEAVE_LIMIT

    def _stop_waiting(self) -> None:
        waited_for = [seat for seat in self._seats if not (seat.gone if self._released else seat.through)]
        if self._released:
            because = "because it did not leave after it delivered"
        elif self._failed:
            because = f"after rank {self.first_failed} failed"
        else:
            self._late = waited_for
            at_limit = f"at the time limit of {self._time_limit:g} s"
            because = at_limit if self._started else f"because it had not started after {START_LIMIT:g} s"
            stacks.request([(seat.pid, seat.stack_file) for seat in waited_for])
        for seat in waited_for:
            seat.kill(because)
