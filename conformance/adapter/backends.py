"""Backends: how the ranks of a case meet and average gradients, what that requires, and where it runs.

To add a backend, add an entry to `BACKENDS`. `conformance.cases.rules` has the world sizes of its `paths`;
`Task.collective_backend` picks gloo or NCCL by device; `conformance.launchers` has how ranks meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: Which layouts run, and how many workloads on each.
Paths: TypeAlias = Literal["single", "distributed", "sharded", "point-to-point", "launched"]
#: What ranks send in an optimizer step, by the formulas of `conformance.oracle.traffic`.
Exchange: TypeAlias = Literal["all-reduce", "shards", "owners", "zero", "parameter-server", "ring", "ring-gather"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to average gradients.

    Attributes:
        paths: which paths run.
        more_layouts: further layouts, each as (world size, accumulation).
        more_precisions: precisions besides fp64, fp32, bf16 and fp16.
        on_gpu: the core workloads also run on a GPU.
        shares_gpus: ranks may share a GPU. NCCL needs one for each rank. gloo's collectives accept CUDA tensors; its
            messages do not: they read main memory at the GPU's address, and abort.
        rendezvous: where ranks that we start meet: at torchrun's store or at Horovod's server.
        package, module: the package required besides torch, and its module that must be importable.
        exchange: the formula of what ranks send; None if there is none.
        is_seen: the recorder sees what ranks send each other.
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
    """The backend's formula; None if it has none, or for an unknown backend in results of another version."""
    return BACKENDS[backend].exchange if backend in BACKENDS else None


@dataclass(frozen=True)
class Topology:
    """Which machine each rank of a case runs on. ``hosts``: the machine's name for each rank."""

    hosts: tuple[str, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Topology:
        """The topology of a spec; a spec without hosts runs on one machine."""
        named: Sequence[str] = spec.get("hosts") or ["localhost"] * int(spec["world_size"])
        return cls(tuple(named))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The machines, ordered by their first ranks."""
        return tuple(dict.fromkeys(self.hosts))

    def node(self, rank: int) -> int:
        """The number of the machine of ``rank``."""
        return self.nodes.index(self.hosts[rank])

    def local_rank(self, rank: int) -> int:
        """How many lower ranks run on the same machine."""
        return self.hosts[:rank].count(self.hosts[rank])

    def local_size(self, rank: int) -> int:
        return self.hosts.count(self.hosts[rank])

    def across(self, rank: int) -> tuple[int, ...]:
        """The ranks with the same local rank as ``rank``, one per machine: Horovod's "cross" communicator."""
        return tuple(other for other in range(len(self.hosts)) if self.local_rank(other) == self.local_rank(rank))
