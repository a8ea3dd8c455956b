"""What ranks exchange, and when a wrapper does or does not."""

from __future__ import annotations

from typing import Annotated, Literal

from conformance.trace.events.event import Event, Numbers
from conformance.trace.words import size


class Exchange(Event):
    """A collective, or a message between two ranks."""

    bytes: Annotated[int, "the size of this rank's input, or of the buffer for a message that it receives"]
    elements: Annotated[int, "the same in elements"]
    group: Annotated[Numbers, "the ranks"]
    via: Annotated[Literal["c10d", "horovod"], "`c10d` is torch.distributed"]
    phase: Annotated[Literal["construction", "training"], "`construction` until training begins"]
    during: Annotated[
        Literal["forward", "backward", "synchronize", "unscale", "step"] | None,
        "the innermost of these calls that is in progress",
    ]
    of: Annotated[Literal["gradients", "parameters"] | None, "what it carries, [see below](#what-a-collective-carries)"]
    integers: Annotated[bool, "whether these are integers, which also hold text and pickled objects"] = False

    @property
    def payload(self) -> str:
        """What is carried, in words."""
        return f"{self.of}, {size(self.bytes)}" if self.of else size(self.bytes)


class Contribution(Exchange):
    """What a rank gives to others, in a collective or as a message."""

    zeros: Annotated[
        bool | None, "whether it is nothing but zeros; left out unless it is, or may be by its size, gradients"
    ] = None


class Collective(Contribution, noted="before it is issued"):
    op: Annotated[str, "its name"]
    reduce: Annotated[
        Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "adasum", "unknown"] | None,
        "null if it does not reduce, `unknown` where torch hides it from Python, as 2.6 does",
    ]
    process_group: Annotated[str | None, "torch's name of the group; left out if it has none"] = None

    @property
    def label(self) -> str:
        return f"{self.op.strip('_').replace('_', ' ')} ({self.payload})"


class Send(
    Contribution,
    noted="before a message to another rank is sent, by `send`, `isend` or `batch_isend_irecv`",
):
    peer: Annotated[int, "the other rank"]
    tag: Annotated[int, "any number", {"type": "integer"}]

    @property
    def label(self) -> str:
        return f"send to rank {self.peer} ({self.payload})"


class Receive(Exchange, noted="before a message is received, by `recv`, `irecv` or `batch_isend_irecv`"):
    peer: Annotated[int | None, "the other rank, null for any"]
    tag: Annotated[int, "any number", {"type": "integer"}]

    @property
    def label(self) -> str:
        sender = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"receive from {sender} ({self.payload})"


class NoSyncEnter(Event, noted="on entering `no_sync` of a DDP wrapper of the model", label="enter no_sync"):
    pass


class NoSyncExit(Event, noted="on leaving it", label="leave no_sync"):
    pass


class Synchronize(Event, noted="at the beginning of a Horovod optimizer's `synchronize`"):
    optimizer: int
    in_step: Annotated[bool, "whether the optimizer's own step called it"]

    @property
    def label(self) -> str:
        return "synchronize within step" if self.in_step else "synchronize"


class SkipSynchronizeEnter(
    Event, noted="on entering a Horovod optimizer's `skip_synchronize`", label="enter skip_synchronize"
):
    optimizer: int


class SkipSynchronizeExit(Event, noted="on leaving it", label="leave skip_synchronize"):
    optimizer: int
