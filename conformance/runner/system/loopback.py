"""Whether processes of one machine can reach each other. A new network namespace begins with loopback down."""

from __future__ import annotations

import socket


def why_down(address: str) -> str | None:
    """Why a connection to ``address``, which is loopback's, cannot be made, and what to do; None if it can."""
    try:
        with socket.create_server((address, 0)) as listener, socket.create_connection(listener.getsockname(), 10.0):
            return None
    except OSError as error:
        return (
            f"the loopback interface is down: connecting to {address} fails ({error.strerror or error}), so ranks "
            "cannot reach each other; bring it up with: ip link set lo up"
        )
