"""What the recorder of a process writes down: one JSON array a line, the name of the record and its fields.

Sketches are doubles in base64, three for each tensor: two projections and the 2-norm (see `sketch.py`). `samples` says
what they are of in each: of nothing if it is UNREAD, where there is none; it is empty if all are of whole parameters.
`within` is the number of the backward pass that a call comes in, as in a hook.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from typing_extensions import dataclass_transform

Site: TypeAlias = list[Any] | None
"""[file, line, function] in the user's code."""

Versions: TypeAlias = dict[str, int]
"""Of optimizers, by their numbers, as text in JSON: grows with each change of their parameters in memory."""

Sketches: TypeAlias = Any
"""(n, 3): a tensor while it waits to be written, an array once it is read."""

ENTROPIES = ("NllLossBackward0", "NllLoss2DBackward0")
"""The nodes of cross entropies."""


@dataclass_transform()
@dataclass
class Record:
    """Each class below is a dataclass whose fields are plain JSON values; while it waits to be written, sketches may be
    tensors."""

    def __init_subclass__(cls) -> None:
        dataclass(cls)


class Began(Record):
    """The first of each process. launch: what processes that train together share. started: how many ranks a launcher
    has started, this one among them."""

    pid: int
    rank: int
    world: int
    launch: str
    started: int = 1


class Source(Record):
    """Before the first record of a line: its text between its neighbours, and the path of the file that sites name."""

    file: str
    line: int
    path: str
    text: str


class Parameter(Record):
    """A parameter that an optimizer holds. shards: into how many pieces each local gradient is cut; 0 for a layout
    that sketches do not follow. shard: which of them is on this rank. is_part: each rank has a part, and its backward
    passes compute the whole gradient of that."""

    parameter: int
    shape: list[int]
    dtype: str
    shards: int
    name: str | None
    shard: int = 0
    is_part: bool = False


class Named(Record):
    """The names that parameters have in a model, which went forward after an optimizer was given them."""

    names: dict[str, str]


class Optimizer(Record):
    """An optimizer is made, or seen for the first time. parameters: those that it holds by then."""

    optimizer: int
    type: str
    parameters: list[int]


class Backward(Record):
    """A backward that accumulates gradients begins. scale: the loss scale that its loss carries. factors: numbers that
    the loss was multiplied with last. targets: how many the mean is of that they multiply; 0 for a sum; None if it is
    not known. contains: the loss is one that went backward before, or a
    sum in which there is one. double: it creates a graph of itself. probe: the model's input wants a gradient. summed:
    how many targets the sum is of that the factors multiply; 0 for a mean. batches: how many loaders gave since the
    backward before; loader: the only one of these. evaluates: models only went forward in evaluation mode since. calls:
    the same for all backward passes that come from the same calls, line by line, whatever file they are in. of_any: the
    mean or sum is one of the script's own, of anything, and not that of cross entropy or its kin over targets.
    divisors: the factors that were divisions, each by its number. is_alike: its loss is made like that of the backward
    pass before, of the same outputs. draws: a batch sampler of the script's own made the batches. terms: how many
    losses of one kind are added up in it, 0 for one loss or several kinds. is_cut_off: its loss is a number that was
    made anew and comes from no model. evaluated: if it `evaluates`, a fingerprint of each row of the first input.
    samplers: the `DistributedSampler`s that gave batches since the backward before. is_hidden: the loss is multiplied
    with something that is not known. of_terms: what single terms of it are divided by. ignored: how many targets were
    left out of the mean or sum. waits: DDP was told not to synchronize after it. own_calls: as calls, of those in the
    script's own files. made_by: the node of the loss below all that it is multiplied with, by name. global_divisors:
    the divisors that are sums or means over ranks, reduced since the last step. is_of_all: the loss is a DTensor: one
    loss of all ranks, of which each computes a part."""

    backward: int
    scale: float | None
    factors: list[float]
    targets: int | None
    versions: Versions
    contains: bool
    double: bool
    probe: bool
    site: Site
    summed: int = 0
    loader: int | None = None
    calls: int = 0
    of_any: bool = False
    divisors: list[float] = field(default_factory=list)
    batches: int = 0
    evaluates: bool = False
    is_alike: bool = False
    draws: bool = False
    terms: int = 0
    is_cut_off: bool = False
    evaluated: list[int] = field(default_factory=list)
    samplers: list[int] = field(default_factory=list)
    is_hidden: bool = False
    of_terms: list[float] = field(default_factory=list)
    ignored: int = 0
    waits: bool = False
    own_calls: int = 0
    made_by: str = ""
    global_divisors: list[list[float]] = field(default_factory=list)
    is_of_all: bool = False


class Hooks(Record):
    """Hooks of the script's own are on these parameters: what the next `Local` has of them comes after the hooks, and
    this from before."""

    parameters: list[int]
    sketches: Sketches


class Local(Record):
    """Gradients as a backward hands them to the leaves, before anything reduces them. fresh: those of `parameters`
    that have no `.grad` yet. sketches: for each parameter, one for each of its shards."""

    backward: int
    parameters: list[int]
    fresh: list[int]
    dtype: str
    sketches: Sketches
    samples: list[int] = field(default_factory=list)


class Left(Record):
    """The first backward of a window of `parameters` begins. held: those that have a gradient, which steps before have
    left. changed: those of them that are not as the last step left them."""

    parameters: list[int]
    held: list[int]
    dtype: str
    sketches: Sketches
    samples: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)


