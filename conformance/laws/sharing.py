"""Finds the windows in which the ranks combine their gradients or weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import NamedTuple

from conformance.laws.plan import Plan
from conformance.laws.subjects import GlobalWindow, Rank, Run, Window, fact
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated, vector

#: Collectives whose result only one rank gets.
_TO_ONE = ("reduce", "gather")
#: Collectives that send data from one rank only, or no data.
_ONE_WAY = ("broadcast", "scatter", "barrier", "monitored_barrier")


class Sharing(NamedTuple):
    """The exchange of gradients or weights in a window that has ended.

    backward: the last one of the window. shared: the collectives and sent messages after its start that combine the
    ranks' gradients or weights.
    is_missing: whether there are none, and the gradients and weights confirm it; None if the trace cannot show it.
    """

    window: Window
    backward: trace.BackwardBegin
    shared: Sequence[trace.Exchange]
    is_missing: bool | None


@fact
def sharing(window: Window) -> Sharing | None:
    """The sharing of a window that has a backward and a step; None for other windows."""
    # Trainers may drop a window, and gradients that no optimizer uses need not be shared.
    if (
        window.plan.world_size == 1
        or not (window.ended and window.backwards)
        or not (window.attempts or window.step_is_unseen)
        # The trace does not show what carries gradients that it does not see.
        or (window.rank.steps_by_hand and not window.forwards)
    ):
        return None
    shared = _shared(window)
    is_missing: bool | None = None
    if shared:
        is_missing = False
    # Equal numbers mean that the ranks shared them without a trace, here and maybe elsewhere. So do gradients of all
    # ranks that are not multiples of those of their backwards.
    elif not agree(counterparts := window.counterparts) and not all(
        one.backwards
        and any(change.factor is None for change in one.between(trace.GradientChange, after=one.backwards[-1]))
        for one in counterparts
    ):
        is_known = len(counterparts) == window.plan.with_data(window.number) and all(
            other.ended for other in counterparts
        )
        is_missing = is_known or any(_shared(other) for other in counterparts) or None
    return Sharing(window, window.backwards[-1], shared, is_missing)


def is_only_short(window: Window) -> bool:
    """Whether a window has fewer micro-batches than others, and ranks share the gradients of all full ones."""
    nominal = window.plan.accumulation
    full = [found for one in window.rank.windows if one.planned == nominal and (found := sharing(one)) is not None]
    return window.planned < nominal and bool(full) and all(found.is_missing is False for found in full)


def has_empty_shards(window: Window) -> bool:
    """Whether the step finds no gradient in this rank's shards: FSDP2 keeps whole gradients until it reduces them."""
    used = window.rank.own(window.attempts[-1].gradients) if window.attempts and window.rank.shard else None
    return used is not None and set(used) == {None}


def brings_together(event: trace.Event) -> bool:
    """Whether an event is a collective or a sent message that can combine numbers of several ranks."""
    return (
        isinstance(event, trace.Contribution)
        and len(event.group) > 1
        and not (isinstance(event, trace.Collective) and event.op.strip("_").startswith(_ONE_WAY))
        # One byte per element means text or pickled objects.
        and (event.of is not None or event.bytes > event.elements)
    )


def agree(windows: Iterable[Window]) -> bool:
    """Whether the last optimizer steps of all these windows used the same gradients, or left the same weights. Never
    true for sharded parameters, which have no copies."""
    attempts = []
    for window in windows:
        if not window.attempts or window.rank.shard is not None:
            return False
        attempts.append(window.attempts[-1])
    first = attempts[0]
    return (first.gradients is not None and all(one.gradients == first.gradients for one in attempts)) or (
        first.weights is not None and all(one.weights == first.weights for one in attempts)
    )


def averages_weights(run: Run) -> bool:
    """Whether every rank averages its weights, or another vector that is not a gradient, after each step."""
    return all(
        any(
            "reduce" in event.op and event.of != "gradients" and event.elements > 1 and brings_together(event)
            for event in window.between(trace.Collective, after=window.attempts[-1])
        )
        for window in run.windows
        if window.attempts
    )


@fact
def trainable(rank: Rank) -> dict[int, frozenset[int]]:
    """The numbers of the parameters that require gradients, by optimizer."""
    return {event.optimizer: frozenset(event.trainable) for event in rank.of(trace.Optimizer)}


