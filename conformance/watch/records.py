"""The records that a recorder writes: one JSON array a line, with the name of the record and its fields.

Sketches are doubles in base64, three for each tensor: two projections and the 2-norm (see `sketch.py`). `samples` are
the numbers of the sampled elements of each tensor: UNREAD for a tensor without a sketch; empty if all sketches are of
whole tensors. `within` is the number of the running backward pass if a call comes from one, such as from a hook.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isclose, prod
from typing import Any, TypeAlias

from typing_extensions import dataclass_transform

Site: TypeAlias = list[Any] | None
"""[file, line, function] in the user's code."""

Versions: TypeAlias = dict[str, int]
"""By optimizer number (text in JSON), a count that grows with each change of its parameters in memory."""

Sketches: TypeAlias = Any
"""Of shape (n, 3): a tensor until it is written, an array after it is read."""

ENTROPIES = ("NllLossBackward0", "NllLoss2DBackward0")
"""The autograd nodes of cross entropies."""


_ROUNDED = 1e-6
"""Relative: a count in float32."""


@dataclass_transform()
@dataclass
class Record:
    """The base of all records, which are dataclasses of plain JSON values; sketches are tensors until written."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)


class Began(Record):
    """The first record of each process. launch: equal for processes that train together. started: the number of ranks
    that a launcher started, including this one."""

    pid: int
    rank: int
    world: int
    launch: str
    started: int = 1


class Source(Record):
    """A source line with its neighbours, and the path of its file, before the first record with this site."""

    file: str
    line: int
    path: str
    text: str


class Parameter(Record):
    """A parameter of an optimizer. shards: the number of pieces that each local gradient is cut into; 0 for layouts
    that sketches do not support. shard: the piece on this rank. is_part: each rank has a part, and its backward passes
    compute the whole gradient of this part."""

    parameter: int
    shape: list[int]
    dtype: str
    shards: int
    name: str | None
    shard: int = 0
    is_part: bool = False


class Named(Record):
    """Names of parameters in a model whose forward pass came after they were given to an optimizer."""

    names: dict[str, str]


class Optimizer(Record):
    """An optimizer was made, or seen for the first time, with these parameters."""

    optimizer: int
    type: str
    parameters: list[int]
    site: Site = None


class Stateless(Record):
    """An optimizer makes its first step without a state, on weights from a checkpoint with one. site: loads these."""

    optimizer: int
    site: Site


class Masters(Record):
    """The optimizer steps copies of these parameters, which get the gradients."""

    optimizer: int
    parameters: list[int]


class Behind(Record):
    """A backward pass gives gradients to parameters that have never changed, although the copies that an optimizer
    steps instead did. steps: of this optimizer so far."""

    optimizer: int
    parameters: list[int]
    steps: int


class Backward(Record):
    """A backward pass that accumulates gradients begins. Batches and models: those since the previous backward pass."""

    backward: int
    scale: float | None  # the loss scale
    factors: list[float]  # of the loss, the last ones
    targets: int | None  # targets of the mean that the factors multiply; 0 for a sum; None if unknown
    versions: Versions
    contains: bool  # the loss went backward before, or is a sum with such a loss
    probe: bool  # the model's input requires a gradient
    site: Site
    summed: int = 0  # targets of the sum that the factors multiply; 0 for a mean, but see `as_mean`
    loader: int | None = None  # the loader of the batches, if there is only one
    calls: int = 0  # equal for backward passes with the same stack of calls
    of_any: bool = False  # the mean or sum was written in the script, so its elements may be anything
    divisors: list[float] = field(default_factory=list)  # of the factors that are divisions
    batches: int = 0  # the number of batches from loaders
    evaluates: bool = False  # models only ran in evaluation mode
    is_alike: bool = False  # the graph of its loss is like that of the previous pass, on the same outputs
    draws: bool = False  # a batch sampler of the script made the batches
    terms: int = 0  # summed losses of one kind; 0 for one loss or several kinds
    added: int = 0  # summed losses of any kinds; 0 for one loss
    is_cut_off: bool = False  # its loss is a new number that does not depend on a model
    evaluated: list[int] = field(default_factory=list)  # if it `evaluates`, fingerprints of the rows of the first input
    samplers: list[int] = field(default_factory=list)  # of the batches, without sequential ones
    is_hidden: bool = False  # the loss has an unknown factor
    of_terms: list[float] = field(default_factory=list)  # divisors of single terms
    ignored: int = 0  # targets that the mean or sum ignores
    waits: bool = False  # DDP does not synchronize after it, as in `no_sync`
    own_calls: int = 0  # like calls, but only of calls in the script's files
    made_by: str = ""  # the autograd node of the loss below all factors
    global_divisors: list[list[float]] = field(default_factory=list)  # divisors reduced since the last step, own parts
    is_of_all: bool = False  # the loss is a DTensor: each rank computes a part of one loss
    value: float | None = None  # of the loss, with all factors; None if it is not one number
    weighs: bool = False  # the summed losses have different factors, so a divisor does not make their mean
    exchanged: int = 0  # floats in collectives since the last backward pass or step; 0 if they averaged the loss itself

    @cached_property
    def factor(self) -> float:
        """The factor of the loss, without the loss scale."""
        return prod(self.factors) / (self.scale or 1.0)

    def as_mean(self) -> Backward:
        """A sum that is divided by its own number of targets, as the mean that it is; it keeps `summed`. A number that
        collectives made may equal it, and counts the targets of all ranks."""
        own = next((one for one in self.divisors if isclose(one, self.summed, rel_tol=_ROUNDED)), None)
        if own is None or self.summed < 2 or self.global_divisors:
            return self
        factors, divisors = [*self.factors], [*self.divisors]
        factors.remove(min(factors, key=lambda factor: abs(factor * own - 1)))
        divisors.remove(own)
        return replace(self, targets=self.summed, factors=factors, divisors=divisors)


class Hooks(Record):
    """Gradients before the script's hooks on these parameters; the next `Local` has those after the hooks."""

    parameters: list[int]
    sketches: Sketches


