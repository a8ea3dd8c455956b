"""A guard: what must hold before equal numbers mean anything, and whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.verdict.evidence import named

SHARDS = "shards differ"
SAMPLES = "all samples read"
PLACE = "resumed at the next window"
RESTORED = "resumed as it was stopped"
WEIGHTS = "weights change in steps only"
MULTIPLE = "gradients of each window"
PARAMETERS = "each parameter"
BUFFERS = "buffers of the model"
COLLECTIVES = "collectives while training"
LOSS = "precision of the loss"
DRAWS = "random numbers after the resume"
AVERAGES = "averages of weights after the resume"

#: Mistakes that several guards show, or one of several that a guard shows: they tell causes of failures apart.
POSITION = "goes on elsewhere in the data than it was stopped"
OTHER_ORDER = "goes through an epoch in the order of another one"
LEFT_OUT = "leaves samples of an epoch out"
OWN_ORDERS = "the ranks go through an epoch in different orders"


@dataclass(frozen=True)
class Guard:
    """``text`` is the headline if the guard does not hold. ``may_be_unseen``: what it asks for may leave no trace, so
    that right numbers can make up for it. ``gives_way``: it says nothing against right numbers. ``may_be_setup``: wrong
    numbers may come of the rows that the adapter reads. ``diagnosis``: which mistake breaks it, where its name leaves
    that open. ``where``: the line that breaks it, if one is known.
    """

    name: str
    holds: bool
    expected: str
    observed: str
    text: str
    may_be_unseen: bool = False
    gives_way: bool = False
    may_be_setup: bool = False
    diagnosis: str = ""
    where: str | None = None


def on_every_rank(name: str, without: Sequence[int], text: str) -> Guard:
    """A guard that holds if no rank is ``without`` what it asks for."""
    everywhere = "on every rank"
    return Guard(name, not without, everywhere, f"not on {named(without)}" if without else everywhere, text)


def not_held(
    name: str, expected: str, text: str, observed: str = "", diagnosis: str = "", where: str | None = None
) -> Guard:
    """A guard that does not hold. ``observed``: the text, if nothing shorter says it."""
    return Guard(name, False, expected, observed or text, text, diagnosis=diagnosis, where=where)


def adds_to(left: str, where: str | None) -> Guard:
    return not_held("gradients of no window", "none", left, where=where)
