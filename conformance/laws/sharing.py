"""Which windows end with gradients, or weights, that the ranks have brought together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from conformance.laws.run import Rank, Run, Window, fact
from conformance.trace.events import BackwardBegin, Collective, Contribution, Event, Exchange, Model, Optimizer, Receive

#: What these carry goes out from one rank, or is nothing.
_ONE_WAY = ("broadcast", "scatter", "barrier", "monitored_barrier")


@dataclass(frozen=True)
class Sharing:
    """What a window of a run with several ranks shares, once it has ended.

    backward: its last one. shared: the collectives from there on, or messages sent, that bring the ranks' gradients or
    weights together.
    is_missing: whether there are none, and gradients and weights show it; None if nobody can tell.
    """

    window: Window
    backward: BackwardBegin
    shared: Sequence[Exchange]
    is_missing: bool | None


@fact
def sharing(window: Window) -> Sharing | None:
    """That of a window with a backward and a step."""
    # What no optimizer uses need not be shared: a window may be given up.
    if (
        window.plan.world_size == 1
        or not (window.ended and window.backwards)
        or not (window.attempts or window.is_served)
    ):
        return None
    shared = _shared(window)
    is_missing: bool | None = None
    if shared:
        is_missing = False
    # Equal numbers were shared in a way that leaves no trace, such as from rank to rank.
    elif not agree(window.counterparts):
        counterparts = window.counterparts
        is_known = len(counterparts) == window.plan.world_size and all(other.ended for other in counterparts)
        is_missing = is_known or any(_shared(other) for other in counterparts) or None
    return Sharing(window, window.backwards[-1], shared, is_missing)


@fact
def misses_some(run: Run) -> bool:
    """Whether in any window the ranks did not bring together what they should have."""
    found = map(sharing, run.windows)
    return any(one is not None and one.is_missing for one in found)


def brings_together(event: Event) -> bool:
    """Whether an event is a collective, or the sending of a message, that can make one of what several ranks hold."""
    return (
        isinstance(event, Contribution)
        and len(event.group) > 1
        and not (isinstance(event, Collective) and event.op.strip("_").startswith(_ONE_WAY))
        # Elements of one byte are text or pickled objects.
        and (event.of is not None or event.bytes > event.elements)
    )


def agree(windows: Iterable[Window]) -> bool:
    """Whether the last optimizer steps of all these windows saw the same gradients, or left the same weights."""
    attempts = []
    for window in windows:
        if not window.attempts:
            return False
        attempts.append(window.attempts[-1])
    first = attempts[0]
    return (first.gradients is not None and all(one.gradients == first.gradients for one in attempts)) or (
        first.weights is not None and all(one.weights == first.weights for one in attempts)
    )


@fact
def trainable(rank: Rank) -> dict[int, frozenset[int]]:
    """The parameters that require gradients, by the optimizer that holds them."""
    return {event.optimizer: frozenset(event.trainable) for event in rank.of(Optimizer)}


@fact
def trained_elements(rank: Rank) -> int:
    """Elements of the model that an optimizer of this rank trains; of the whole model if that is unknown."""
    models = rank.of(Model)
    trained = frozenset[int]().union(*trainable(rank).values())
    if not models or not trained:
        return rank.run.plan.elements
    return sum(prod(shape) for index, shape in enumerate(models[-1].shapes) if index in trained)


@fact
def _shared(window: Window) -> Sequence[Exchange]:
    if not window.backwards:
        return ()
    # A server may send nothing, if it broadcasts the weights.
    serves = window.rank.number == window.run.server
    found = [
        event
        for event in window.of(Exchange, after=window.backwards[-1])
        if brings_together(event) or (serves and isinstance(event, Receive))
    ]
    carries = any(event.of == "gradients" for event in found)
    return found if carries or sum(event.elements for event in found) >= trained_elements(window.rank) else ()
