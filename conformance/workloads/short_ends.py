"""The standard workloads about the ends of epochs: which do not divide into windows, or advance the schedule."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

from conformance.workloads.designed import Design, designed
from conformance.workloads.model import Linear
from conformance.workloads.recipes import HALF, QUARTER
from conformance.workloads.workload import SGD, Workload

ONE = Fraction(1)
#: With fewer features some samples would have the same ones, and no trace would tell which of them was read.
MODEL = Linear(9, bias=True)
SHORT_WINDOWS, UNEVEN_BATCHES, UNEVEN_RANKS = "short-epochs", "uneven-epochs", "uneven-ranks-epochs"
#: One that begins again in each epoch shows, also where short windows are dropped.
SCHEDULE = (ONE, HALF, HALF, HALF, HALF, ONE)
#: Here it also shows where it goes on after the third window, or after the third step of who drops short ones.
RESUMED_SCHEDULE = (ONE, HALF, Fraction(2), HALF, ONE, ONE)


def _ending(name: str, summary: str, short: Fraction, unit: Fraction = QUARTER, seed: int = 0) -> Design:
    optimizer = SGD(HALF, momentum=HALF)
    return Design(name, summary, optimizer, model=MODEL, schedule=SCHEDULE, short=short, unit=unit, seed=seed)


DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        replace(
            _ending(SHORT_WINDOWS, "Two epochs, of which each ends with a short accumulation window.", HALF, seed=3),
            schedule=RESUMED_SCHEDULE,
            stops=(3,),
        ),
        _ending(
            UNEVEN_BATCHES,
            "Two epochs, of which each ends with a smaller micro-batch.",
            Fraction(3, 4),
            unit=Fraction(1, 8),
            seed=2,
        ),
        _ending(UNEVEN_RANKS, "Two epochs, at the end of which some ranks have no samples left.", HALF),
        Design(
            "epoch-schedule",
            # Of two epochs, the rate of the second is also that of an optimizer whose schedule begins again.
            "Three epochs, after each of which the learning-rate schedule advances.",
            SGD(HALF, momentum=HALF),
            model=MODEL,
            schedule=(ONE, ONE, HALF, HALF, ONE, ONE),
            schedule_by="epoch",
            batches=2,
            epochs=3,
        ),
    )
}

#: The workloads, each with the global batches that are tried in turn.
BATCH_SIZES: dict[str, tuple[int, ...]] = {
    SHORT_WINDOWS: (32, 48),
    UNEVEN_BATCHES: (32,),
    UNEVEN_RANKS: (32,),
    "epoch-schedule": (16, 32),
}


@cache
def short_ends(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    return designed(DESIGNS[name], batch_size)