class Stale(Record):
    """A backward pass reaches what FSDP2 has gathered of these parameters before the last steps, so many at least."""

    parameters: list[int]
    steps: int
    site: Site


class Captured(Record):
    """`torch.autograd.grad` returned the gradients of parameters, which the script may use as it likes."""

    parameters: list[int]


class Cleared(Record):
    """moved: gradients are cleared that no step has used, and weights changed since, in a way that `versions` do not
    show; or it is not known."""

    parameters: list[int]
    versions: Versions
    site: Site
    moved: bool = False
    within: int | None = None


class Clipped(Record):
    """how: `norm` or `value`. given: how many tensors it was given, whoever holds them. used_up: by a generator that
    had nothing left; None where that is not known of an iterator. strange: their shapes, if no optimizer holds any of
    them, and none of them has a gradient, though they require one."""

    how: str
    parameters: list[int]
    limit: float
    norm: float | None
    given: int
    site: Site
    used_up: bool | None = False
    strange: list[list[int]] = field(default_factory=list)
    within: int | None = None


class Limited(Record):
    """What clipping by value made of these gradients, element by element: from `before` to `after`."""

    parameters: list[int]
    before: Sketches
    after: Sketches
    samples: list[int]


class Unscaled(Record):
    optimizer: int
    scale: float
    site: Site
    within: int | None = None


class Updated(Record):
    """The loss scale was updated."""

    before: float
    after: float
    site: Site


class Skipped(Record):
    """The scaler left out a step."""

    optimizer: int
    scale: float
    site: Site


class Schedule(Record):
    """A schedule was made for an optimizer, which has stepped since."""

    optimizer: int
    name: str
    site: Site


class Scheduled(Record):
    """count: how often it has stepped. horizon: how often it is made to; None for one without an end. is_told: it was
    given where the training is, or how well it goes. base: the rates that it begins from."""

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
    """An optimizer steps. used, weights: the parameters that the sketches of gradients and weights belong to. frozen:
    those that require no gradient. closure: it computed the gradients itself; `used` is from after it. unreduced:
    those that have gradients which FSDP2 has not reduced yet. moved: no parameter has a gradient, and weights changed
    all the same. is_own: what reads them is no class of torch's, and may change them first. is_elsewhere: the script
    has changed weights since the step before. after: sketches of these weights after the step, of the first steps;
    empty where a wrapper keeps those of ranks equal. stale: how many times it called a closure that computed no
    gradients."""

    optimizer: int
    type: str
    rates: list[float | None]
    parameters: list[int]
    frozen: list[int]
    closure: bool
    grad_scale: float | None
    found_inf: bool
    maximize: bool
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
    stale: int = 0
    within: int | None = None


class Entered(Record):
    """A model goes forward to train. rows: a fingerprint of each row of its first input. sampler: what dealt them out;
    negative for none, None if it is not known. drawn: where the input is made of a whole batch of a loader, a number
    for each sample in it that is the same whatever was made of the sample. beside: for each row a fingerprint of
    all other inputs; [] if there are none."""

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
    """A loader begins to go through a `DistributedSampler`, which deals its data out to so many replicas. data: a
    fingerprint of what its data set holds; None if it holds nothing that is known. whole: of what that is cut from."""

    sampler: int
    epoch: int
    shuffles: bool
    replicas: int = 0
    data: int | None = None
    whole: int | None = None


class First(Record):
    """The first batch of an epoch of a `DistributedSampler`. rows: a fingerprint of each row of its first tensor.
    drawn: a number for each sample, as in `Entered`; labelled: labels that differ are in these. is_all: there is no
    other batch."""

    sampler: int
    epoch: int
    rows: list[int]
    drawn: list[int]
    labelled: bool
    is_all: bool
    site: Site


class Unheld(Record):
    """All parameters so far that backward passes computed gradients for, and that no optimizer holds. unfrozen: the
    names of those that were frozen while others trained, have got gradients for half of the run, and never changed."""

    names: list[str]
    shapes: list[list[int]]
    unfrozen: list[str] = field(default_factory=list)


class Weighed(Record):
    """What the weights are before a backward pass, now and then. last: when the ranks part."""

    parameters: list[int]
    values: Sketches
    last: bool = False


class Buffers(Record):
    """What models keep that is not trained, after some steps of an optimizer: buffers, and then so many frozen
    parameters. values: a sketch of each."""

    names: list[str]
    values: Sketches
    frozen: int = 0
    optimizer: int = -1


class Hooked(Record):
    """A communication hook was registered: it may change what is reduced."""

    name: str


class Joined(Record):
    """Ranks may have different numbers of batches from here."""


class Exchanged(Record):
    """A node of a backward pass, such as the gathering of features, has sent something to other ranks after these
    parameters had their gradients."""

    parameters: list[int]


class Grouped(Record):
    """Gradients are averaged over a group of so many ranks."""

    size: int


class Wrapped(Record):
    """This optimizer holds parameters that DDP averages over the ranks when it is called. own: those of its model that
    it was told to leave to each rank. inside: all others of its model."""

    optimizer: int
    own: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)


class Shared(Record):
    """Before the first step of this optimizer, ranks have exchanged its weights or gradients."""

    optimizer: int


class Failed(Record):
    """A part of the recorder raised, and was switched off. observer: "" if each part would, and has to be."""

    observer: str
    error: str


class Passed(Record):
    """An optimizer steps at the end of a window that is not looked at."""

    optimizer: int


class Ended(Record):
    """The process ended by itself, or is watched no longer."""
