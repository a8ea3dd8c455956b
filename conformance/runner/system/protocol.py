"""Exchanges messages between processes: lines of strict JSON over sockets and pipes."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import select
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, NamedTuple, overload

# `JSONEncoder.encode` creates an encoder for each message, which takes as long as encoding a short one.
_chunks: Callable[[Any, int], Iterable[str]] = vars(json.encoder)["c_make_encoder"](
    None, json.JSONEncoder().default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)
_CHUNK = 1 << 16
_MOST_DESCRIPTORS = 8
# The longest wait of a poll, in milliseconds.
_LONGEST_WAIT = 2**31 - 1
# Bytes. The longest message, the outcome of a case, takes less than a tenth of it.
_LONGEST_LINE = 1 << 30
# Errors of a read after the other end vanished without closing; keepalive reports ETIMEDOUT.
_LOST = {errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


def to_json(message: Mapping[str, Any]) -> bytes:
    """The message as strict JSON without line breaks; non-finite floats become "nan", "inf" and "-inf"."""
    try:
        chunks = _chunks(message, 0)
    except ValueError:
        chunks = _chunks(_spelled_out(message), 0)
    return "".join(chunks).encode()


def encode(message: Mapping[str, Any]) -> bytes:
    """`to_json` as a line."""
    return to_json(message) + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message must be a JSON object, not {message!r}")
    return message


class Lines(Sequence[dict[str, Any]]):
    """Received messages in JSON, each decoded on access."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Lines: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | Lines:
        return Lines(self._lines[index]) if isinstance(index, slice) else decode(self._lines[index])

    def within(self, message: Mapping[str, Any], name: str) -> bytes:
        """The JSON of a non-empty message with these lines as its additional entry ``name``."""
        return b'{"' + name.encode() + b'":[' + b",".join(self._lines) + b"]," + to_json(message)[1:]


def _spelled_out(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _spelled_out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled_out(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class Channel:
    """One end of a stream socket for JSON lines and file descriptors.

    The socket always blocks, because other threads and processes that use it share the mode.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection = connection
        self._unread = bytearray()
        self._whole = 0
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, message: Mapping[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Raises OSError if the other end has disconnected."""
        self.send_json(to_json(message), descriptors)

    def send_json(self, message: bytes, descriptors: Iterable[int] = ()) -> None:
        """Send a message that `to_json` has encoded. Raises OSError if the other end has disconnected."""
        data = message + b"\n"
        descriptors = list(descriptors)
        sent = socket.send_fds(self._connection, [data], descriptors) if descriptors else 0
        self._connection.sendall(data[sent:])

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message, or None if the other end has disconnected.

        Raises TimeoutError after ``timeout`` seconds.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while not self.holds_message:
            if deadline is not None and not self.is_readable(deadline - monotonic()):
                raise TimeoutError(f"no message came within {timeout:g} s")
            if not self.fill():
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        self._whole -= 1
        return decode(bytes(line))

    def fill(self) -> bool:
        """Wait for data and read it; False if the other end has disconnected, or sends an endless line."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _CHUNK, _MOST_DESCRIPTORS)
        except OSError as error:
            if error.errno in _LOST:
                return False
            raise
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        self._unread += data
        self._whole += data.count(b"\n")
        return bool(data) and (self.holds_message or self.held <= _LONGEST_LINE)

    @property
    def held(self) -> int:
        """Number of bytes read and not yet returned."""
        return len(self._unread)

    @property
    def holds_message(self) -> bool:
        """Whether a whole message has been read already, which no selector will report."""
        return self._whole > 0

    @property
    def hung_up(self) -> bool:
        """Whether the other end has disconnected and everything it sent was read."""
        if self._unread or not self.is_readable(0.0):
            return False
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except OSError as error:
            if error.errno in _LOST:
                return True
            raise

    def cut(self) -> None:
        """End the connection for the other end and all readers at this end."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def take_descriptors(self) -> list[int]:
        """The descriptors that came with messages so far; the caller owns them."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def is_readable(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until something arrives or the other end disconnects."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(min(max(0.0, timeout) * 1000, _LONGEST_WAIT)))


#: Bytes of a first message; the longest is an agent's, with versions and GPUs.
LONGEST = 1 << 16
# Silent connections; with more, the oldest is closed.
_MOST_SILENT = 256


class Caller(NamedTuple):
    """A new connection and its first message."""

    channel: Channel
    message: dict[str, Any]


class Callers:
    """The connections to ``listener`` from callers whose first message has this ``token``.

    Callers that are silent or send something else do not delay the others.
    """

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._token = token
        self.address: tuple[str, int] = listener.getsockname()
        self._listener = listener
        self._silent: dict[Channel, None] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A descriptor that is readable when `next` may have a result."""
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
            # The caller hung up before it was accepted.
            return
        self._silent[channel] = None
        self._selector.register(channel, selectors.EVENT_READ)
        if len(self._silent) > _MOST_SILENT:
            self._drop(next(iter(self._silent)))

    def _heard(self, channel: Channel) -> Caller | None:
        """The caller, if its first message is complete. Drops one that hangs up or sends anything else."""
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
