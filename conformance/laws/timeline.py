"""What ranks did in a window, ready to draw: moments on one clock, and the collectives that join ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformance.laws.checking import Finding
from conformance.laws.run import Rank, Run
from conformance.trace.events import (
    Collective,
    Event,
    Finished,
    ForeignOptimizer,
    Model,
    Optimizer,
    Start,
    Started,
    Topology,
)

#: Events that describe objects or states, not actions.
STILL = (Started, Topology, Model, Optimizer, Start, ForeignOptimizer, Finished)
#: The most events that a timeline shows for each rank; 400 micro-batches say no more than these.
_MOST = 80


@dataclass(frozen=True)
class Moment:
    """An event in words. ``time`` in milliseconds since the first one shown."""

    event: Event
    time: float
    label: str
    marked: bool


@dataclass(frozen=True)
class Timeline:
    """One window of all ranks, or the setup before training (None).

    joins: groups of indices into ``moments``, one for each rank in the same collective.
    cut: the number of events left out at the end of the longest lane.
    """

    window: int | None
    moments: tuple[Moment, ...]
    joins: tuple[tuple[int, ...], ...]
    cut: int


def timeline(run: Run, window: int | None, findings: Iterable[Finding] = ()) -> Timeline:
    """The window of ``run``, with the events of ``findings`` marked."""
    lanes = [_shown(rank, window) for rank in run.ranks]
    cut = max((len(lane) - _MOST for lane in lanes), default=0)
    marked = {event for finding in findings for event in (finding.broken.event, *finding.broken.shows)}
    moments = in_words([event for lane in lanes for event in lane[:_MOST]], marked)
    return Timeline(window, moments, _joins(run, moments), max(cut, 0))


def in_words(events: Sequence[Event], marked: Iterable[Event] = ()) -> tuple[Moment, ...]:
    """These events as moments, in the order given."""
    began = min((event.time for event in events), default=0.0)
    marked = set(marked)
    return tuple(Moment(event, (event.time - began) * 1e3, event.label, event in marked) for event in events)


def joined(ranks: Iterable[Sequence[Event]]) -> list[list[Collective]]:
    """The events of each collective on the ranks that took part, the earliest first; ``ranks``: the events of each.

    The n-th collective with the same operation, size and group is the same one on all ranks. Leaves out collectives
    that only one rank entered.
    """
    met: defaultdict[object, list[Collective]] = defaultdict(list)
    for events in ranks:
        seen: defaultdict[object, int] = defaultdict(int)
        for event in events:
            if isinstance(event, Collective):
                kind = (event.via, event.op, event.bytes, tuple(event.group))
                met[kind, seen[kind]].append(event)
                seen[kind] += 1
    return [sorted(group, key=lambda event: event.time) for group in met.values() if len(group) > 1]


def _shown(rank: Rank, window: int | None) -> list[Event]:
    if window is None:
        events = rank.setup
    else:
        events = next((each.gap_before + each.events for each in rank.windows if each.number == window), ())
    return [event for event in events if not isinstance(event, STILL)]


def _joins(run: Run, moments: Sequence[Moment]) -> tuple[tuple[int, ...], ...]:
    """The collectives that join ranks, as far as they are shown."""
    index = {moment.event: number for number, moment in enumerate(moments)}
    groups = joined(rank.events for rank in run.ranks)
    shown = (tuple(sorted(index[event] for event in group if event in index)) for group in groups)
    return tuple(group for group in shown if len(group) > 1)
