"""The process that stands in for a worker which a framework has started: it passes on what that worker sends.

To the server it is a rank like any other. The worker connects to it from `conformance.enter`; when this process is
killed, the worker sees the connection end, and leaves.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
from time import monotonic
from typing import Any

from conformance.runner.rank.rank import Pipes
from conformance.runner.rank.telling import Sender
from conformance.runner.system import stacks
from conformance.runner.system.protocol import Channel

#: The last that is heard of a worker which hung up without a word.
GONE = "gone"

# Seconds that a stranger has to say who it is.
_HELLO_LIMIT = 10.0


def stand_in(listener: socket.socket, token: str, spec: dict[str, Any], pipes: Pipes, driver: int) -> int:
    """Pass on the events of the one worker that enters; the result is the exit code.

    The worker has to show ``token``, and is told ``spec``. ``driver``: the end of a pipe that closes when nobody will
    enter any more.
    """
    worker = _admit(listener, token, driver)
    if worker is None:
        return 1
    worker.send(spec)
    # From inside a blocking read: only the main thread takes signals, between two instructions of its own.
    signal.signal(stacks.REQUEST, lambda number, frame: worker.send({"ask": "stack"}))
    send = Sender(pipes.evidence, pipes.notices)
    last = None
    while (message := worker.receive()) is not None:
        if "stack" in message:
            os.write(pipes.stack, message["stack"].encode())
            continue
        if "at" in message:
            # The clock of another machine says nothing here.
            message["at"] = monotonic()
        send(message)
        last = message["event"]
    if last not in ("finished", "raised"):
        # At once: peers may raise before this process has been seen to end.
        send.notify({"event": GONE, "at": monotonic()})
    return 0 if last == "finished" else 1


def _admit(listener: socket.socket, token: str, driver: int) -> Channel | None:
    with listener:
        while listener.fileno() in select.select([listener.fileno(), driver], [], [])[0]:
            worker = Channel(listener.accept()[0])
            if _knows(worker, token):
                return worker
            worker.close()
    return None


def _knows(stranger: Channel, token: str) -> bool:
    try:
        hello = stranger.receive(_HELLO_LIMIT)
    except (TimeoutError, ValueError):
        return False
    return hello is not None and secrets.compare_digest(str(hello.get("token")), token)
