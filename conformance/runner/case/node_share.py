"""A node's share of a case: the ranks that one of several machines starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.runner.rank.environment import INTERFACE, LOOPBACK


@dataclass(frozen=True)
class NodeShare:
    """The ranks to start here, and where they meet the others.

    Attributes:
        ranks: their numbers.
        address: the IPv4 address of the case's rendezvous.
        port: where it listens; None if this machine is to host it.
        interface: the network interface for messages between ranks.
    """

    ranks: tuple[int, ...]
    address: str = LOOPBACK
    port: int | None = None
    interface: str = INTERFACE

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "ranks": list(self.ranks)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NodeShare:
        return cls(**{**values, "ranks": tuple(values["ranks"])})
