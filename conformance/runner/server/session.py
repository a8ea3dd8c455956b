"""What the cases of one trainer share, such as a local cluster. A separate process holds it as long as the server
runs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from conformance.adapter.declaration import session_of
from conformance.adapter.loading import Train
from conformance.runner.case.driver import make_importable_for_workers
from conformance.runner.rank.reporting import described
from conformance.runner.system.child import Child
from conformance.runner.system.protocol import Channel

# Seconds to leave the session's context; then it is killed.
_END_LIMIT = 8.0


class SessionFailed(Exception):
    """The session could not be entered: one line. ``timed_out``: because that took too long."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Session:
    """Enters the session of the trainer that ``load`` returns: when first needed, and again after it has died."""

    def __init__(self, load: Callable[[], Train]) -> None:
        self._load = load
        self._child: Child | None = None
        self._value: Any = None
        # The session is left when this closes.
        self._channel: Channel

    def value(self, limit: float) -> Any:
        """What the session yields. Raises SessionFailed, also after ``limit`` seconds."""
        if self._child is not None and self._child.poll() is not None:
            self.end()
        if self._child is None:
            self._start(limit)
        return self._value

    def end(self) -> None:
        """Leave the session, and end everything that it has started."""
        if self._child is not None:
            self._channel.close()
            self._child.end(_END_LIMIT)
            self._child = None

    def _start(self, limit: float) -> None:
        self._channel, server = map(Channel, socket.socketpair())

        def body() -> int:
            self._channel.close()
            return _enter(self._load, server)

        self._child = Child(body)
        server.close()
        timed_out = False
        try:
            answer = self._channel.receive(limit) or {"failed": "ended before it began"}
        except TimeoutError:
            answer, timed_out = {"failed": f"had not begun after {limit:g} s"}, True
        if "failed" in answer:
            self.end()
            raise SessionFailed(f"the trainer's session {answer['failed']}", timed_out=timed_out)
        self._value = answer["value"]


def _enter(load: Callable[[], Train], server: Channel) -> int:
    """Stay in the session until ``server`` disconnects; returns the exit code."""
    make_importable_for_workers()
    with ExitStack() as stack:
        try:
            session = session_of(load()) or nullcontext
            value = stack.enter_context(session())
        except BaseException as error:
            what = described(error)
            print(what["traceback"], flush=True)
            server.send({"failed": " ".join(f"raised {what['type']}: {what['message']}".split())})
        else:
            server.send({"value": value})
            server.receive()
    return 0
