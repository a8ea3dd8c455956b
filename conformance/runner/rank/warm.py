"""A rank that stays up: it runs one spec after another, as the pool at the other end of a socket asks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from conformance.runner.system.protocol import Channel

#: The entry of a spec that names the socket of a pool.
POOL = "pool"

#: Runs one spec, with all that it says going to the second argument; the exit code if it raised.
Attempt = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], int | None]


def work(spec: dict[str, Any], rank: int, send: Callable[[dict[str, Any]], None], attempt: Attempt) -> int:
    """Until the pool hangs up, or something raised: nobody knows in what state that leaves this process."""
    # Whoever watches over the process itself waits for this.
    send({"event": "started", "rank": rank, "seq": 0, "pid": os.getpid()})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(spec[POOL])
        pool = Channel(connection)
        pool.send({"rank": rank, "pid": os.getpid()})

        def tell(event: dict[str, Any]) -> None:
            pool.send(event)
            # The order of the exits does not tell which rank failed first: a peer may be the quicker to leave.
            if event["event"] == "raised":
                send(event)

        while (message := pool.receive()) is not None:
            code = attempt(message, tell)
            if code is not None:
                return code
    return 0
