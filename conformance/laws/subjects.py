"""The subjects of laws: a `Window` of one rank, a `Rank`, a `GlobalWindow` of all ranks, and a `Run`.

A run is the plan and each rank's trace, split into accumulation windows.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, pairwise, takewhile
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from conformance.adapter.backends import BACKENDS
from conformance.laws.plan import Plan
from conformance.trace import events as trace
from conformance.trace.assembler import Assembler
from conformance.trace.lives import by_life

E = TypeVar("E", bound=trace.Event)
S = TypeVar("S")
R = TypeVar("R")


@contextmanager
def no_cyclic_collection() -> Iterator[None]:
    """Pauses Python's cyclic garbage collector. It would examine the millions of objects of a trace again and again,
    which takes longer than the work itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def fact(compute: Callable[[S], R]) -> Callable[[S], R]:
    """Decorator: caches a function's result for each subject."""
    name = f"{compute.__module__}.{compute.__qualname__}"

    def known(subject: S) -> R:
        facts = subject.__dict__
        try:
            found: R = facts[name]
        except KeyError:
            found = facts[name] = compute(subject)
        return found

    known.__doc__, known.__name__, known.__module__ = compute.__doc__, compute.__name__, compute.__module__
    return known


_seq = attrgetter("seq")


_NONE: dict[type[trace.Event], Sequence[trace.Event]] = dict.fromkeys(trace.KINDS.values(), ())
#: The kinds of event that are subclasses of each class.
_KINDS_OF: dict[type, list[type[trace.Event]]] = {
    base: [kind for kind in trace.KINDS.values() if issubclass(kind, base)]
    for base in {base for kind in trace.KINDS.values() for base in kind.__mro__}
}


class _ByClass(dict[type[trace.Event], Any]):
    """Events by their classes."""

    def __missing__(self, base: type[trace.Event]) -> Sequence[trace.Event]:
        several = [events for kind in _KINDS_OF[base] if (events := self[kind])]
        found = self[base] = several[0] if len(several) == 1 else sorted(chain(*several), key=_seq)
        return found


class _Of(Protocol):
    def __call__(self, kind: type[E], /) -> Sequence[E]: ...


class Events:
    """Consecutive events of one rank, indexed by class. of: the events of a class and its subclasses, in order."""

    of: _Of

    def __init__(self, events: tuple[trace.Event, ...]) -> None:
        self.events = events
        of: defaultdict[type[trace.Event], Any] = defaultdict(list)
        for event in events:
            of[type(event)].append(event)
        self._kinds = of.keys()
        by_class = _ByClass(_NONE)
        by_class.update(of)
        by_class[trace.Event] = events
        # Laws call this some fifty times per window.
        self.of = by_class.__getitem__

    def between(
        self, kind: type[E], *, after: trace.Event | None = None, before: trace.Event | None = None
    ) -> Sequence[E]:
        """The events of a class as `of` returns them, after and before the given events, which are excluded."""
        found = self.of(kind)
        if not found:
            return found
        start = 0 if after is None else bisect_right(found, after.seq, key=_seq)
        return found[start : None if before is None else bisect_left(found, before.seq, key=_seq)]

    def first(self, kind: type[E], *, after: trace.Event | None = None) -> E | None:
        """The first event of a class and its subclasses, after the given one."""
        found = self.of(kind)
        start = 0 if after is None else bisect_right(found, after.seq, key=_seq)
        return found[start] if start < len(found) else None

    @cached_property
    def forwards(self) -> Sequence[trace.Forward]:
        """The training forwards."""
        return [event for event in self.of(trace.Forward) if not event.extra]

    def has(self, kinds: Iterable[type[trace.Event]]) -> bool:
        """Whether there is an event of one of these classes, which must have no subclasses."""
        return not self._kinds.isdisjoint(kinds)