@fact
def trained_elements(rank: Rank) -> int:
    """The number of elements of the model that this rank's optimizers train; all of them if unknown."""
    models = rank.of(trace.Model)
    trained = frozenset[int]().union(*trainable(rank).values())
    if not models or not trained:
        return rank.run.plan.model.numel
    return sum(prod(shape) for index, shape in enumerate(models[-1].shapes) if index in trained)


@fact
def _shared(window: Window) -> Sequence[trace.Exchange]:
    if not window.backwards:
        return ()
    rank, after = window.rank, window.between(trace.Exchange, after=window.backwards[-1])
    # A parameter server that broadcasts the weights may send no gradients.
    serves = rank.number == window.run.server
    found = [event for event in after if _combines(rank, event) or (serves and isinstance(event, trace.Receive))]
    passed_on = [
        event
        for event in after
        if not isinstance(event, trace.Collective) or event.op.strip("_").startswith(("broadcast", "scatter"))
    ]
    *before, last = rank.windows
    # Ranks that passed on the results of all earlier steps need not pass on the last one.
    is_last = last is window and bool(before) and all(any(map(gives_to_one, _shared(one))) for one in before)
    if all(map(gives_to_one, found)) and not passed_on and not is_last:
        return ()
    carries = any(event.of == "gradients" for event in found)
    return found if carries or sum(event.elements for event in found) >= trained_elements(rank) else ()


def _combines(rank: Rank, event: trace.Exchange) -> bool:
    """Whether an event combines gradients or weights of several ranks."""
    if not isinstance(event, trace.Collective):
        return brings_together(event)
    # Maxima and minima are for agreement between ranks, and gathered shards are no averages.
    is_gather = event.op.strip("_").startswith("allgather") and event.of == "parameters" and rank.shard is not None
    return brings_together(event) and event.reduce not in ("max", "min") and not is_gather


def gives_to_one(event: trace.Event) -> bool:
    """Whether an event is a collective whose result only one rank gets."""
    return isinstance(event, trace.Collective) and event.op.strip("_") in _TO_ONE


def where_apart(plan: Plan, one: trace.Vector, other: trace.Vector) -> tuple[list[str], str]:
    """Formats the numbers in which two vectors differ, and names their elements unless all differ."""
    at = [place for place, (first, second) in enumerate(zip(one, other, strict=False)) if first != second]
    if len(at) in (0, len(one)) or len(one) != len(other) or len(one) != plan.model.size:
        return [vector(one), vector(other)], ""
    names = [plan.model.elements[place] for place in at]
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more elements"]
    return [vector([values[place] for place in at]) for values in (one, other)], f" of {enumerated(shown)}"


@fact
def held_after(here: GlobalWindow) -> Sequence[tuple[trace.Event, trace.Vector]] | None:
    """The weights of each rank after a window, with the event that shows them; None unless all are known."""
    found: list[tuple[trace.Event, trace.Vector]] = []
    for window in here.windows:
        step = window.attempts[-1] if window.attempts and not window.step_is_unseen else None
        shown = step or window.shown_after
        if shown is None:
            return None
        weights: trace.Vector | None = shown.weights
        # Ranks may average or exchange weights after their steps: then the next event shows the result.
        if any(_may_carry_weights(window.rank, event) for event in window.between(trace.Exchange, after=shown)):
            weights = later.weights if (later := window.shown_after) is not None else None
        if weights is None or None in weights:
            return None
        found.append((shown, weights))
    return found


@fact
def first_parted(run: Run) -> float:
    """The first window after which the ranks have different weights; infinity if there is none."""
    for here in run.together.values():
        held = held_after(here)
        if held is not None and any(weights != held[0][1] for _, weights in held):
            return here.number
    return inf


def _may_carry_weights(rank: Rank, event: trace.Exchange) -> bool:
    # Sending does not change a rank's own weights; in a broadcast, one rank sends and the others receive.
    if isinstance(event, trace.Collective):
        if not (brings_together(event) or (event.op.startswith("broadcast") and event.of == "parameters")):
            return False
    elif not isinstance(event, trace.Receive):
        return False
    return event.of != "gradients" and (event.of == "parameters" or event.elements >= trained_elements(rank))
