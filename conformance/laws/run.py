"""A training run as laws see it: what was planned, and each rank's trace in accumulation windows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from conformance.laws.event import Event, of_kind


@dataclass(frozen=True, eq=False)
class Plan:
    """What the ranks were told to do: the spec of a case, as `Case.spec` writes it."""

    spec: Mapping[str, Any]

    @property
    def backend(self) -> str:
        return str(self.spec["backend"])

    @property
    def world_size(self) -> int:
        return int(self.spec["world_size"])

    @property
    def accumulation(self) -> int:
        """Micro-batches in a full window."""
        return int(self.spec["accumulation"])

    @property
    def clip(self) -> Mapping[str, Any] | None:
        """{"kind": "norm" or "value", "threshold"}, or None."""
        clip: Mapping[str, Any] | None = self.spec["clip"]
        return clip

    @property
    def has_schedule(self) -> bool:
        return self.spec["schedule"] is not None

    @property
    def elements(self) -> int:
        """Elements of the model's parameters."""
        return int(self.spec["model"]["features"]) + int(self.spec["model"]["bias"])

    def micro_batches(self, rank: int, window: int) -> tuple[tuple[int, ...], ...]:
        """The sample indices of each micro-batch that ``rank`` is to read in ``window``; () after the last one.

        A window never reaches over the end of an epoch.
        """
        windows = self._epoch[rank]
        return windows[window % len(windows)] if window < len(windows) * int(self.spec["epochs"]) else ()

    @cached_property
    def _epoch(self) -> list[list[tuple[tuple[int, ...], ...]]]:
        return [list(_windows(micro_batches, self.accumulation)) for micro_batches in self.spec["micro_batches"]]


def _windows(micro_batches: Sequence[Sequence[int]], length: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    rest = iter(micro_batches)
    while window := tuple(tuple(indices) for indices in islice(rest, length)):
        yield window


_seq = attrgetter("seq")


class _Indexed:
    """Events that are looked up by kind again and again."""

    events: tuple[Event, ...]

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """The events of these kinds, in order."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], ())
        return tuple(sorted(chain.from_iterable(self.of(kind) for kind in kinds), key=_seq))

    def count(self, kind: str, *, before: Event) -> int:
        return bisect_left(self.of(kind), before.seq, key=_seq)

    def between(self, first: Event | None, last: Event | None) -> tuple[Event, ...]:
        """The events after ``first`` and before ``last``; None for no limit."""
        start = 0 if first is None else bisect_right(self.events, first.seq, key=_seq)
        return self.events[start : None if last is None else bisect_left(self.events, last.seq, key=_seq)]

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Event, ...]]:
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            found[event.kind].append(event)
        return {kind: tuple(events) for kind, events in found.items()}


@dataclass(frozen=True, eq=False)
class Window(_Indexed):
    """One accumulation window of one rank.

    events: from its first training forward up to the next window's.
    before: what happened between the end of the window before (its last forward, backward, step or update) and the
        first forward of this one. The same events are at the end of the other's ``events``.
    planned: how many micro-batches it was to have.
    ended: whether the rank went beyond it, so that what is not there will not come.
    """

    number: int
    rank: int
    events: tuple[Event, ...]
    before: tuple[Event, ...]
    planned: int
    ended: bool

    @cached_property
    def forwards(self) -> tuple[Event, ...]:
        return self.of("forward")

    @cached_property
    def backwards(self) -> tuple[Event, ...]:
        """The beginnings of its backward passes."""
        return self.of("backward_begin")

    @cached_property
    def attempts(self) -> tuple[Event, ...]:
        """Optimizer steps, those included that a GradScaler skipped."""
        return self.of("step", "skip")


@dataclass(frozen=True, eq=False)
class RankTrace(_Indexed):
    """All events of one rank. ``setup`` are those before its first training forward."""

    rank: int
    events: tuple[Event, ...]
    windows: tuple[Window, ...]
    setup: tuple[Event, ...]

    @property
    def finished(self) -> bool:
        return bool(self.of("finished"))

    @cached_property
    def forwards(self) -> dict[int, Event]:
        """Its training forwards by their numbers."""
        return {event["forward"]: event for event in self.of("forward")}


@dataclass(frozen=True, eq=False)
class Run:
    """A plan, and what became of it on each rank."""

    plan: Plan
    ranks: tuple[RankTrace, ...]

    @classmethod
    def read(cls, spec: Mapping[str, Any], ranks: Iterable[Sequence[Mapping[str, Any]]]) -> Run:
        """From a case's spec and the events of each rank, in the order of ranks."""
        plan = Plan(spec)
        return cls(plan, tuple(_rank(plan, number, lines) for number, lines in enumerate(ranks)))

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Those of all ranks, rank by rank."""
        return tuple(window for rank in self.ranks for window in rank.windows)

    @cached_property
    def server(self) -> int | None:
        """The rank that takes the optimizer steps of all: the parameter server, where there is one."""
        stepping = [rank.rank for rank in self.ranks if rank.of("step", "skip")]
        return stepping[0] if self.plan.backend == "parameter-server" and len(stepping) == 1 else None

    def is_served(self, window: Window) -> bool:
        """Whether another rank takes this window's step, and sends the weights."""
        return self.server is not None and self.server != window.rank

    def stepping(self, windows: Sequence[Window]) -> tuple[Window, ...]:
        """Those of ``windows`` whose ranks take their steps themselves."""
        return tuple(window for window in windows if not self.is_served(window))

    def held_after(self, window: Window) -> Event | None:
        """What shows the weights that a rank held after a window: its step or, if it is served, what comes next."""
        if not self.is_served(window):
            return window.attempts[-1] if window.attempts else None
        rank = self.ranks[window.rank]
        later = rank.between(window.events[0], None)
        return next(
            (e for e in later if e.kind == "finished" or (e.kind == "forward" and e.window != window.number)), None
        )

    def together(self) -> Iterator[tuple[Window, ...]]:
        """The windows that every rank has ended, each with its counterparts in the order of ranks."""
        for windows in zip(*(rank.windows for rank in self.ranks), strict=False):
            if all(window.ended for window in windows):
                yield windows


_ENDS = ("forward", "backward_end", "step", "skip", "update", "schedule")


def _rank(plan: Plan, rank: int, lines: Sequence[Mapping[str, Any]]) -> RankTrace:
    events = tuple(Event.read(line) for line in lines)
    starts = [0]
    for index, event in enumerate(events):
        if event.kind == "forward" and event.window != (None if len(starts) == 1 else events[starts[-1]].window):
            starts.append(index)
    setup, *bodies = [events[a:b] for a, b in zip(starts, [*starts[1:], len(events)], strict=True)]
    finished = bool(of_kind(events, "finished"))
    windows = []
    previous = setup
    for index, body in enumerate(bodies):
        number = body[0].window
        assert number is not None
        windows.append(
            Window(
                number,
                rank,
                body,
                before=_after_the_end(previous),
                planned=len(plan.micro_batches(rank, number)),
                ended=finished or index + 1 < len(bodies),
            )
        )
        previous = body
    return RankTrace(rank, events, tuple(windows), setup)


def _after_the_end(events: Sequence[Event]) -> tuple[Event, ...]:
    last = max((index for index, event in enumerate(events) if event.kind in _ENDS), default=-1)
    return tuple(events[last + 1 :])
