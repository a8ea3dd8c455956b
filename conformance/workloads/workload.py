"""The training job: a linear regression, its data, loss, optimizer, schedule and clip, in exact rationals.

Every number is a :class:`fractions.Fraction`. If a trainer receives a float (a learning rate of ``0.001``), the
workload has the rational value *of that float*: the harness judges the arithmetic, never the decimal notation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

from conformance.workloads.model import Model
from conformance.workloads.reading_plan import Sampler

Vector = tuple[Fraction, ...]


@dataclass(frozen=True)
class Sample:
    """One training example: ``x`` of shape (features,), target ``y``, and its weight in a weighted loss."""

    x: Vector
    y: Fraction
    weight: Fraction = Fraction(1)


@dataclass(frozen=True)
class SGD:
    """SGD as :class:`torch.optim.SGD` defines it: the momentum buffer starts as the first gradient."""

    lr: Fraction
    momentum: Fraction = Fraction(0)
    dampening: Fraction = Fraction(0)
    nesterov: bool = False
    weight_decay: Fraction = Fraction(0)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay as :class:`torch.optim.AdamW` defines it."""

    lr: Fraction
    beta1: Fraction = Fraction(0.9)
    beta2: Fraction = Fraction(0.999)
    eps: Fraction = Fraction(1e-8)
    weight_decay: Fraction = Fraction(0.01)


@dataclass(frozen=True)
class Adagrad:
    """Adagrad as :class:`torch.optim.Adagrad` defines it."""

    lr: Fraction
    lr_decay: Fraction = Fraction(0)
    eps: Fraction = Fraction(1e-10)
    weight_decay: Fraction = Fraction(0)


Optimizer: TypeAlias = SGD | AdamW | Adagrad
#: What a learning-rate schedule counts.
ScheduleBy: TypeAlias = Literal["step", "epoch"]


@dataclass(frozen=True)
class Group:
    """The settings of a further parameter group; None, and everything else, means as in the first one."""

    lr: Fraction
    weight_decay: Fraction
    momentum: Fraction | None = None
    schedule: Vector | None = None


@dataclass(frozen=True)
class Clip:
    """Gradient clipping as torch.nn.utils defines it.

    ``norm``: :func:`torch.nn.utils.clip_grad_norm_`, whose coefficient is min(1, threshold / (norm + 1e-6)), or the
    same without the 1e-6.
    ``value``: :func:`torch.nn.utils.clip_grad_value_`, which clamps every entry to [-threshold, threshold].
    """

    kind: Literal["norm", "value"]
    threshold: Fraction


@dataclass(frozen=True)
class Average:
    """An average of the weights after each step, next to the model, as :mod:`torch.optim.swa_utils` defines it.

    ``ema``: ``average = decay average + (1 - decay) weights``. ``swa``: the mean of all of them.
    """

    kind: Literal["ema", "swa"]
    decay: Fraction | None = None


@dataclass(frozen=True)
class LossScale:
    """The loss scale as :class:`torch.amp.GradScaler` updates it: it grows after ``growth_interval`` steps in a row
    without an overflow.
    """

    init_scale: Fraction
    growth_interval: int = 2**31 - 1
    growth_factor: Fraction = Fraction(2)
    backoff_factor: Fraction = Fraction(1, 2)


@dataclass(frozen=True)
class Training:
    """The requirements on a trainer, without the data.

    ``schedule`` multiplies the learning rate, one entry per optimizer step, or per epoch (``schedule_by``). ``groups``
    are further parameter groups of the optimizer. ``kernel``: the requested implementation of the optimizer; the
    arithmetic is the same. Frozen parameters are trained from window ``unfreeze_at`` on, if it is set. With
    ``ranks_start_apart`` ranks 1, 2, ... have other weights until a broadcast makes them equal.
    """

    name: str
    summary: str
    optimizer: Optimizer
    model: Model
    _: KW_ONLY
    groups: tuple[Group, ...] = ()
    kernel: Literal["foreach", "fused", "capturable"] | None = None
    schedule: Vector | None = None
    schedule_by: ScheduleBy = "step"
    clip: Clip | None = None
    average: Average | None = None
    scale: LossScale = LossScale(Fraction(2**7))
    unfreeze_at: int | None = None
    ranks_start_apart: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """All of these by name."""
        return {field.name: getattr(self, field.name) for field in fields(Training)}

    def group_of(self, tensor: int) -> int:
        """The number of the ``tensor``-th parameter's group."""
        return self.model.tensors[tensor].group(1 + len(self.groups))

    def optimizer_of(self, group: int) -> Optimizer:
        """The settings of a parameter group."""
        if not group:
            return self.optimizer
        own = self.groups[group - 1]
        settings = replace(self.optimizer, lr=own.lr, weight_decay=own.weight_decay)
        if own.momentum is not None and isinstance(settings, SGD):
            return replace(settings, momentum=own.momentum)
        return settings

    def schedule_of(self, group: int) -> Vector | None:
        """The factors of the learning rate of a parameter group, one entry per optimizer step or epoch."""
        own = self.groups[group - 1].schedule if group else None
        return self.schedule if own is None else own

    @property
    def schedules(self) -> tuple[Vector, ...]:
        """The schedules of all parameter groups that have one."""
        found = map(self.schedule_of, range(len(self.groups) + 1))
        return tuple(schedule for schedule in found if schedule is not None)

    def trains(self, tensor: int, window: int) -> bool:
        """Whether the ``tensor``-th parameter is trained in a window."""
        return self.model.tensors[tensor].is_trained(window, self.unfreeze_at)


