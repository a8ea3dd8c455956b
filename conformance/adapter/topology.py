"""Which rank of a case runs on which machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HERE = "localhost"


@dataclass(frozen=True)
class Topology:
    """``hosts``: for each rank the name of the machine that it runs on."""

    hosts: tuple[str, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Topology:
        """A spec that names no hosts runs on one."""
        named: Sequence[str] = spec.get("hosts") or [_HERE] * int(spec["world_size"])
        return cls(tuple(named))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The machines, in the order of their first ranks."""
        return tuple(dict.fromkeys(self.hosts))

    def node(self, rank: int) -> int:
        """The number of the machine that ``rank`` runs on."""
        return self.nodes.index(self.hosts[rank])

    def local_rank(self, rank: int) -> int:
        """How many lower ranks run on the same machine."""
        return self.hosts[:rank].count(self.hosts[rank])

    def local_size(self, rank: int) -> int:
        return self.hosts.count(self.hosts[rank])

    def across(self, rank: int) -> tuple[int, ...]:
        """The ranks that have the local rank of ``rank``, one a machine: Horovod's "cross" communicator."""
        return tuple(other for other in range(len(self.hosts)) if self.local_rank(other) == self.local_rank(rank))
