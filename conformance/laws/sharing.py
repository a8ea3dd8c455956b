"""Which windows end with gradients, or weights, that the ranks have brought together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from conformance.laws.event import Event
from conformance.laws.labels import number
from conformance.laws.run import RankTrace, Run, Window

#: What these carry goes out from one rank, or is nothing.
_ONE_WAY = ("broadcast", "scatter", "barrier", "monitored_barrier")


@dataclass(frozen=True)
class Sharing:
    """One window that has ended, of a run with several ranks.

    backward: its last one. shared: the collectives from there on, or messages sent, that bring the ranks' gradients or
    weights together.
    counterparts: the same window of all ranks, as far as they have it.
    is_missing: whether there are none, and gradients and weights show it; None if there is no telling.
    """

    window: Window
    backward: Event
    shared: tuple[Event, ...]
    counterparts: tuple[Window, ...]
    is_missing: bool | None


def sharings(run: Run) -> Iterator[Sharing]:
    """Of each window with a backward and a step, rank by rank."""
    if run.plan.world_size == 1:
        return
    same: defaultdict[int, list[Window]] = defaultdict(list)
    for window in run.windows:
        same[window.number].append(window)
    for window in run.windows:
        # What no optimizer uses need not be shared: a window may be given up.
        if window.ended and window.backwards and (window.attempts or run.is_served(window)):
            counterparts = tuple(same[window.number])
            shared = _shared(run, window)
            is_missing = None
            if shared:
                is_missing = False
            # Equal numbers were shared in a way that leaves no trace, such as from rank to rank.
            elif not agree(counterparts):
                is_known = len(counterparts) == run.plan.world_size and all(other.ended for other in counterparts)
                is_missing = is_known or any(_shared(run, other) for other in counterparts) or None
            yield Sharing(window, window.backwards[-1], shared, counterparts, is_missing)


def brings_together(event: Event) -> bool:
    """Whether an event is a collective, or the sending of a message, that can make one of what several ranks hold."""
    return (
        event.kind in ("collective", "send")
        and len(event["group"]) > 1
        and not (event.get("op") or "").strip("_").startswith(_ONE_WAY)
        # Elements of one byte are text or pickled objects.
        and (event.get("of") is not None or event["bytes"] > event["elements"])
    )


def agree(windows: Iterable[Window]) -> bool:
    """Whether the last optimizer steps of all these windows saw the same gradients, or left the same weights."""
    last = [window.attempts[-1] if window.attempts else None for window in windows]
    attempts = [event for event in last if event is not None]
    return len(attempts) == len(last) and any(
        attempts[0][name] is not None and all(event[name] == attempts[0][name] for event in attempts)
        for name in ("gradients", "weights")
    )


def trained_elements(run: Run, rank: RankTrace) -> int:
    """Elements of the model that an optimizer of this rank trains; of the whole model if that is unknown."""
    models = rank.of("model")
    trained = {parameter for event in rank.of("optimizer") for parameter in event["trainable"]}
    if not models or not trained:
        return run.plan.elements
    return sum(prod(shape) for index, shape in enumerate(models[-1]["shapes"]) if index in trained)


def vector(values: Iterable[Any]) -> str:
    """Numbers of one model, the first few: ``(0.5, -1, 2, …)``."""
    shown = ["–" if value is None else number(value) for value in values]
    return f"({', '.join([*shown[:3], '…'] if len(shown) > 4 else shown)})"


def in_turn(parts: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _shared(run: Run, window: Window) -> tuple[Event, ...]:
    if not window.backwards:
        return ()
    after = window.between(window.backwards[-1], None)
    # A server may send nothing, if it broadcasts the weights.
    serves = window.rank == run.server
    found = tuple(event for event in after if brings_together(event) or (serves and event.kind == "receive"))
    enough = trained_elements(run, run.ranks[window.rank])
    carries = any(event.get("of") == "gradients" for event in found)
    return found if carries or sum(event["elements"] for event in found) >= enough else ()
