"""The timeline of a window for the results file: moments on one clock, and the collectives that join ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from conformance.laws.checking import Finding
from conformance.laws.subjects import Rank, Run
from conformance.results.result_lines import Join, Moment, Timeline
from conformance.trace import events as trace
from conformance.verdict.evidence import place

#: Events that describe objects or states, not actions.
STILL = (
    *(trace.Started, trace.Topology, trace.Model, trace.Optimizer),
    *(trace.Start, trace.ForeignOptimizer, trace.Finished),
)
#: The most events that a timeline shows for each rank; more say nothing new.
_MOST = 80


def timeline(run: Run, window: int | None, findings: Iterable[Finding] = ()) -> Timeline:
    """One window of all ranks, or the setup before training (None), with the events of ``findings`` marked."""
    lanes = [_shown(rank, window) for rank in run.ranks]
    cut = max((len(lane) - _MOST for lane in lanes), default=0)
    marked = [event for finding in findings for event in (finding.broken.event, *finding.broken.shows)]
    events = [event for lane in lanes for event in lane[:_MOST]]
    index = {event: number for number, event in enumerate(events)}
    met = [sorted(index[one] for one in group if one in index) for group in joined(rank.events for rank in run.ranks)]
    joins = tuple(Join(tuple(group)) for group in met if len(group) > 1)
    return Timeline(moments(events, marked), window, joins, max(cut, 0))


def moments(events: Sequence[trace.Event], marked: Iterable[trace.Event]) -> tuple[Moment, ...]:
    """These events in words, in the given order, with milliseconds since the first one."""
    began, marked = min((event.time for event in events), default=0.0), set(marked)
    return tuple(
        Moment(
            rank=event.rank,
            time=round((event.time - began) * 1e3, 3),
            event=event.event,
            label=event.label,
            where=place(event),
            micro_batch=event.micro_batch,
            marked=event in marked,
        )
        for event in events
    )


def joined(ranks: Iterable[Sequence[trace.Event]]) -> list[list[trace.Collective]]:
    """The events of each collective on the ranks that took part, the earliest first; ``ranks``: the events of each.

    The n-th collective with the same operation, size and group is the same one on all ranks. Leaves out collectives
    that only one rank entered.
    """
    met: defaultdict[object, list[trace.Collective]] = defaultdict(list)
    for events in ranks:
        seen: defaultdict[object, int] = defaultdict(int)
        for event in events:
            if isinstance(event, trace.Collective):
                kind = (event.via, event.op, event.bytes, tuple(event.group))
                met[kind, seen[kind]].append(event)
                seen[kind] += 1
    return [sorted(group, key=lambda event: event.time) for group in met.values() if len(group) > 1]


def _shown(rank: Rank, window: int | None) -> list[trace.Event]:
    if window is None:
        events = rank.setup
    else:
        events = next((each.gap_before + each.events for each in rank.windows if each.number == window), ())
    return [event for event in events if not isinstance(event, STILL)]
