"""A node's share of a case: the ranks that one of several machines starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.runner.rank.environment import INTERFACE, LOOPBACK


@dataclass(frozen=True)
class NodeShare:
    """The ranks to start here, and where they meet the others.

    Attributes:
        ranks: their numbers.
        address: the IPv4 address of the case's rendezvous.
        port: where it listens; None if this machine hosts it.
        interface: the network interface for messages between ranks.
    """

    ranks: Sequence[int]
    address: str = LOOPBACK
    port: int | None = None
    interface: str = INTERFACE
