"""Accepts connections to a socket, and waits for the first message of each."""

from __future__ import annotations

import selectors
import socket
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, NamedTuple

from conformance.runner.system.protocol import Channel


class Caller(NamedTuple):
    """A new connection and its first message."""

    channel: Channel
    message: dict[str, Any]


class Callers:
    """The connections to ``listener``. A silent one does not keep the others waiting."""

    def __init__(self, listener: socket.socket) -> None:
        self.address: tuple[str, int] = listener.getsockname()
        self._listener = listener
        self._silent: set[Channel] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when `next` may have a result."""
        return self._selector.fileno()

    def close(self) -> None:
        self._selector.close()
        for channel in self._silent:
            channel.close()
        self._listener.close()

    def next(self, deadline: float, other: Channel | None = None) -> Caller | None:
        """The next caller that sends a message; None if a message from ``other`` comes first.

        Raises TimeoutError at ``deadline``.
        """
        with ExitStack() as registered:
            if other is not None:
                self._selector.register(other, selectors.EVENT_READ)
                registered.callback(self._selector.unregister, other)
            while ready := self._selector.select(max(0.0, deadline - monotonic())):
                for key, _ in ready:
                    if key.fileobj is other:
                        return None
                    if not isinstance(key.fileobj, Channel):
                        self._accept()
                    elif (caller := self._heard(key.fileobj)) is not None:
                        return caller
            raise TimeoutError

    def _accept(self) -> None:
        channel = Channel(self._listener.accept()[0])
        self._silent.add(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _heard(self, channel: Channel) -> Caller | None:
        """The caller, if its first message is complete. One that hangs up or sends anything else is dropped."""
        is_open = channel.fill()
        if is_open and not channel.holds_message:
            return None
        self._selector.unregister(channel)
        self._silent.remove(channel)
        with suppress(ValueError):
            if is_open and (message := channel.receive()) is not None:
                return Caller(channel, message)
        channel.close()
        return None
