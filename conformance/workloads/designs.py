"""The standard workloads of several epochs, each in another order: many tensors, and the ends of epochs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from conformance.workloads.designed import Design
from conformance.workloads.model import LargeTensors, Linear, ManyTensors
from conformance.workloads.outliers import in_one_row, last_target
from conformance.workloads.recipes import ADAMW, HALF, SCHEDULE
from conformance.workloads.workload import SGD, Clip, Group

ONE = Fraction(1)
#: In a second row, in the second quarter of all elements, and in the fourth parameter.
SECOND_OF_CUBE = 5
#: A window inside an epoch: distinguishes state that is reset there from state that is reset in each epoch.
_INSIDE = 2
#: After one step and after two, the rate differs from the first: the schedule's position shows there, too.
_ONCE_DOWN = (ONE, HALF, HALF, HALF, ONE, ONE)
#: A schedule that restarts in each epoch shows, also if short windows are dropped.
DOWN_AND_UP = (ONE, HALF, HALF, HALF, HALF, ONE)

#: With 24 samples, all norms exceed the threshold, no course of an element stays on its grid, or nothing moves in some
#: window.
_NOT_OF_24 = (32,)

DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design(
            "many-tensors",
            "Ten parameters, one of them tied and one an embedding; momentum and a learning-rate schedule.",
            SGD(ONE, momentum=HALF),
            schedule=SCHEDULE,
            stops=(1, 3, 4),
        ),
        Design(
            "many-coarse",
            "Ten parameters, momentum and a schedule, in few bits, for bf16; elements may return to their start.",
            SGD(ONE, momentum=HALF),
            schedule=SCHEDULE,
        ),
        Design(
            "many-groups",
            "Ten parameters in three groups: vectors have twice the learning rate and no weight decay, scalars half "
            "the decay, no momentum and their own learning-rate schedule.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            groups=(
                Group(ONE, Fraction(0)),
                Group(ONE, HALF, momentum=Fraction(0), schedule=(ONE, ONE, HALF, HALF, ONE, HALF)),
            ),
            kernel="foreach",
            schedule=SCHEDULE,
            largest_weight=16,
            stops=(3,),
        ),
        Design(
            "many-shards-groups",
            "Ten parameters of at least one dimension in two groups: vectors have twice the learning rate and half the "
            "weight decay.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(scalars=False),
            groups=(Group(ONE, HALF),),
            kernel="foreach",
            schedule=SCHEDULE,
        ),
        Design(
            "many-shards-overflow",
            "Ten parameters of at least one dimension; in each epoch one element overflows fp16 that is not on rank 0: "
            "if parameters are sharded by rows, in equal parts over four ranks, or as a whole.",
            SGD(ONE, momentum=HALF),
            model=ManyTensors(scalars=False),
            outliers={1: in_one_row(SECOND_OF_CUBE)},
        ),
        Design(
            "frozen",
            "Ten parameters, three of them frozen; ranks start with different ones. Momentum and weight decay.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(frozen=True),
            schedule=SCHEDULE,
            stops=(3,),
            ranks_start_apart=True,
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "unfrozen",
            "Ten parameters, three of them frozen until shortly before the end of the first epoch; momentum, decay and "
            "a schedule that continues.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(frozen=True),
            schedule=_ONCE_DOWN,
            stops=(1, 2, 3),
            unfreeze_at=_INSIDE,
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "unfrozen-clip-value",
            "The same with active clipping by value in parameters of either kind.",
            SGD(ONE, momentum=HALF),
            model=ManyTensors(frozen=True),
            schedule=SCHEDULE,
            unfreeze_at=_INSIDE,
            clip=Clip("value", Fraction(3)),
            unit=Fraction(1, 8),
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "unused",
            "Eleven parameters, two of them experts: each sample uses one, so in some windows no rank, or only some "
            "ranks, use the other. Momentum, weight decay and a schedule.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(experts=True),
            schedule=SCHEDULE,
            idle=2,
            seed=4,
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "many-clip-value",
            "Ten parameters, momentum and active clipping by value.",
            SGD(ONE, momentum=HALF),
            clip=Clip("value", Fraction(3)),
            unit=Fraction(1, 8),
        ),
        Design(
            "many-clip-norm",
            "Ten parameters, and clipping by global norm that is active in some steps of each epoch.",
            SGD(HALF, momentum=HALF),
            clip=Clip("norm", Fraction(37, 8)),
            kernel="fused",
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "many-weighted",
            "Ten parameters, and a weighted mean whose weight differs from window to window.",
            SGD(ONE, momentum=HALF),
            weights=((1, 3), (2, 6), (3, 1)),
            batch_sizes=(64, 48),  # Weights take half of the orthogonal columns.
        ),
        Design(
            "many-short",
            "Ten parameters, momentum and a schedule; two epochs that each end with a short accumulation window.",
            SGD(ONE, momentum=HALF),
            schedule=DOWN_AND_UP,
            short=HALF,
            batch_sizes=(64,),
        ),
        Design(
            "many-overflow",
            "Ten parameters; in each epoch one sample on the last rank overflows fp16.",
            SGD(ONE, momentum=HALF),
            outliers={1: last_target},
        ),
        Design(
            "large-tensors",
            "Seven million elements, few of them used: several buckets, buffers and chunks; momentum and decay.",
            SGD(HALF, momentum=HALF, weight_decay=HALF),
            model=LargeTensors(),
            batches=1,
            ranks_start_apart=True,
            seed=1,
            batch_sizes=_NOT_OF_24,
        ),
        Design(
            "large-clip-norm",
            "Seven million elements, few of them used, and active clipping by global norm.",
            SGD(HALF, momentum=HALF),
            model=LargeTensors(),
            clip=Clip("norm", Fraction(5)),
            batches=1,
            batch_sizes=_NOT_OF_24,
        ),
    )
}

_GROUPS = DESIGNS["many-groups"]
#: What replaces "Ten parameters" for each kind of model, and the changed settings.
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen": (
        "Ten parameters, three of them frozen",
        {"model": ManyTensors(frozen=True), "ranks_start_apart": True},
    ),
    "unused": ("Eleven parameters, two of them experts", {"model": ManyTensors(experts=True), "idle": 2}),
    "groups": (
        "Ten parameters in three groups",
        {
            "optimizer": _GROUPS.optimizer,
            "groups": tuple(replace(group, schedule=None) for group in _GROUPS.groups),
            "largest_weight": _GROUPS.largest_weight,
        },
    ),
    "large": ("Seven million elements, few of them used", {"model": LargeTensors(), "batches": 2}),
}
#: Settings of a kind that differ for some recipes.
_BOTH: dict[str, dict[str, Any]] = {
    # Fewer elements have smaller norms.
    "frozen-clip-norm": {"clip": Clip("norm", Fraction(3))},
    # Shows trainers that do not clip if a gradient is missing.
    "unused-clip-value": {"idle": 1},
    "unused-clip-norm": {"idle": 1},
    # A window that overflows shows nothing.
    "unused-overflow": {"outliers": {2: last_target}, "idle": 1},
    # Without decay, an unused parameter would not move under any reading.
    "unused-weighted": {"optimizer": DESIGNS["unused"].optimizer},
    "groups-clip-norm": {"clip": Clip("norm", Fraction(4))},
    "groups-clip-value": {"unit": Fraction(1, 4)},
    "large-clip-value": {"largest_weight": 8},
    "large-weighted": {"schedule": (ONE, HALF, HALF, ONE)},
}
_NOT_OF_48 = ("groups-clip-value", "large-weighted", *(f"{kind}-clip-norm" for kind in _KINDS))
#: The kind and the recipe of workloads that have one of each; torch clips no sparse gradients.
OF_KINDS: dict[str, tuple[str, str]] = {
    f"{kind}-{recipe}": (kind, f"many-{recipe}")
    for kind in _KINDS
    for recipe in ("clip-value", "clip-norm", "weighted", "overflow")
    if f"{kind}-{recipe}" not in DESIGNS
}
DESIGNS |= {
    name: replace(
        DESIGNS[like],
        **{
            "name": name,
            "summary": DESIGNS[like].summary.replace("Ten parameters", _KINDS[kind][0], 1),
            "kernel": None,
            # With 48, no course of an element stays on its grid, or the bound is too wide to see the clip.
            "batch_sizes": (DESIGNS[like].batch_sizes[0], *(() if name in _NOT_OF_48 else (48,))),
            **_KINDS[kind][1],
            **_BOTH.get(name, {}),
        },
    )
    for name, (kind, like) in OF_KINDS.items()
}


def _with_data_of(like: str, name: str, summary: str, **changes: Any) -> Design:
    """A design with the data of another: without scalar parameters, so for all backends, or with sparse gradients."""
    # Torch's fused SGD steps neither shards nor sparse gradients.
    return replace(DESIGNS[like], name=name, summary=summary, kernel=None, data_of=DESIGNS[like], **changes)


_SHARDS = ManyTensors(scalars=False), "of at least one dimension"
_SPARSE = ManyTensors(sparse=True), "with sparse gradients of the embedding"
_MODELS = {
    "sparse": ("many-tensors", *_SPARSE),
    "sparse-weighted": ("many-weighted", *_SPARSE),
    "sparse-overflow": ("many-overflow", *_SPARSE),
    "many-shards-coarse": ("many-coarse", *_SHARDS),
    "many-shards-clip-value": ("many-clip-value", *_SHARDS),
    "many-shards-clip-norm": ("many-clip-norm", *_SHARDS),
    "many-shards-unfrozen": ("unfrozen", ManyTensors(scalars=False, frozen=True), _SHARDS[1]),
    "many-shards-unused": ("unused", ManyTensors(scalars=False, experts=True), _SHARDS[1]),
    "many-shards-sparse": ("many-tensors", ManyTensors(scalars=False, sparse=True), f"{_SHARDS[1]} and {_SPARSE[1]}"),
}
#: The workloads with the data of another one.
OF_OTHERS: dict[str, Design] = {
    "many-adamw": _with_data_of(
        "many-groups",
        "many-adamw",
        "Ten parameters and AdamW; judged by its rounding-error bound.",
        optimizer=ADAMW,
        groups=(Group(2 * ADAMW.lr, Fraction(0)),),
    ),
    "many-shards": _with_data_of(
        "many-tensors",
        "many-shards",
        "Ten parameters of at least one dimension, one of them tied and one an embedding; ranks start with different "
        "ones. Momentum and a learning-rate schedule.",
        model=_SHARDS[0],
        ranks_start_apart=True,
    ),
    **{
        name: _with_data_of(
            like, name, DESIGNS[like].summary.replace(" parameters", f" parameters {which}", 1), model=model
        )
        for name, (like, model, which) in _MODELS.items()
    },
}
OF_KINDS |= {name: ("sparse", like) for name, (like, model, _) in _MODELS.items() if model is _SPARSE[0]}

#: With fewer features some samples would be equal, and no trace could tell which of them was read.
_NINE = Linear(9, bias=True)
UNEVEN_BATCHES = "uneven-epochs"
#: This one also shows its position after the third window, and after the third step if short windows are dropped.
_RESUMED = (ONE, HALF, Fraction(2), HALF, ONE, ONE)


def _ending(name: str, summary: str, short: Fraction, **changes: Any) -> Design:
    settings = {"schedule": DOWN_AND_UP, "short": short, **changes}
    return Design(name, summary, SGD(HALF, momentum=HALF), _NINE, **settings)


ENDS: dict[str, Design] = {
    design.name: design
    for design in (
        _ending(
            "short-epochs",
            "Two epochs that each end with a short accumulation window.",
            HALF,
            schedule=_RESUMED,
            stops=(3,),
            seed=3,
            batch_sizes=(32, 48),
        ),
        _ending(
            UNEVEN_BATCHES,
            "Two epochs that each end with a smaller micro-batch.",
            Fraction(3, 4),
            unit=Fraction(1, 8),
            seed=2,
            batch_sizes=(32,),
        ),
        _ending(
            "uneven-ranks-epochs",
            "Two epochs; at their ends some ranks have no samples left.",
            HALF,
            batch_sizes=(32,),
            in_whole_shares=True,
        ),
        Design(
            "epoch-schedule",
            # With two epochs, a schedule that restarts would have the correct rate in the second.
            "Three epochs; the learning-rate schedule advances after each.",
            SGD(HALF, momentum=HALF),
            model=_NINE,
            schedule=(ONE, HALF, ONE),
            schedule_by="epoch",
            batches=2,
            epochs=3,
            batch_sizes=(16, 32),
        ),
    )
}