class Window(Events):
    """One accumulation window of one rank.

    events: from its first training forward, or the first sign of its gradients, up to the next window's.
    index: its position among the rank's windows.
    ended: whether its events are complete: the rank finished or began its next window. Never true for a window inside
    which training is resumed.
    forwards: empty if the trainer computes without the model's `forward`. backwards: the beginnings of its backward
    passes, without those of other models.
    attempts: optimizer steps, including those that a GradScaler skipped.
    """

    def __init__(self, rank: Rank, index: int, events: tuple[trace.Event, ...], ended: bool) -> None:
        super().__init__(events)
        number = events[0].window
        assert number is not None
        self.number, self.rank, self.index = number, rank, index
        self.run, self.plan = rank.run, rank.run.plan
        self.ended = ended and not (self.plan.spec.get("resumed_inside") and number == self.plan.spec["resumed_at"])
        others = backwards_of_others(rank)
        self.backwards = [event for event in self.of(trace.BackwardBegin) if event.backward not in others]
        self.attempts = self.of(trace.Attempt)

    @property
    def planned(self) -> int:
        """The number of micro-batches in the plan."""
        return len(self.plan.micro_batches(self.rank.number, self.number))

    @property
    def previous(self) -> Window | None:
        return self.rank.windows[self.index - 1] if self.index else None

    @property
    def following(self) -> Window | None:
        return self.rank.windows[self.index + 1] if self.index + 1 < len(self.rank.windows) else None

    @property
    def gap_before(self) -> tuple[trace.Event, ...]:
        """The events from the previous window's last forward, backward, step or update to this window's first forward.
        They are also at the end of the previous window's ``events``."""
        return _after_the_end(self.previous.events if self.previous else self.rank.setup)

    @property
    def counterparts(self) -> Sequence[Window]:
        """The windows of all ranks with this number, in rank order."""
        return self.run.numbered[self.number]

    @property
    def step_is_unseen(self) -> bool:
        """Whether its step leaves no event: another rank takes it and sends the weights, or the trainer changes them
        without a torch optimizer."""
        served = self.run.server is not None and self.run.server != self.rank.number
        return served or self.rank.steps_by_hand or self._is_stepped_elsewhere

    @property
    def _is_stepped_elsewhere(self) -> bool:
        """Whether other ranks step in it and this one does not, although its weights change or it owns none."""
        if self.attempts or not any(one.attempts for one in self.counterparts):
            return False
        if self.rank.owns_nothing:
            return True
        shown = [event and self.rank.own(event.weights) for event in (*self.forwards[:1], self.shown_after)]
        return len(shown) == 2 and None not in shown and shown[0] != shown[1]

    @property
    def shown_after(self) -> trace.Forward | trace.Finished | trace.Report | None:
        """The event that shows the weights after this window: the next window's first forward, or the end; the
        trainer's report if the trace has neither a step nor a forward of the model."""
        if self.rank.steps_by_hand and not self.forwards:
            return next((event for event in self.rank.of(trace.Report) if event.step == self.number), None)
        following = self.following
        if following is None:
            return next(iter(self.of(trace.Finished)), None)
        if self.rank.has_run_out(self.number + 1):
            return None
        return following.forwards[0] if following.forwards else None


class Rank(Events):
    """All events of one rank. ``setup``: those before its first window.

    ``windows`` leaves out windows in which only other ranks have data left. ``earlier``: those before a resume, if as
    many ranks trained them.
    """

    def __init__(self, run: Run, number: int, events: tuple[trace.Event, ...]) -> None:
        super().__init__(events)
        self.run, self.number = run, number
        self.finished = bool(self.of(trace.Finished))
        self.setup = tuple(takewhile(lambda event: event.window is None, events))
        self.windows: Sequence[Window] = ()
        self.earlier: Sequence[Window] = ()

    def has_run_out(self, window: int | None) -> bool:
        """Whether other ranks have samples in a window and this one has none left."""
        plan = self.run.plan
        return window is not None and not plan.micro_batches(self.number, window) and plan.with_data(window) > 0

    @cached_property
    def shard(self) -> Sequence[int] | None:
        """The positions of its own elements if parameters are sharded; else None."""
        return next((event.held for event in self.of(trace.Shards) if event.held is not None), None)

    def own(self, weights: trace.Vector | None) -> trace.Vector | None:
        """Its own elements of ``weights``."""
        return weights if weights is None or self.shard is None else [weights[position] for position in self.shard]

    @cached_property
    def owns_nothing(self) -> bool:
        """Whether several other ranks step disjoint parameters, among them all that this one has, and it steps none."""
        owned = [{number for step in rank.of(trace.Step) for number in step.parameters} for rank in self.run.ranks]
        if owned[self.number] or self.of(trace.ForeignOptimizer):
            return False
        stepped = set[int]().union(*owned)
        has = {number for optimizer in self.of(trace.Optimizer) for number in optimizer.parameters}
        return sum(map(bool, owned)) > 1 and sum(map(len, owned)) == len(stepped) and has <= stepped

    @cached_property
    def steps_by_hand(self) -> bool:
        """Whether weights change, or are reported, without any step of a torch optimizer, here or on a server. A rank
        without own weights sees those of others."""
        if self.run.server is not None or any(not step.idle for step in self.of(trace.Step)):
            return False
        events: list[trace.Forward | trace.Finished] = [*self.of(trace.Forward), *self.of(trace.Finished)]
        shown = [self.own(event.weights) or event.weights for event in events if event.weights is not None]
        return bool(self.of(trace.Report)) or any(weights != shown[0] for weights in shown)


