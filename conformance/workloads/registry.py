"""The standard workloads by name. To add one, add an entry to `STANDARD`, and a rule to `conformance.cases.rules`,
which says where it runs. What trains another model than those of `conformance.workloads.model` needs one there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from conformance.workloads.any_order import BATCH_SIZES as ANY_ORDER_BATCH_SIZES
from conformance.workloads.any_order import any_order
from conformance.workloads.certified import Recipe
from conformance.workloads.designed import Design
from conformance.workloads.exercise import line, noisy_line, two_workers
from conformance.workloads.layout import Layout
from conformance.workloads.many_tensors import BATCH_SIZES as MANY_BATCH_SIZES
from conformance.workloads.many_tensors import design, many_tensors
from conformance.workloads.multivariate import multivariate
from conformance.workloads.recipes import DERIVED, RECIPES, ingredients, recipe
from conformance.workloads.short_ends import BATCH_SIZES as SHORT_BATCH_SIZES
from conformance.workloads.short_ends import DESIGNS as SHORT_DESIGNS
from conformance.workloads.short_ends import UNEVEN_RANKS, short_ends
from conformance.workloads.two_layers import BATCH_SIZES as TWO_LAYERS_BATCH_SIZES
from conformance.workloads.two_layers import RECIPES as TWO_LAYERS
from conformance.workloads.two_layers import two_layers
from conformance.workloads.workload import Workload

#: Global batches tried in turn: 24 samples divide over nearly all layouts, 4 x 4 needs 16, and 3 x 3 needs 18.
BATCH_SIZES = (24, 16, 18)

Build = Callable[[int, int], Workload]


@dataclass(frozen=True)
class Standard:
    """``build(batch_size, accumulation)`` makes the workload, with the first of ``batch_sizes`` that divides over the
    layout. A fixed data set has only one. ``in_whole_shares``: as in `Layout`.
    """

    build: Build
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    in_whole_shares: bool = False


def _short(batch_size: int, accumulation: int) -> int:
    """Samples of a last window that lacks at least one micro-batch."""
    return batch_size // 3 if accumulation == 3 else batch_size // 2


def _of_some_ranks(batch_size: int) -> int:
    """Samples of a last window that is whole on one of two ranks, two of three, or two of four."""
    return batch_size // 3 * 2 if batch_size % 3 == 0 else batch_size // 2


def _from_recipe(name: str) -> Standard:
    return Standard(lambda batch_size, accumulation: recipe(name, batch_size))


def _of(build: Callable[[str, int], Workload], name: str, batch_sizes: tuple[int, ...]) -> Standard:
    return Standard(lambda batch_size, accumulation: build(name, batch_size), batch_sizes)


STANDARD: dict[str, Standard] = {
    **{name: _from_recipe(name) for name in (*RECIPES, *DERIVED)},
    **{name: _of(many_tensors, name, sizes) for name, sizes in MANY_BATCH_SIZES.items()},
    **{name: _of(two_layers, name, sizes) for name, sizes in TWO_LAYERS_BATCH_SIZES.items()},
    **{name: _of(short_ends, name, sizes) for name, sizes in SHORT_BATCH_SIZES.items()},
    **{name: _of(any_order, name, sizes) for name, sizes in ANY_ORDER_BATCH_SIZES.items()},
    "short-window": Standard(lambda size, accumulation: recipe("short-window", size, _short(size, accumulation))),
    "uneven-batch": Standard(lambda size, accumulation: recipe("uneven-batch", size, 12), (16,)),
    "uneven-ranks": Standard(
        lambda size, accumulation: recipe("uneven-ranks", size, _of_some_ranks(size)), (16, 18), in_whole_shares=True
    ),
    UNEVEN_RANKS: replace(_of(short_ends, UNEVEN_RANKS, SHORT_BATCH_SIZES[UNEVEN_RANKS]), in_whole_shares=True),
    "line": Standard(lambda batch_size, accumulation: line(), (4,)),
    "noisy-line": Standard(lambda batch_size, accumulation: noisy_line(), (4,)),
    "two-workers": Standard(lambda batch_size, accumulation: two_workers(), (4,)),
    "multivariate": Standard(lambda batch_size, accumulation: multivariate(), (1000,)),
}


def standard(name: str, world_size: int, accumulation: int) -> tuple[Workload, Layout]:
    """The workload ``name`` with a global batch that divides over the layout, and that layout.

    Raises:
        KeyError: no such workload.
        ValueError: no global batch of this workload divides over the layout.
    """
    entry = STANDARD[name]
    for size in entry.batch_sizes:
        if size % (world_size * max(1, accumulation)) == 0:
            workload = entry.build(size, accumulation)
            layout = Layout.of(workload, world_size, accumulation)
            return workload, replace(layout, in_whole_shares=entry.in_whole_shares)
    raise ValueError(f"workload {name}: no global batch divides over {world_size} ranks x {accumulation} micro-batches")


@cache
def asking(name: str) -> Workload | Design | Recipe:
    """What tells what the workload asks of a trainer, however it is divided, and what it is. Where its data have to be
    found, which takes seconds for all of them, that is what they are made of. Raises KeyError: no such workload.
    """
    if name in MANY_BATCH_SIZES:
        return design(name)
    if name in SHORT_DESIGNS:
        return SHORT_DESIGNS[name]
    if name in TWO_LAYERS:
        return TWO_LAYERS[name]
    if name in RECIPES or name in DERIVED:
        return ingredients(name)
    entry = STANDARD[name]
    return entry.build(entry.batch_sizes[0], 1)


def summary(name: str) -> str:
    """What the workload is, in a sentence. Raises KeyError: no such workload."""
    return asking(name).summary
