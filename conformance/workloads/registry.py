"""The standard workloads by name. To add one, add an entry to a table of ingredients, or a data set to `STANDARD`, and
a rule to `conformance.cases.rules`, which says where it runs. A workload with a new model also needs an entry in
`conformance.workloads.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

from conformance.workloads.data_sets import ANY_ORDER, any_order, line, multivariate, noisy_line, two_workers
from conformance.workloads.designs import DESIGNS, ENDS, OF_OTHERS
from conformance.workloads.kept_answers import ANSWERS
from conformance.workloads.layout import Layout
from conformance.workloads.model import Model
from conformance.workloads.outliers import has_infinite_loss
from conformance.workloads.recipes import DERIVED, GROWING, RECIPES, TWO_LAYERS
from conformance.workloads.workload import SGD, AdamW, Ingredients, Optimizer, Workload


@dataclass(frozen=True)
class DataSet:
    """A workload with given data. ``build`` makes it with global batches of one of the ``batch_sizes``."""

    build: Callable[[int], Workload]
    batch_sizes: tuple[int, ...]
    in_whole_shares: bool = False


STANDARD: dict[str, Ingredients | DataSet] = {
    **RECIPES,
    **DERIVED,
    **DESIGNS,
    **OF_OTHERS,
    **TWO_LAYERS,
    **ENDS,
    **{name: DataSet(partial(any_order, name), sizes) for name, sizes in ANY_ORDER.items()},
    "line": DataSet(lambda batch_size: line(), (4,)),
    "noisy-line": DataSet(lambda batch_size: noisy_line(), (4,)),
    "two-workers": DataSet(lambda batch_size: two_workers(), (4,)),
    "multivariate": DataSet(lambda batch_size: multivariate(), (1000,)),
}


@cache
def made(name: str, batch_size: int, accumulation: int = 1) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    entry = STANDARD[name]
    if isinstance(entry, DataSet):
        return entry.build(batch_size)
    if entry.data_of is None:
        return ANSWERS.get(("made", name, batch_size, accumulation), lambda: entry.build(batch_size, accumulation))
    return replace(made(entry.data_of.name, batch_size, accumulation), **entry.settings)


def standard(name: str, world_size: int, accumulation: int) -> tuple[Workload, Layout]:
    """The workload ``name`` with a global batch that can be divided over the layout, and that layout.

    Raises:
        KeyError: no such workload.
        ValueError: no global batch of this workload can be divided over the layout.
    """
    entry = STANDARD[name]
    for size in entry.batch_sizes:
        if size % (world_size * max(1, accumulation)) == 0:
            workload = made(name, size, accumulation)
            layout = Layout.of(workload, world_size, accumulation)
            return workload, replace(layout, in_whole_shares=entry.in_whole_shares)
    raise ValueError(f"workload {name}: no global batch divides over {world_size} ranks x {accumulation} micro-batches")


def asking(name: str) -> Workload | Ingredients:
    """The requirements of a workload on a trainer, for any layout, and its summary: the workload itself or, if its data
    take seconds to find, its ingredients. Raises KeyError: no such workload.
    """
    entry = STANDARD[name]
    return made(name, entry.batch_sizes[0]) if isinstance(entry, DataSet) else entry


#: The initial scale of `torch.amp.GradScaler` and most frameworks.
OWN_SCALE = Fraction(2**16)


def can_have_own_scale(workload: str, model: Model) -> bool:
    """Whether the model is linear in the parameters, and the workload is not about the growth of the loss scale."""
    return len(model.layers) == 1 and workload != GROWING


def at_own_scale(workload: Workload) -> Workload:
    """``workload`` at OWN_SCALE, if it can have it: the same training in smaller numbers.

    A model that is linear in its parameters trains alike in any unit of its outputs. If the start, the targets and
    everything else with this unit are divided by a power of two, so are weights and gradients; with a loss scale
    multiplied by it, the scaled gradients are the same.
    """
    unit = workload.scale.init_scale / OWN_SCALE
    return replace(
        workload,
        batches=tuple(
            # An infinite loss must stay infinite.
            tuple(one if has_infinite_loss(one) else replace(one, y=one.y * unit) for one in batch)
            for batch in workload.batches
        ),
        start=tuple(value * unit for value in workload.start),
        optimizer=_in_unit(workload.optimizer, workload.optimizer, unit),
        groups=tuple(_in_unit(group, workload.optimizer, unit) for group in workload.groups),
        clip=workload.clip and replace(workload.clip, threshold=workload.clip.threshold * unit),
        scale=replace(workload.scale, init_scale=OWN_SCALE),
    )


def _in_unit(settings: Any, optimizer: Optimizer, unit: Fraction) -> Any:
    """The settings of an optimizer, or of one of its groups. Steps along gradients have their unit. Steps along
    quotients have none, except for the rate and the epsilon."""
    if isinstance(optimizer, SGD):
        return settings
    # AdamW's decay is multiplied by the rate.
    decay = settings.weight_decay / (unit if isinstance(optimizer, AdamW) else 1)
    more = {"eps": optimizer.eps * unit} if settings is optimizer else {}
    return replace(settings, lr=settings.lr * unit, weight_decay=decay, **more)
