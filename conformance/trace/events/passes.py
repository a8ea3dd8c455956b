"""Events of forwards, backwards and the ranks' exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from conformance.trace.events.event import Event, Number, Numbers, Vector
from conformance.trace.short_texts import size


class _Autocast(Event):
    device: str
    dtype: str
    enabled: bool


class AutocastEnter(_Autocast, noted="on entering an enabled `torch.autocast` region", label="enter autocast {dtype}"):
    caches: Annotated[bool, "whether it caches the weights it casts"] = True


class AutocastExit(_Autocast, noted="on leaving it", label="leave autocast"):
    pass


class Forward(Event, noted="before a forward with gradients enabled, unless a backward recomputes it"):
    forward: Annotated[int, "its number"]
    rows: Annotated[
        Sequence[int | None],
        "the input rows, numbered as the distinct rows of `samples.x` in order of first appearance, null for any other",
    ]
    wrapper: Annotated[str | None, "the class of the wrapper that called the model, null without one"]
    syncs: Annotated[bool | None, "whether DDP will average in its backward, null without DDP"]
    computes: Annotated[str | None, "the dtype in which the model computes, null if its own `forward` may cast"]
    weights: Annotated[
        Vector | None,
        "the weights it uses, at the start of a window and if they have changed within one; else null",
    ]
    rounded: Annotated[bool, "whether these have 16 bits and may be rounded from weights that are not visible"] = False
    replaced: Annotated[bool, "whether a functional call uses other tensors than the model's parameters"] = False
    training: Annotated[bool, "whether the model is in training mode"] = True
    extra: Annotated[bool, "whether it does not train: a forward for a metric, an evaluation or a dry run"] = False
    foreign: Annotated[bool, "whether none of the input rows is a sample, even rounded to 16 bits"] = False
    states: Annotated[
        Sequence[str | None],
        "after skipped steps: digests of their optimizers' current states, in the order of the skips",
    ] = ()

    @property
    def label(self) -> str:
        return f"forward through {self.wrapper}" if self.wrapper else "forward"


class Buffers(
    Event,
    noted="after a forward of a model with buffers that has gradients or changes the buffers, and at the end",
    label="{how}: {after[0]} samples counted",
):
    how: Literal["with gradients", "without gradients", "recomputed", "at the end"]
    model: Annotated[int, "number of the module; at the end, of the module that ran forward last"]
    training: bool
    before: Annotated[Vector, "elements of the buffers, or of the tensors that replace them in a functional call"]
    after: Vector


class Draw(Event, noted="after a forward in which a model with dropout has drawn random numbers"):
    before: Annotated[str, "digest of the generator's state before it"]
    after: str


class Average(
    Event, noted="in a case that is resumed or averages, after `torch.optim.swa_utils.AveragedModel.update_parameters`"
):
    average: int
    updates: Annotated[int, "number of earlier updates"]
    before: Annotated[Vector, "elements of its parameters"]
    after: Vector


class LossScaled(Event, noted="after `GradScaler.scale`, unless disabled", label="loss × {scale}"):
    scaler: int
    scale: Number


class BackwardBegin(Event, noted="before a backward that accumulates gradients", label="backward"):
    backward: Annotated[int, "its number"]
    root: Annotated[int, "number of its graph; a second backward through the graph has the same"]
    syncs: Annotated[bool | None, "DDP's flag at this moment, null without DDP"]
    gradients: Annotated[
        Literal["none", "zero", "some"] | None,
        "the gradients to which it adds, before it; null if no model is watched",
    ]
    contains: Annotated[Numbers, "numbers of earlier backwards' graphs that it traverses again"] = ()


class BackwardEnd(Event, noted="after a backward that accumulates gradients", label="backward done"):
    backward: Annotated[int, "its number"]
    forwards: Annotated[Numbers, "numbers of the forwards that it reached"]
    scaled: Annotated[Number | None, "scale of the loss, applied by a GradScaler or by hand, null without one"]
    outputs: Annotated[Sequence[Vector], "the model's outputs in each of these forwards; left out if not read"] = ()
    output_gradients: Annotated[Sequence[Vector], "gradients of the loss with respect to these outputs"] = ()
    recomputed: Annotated[
        Sequence[str | None], "dtypes of the forwards that it recomputed, like `computes` of a forward"
    ] = ()


class AutogradGrad(
    Event, noted="after a `torch.autograd.grad` that reached forwards of the model", label="torch.autograd.grad"
):
    forwards: Annotated[Numbers, "their numbers"]


class Exchange(Event):
    """A collective, or a message between two ranks."""

    bytes: Annotated[int, "size of this rank's input, or of the buffer for a received message"]
    elements: Annotated[int, "the same size in elements"]
    group: Annotated[Numbers, "the ranks"]
    via: Annotated[Literal["c10d", "horovod"], "`c10d` is torch.distributed"]
    phase: Annotated[Literal["construction", "training"], "`construction` until training starts"]
    during: Annotated[
        Literal["forward", "backward", "synchronize", "unscale", "step"] | None,
        "the innermost of these calls in progress",
    ]
    of: Annotated[Literal["gradients", "parameters"] | None, "its payload, [see below](#what-a-collective-carries)"]
    integers: Annotated[bool, "whether the elements are integers, as for text and pickled objects"] = False

    @property
    def payload(self) -> str:
        """The payload in words: ``gradients, 64 B``."""
        return f"{self.of}, {size(self.bytes)}" if self.of else size(self.bytes)


class Contribution(Exchange):
    """Data that a rank gives to others, in a collective or as a message."""

    zeros: Annotated[
        bool | None, "whether all elements are zero; left out if the payload cannot be gradients, by its size"
    ] = None


class Collective(Contribution, noted="before it is issued"):
    op: Annotated[str, "its name"]
    reduce: Annotated[
        Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "adasum", "unknown"] | None,
        "null if it does not reduce, `unknown` where torch hides it from Python, as 2.6 does",
    ]
    process_group: Annotated[str | None, "torch's name of the group, if any"] = None

    @property
    def label(self) -> str:
        return f"{self.op.strip('_').replace('_', ' ')} ({self.payload})"


class Send(
    Contribution,
    noted="before a message to another rank is sent, by `send`, `isend` or `batch_isend_irecv`",
    label="send to rank {peer} ({payload})",
):
    peer: Annotated[int, "the other rank"]
    tag: Annotated[int, "any number", {"type": "integer"}]


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