class Local(Record):
    """Gradients as a backward pass gives them to the leaves, before any reduction. fresh: parameters without a `.grad`
    until now. sketches: one for each shard of each parameter."""

    backward: int
    parameters: list[int]
    fresh: list[int]
    dtype: str
    sketches: Sketches
    samples: list[int] = field(default_factory=list)


class Left(Record):
    """The first backward pass of a window of these parameters begins. held: parameters with an old gradient. changed:
    those whose gradient changed since the last step."""

    parameters: list[int]
    held: list[int]
    dtype: str
    sketches: Sketches
    samples: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)


class Stale(Record):
    """A backward pass used stale parameters that FSDP2 gathered before the last steps, at least this number."""

    parameters: list[int]
    steps: int
    site: Site


class Captured(Record):
    """`torch.autograd.grad` returned gradients of parameters, which the script may use in any way."""

    parameters: list[int]


class Cleared(Record):
    """Gradients are cleared. moved: some were unused, and weights changed, or may have changed, since then without a
    change of `versions`."""

    parameters: list[int]
    versions: Versions
    site: Site
    moved: bool = False
    within: int | None = None


class Clipped(Record):
    """A clip call. how: `norm` or `value`. given: the number of tensors. used_up: the tensors came from an exhausted
    generator; None if that is not known of an iterator. strange: the shapes of the tensors, if all require gradients
    but have none, and are in no optimizer. unheld: the number of tensors with a gradient that are in no optimizer."""

    how: str
    parameters: list[int]
    limit: float
    norm: float | None
    given: int
    site: Site
    used_up: bool | None = False
    strange: list[list[int]] = field(default_factory=list)
    within: int | None = None
    unheld: int = 0


class Limited(Record):
    """Gradients before and after clipping by value."""

    parameters: list[int]
    before: Sketches
    after: Sketches
    samples: list[int]


class Unscaled(Record):
    """A scaler unscales the gradients of an optimizer. parameters: some of them. before: their gradients with the
    scale."""

    optimizer: int
    scale: float
    site: Site
    within: int | None = None
    parameters: list[int] = field(default_factory=list)
    before: Sketches = field(default_factory=list)
    samples: list[int] = field(default_factory=list)


class Updated(Record):
    """A loss scale was updated."""

    scaler: int
    before: float
    after: float
    site: Site


class Skipped(Record):
    """A scaler skipped a step."""

    optimizer: int
    scale: float
    site: Site


class Schedule(Record):
    """A schedule was made for an optimizer that stepped afterwards."""

    optimizer: int
    name: str
    site: Site


class Scheduled(Record):
    """A schedule steps. count: its steps so far. horizon: the steps that it is made for; None without an end. is_told:
    it was given the position of the training, or a metric. base: its initial rates."""

    optimizer: int
    name: str
    before: list[float | None]
    after: list[float | None]
    site: Site
    count: int = 0
    horizon: int | None = None
    is_told: bool = False
    base: list[float | None] = field(default_factory=list)


