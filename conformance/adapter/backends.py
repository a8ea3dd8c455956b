"""Backends: how the ranks of a case meet and average their gradients, what they need for it, and where they run.

To add a backend, add its entry to `BACKENDS`. The world sizes of its `paths` stand in `conformance.cases.rules`; gloo
or NCCL follows from the device (`Task.collective_backend`); how ranks meet stands in `conformance.launchers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: Which paths there are to run: layouts, and how many workloads on each.
Paths: TypeAlias = Literal["single", "distributed", "sharded", "point-to-point", "launched"]
#: What the ranks send in an optimizer step, by the formulas of `conformance.oracle.traffic`.
Exchange: TypeAlias = Literal["all-reduce", "shards", "owners", "zero", "parameter-server", "ring", "ring-gather"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How gradients are averaged.

    Attributes:
        paths: which paths are run.
        more_layouts: beside those, each as (world size, accumulation).
        more_precisions: beside fp64, fp32, bf16 and fp16.
        on_gpu: the core workloads run on a GPU too.
        shares_gpus: ranks may share one. NCCL wants one for each. gloo's collectives take tensors of GPUs, too; its
            messages do not: it reads main memory at their address, and aborts.
        rendezvous: where ranks that we start meet: at torchrun's store or at Horovod's server.
        package, module: what it needs beyond torch, and what of that must be importable.
        exchange: the formula of what ranks send; None where there is none.
        is_seen: the recorder can see what ranks send each other.
        one_rank_steps: one rank makes the optimizer steps for all.
    """

    paths: Paths
    more_layouts: tuple[tuple[int, int], ...] = ()
    more_precisions: tuple[str, ...] = ()
    on_gpu: bool = True
    shares_gpus: bool = True
    rendezvous: Literal["store", "horovod"] = "store"
    package: str | None = None
    module: str | None = None
    exchange: Exchange | None = None
    is_seen: bool = True
    one_rank_steps: bool = False


BACKENDS: dict[str, Backend] = {
    "single": Backend(paths="single", more_precisions=("apex-O1",)),
    "ddp": Backend(paths="distributed", more_precisions=("apex-O1",), exchange="all-reduce"),
    "horovod": Backend(
        paths="distributed",
        more_precisions=("fp16-compression", "apex-O1"),
        on_gpu=False,
        rendezvous="horovod",
        package="horovod",
        module="horovod.torch",
        exchange="all-reduce",
    ),
    "fsdp2": Backend(paths="sharded", on_gpu=False, exchange="shards"),
    "zero-redundancy": Backend(paths="sharded", on_gpu=False, exchange="owners"),
    "deepspeed": Backend(paths="sharded", on_gpu=False, package="deepspeed", module="deepspeed", exchange="zero"),
    "parameter-server": Backend(
        paths="point-to-point", shares_gpus=False, exchange="parameter-server", one_rank_steps=True
    ),
    "ring": Backend(paths="point-to-point", shares_gpus=False, exchange="ring"),
    "ring-gather": Backend(paths="point-to-point", shares_gpus=False, exchange="ring-gather"),
    # With four ranks, two replicas share a worker. Gradients travel in Ray's object store.
    "ray": Backend(paths="launched", more_layouts=((4, 1),), on_gpu=False, is_seen=False),
    "ray-train": Backend(paths="launched", on_gpu=False),
}


def exchange_of(backend: str) -> Exchange | None:
    """None without a formula, or for an unknown backend in the results of another version."""
    return BACKENDS[backend].exchange if backend in BACKENDS else None


@dataclass(frozen=True)
class Topology:
    """Which rank of a case runs on which machine. ``hosts``: for each rank the name of the machine that it runs on."""

    hosts: tuple[str, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Topology:
        """A spec that names no hosts runs on one."""
        named: Sequence[str] = spec.get("hosts") or ["localhost"] * int(spec["world_size"])
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
