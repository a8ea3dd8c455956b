"""The standard workloads with a model of many tensors: two epochs over three batches, in another order in each."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

from conformance.workloads.designed import Design, designed
from conformance.workloads.model import LargeTensors, ManyTensors
from conformance.workloads.outliers import last_target
from conformance.workloads.recipes import ADAMW, HALF, SCHEDULE
from conformance.workloads.workload import SGD, Clip, Group, Workload

ONE = Fraction(1)

DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design(
            "many-tensors",
            "Ten parameters, of which one is tied and one an embedding; momentum and a learning-rate schedule.",
            SGD(ONE, momentum=HALF),
            schedule=SCHEDULE,
        ),
        Design(
            "many-groups",
            "Ten parameters in three groups: vectors have twice the learning rate and no weight decay, scalars half "
            "the decay, no momentum and a learning-rate schedule of their own.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            groups=(
                Group(ONE, Fraction(0)),
                Group(ONE, HALF, momentum=Fraction(0), schedule=(ONE, ONE, HALF, HALF, ONE, HALF)),
            ),
            kernel="foreach",
            schedule=SCHEDULE,
            largest_weight=8,
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
            "frozen",
            "Ten parameters, of which three are frozen; ranks begin with other ones. Momentum and weight decay.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(frozen=True),
            schedule=SCHEDULE,
            ranks_start_apart=True,
        ),
        Design(
            "unfrozen",
            "Ten parameters, of which three are frozen in the first epoch.",
            SGD(HALF, momentum=HALF, weight_decay=ONE),
            model=ManyTensors(frozen=True),
            unfreeze_at=3,
        ),
        Design(
            "many-clip-value",
            "Ten parameters, momentum and clipping by value that bites.",
            SGD(ONE, momentum=HALF),
            clip=Clip("value", Fraction(3)),
            unit=Fraction(1, 8),
        ),
        Design(
            "many-clip-norm",
            "Ten parameters, and clipping by the norm of all together that bites in some steps.",
            SGD(HALF, momentum=HALF),
            clip=Clip("norm", Fraction(5)),
            kernel="fused",
        ),
        Design(
            "many-weighted",
            "Ten parameters, and a weighted mean whose weight differs from window to window.",
            SGD(ONE, momentum=HALF),
            weights=((1, 3), (2, 6), (3, 1)),
        ),
        Design(
            "many-overflow",
            "Ten parameters; in each epoch one sample on the last rank overflows fp16.",
            SGD(ONE, momentum=HALF),
            outliers={1: last_target},
        ),
        Design(
            "large-tensors",
            "Seven million elements, of which a few are used: several buckets, buffers and chunks; momentum and decay.",
            SGD(HALF, momentum=HALF, weight_decay=HALF),
            model=LargeTensors(),
            batches=1,
            ranks_start_apart=True,
            seed=1,
        ),
        Design(
            "large-clip-norm",
            "Seven million elements, of which a few are used, and clipping by the norm of all that bites.",
            SGD(HALF, momentum=HALF),
            model=LargeTensors(),
            clip=Clip("norm", Fraction(5)),
            batches=1,
        ),
    )
}

#: The workload with AdamW, which has the data of another one.
MANY_ADAMW = "many-adamw"

#: Workloads that have the data of another one: without parameters that have no dimension, and so for all backends.
OF_SHARDS = {
    "many-shards": "many-tensors",
    "many-shards-clip-value": "many-clip-value",
    "many-shards-clip-norm": "many-clip-norm",
}

#: The workloads, each with the global batches that are tried in turn.
BATCH_SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*DESIGNS, MANY_ADAMW), (32, 24)),
    # Weights take half of the orthogonal columns.
    "many-weighted": (64, 48),
    # Of 24 samples, all norms are above the threshold, no course of an element stays on its grid, or there is a window
    # in which nothing moves.
    **dict.fromkeys(("many-clip-norm", "large-tensors", "large-clip-norm", "frozen", "unfrozen"), (32,)),
}
BATCH_SIZES |= {name: BATCH_SIZES[like] for name, like in OF_SHARDS.items()}


@cache
def many_tensors(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    if name in OF_SHARDS:
        like = many_tensors(OF_SHARDS[name], batch_size)
        summary = like.summary.replace("Ten parameters", "Ten parameters of at least one dimension", 1)
        # Torch's fused SGD does not step shards.
        return replace(like, name=name, model=ManyTensors(scalars=False), kernel=None, summary=summary)
    if name == MANY_ADAMW:
        summary = "Ten parameters and AdamW; judged by its rounding-error bound."
        return replace(
            many_tensors("many-groups", batch_size),
            name=name,
            optimizer=ADAMW,
            kernel=None,
            groups=(Group(2 * ADAMW.lr, Fraction(0)),),
            summary=summary,
        )
    return designed(DESIGNS[name], batch_size)