class Stepped(Record):
    """An optimizer steps. used, weights: the parameters of the sketches in `gradients` and `values`. frozen: parameters
    that require no gradient. closure: it computed the gradients in a closure, after which `used` was read. unreduced:
    parameters with gradients that FSDP2 has not reduced. moved: weights changed although no parameter has a gradient.
    is_own: the optimizer's class is not torch's, so it may change the gradients first. is_elsewhere: the script changed
    weights since the previous step. after: sketches of these weights after the step, for the first steps; empty where a
    wrapper keeps ranks equal. partial: parameters with a summand of their gradient on each rank. sends: since its last
    step, the ranks exchanged no large tensors but `.grad`, reduced in place on all of them, and one broadcast for each
    of its parameters within this step."""

    optimizer: int
    type: str
    rates: list[float | None]
    parameters: list[int]
    frozen: list[int]
    closure: bool
    grad_scale: float | None
    found_inf: bool
    dtype: str
    used: list[int]
    gradients: Sketches
    weights: list[int]
    values: Sketches
    site: Site
    unreduced: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    moved: bool = False
    is_own: bool = False
    is_elsewhere: bool = False
    after: Sketches = field(default_factory=list)
    within: int | None = None
    partial: list[int] = field(default_factory=list)
    sends: bool = False


class Entered(Record):
    """A forward pass of a model in training mode. rows: a fingerprint of each row of its first input. sampler: which
    dealt the rows; negative for none, None if unknown. drawn: if the input is a whole batch of a loader, a number for
    each sample, unchanged by augmentation. beside: for each row, a fingerprint of all other inputs; [] if there are
    none."""

    rows: list[int]
    wrapped: bool
    site: Site
    sampler: int | None = None
    drawn: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)

    @property
    def whole(self) -> tuple[int, ...]:
        """A fingerprint of each row of all inputs."""
        return tuple(hash(row) for row in zip(self.rows, self.beside, strict=True)) if self.beside else (*self.rows,)


class Epoch(Record):
    """A loader begins an epoch of a sampler. epoch: as `set_epoch` sets it; None if there is no such method. replicas:
    of a `DistributedSampler`. data: a fingerprint of the data set's content; None if unknown. whole: the same of the
    data that this is cut from. made: the line that made it."""

    sampler: int
    epoch: int | None
    shuffles: bool
    replicas: int = 0
    data: int | None = None
    whole: int | None = None
    made: Site = None


class First(Record):
    """The first batch of an epoch of a sampler. rows: a fingerprint of each row of its first tensor.
    drawn: a number for each sample, as in `Entered`. labelled: these include labels that differ. is_all: the epoch has
    one batch."""

    sampler: int
    epoch: int | None
    rows: list[int]
    drawn: list[int]
    labelled: bool
    is_all: bool
    site: Site


class Unheld(Record):
    """All parameters so far with gradients but without an optimizer. unfrozen: names of those that were frozen while
    others trained, got gradients for half of the run, and never changed. replacing: names of those that took the place
    of a parameter of an optimizer in its module, and never changed. replaced: these parameters, in the same order."""

    names: list[str]
    shapes: list[list[int]]
    unfrozen: list[str] = field(default_factory=list)
    replacing: list[str] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)


class Weighed(Record):
    """The weights before some of the backward passes. last: those at the end of the ranks' common training."""

    parameters: list[int]
    values: Sketches
    last: bool = False


class Buffers(Record):
    """Buffers of a model, followed by `frozen` parameters that are frozen or may be in no optimizer, after some steps.
    values: a sketch of each."""

    names: list[str]
    values: Sketches
    frozen: int = 0


class Hooked(Record):
    """A communication hook was registered, which may change the reduction."""

    name: str


class Joined(Record):
    """Ranks may have different numbers of batches from here."""


class Rejoined(Record):
    """All ranks are here: those that ran out of data waited for the others."""


class Exchanged(Record):
    """Nodes of a backward pass, such as gathers of features, communicated with other ranks after some parameters got
    their gradients. parameters: those that got them before the first of these nodes."""

    parameters: list[int]


class Grouped(Record):
    """Gradients are averaged over a group of ranks of this size."""

    size: int


class Wrapped(Record):
    """This optimizer has parameters of a model in DDP. own: parameters of this model that DDP ignores. inside: all
    others of this model."""

    optimizer: int
    own: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)


class Shared(Record):
    """Ranks exchanged gradients of this optimizer before its first step. site: the call that exchanged most."""

    optimizer: int
    site: Site = None


class Failed(Record):
    """A part of the recorder raised an error and was switched off. observer: "" if all parts were."""

    observer: str
    error: str


class Passed(Record):
    """An optimizer steps at the end of a window that is not watched."""

    optimizer: int


class Ended(Record):
    """The process ended by itself, or the watch of it ended."""
