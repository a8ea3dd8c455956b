"""What a part of a case has to know of its other parts: how they fare is told through whoever asked for the case."""

from __future__ import annotations

from typing import Any

from conformance.runner.system.protocol import Channel


class ClientGone(Exception):
    """The process that asked for the case is gone; nobody waits for its outcome."""


class Peers:
    """The ranks on other machines.

    Attributes:
        first_failed: the rank that failed first, of all that run anywhere.
        late: why nobody waits any longer, in words that complete "killed".
        released: all ranks everywhere are through.
        patience: seconds beyond every time limit, which is kept by whoever sees all ranks.
    """

    patience = 30.0

    def __init__(self, client: Channel) -> None:
        self._client = client
        self.first_failed: int | None = None
        self.late: str | None = None
        self.released = False

    def tell(self, **message: Any) -> None:
        """Raises ClientGone."""
        try:
            self._client.send(message)
        except OSError as error:
            raise ClientGone from error

    def hear(self) -> None:
        """Take in what has come. Raises ClientGone."""
        while True:
            message = self._client.receive()
            if message is None:
                raise ClientGone
            self.first_failed = message.get("failed", self.first_failed)
            self.late = message.get("late", self.late)
            self.released = message.get("release", self.released)
            if not self._client.holds_message:
                return


class Alone(Peers):
    """No rank runs anywhere else, and a client that says anything is one that is gone."""

    patience = 0.0

    def __init__(self, client: Channel) -> None:
        super().__init__(client)
        self.released = True

    def tell(self, **message: Any) -> None:
        pass

    def hear(self) -> None:
        raise ClientGone
