"""Accepts connections to a socket, and waits for the first message of each."""

from __future__ import annotations

import secrets
import selectors
import socket
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, NamedTuple

from conformance.runner.system.protocol import Channel

#: Bytes of a first message; an agent's names versions and GPUs.
LONGEST = 1 << 16
# Connections that have not said anything yet; the oldest one gives way.
_MOST_SILENT = 256


class Caller(NamedTuple):
    """A new connection and its first message."""

    channel: Channel
    message: dict[str, Any]


class Callers:
    """The connections to ``listener``, from callers whose first message has this ``token``.

    A silent one does not keep the others waiting, nor does one that sends something else.
    """

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._token = token
        self.address: tuple[str, int] = listener.getsockname()
        self._listener = listener
        self._silent: dict[Channel, None] = {}
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
        try:
            channel = Channel(self._listener.accept()[0])
        except OSError:
            # It has hung up before it was accepted.
            return
        self._silent[channel] = None
        self._selector.register(channel, selectors.EVENT_READ)
        if len(self._silent) > _MOST_SILENT:
            self._drop(next(iter(self._silent)))

    def _heard(self, channel: Channel) -> Caller | None:
        """The caller, if its first message is complete. One that hangs up or sends anything else is dropped."""
        is_open = channel.fill()
        if is_open and not channel.holds_message and channel.held <= LONGEST:
            return None
        if is_open and channel.holds_message:
            with suppress(ValueError, RecursionError):
                message = channel.receive() or {}
                if secrets.compare_digest(str(message.pop("token", "")).encode(), self._token.encode()):
                    self._selector.unregister(channel)
                    del self._silent[channel]
                    return Caller(channel, message)
        self._drop(channel)
        return None

    def _drop(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        del self._silent[channel]
        channel.close()