class ByNumber:
    """Cuts the events of a rank at each change of the plan's window number."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._count = rank, 0
        self._begun: list[trace.Event] = []
        self._number: int | None = None

    def feed(self, event: trace.Event) -> Iterable[Window]:
        found: Iterable[Window] = ()
        if event.window != self._number and event.window is not None:
            found = self._window(ended=True)
            self._begun, self._number = [], event.window
        self._begun.append(event)
        return found

    def end(self) -> Iterable[Window]:
        return self._window(ended=self._rank.finished)

    def _window(self, *, ended: bool) -> Iterable[Window]:
        if self._number is None or self._rank.has_run_out(self._number):
            return ()
        self._count += 1
        return (Window(self._rank, self._count - 1, tuple(self._begun), ended),)


class GlobalWindow:
    """One window of all ranks that every rank has ended."""

    def __init__(self, run: Run, number: int, windows: tuple[Window, ...]) -> None:
        self.run, self.plan, self.number, self.windows = run, run.plan, number, windows

    @cached_property
    def stepping(self) -> tuple[Window, ...]:
        """The windows of the ranks that take their own steps."""
        return tuple(window for window in self.windows if not window.step_is_unseen)


class Run:
    """The plan and the events of each rank."""

    def __init__(self, plan: Plan, ranks: Iterable[tuple[trace.Event, ...]]) -> None:
        self.plan = plan
        self.ranks = tuple(Rank(self, number, events) for number, events in enumerate(ranks))
        self._assembler = Assembler[trace.Event, Window, None](len(self.ranks), lambda _: None)
        for rank in self.ranks:
            self._assembler.cuts[rank.number] = ByNumber(rank)
            windows = self._assembler.feed(rank.number, rank.events)
            rank.windows = (*windows, *self._assembler.end(rank.number))

    @classmethod
    @no_cyclic_collection()
    def read(cls, spec: Mapping[str, Any], ranks: Iterable[Sequence[dict[str, Any]]]) -> Run:
        """Reads a run from a case's spec and the checked trace lines of each rank, in rank order."""
        return cls(Plan(spec), (tuple(map(trace.read, lines)) for lines in ranks))

    @classmethod
    def lives(cls, spec: Mapping[str, Any], ranks: Iterable[Sequence[dict[str, Any]]]) -> tuple[Run, ...]:
        """Reads one run for each life of the ranks, so laws judge each life separately."""
        runs = tuple(cls.read(of_life, life) for of_life, life in by_life(spec, ranks))
        for before, after in pairwise(runs):
            after.resume(before)
        return runs

    def resume(self, before: Run) -> None:
        """Makes this run the life after ``before``."""
        for rank, same in zip(self.ranks, before.ranks, strict=False):
            rank.earlier = same.windows if len(self.ranks) == len(before.ranks) else ()

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The windows of all ranks, rank by rank."""
        return tuple(window for rank in self.ranks for window in rank.windows)

    @cached_property
    def numbered(self) -> Mapping[int, Sequence[Window]]:
        """The windows by number, in rank order."""
        found: defaultdict[int, list[Window]] = defaultdict(list)
        for window in self.windows:
            found[window.number].append(window)
        return found

    @cached_property
    def together(self) -> Mapping[int, GlobalWindow]:
        """The windows that every rank has ended, by number.

        After a rank leaves out a window or reads samples of another window, its windows no longer match the other
        ranks'.
        """
        found = {}
        for _, windows in self._assembler.joined():
            here = tuple(window for window in windows if window is not None and window.ended)
            if len(here) == len(windows) and len({window.number for window in here}) == 1:
                found[here[0].number] = GlobalWindow(self, here[0].number, here)
        return found

    @cached_property
    def server(self) -> int | None:
        """The parameter server: the only rank that takes optimizer steps; None if there is none."""
        if not BACKENDS[self.plan.backend].one_rank_steps:
            return None
        stepping = [rank.number for rank in self.ranks if rank.of(trace.Attempt)]
        return stepping[0] if len(stepping) == 1 else None


@fact
def with_gradients(rank: Rank) -> set[int]:
    """The forwards that gradients went through."""
    events: list[trace.BackwardEnd | trace.AutogradGrad] = [*rank.of(trace.BackwardEnd), *rank.of(trace.AutogradGrad)]
    return {forward for event in events for forward in event.forwards}


@fact
def forwards_by_number(rank: Rank) -> Mapping[int, trace.Forward]:
    """The forwards of a rank, by number."""
    return {event.forward: event for event in rank.of(trace.Forward)}


@fact
def backwards_of_others(rank: Rank) -> frozenset[int]:
    """The backwards outside training: of another model's loss, or of a warm-up.

    These are the backwards that reached only other forwards; empty if no backward reached a training forward.
    """
    trained = {event.forward for event in rank.forwards}
    ends = rank.of(trace.BackwardEnd)
    if all(trained.isdisjoint(end.forwards) for end in ends):
        return frozenset()
    return frozenset(end.backward for end in ends if end.forwards and trained.isdisjoint(end.forwards))


_ENDS = (trace.Forward, trace.BackwardEnd, trace.Attempt, trace.Update, trace.Schedule)


def _after_the_end(events: tuple[trace.Event, ...]) -> tuple[trace.Event, ...]:
    for index in range(len(events), 0, -1):
        event = events[index - 1]
        if isinstance(event, _ENDS) and not (isinstance(event, trace.Forward) and event.extra):
            return events[index:]
    return events
