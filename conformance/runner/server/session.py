"""What the cases of one trainer share, such as a local cluster. A separate process holds it as long as the server
runs.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from time import monotonic
from typing import Any

from conformance.adapter.declaration import session_of
from conformance.adapter.loading import Train
from conformance.runner.case.driver import make_importable_for_workers
from conformance.runner.case.supervision import START_LIMIT
from conformance.runner.rank.reporting import described
from conformance.runner.system import protocol
from conformance.runner.system.child import Child

_CHUNK = 1 << 16
# Seconds to leave the session's context; then it is killed.
_END_LIMIT = 8.0


class SessionFailed(Exception):
    """The session could not be entered: one line."""


class Session:
    """Enters the session of the trainer that ``load`` returns: when first needed, and again after it has died."""

    def __init__(self, load: Callable[[], Train]) -> None:
        self._load = load
        self._child: Child | None = None
        self._hold = -1
        self._value: Any = None

    def value(self) -> Any:
        """What the session yields. Raises SessionFailed."""
        if self._child is None or self._child.poll() is not None:
            self._forget()
            self._start()
        return self._value

    def end(self) -> None:
        """Leave the session, and end everything that it has started."""
        if self._child is not None:
            os.close(self._hold)
            self._child.end(_END_LIMIT)
            self._child = None

    def _start(self) -> None:
        answer, write = os.pipe()
        held, self._hold = os.pipe()

        def body() -> int:
            os.close(answer)
            os.close(self._hold)
            return _enter(self._load, write, held)

        self._child = Child(body)
        os.close(write)
        os.close(held)
        try:
            answered = _read_line(answer, monotonic() + START_LIMIT)
        finally:
            os.close(answer)
        if "value" not in answered:
            self.end()
            raise SessionFailed(f"the trainer's session {answered.get('failed', 'ended before it began')}")
        self._value = answered["value"]

    def _forget(self) -> None:
        if self._child is not None:
            os.close(self._hold)
            self._child = None


def _enter(load: Callable[[], Train], write: int, held: int) -> int:
    make_importable_for_workers()
    with ExitStack() as stack:
        try:
            session = session_of(load()) or nullcontext
            answer = {"value": stack.enter_context(session())}
        except BaseException as error:
            what = described(error)
            print(what["traceback"], flush=True)
            answer = {"failed": f"raised {what['type']}: {what['message']}".splitlines()[0]}
        os.write(write, protocol.encode(answer))
        os.close(write)
        if "value" in answer:
            os.read(held, 1)
    return 0


def _read_line(descriptor: int, deadline: float) -> dict[str, Any]:
    """One message; {} if the other end has hung up."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - monotonic()))[0]:
            return {"failed": f"had not begun after {START_LIMIT:g} s"}
        data = os.read(descriptor, _CHUNK)
        if not data:
            return {}
        line += data
    message: dict[str, Any] = json.loads(line)
    return message
