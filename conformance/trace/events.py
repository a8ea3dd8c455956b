"""The kinds of event that a rank reports, one class each: when it is noted, its fields, and its label for people.

A trace holds events as JSON objects with these fields; `read` makes them instances of their classes. The recorder
writes them (`conformance.trace.recorder`), except for what only a whole trace shows: `conformance.trace.hindsight` adds
that when a rank has ended. `python -m conformance.trace.schema` renews what is generated from here: the tables of
TRACE.md and trace-schema.json.

Weights and gradients are those of the watched model: all elements of its parameters, in the order of
``model.parameters()``, null where there is no value. Of models of more than 4096 elements no values are read: there the
whole vector is null. ``parameters`` are positions in ``model.parameters()``; optimizers, scalers, schedulers and models
are numbered in order of first sight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from conformance.trace.words import number, size

Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
"""A string where the number is not finite, which JSON cannot write."""
Vector: TypeAlias = Sequence[Number | None]
Site: TypeAlias = tuple[str, int, str]
"""File, line and function, in JSON a list."""
Numbers: TypeAlias = Sequence[int]


class MalformedEvent(ValueError):
    """A line of a trace is not a valid event. ``str()`` says which line and why."""


class Event:
    """What every event has: its fields are the annotations, which hold their descriptions too. `read` makes events.

    A field with a value in the class may be left out.
    """

    #: Its kind, as in the trace.
    event: ClassVar[str] = ""
    #: When it is noted; "" for a base class.
    noted: ClassVar[str] = ""
    #: Its label, where the fields add nothing.
    title: ClassVar[str] = ""

    rank: Annotated[int, "its rank"]
    seq: Annotated[int, "its number among the events of its rank: 0, 1, 2, ..."]
    time: Annotated[float, "seconds of `CLOCK_MONOTONIC`, which all processes of a machine share"]
    window: Annotated[
        int | None,
        "the accumulation window that it belongs to; null before training begins. A window begins with its first "
        "training forward: one that gradients flow through to a step, or whose place in the plan nothing else takes. "
        "Its rows show which window that is; where they do not, a window is what a step ends. If no forward of the "
        "model was seen, a window begins with the first sign of its gradients. What a rank does after the last step "
        "for which it has samples is in the first window that only others have samples for",
    ]
    micro_batch: Annotated[
        int | None,
        "that of the last training forward in its window, or of the last backward if no forward was seen; null where "
        "only other ranks have samples",
    ]
    where: Annotated[
        Site | None,
        "the innermost call outside torch, Horovod, apex and this package. The file is relative to the longest folder "
        "that contains it, of those in `sys.path` and the working directory",
    ]
    called_from: Annotated[
        Site | None,
        "the innermost call in the trainer's own file, if that is not `where` because a framework made the call",
    ] = None

    def __init_subclass__(cls, noted: str = "", label: str = "") -> None:
        if noted:
            cls.event = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.noted, cls.title = noted, label or cls.event.replace("_", " ")
            KINDS[cls.event] = cls

    @property
    def label(self) -> str:
        """A short phrase: ``clip norm 1 (saw 3.2)``."""
        return self.title

    @property
    def line(self) -> str:
        """``train.py:41``; for a line in a framework, also the line where the trainer called it."""
        if self.where is None:
            return "from no line of the trainer's"
        line = "{}:{}".format(*self.where)
        return line if self.called_from is None else f"{line}, called from {{}}:{{}}".format(*self.called_from)

    def __str__(self) -> str:
        """The label with the line: ``unscale ÷ 1024 (train.py:43)``."""
        return f"{self.label} ({self.line})"


KINDS: dict[str, type[Event]] = {}
"""The classes of events by their kinds."""


class Started(
    Event, noted="when the process has started; in a case that is resumed, of two processes, which number objects anew"
):
    pid: int


class Topology(
    Event, noted="at the first optimizer step, the first message or collective of several ranks, or the end"
):
    world_size: Annotated[int, "the number of ranks that the trainer connected"]
    rank_reached: Annotated[int, "the rank of this process among them"]
    via: Annotated[Literal["torch.distributed", "horovod"] | None, "null if neither is initialised"]


class Model(Event, noted="when the recorder begins to watch a model"):
    model: int
    shapes: Annotated[Sequence[Numbers], "of its parameters"]


class Shards(
    Event,
    noted="before a forward, a step or the end, where parameters are split over the ranks and that has changed",
):
    held: Annotated[
        Numbers | None,
        "the positions of the elements that this rank holds, among those of all parameters; null if it holds all. The "
        "others are null in its weights and gradients",
    ]


class Wrap(Event, noted="after a watched model is wrapped in DDP"):
    model: int
    wrapper: Annotated[str, "the wrapper's class"]
    find_unused: Annotated[bool, "its `find_unused_parameters`"]


class Zero(
    Event,
    noted="after DeepSpeed has made an engine for a watched model, if its settings leave no doubt what it will send",
):
    stage: Annotated[int, "of ZeRO"]
    in_each_micro_batch: Annotated[bool, "whether it averages gradients in each micro-batch, or in the last one only"]
    share: Annotated[
        int, "how many elements of the weights each rank gives to all others after a step; parts are filled up to that"
    ]
    gradient_width: Annotated[int, "bytes of an element of the gradients that are averaged"]
    weight_width: Annotated[int, "bytes of an element of the weights that are put together"]

    @property
    def label(self) -> str:
        return f"DeepSpeed's engine (ZeRO stage {self.stage})"


class ApexInitialize(Event, noted="after `apex.amp.initialize`"):
    models: Annotated[int, "the number that was passed"]
    optimizers: Annotated[int, "the number that was passed"]


class Optimizer(Event, noted="before the first event that mentions an optimizer that holds watched parameters"):
    optimizer: int
    type: Annotated[str, "its class"]
    parameters: Annotated[Numbers, "those that it holds"]
    trainable: Annotated[Numbers, "those of them that require gradients"]
    horovod: Annotated[bool, "whether it is a Horovod optimizer"]
    backward_passes_per_step: Annotated[int | None, "Horovod's setting, null for another optimizer"]
    state: Annotated[bool, "whether it has any yet"]
    algorithm: Annotated[
        str | None, "the optimizer of torch that its class is, or is derived from; left out if it is none of torch's"
    ] = None
    # The schema and the check of its fields know `dict` only.
    groups: Annotated[
        Sequence[dict], "of each group with watched parameters, the settings that are numbers, by their names"  # type: ignore[type-arg]
    ] = ()


class Start(Event, noted="before training begins"):
    weights: Annotated[Vector | None, "null if no forward of the model was seen"]


class _Autocast(Event):
    device: str
    dtype: str
    enabled: bool


class AutocastEnter(_Autocast, noted="on entering an enabled `torch.autocast` region"):
    caches: Annotated[bool, "whether it keeps what it casts weights to"] = True

    @property
    def label(self) -> str:
        return f"enter autocast {self.dtype}"


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
    computes: Annotated[str | None, "the dtype that the model computes in, null if its own `forward` may cast"]
    weights: Annotated[
        Vector | None,
        "those that it uses, at the beginning of a window and where they have changed within one; else null",
    ]
    rounded: Annotated[bool, "whether these have 16 bits, and may have been rounded from what nothing shows"] = False
    training: Annotated[bool, "whether the model is in training mode"] = True
    extra: Annotated[bool, "whether it does not train, but is for a metric, an evaluation or a dry run"] = False
    states: Annotated[
        Sequence[str | None],
        "after skipped steps: digests of the states that their optimizers now have, in the order of the skips",
    ] = ()

    @property
    def label(self) -> str:
        return f"forward through {self.wrapper}" if self.wrapper else "forward"


class Buffers(
    Event, noted="after a forward of a model with buffers that has gradients or changes the buffers, and at the end"
):
    how: Literal["with gradients", "without gradients", "recomputed", "at the end"]
    model: Annotated[int, "the number of the module; at the end, of the one that went forward last"]
    training: bool
    before: Annotated[Vector, "their elements; other tensors may be in their place within a functional call"]
    after: Vector

    @property
    def label(self) -> str:
        return f"{self.how}: {self.after[0]} samples counted"


class Draw(Event, noted="after a forward in which a model with dropout has drawn random numbers"):
    title = "draws random numbers"

    before: Annotated[str, "a digest of the state of the generator before it"]
    after: str


class Average(Event, noted="in a case that is resumed, after `torch.optim.swa_utils.AveragedModel.update_parameters`"):
    title = "averages weights"

    average: int
    updates: Annotated[int, "how many came before"]
    before: Annotated[Vector, "the elements of its parameters"]
    after: Vector


class LossScaled(Event, noted="after `GradScaler.scale`, unless disabled"):
    scaler: int
    scale: Number

    @property
    def label(self) -> str:
        return f"loss × {number(self.scale)}"


class BackwardBegin(Event, noted="before a backward that accumulates gradients", label="backward"):
    backward: Annotated[int, "its number"]
    root: Annotated[int, "the number of its graph, which a second backward through it repeats"]
    syncs: Annotated[bool | None, "DDP's flag at this moment, null without DDP"]
    gradients: Annotated[
        Literal["none", "zero", "some"] | None,
        "those that it adds to, before it; null if no model is watched",
    ]
    contains: Annotated[Numbers, "the numbers of graphs of earlier backwards that it goes through again"] = ()


class BackwardEnd(Event, noted="after it", label="backward done"):
    backward: Annotated[int, "its number"]
    forwards: Annotated[Numbers, "the numbers of the forwards that it reached"]
    scaled: Annotated[Number | None, "the scale of the loss, applied by a GradScaler or by hand, null without one"]
    outputs: Annotated[
        Sequence[Vector], "of each of these forwards, what the model put out; left out where it is not read"
    ] = ()
    output_gradients: Annotated[Sequence[Vector], "the gradients of the loss with respect to these outputs"] = ()
    recomputed: Annotated[
        Sequence[str | None], "the dtypes of the forwards that were computed again in it, as `computes` of a forward"
    ] = ()


class AutogradGrad(
    Event, noted="after `torch.autograd.grad` that reached forwards of the model", label="torch.autograd.grad"
):
    forwards: Annotated[Numbers, "their numbers"]


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


class Unscale(Event, noted="after `GradScaler.unscale_`"):
    scaler: int
    optimizer: int
    scale: Number
    implicit: Annotated[bool, "whether the scaler's own step called it"]
    found_inf: Annotated[bool | None, "null if unknown"]

    @property
    def label(self) -> str:
        return f"unscale ÷ {number(self.scale)}" + (", overflow found" if self.found_inf else "")


class Clip(Event, noted="after `torch.nn.utils.clip_grad_norm_`, `clip_grad_value_` or `clip_grads_with_norm_`"):
    kind: Literal["norm", "value"]
    threshold: Number
    norm_type: Number | None
    norm: Annotated[Number | None, "the total norm before clipping, null when clipping by value"]
    parameters: Numbers
    gradients: Annotated[Vector | None, "those before it"]

    @property
    def label(self) -> str:
        saw = "" if self.norm is None else f" (saw {number(self.norm)})"
        return f"clip {self.kind} {number(self.threshold)}{saw}"

    @property
    def function(self) -> str:
        """What torch calls it."""
        return "clip_grad_norm_" if self.kind == "norm" else "clip_grad_value_"


class Norm(Event, noted="after `get_total_norm` outside clipping"):
    norm: Number
    parameters: Numbers


class GradientChange(Event, noted="when the next event finds gradients changed and no noted call explains it"):
    parameters: Annotated[Numbers, "those found changed: in a model too large to be read, only some are looked at"]
    factor: Annotated[
        Number | None,
        "the factor by which all were multiplied, null if there is none, `nan` if they were not finite and now are",
    ]
    since: Annotated[int, "the event after which they were last known", {"type": "integer", "minimum": -1}]
    of_masters: Annotated[
        bool, "whether backwards add to other tensors, of which these hold copies, as those of master weights do"
    ] = False

    @property
    def label(self) -> str:
        if isinstance(self.factor, str):
            return "gradients made finite"
        return "gradients changed" if self.factor is None else f"gradients × {number(self.factor)}"


class ZeroGrad(Event, noted="before gradients are cleared; if by hand, when the next event finds them cleared"):
    by: Literal["optimizer", "model", "hand"]
    optimizer: Annotated[int | None, "null unless an optimizer cleared them"]
    parameters: Numbers
    set_to_none: Annotated[bool | None, "null if unknown"]

    @property
    def label(self) -> str:
        return {"hand": "gradients cleared by hand", "model": "model.zero_grad"}.get(self.by, "zero grad")


class ScalerStep(Event, noted="at the beginning of `GradScaler.step`"):
    scaler: int
    optimizer: int
    scale: Number
    state: Annotated[str | None, "a digest of the optimizer's state, null for a model too large to be read"]


class _ScaleLoss(Event):
    delay_unscale: bool
    optimizers: Annotated[int, "their number"]
    scale: Annotated[Number | None, "null while apex is disabled"]


class ScaleLossEnter(_ScaleLoss, noted="on entering `apex.amp.scale_loss`"):
    @property
    def label(self) -> str:
        return "enter scale_loss" + (" (delay_unscale)" if self.delay_unscale else "")


class ScaleLossExit(_ScaleLoss, noted="on leaving it, after gradients are unscaled", label="leave scale_loss"):
    scale_after: Annotated[Number | None, "the scale of the next one, lower if gradients overflowed"]


class StateInit(
    Event,
    noted="after a step with zero gradients before training, such as that of Horovod's `broadcast_optimizer_state`",
):
    weights: Vector | None


class OptimizerState(
    Event,
    noted="in a case that is resumed, after each step before the stop, and before the first steps after it",
):
    kept: Annotated[
        Sequence[dict],  # type: ignore[type-arg]
        "of each watched parameter that the optimizer holds: its number `parameter`, its `values`, the `settings` of "
        "its group but for the learning rate, and the optimizer's `state` for it by name, as lists of numbers",
    ]


class Attempt(Event):
    """An optimizer step, or one that was requested and skipped."""

    optimizer: int
    forwards: Annotated[int, "the number of training forwards so far"]
    gradients: Annotated[
        Vector | None,
        "as the step used them, null for parameters that the optimizer does not hold; null as a whole if the step is "
        "not torch's, and may use others",
    ]
    weights: Annotated[Vector | None, "of the whole model, after it"]
    scale: Annotated[Number | None, "of the enabled GradScaler that called it, null without one"]


class Step(Attempt, noted="after an optimizer step that was applied"):
    step: Annotated[int, "its number"]
    lr: Number | None
    parameters: Annotated[Numbers, "those that the optimizer holds"]
    synchronizes: Annotated[
        bool | None, "whether a Horovod optimizer's step waits for averages, null for another optimizer"
    ]
    lr_of: Annotated[Numbers, "those of them that have this `lr`, where the optimizer has several groups"] = ()
    idle: Annotated[bool, "whether it had no gradients, or zeros, and changed nothing"] = False
    of_replaced: Annotated[
        bool,
        "whether the optimizer holds parameters in whose place the model has got shards since: these it does not step",
    ] = False
    groups: Annotated[
        Sequence[dict], "those of `optimizer`, where more than the learning rate has changed since"  # type: ignore[type-arg]
    ] = ()
    unfinished: Annotated[
        Numbers,
        "the `seq` of asynchronous collectives and receives that write to the gradients or weights it used, and whose "
        "handles nobody had waited for; left out if there are none, and on a GPU",
    ] = ()
    unfinished_elsewhere: Annotated[Numbers, "the same of those that write to other memory"] = ()
    scalars_in_tensors: Annotated[
        bool, "whether torch may have computed its scalars, such as bias corrections, as tensors: it was compiled, say"
    ] = False

    @property
    def label(self) -> str:
        return f"step {self.step}" if self.scale is None else f"step {self.step} by the scaler"


class Skip(
    Attempt,
    noted="after `GradScaler.step`, or a step that apex replaced, that took no optimizer step",
    label="step skipped by the scaler",
):
    gradients_finite: bool | None
    state: Annotated[str | None, "as in `scaler_step`"]


class Update(Event, noted="after `GradScaler.update`"):
    scaler: int
    scale_before: Number
    scale_after: Number
    growth_factor: Annotated[Number, "the scaler's own setting"]
    backoff_factor: Annotated[Number, "the scaler's own setting"]
    growth_interval: Annotated[int, "the scaler's own setting"]
    given: Annotated[bool, "whether the trainer gave it the new scale"] = False

    @property
    def label(self) -> str:
        return f"scale {number(self.scale_before)} → {number(self.scale_after)}"


class Schedule(Event, noted="after `LRScheduler.step`"):
    scheduler: int
    optimizer: int | None
    lr_before: Annotated[Sequence[Number], "of each parameter group"]
    lr_after: Annotated[Sequence[Number], "of each parameter group"]
    initial: Annotated[bool, "whether the scheduler's constructor called it"]

    @property
    def label(self) -> str:
        before, after = (", ".join(map(number, rates)) for rates in (self.lr_before, self.lr_after))
        return f"learning rate {before} → {after}"


class ForeignOptimizer(Event, noted="at the first step of an optimizer that holds no watched parameter"):
    optimizer: Annotated[str, "its class"]
    shapes: Annotated[Sequence[Numbers], "of what it holds"]


class Save(Event, noted="when a file in the folder of the checkpoint is opened, to be written from its beginning"):
    path: Annotated[str, "its path in that folder"]


class Fork(Event, noted="after the trainer has forked a process, of which nothing is recorded"):
    pass


class ObserverFailed(Event, noted="when a part of the recorder has raised an error, and is switched off from then on"):
    observer: Annotated[str, "the part: a module of `conformance.trace.observers`, or `recorder`"]
    error: Annotated[str, "the type and the message"]
    traceback: str


class Report(Event, noted="when the trainer calls `Task.report`, and after a step within `Task.step`"):
    step: Annotated[int, "the window after which it has these weights, by its own account"]
    weights: Annotated[Vector | None, "those that it reports"]
    gradients: Annotated[Vector | None, "those that the step used, by its own account"] = None
    counted: Annotated[bool, "whether `Task.step` has counted: then `step` is the `window`, if that is known"] = False

    @property
    def label(self) -> str:
        return f"reports its weights after window {self.step}"


class Finished(Event, noted="after the trainer's function has returned"):
    weights: Vector | None
    copies: Annotated[
        Vector | None, "what the model computes with, where `weights` are those of the masters, of which this is a part"
    ] = None
    state_bytes: Annotated[
        int | None,
        "of the state that the optimizers of the last step kept on this rank, without counts of steps, where a backend "
        "may split it",
    ] = None


class Raised(Event, noted="after the trainer's function has raised"):
    type: str
    message: str
    traceback: str
    declined: Annotated[bool, "whether it is `conformance.Unsupported`"] = False
    weights: Annotated[Vector | None, "where it is, those of the moment"] = None
    at: Annotated[float | None, "the `time` at which it raised"] = None


def read(line: dict[str, Any]) -> Event:
    """The event that a line of a trace holds, which shares its fields: leave the line as it is from now on.

    Lines are checked where they come in, with `check` or `check_all`, and not again here.
    """
    event = object.__new__(KINDS[line["event"]])
    event.__dict__ = line
    return event


def check(line: dict[str, Any]) -> None:
    """Check a line of a trace, but for what is inside its lists.

    Raises:
        MalformedEvent: the kind is unknown, a field is missing or unknown, or a value has the wrong type.
    """
    shape = (line.get("event"), *line, *map(type, line.values()))
    if shape not in _SHAPES:
        _check(line)
        _SHAPES.add(shape)


def check_all(lines: Iterable[dict[str, Any]], rank: int) -> None:
    """Check the lines of a rank.

    Raises:
        MalformedEvent: a line is not a valid event; says which.
    """
    for position, line in enumerate(lines):
        try:
            check(line)
        except MalformedEvent as error:
            raise MalformedEvent(f"event {position} of rank {rank}: {error}") from None


def check_inside(lines: Sequence[dict[str, Any]], rank: int) -> None:
    """Check what is inside the fields too, which takes long.

    Raises:
        MalformedEvent: as `check_all`; or a list or number in a field is not what its description says.
    """
    check_all(lines, rank)
    for position, line in enumerate(lines):
        kind = KINDS[line["event"]]
        for name, hint in hints(kind).items():
            if name in line and not _fits(line[name], hint):
                what = f"{kind.event} has {str(line[name])[:60]!r} in the field {name!r}"
                raise MalformedEvent(f"event {position} of rank {rank}: {what}, which cannot be")


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, arguments[0])
    if origin is Literal:
        return value in arguments
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits(one, arguments[0]) for one in value)
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(arguments) and all(map(_fits, value, arguments))
    if arguments:
        return any(_fits(value, one) for one in arguments)
    return type(value) in _json_types(hint)


#: What was found to be right: a kind, and the names and types of the fields.
_SHAPES: set[tuple[object, ...]] = set()


def _check(line: Mapping[str, Any]) -> None:
    kind = KINDS.get(line.get("event", ""))
    if kind is None:
        raise MalformedEvent(f"{line.get('event')!r} is not a kind of event")
    types = {name: frozenset(_json_types(hint)) for name, hint in hints(kind).items()}
    for name in sorted(types.keys() - line.keys()):
        if is_required(kind, name):
            raise MalformedEvent(f"{kind.event} has no field {name!r}")
    for name, value in line.items():
        if name != "event" and name not in types:
            raise MalformedEvent(f"{kind.event} has an unknown field {name!r}")
        if name != "event" and type(value) not in types[name]:
            raise MalformedEvent(f"{kind.event} has {value!r} in the field {name!r}, which has another type")


def hints(kind: type[Event]) -> dict[str, Any]:
    """The type of each field, with its description."""
    found = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in found.items() if get_origin(hint) is not ClassVar}


def is_required(kind: type[Event], field: str) -> bool:
    """Whether an event of this kind always has the field."""
    return not hasattr(kind, field)


def _json_types(hint: Any) -> Iterable[type]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _json_types(get_args(hint)[0])
    elif origin is Literal:
        yield from map(type, get_args(hint))
    elif origin in (Sequence, tuple):
        yield from (list, tuple)
    elif origin is None:
        yield from (float, int) if hint is float else (hint,)
    else:
        for one in get_args(hint):
            yield from _json_types(one)