@dataclass(frozen=True)
class Workload(Training):
    """A training job.

    ``batches`` are the global batches of one epoch: each has the samples that all ranks and micro-batches of one
    optimizer step read together. Every batch except the last has the same number of samples. With ``shuffle`` each
    epoch has another order, by :func:`conformance.workloads.reading_plan.shuffled`; with a ``sampler`` by
    :func:`conformance.workloads.reading_plan.sampled`, which mixes the batches. With ``own_order`` the trainer may use
    any other order in each. ``start`` has the initial parameters of ``model``, element by element.

    Raises:
        ValueError: the batches are empty, of uneven length before the last, or do not fit the model.
    """

    _: KW_ONLY
    summary: str = ""
    batches: tuple[tuple[Sample, ...], ...] = field(hash=False)  # A thousand fractions take long to hash.
    start: Vector
    loss: Literal["mean", "weighted"] = "mean"
    epochs: int = 1
    shuffle: bool = False
    sampler: Sampler | None = None
    own_order: bool = False

    def __post_init__(self) -> None:
        if not self.batches or not all(self.batches):
            raise ValueError(f"workload {self.name}: needs at least one global batch, and none may be empty")
        sizes = {len(batch) for batch in self.batches[:-1]}
        if len(sizes) > 1 or (sizes and len(self.batches[-1]) > min(sizes)):
            raise ValueError(f"workload {self.name}: global batches must be equally long, except a shorter last one")
        widths, features = {len(sample.x) for batch in self.batches for sample in batch}, self.model.features
        if widths != {features}:
            raise ValueError(f"workload {self.name}: samples have {sorted(widths)} features, the model {features}")
        if len(self.start) != self.model.size:
            raise ValueError(f"workload {self.name}: {len(self.start)} initial numbers for {self.model.size} elements")
        for schedule in map(self.schedule_of, range(1 + len(self.groups))):
            length = self.steps if self.schedule_by == "step" else self.epochs
            if schedule is not None and len(schedule) < length:
                raise ValueError(
                    f"workload {self.name}: the schedule covers {len(schedule)} of {length} {self.schedule_by}s"
                )
        if len({self.group_of(tensor) for tensor in range(len(self.model.tensors))}) != 1 + len(self.groups):
            raise ValueError(f"workload {self.name}: its parameters do not use all {len(self.groups)} further groups")

    @property
    def batch_size(self) -> int:
        """Samples in a full global batch."""
        return len(self.batches[0])

    @cached_property
    def data(self) -> tuple[Sample, ...]:
        """The samples of all batches."""
        return tuple(chain.from_iterable(self.batches))

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The recorder's number of each sample's row: in the order of the samples; equal features share one."""
        numbers: dict[Vector, int] = {}
        return tuple(numbers.setdefault(sample.x, len(numbers)) for sample in self.data)

    @property
    def samples(self) -> int:
        """The number of samples in one epoch."""
        return len(self.data)

    @property
    def steps(self) -> int:
        """Optimizer steps without skips: one per window."""
        return self.windows_of_epoch * self.epochs

    @property
    def windows_of_epoch(self) -> int:
        """The windows of an epoch. A sampler that drops samples drops whole windows."""
        return self.samples // self.batch_size if self.sampler == "drop" else len(self.batches)

    def uses(self, tensor: int, samples: Iterable[Sample]) -> bool:
        """Whether any of the samples uses the ``tensor``-th parameter."""
        block = self.model.tensors[tensor].block
        return block is None or any(self.model.block(sample.x) == block for sample in samples)

    def start_of(self, rank: int) -> Vector:
        """The weights of ``rank`` before a broadcast makes them equal."""
        return tuple(value + rank for value in self.start) if self.ranks_start_apart else self.start


@dataclass(frozen=True)
class Ingredients(Training, ABC):
    """The ingredients of a workload whose data take seconds to find.

    ``batch_sizes``: global batch sizes to try in order, until one can be divided over the layout. ``weights``: sample
    weights for a weighted loss; None for the plain mean. ``in_whole_shares``: as in
    :class:`conformance.workloads.layout.Layout`. ``data_of``: takes the data of another workload. Another ``seed``
    draws other numbers, for workloads in which the first ones hide a fault in some layout.
    """

    _: KW_ONLY
    #: 24 samples can be divided over nearly all layouts, 4 x 4 needs 16, and 3 x 3 needs 18.
    batch_sizes: tuple[int, ...] = (24, 16, 18)
    weights: tuple[Any, ...] | None = None
    in_whole_shares: bool = False
    data_of: Ingredients | None = None
    seed: int = 0

    @property
    def loss(self) -> Literal["mean", "weighted"]:
        return "mean" if self.weights is None else "weighted"

    @abstractmethod
    def build(self, batch_size: int, accumulation: int) -> Workload:
        """The workload with global batches of ``batch_size`` samples, always the same one.

        Raises:
            ValueError: the ingredients are unsatisfiable.
        """
