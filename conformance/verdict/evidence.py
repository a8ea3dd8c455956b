"""The evidence of each rank and its sources; reads the attempts from optimizers' events."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from conformance.laws.subjects import Events
from conformance.results.result_lines import Vector
from conformance.runner.outcome import RankOutcome
from conformance.trace import events as trace
from conformance.workloads.layout import Window

# Growth and backoff factor, and the interval of growth, of apex's LossScaler (apex/amp/scaler.py).
_APEX_RULE = (2.0, 0.5, 2000)

#: The source of a value: an optimizer's event, later forwards or the end, the trainer's report, or a rank that steps
#: for this one.
Source: TypeAlias = Literal["seen", "shown", "reported", "another rank"]


@dataclass(frozen=True)
class Attempt:
    """The end of one accumulation window on this rank: an optimizer step, or a skip by a GradScaler or apex.

    ``window``: the planned window that it ends; ``seen_in``: the window of its last forward, by its rows.
    ``gradients`` as the optimizer saw them and ``weights`` afterwards, weight then bias; None where a value is unset.
    ``gradients`` is None as a whole if nothing shows what the step used; ``offered``: what it then may have used.
    ``scale`` is the loss scale of an enabled GradScaler or apex. ``gradients_finite`` is known only for skips.
    ``weights_by`` and ``gradients_by``: their sources.
    """

    window: int
    seen_in: int | None
    stepped: bool
    gradients: Vector | None
    weights: Vector
    scale: float | None
    gradients_finite: bool | None = None
    weights_by: Source = "seen"
    gradients_by: Source = "seen"
    offered: Vector | None = None

    @property
    def with_offered(self) -> Attempt:
        """Itself, as if its step had used the gradients that were offered to it."""
        return self if self.gradients or not self.offered else replace(self, gradients=self.offered)


@dataclass(frozen=True)
class Update:
    """One update of a loss scale: the scale before and after, and its rule. ``given``: the trainer set the new scale.
    ``scaler``: the scaler's number."""

    before: float
    after: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    given: bool = False
    scaler: int | None = None


@dataclass(frozen=True)
class RankEvidence:
    """The evidence of one rank, and how it ended.

    ``trained``: the rows that it trained on in each window; None if a training forward does not show its samples.
    """

    outcome: RankOutcome
    attempts: tuple[Attempt, ...]
    world_size: int | None  # None without a process group.
    updates: tuple[Update, ...]
    trained: Mapping[int, frozenset[int]] | None
    final_weights: Vector | None
    shard: frozenset[int] | None = None
    """The positions of its own elements if parameters are sharded; its attempts have the others from other ranks."""
    changes: tuple[str, ...] = ()
    """The changes of weights outside steps of torch's optimizers, in words."""
    hidden: frozenset[int] = frozenset()
    """The windows whose weights only its reports can show."""
    denied: str | None = None
    """Its first report that contradicts what was seen, in words."""
    lives: tuple[RankEvidence, ...] = ()
    """The evidence of each life, in a case that was stopped and resumed."""

    @property
    def number(self) -> int:
        return self.outcome.rank

    def has(self, element: int) -> bool:
        """Whether it has this element of the weights itself."""
        return self.shard is None or element in self.shard

    @cached_property
    def reported(self) -> frozenset[int]:
        """The windows with weights that only its reports show."""
        return self.hidden | {attempt.window for attempt in self.attempts if attempt.weights_by == "reported"}

    @cached_property
    def events(self) -> Events:
        """The events that it sent."""
        return _events(self.outcome)

    @property
    def raised(self) -> trace.Raised | None:
        return self.events.first(trace.Raised)

    @property
    def took_gradients(self) -> bool:
        """Whether the trainer replaced the gradients of its backwards, beyond scaling them."""
        return any(event.factor is None for event in self.events.of(trace.GradientChange))

    @property
    def contributed(self) -> bool | None:
        """Whether it put anything but zeros into an exchange of gradients; None if none was seen."""
        given = [
            event.zeros
            for event in self.events.of(trace.Contribution)
            if event.zeros is not None
            and event.phase == "training"
            and not (isinstance(event, trace.Collective) and event.op.startswith(("broadcast", "scatter")))
        ]
        return not all(given) if given else None

    @cached_property
    def collectives(self) -> dict[str, dict[str, int]]:
        """The calls of each operation, including sends and receives, the bytes that this rank put in, and the calls
        since ``training`` began."""
        counts: dict[str, Counter[str]] = {}
        is_split = bool(self.events.of(trace.Shards))
        for event in self.events.of(trace.Exchange):
            name = event.op if isinstance(event, trace.Collective) else event.event
            entry = counts.setdefault(name, Counter(count=0, bytes=0, training=0))
            # Gathering sharded parameters averages nothing.
            gathers = is_split and event.of == "parameters" and "allgather" in name
            trains = event.phase == "training" and event.bytes > 0 and not gathers
            entry.update(count=1, bytes=event.bytes, training=int(trains))
        return {op: dict(entry) for op, entry in counts.items()}

    @property
    def steps_by_hand(self) -> bool:
        """Whether no step of a torch optimizer was seen: then attempts are changes of the weights."""
        return not self.events.of(trace.Attempt)

    @property
    def steps(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.stepped)

    def taken(self, number: int) -> trace.Step | None:
        """The last event of its step ``number``; None if no torch optimizer took it."""
        window = self.steps[number].seen_in
        return next((event for event in reversed(self.events.of(trace.Step)) if event.window == window), None)

    def taken_by_hand(self, number: int) -> trace.Report | None:
        """What `Task.step` noted after its step ``number``; None if the trainer did not take it in that."""
        window = self.steps[number].seen_in
        return next((event for event in self.events.of(trace.Report) if event.counted and event.window == window), None)

    @property
    def scalars_in_tensors(self) -> bool:
        """Whether torch computed the scalars of a step, such as AdamW's bias corrections, as tensors."""
        return any(event.scalars_in_tensors for event in self.events.of(trace.Step))

    @property
    def trained_collectively(self) -> bool:
        """Whether a collective or message that can average gradients was seen since training began.

        DDP also broadcasts when it rebuilds its buckets during training; that does not average gradients.
        """
        return any(entry["training"] for op, entry in self.collectives.items() if not op.startswith("broadcast"))

    @property
    def averaged_early(self) -> bool:
        """Whether gradients were exchanged in a window before its last micro-batch."""
        last: dict[int | None, int] = {}
        for forward in self.events.of(trace.Forward):
            if forward.window is not None and forward.micro_batch is not None:
                last[forward.window] = max(forward.micro_batch, last.get(forward.window, 0))
        return any(
            one.of == "gradients" and one.micro_batch is not None and one.micro_batch < last.get(one.window, 0)
            for one in self.events.of(trace.Exchange)
        )


def _events(outcome: RankOutcome) -> Events:
    return Events(tuple(map(trace.read, outcome.events)))


def read(outcome: RankOutcome, windows: Sequence[Window]) -> RankEvidence:
    """Reads the evidence of one life from ``outcome``; ``windows``: those planned for it."""
    events = _events(outcome)
    apex_scales, apex_updates = _scaled_by_apex(events)
    return RankEvidence(
        outcome=outcome,
        attempts=_attempts(events.of(trace.Attempt), apex_scales, outcome.rank, windows),
        world_size=next((one.world_size for one in events.of(trace.Topology) if one.via), None),
        updates=(*map(_update, _updates(events)), *apex_updates),
        # None if they could not be read: then a part of the recorder failed.
        final_weights=shown_by(events.first(trace.Finished)),
        trained=_trained(events, cleared(outcome.events)),
        shard=next((frozenset(event.held) for event in events.of(trace.Shards) if event.held is not None), None),
    )


def _attempts(
    events: Sequence[trace.Attempt],
    apex_scales: Mapping[int, trace.Number | None],
    rank: int,
    windows: Sequence[Window],
) -> tuple[Attempt, ...]:
    """The attempts in order. Skips of a custom scaler and steps of an optimizer that is not torch's are not recorded;
    they leave a gap that the rows or the number of the forwards reveal."""
    ends = list(accumulate(len(window.shares[rank]) for window in windows))
    together = list(_together(list(_without_idle(events))))
    attempts: list[Attempt] = []
    for parts in together:
        working = [part for part in parts if not _is_idle(part)] or parts
        last = working[-1]
        following = attempts[-1].window + 1 if attempts else windows[0].index
        if len(together) >= len(windows):
            window = following
        elif last.window is not None and last.window >= following:
            window = last.window
        else:
            window = windows[ends.index(last.forwards)].index if last.forwards in ends else following
        layers = [part.gradients for part in (*working, *parts)]
        offered = [part.gradients or part.offered for part in (*working, *parts)]
        assert last.weights is not None
        scale = apex_scales.get(last.seq) if last.scale is None else last.scale
        attempts.append(
            Attempt(
                window=window,
                seen_in=last.window,
                stepped=all(isinstance(part, trace.Step) for part in working),
                gradients=_laid(layers),
                weights=values(last.weights),
                scale=None if scale is None else float(scale),
                gradients_finite=all(part.gradients_finite for part in parts if isinstance(part, trace.Skip)),
                offered=_laid(offered) if None in layers else None,
            )
        )
    return tuple(attempts)


def _laid(layers: Sequence[trace.Vector | None]) -> Vector | None:
    return None if None in layers else overlaid([values(one) for one in layers if one is not None])


def _updates(events: Events) -> Sequence[trace.Update]:
    """The updates of the scalers that step the model, if known: another network may have its own scaler."""
    scalers = {event.scaler for event in events.of(trace.ScalerStep)}
    scalers |= {event.scaler for event in events.of(trace.Unscale)}
    return [one for one in events.of(trace.Update) if one.scaler in scalers or not scalers]


def _scaled_by_apex(events: Events) -> tuple[dict[int, trace.Number | None], list[Update]]:
    """apex's loss scale for each step and skip, by its `seq`, if it had one; and the updates of that scale.

    apex updates the scale whenever `scale_loss` unscales: once per window with `delay_unscale`, else in each backward.
    """
    scales: dict[int, trace.Number | None] = {}
    updates: list[Update] = []
    exits: list[tuple[trace.Number, trace.Number]] = []
    scale: trace.Number | None = None
    for event in events.events:
        if isinstance(event, trace.ScaleLossExit) and not event.delay_unscale:
            if event.scale is not None and event.scale_after is not None:
                exits.append((event.scale, event.scale_after))
        elif isinstance(event, trace.Attempt):
            if exits:
                (scale, _), (_, after) = exits[0], exits[-1]
                updates.append(Update(float(scale), float(after), *_APEX_RULE))
                exits = []
            scales[event.seq] = scale
    return scales, updates


def _is_idle(event: trace.Attempt) -> bool:
    return isinstance(event, trace.Step) and event.idle


def _without_idle(events: Sequence[trace.Attempt]) -> Iterator[trace.Attempt]:
    """Yields the steps, without idle ones before any training or next to another step of the same optimizer.

    Idle steps give a new optimizer a state to load into, or come after a clearing. Next to a step of another optimizer,
    an idle step counts: its parameters have zero gradients.
    """
    known = {(event.forwards, event.optimizer) for event in events if not _is_idle(event)}
    at_work = {forwards for forwards, _ in known} | {0}
    for event in events:
        step = event.forwards, event.optimizer
        if _is_idle(event) and event.forwards in at_work and (step in known or not event.forwards):
            continue
        known.add(step)
        yield event


def _together(events: Sequence[trace.Attempt]) -> Iterator[list[trace.Attempt]]:
    """Merges the steps of optimizers that share the model into one attempt: each steps once after one forward."""
    parts: list[trace.Attempt] = []
    for event in events:
        if parts and (event.forwards != parts[0].forwards or event.optimizer in {part.optimizer for part in parts}):
            yield parts
            parts = []
        parts.append(event)
    if parts:
        yield parts


def overlaid(layers: Sequence[Vector]) -> Vector:
    """Each value from the first layer that has it."""
    return tuple(next((value for value in column if value is not None), None) for column in zip(*layers, strict=True))


def _trained(events: Events, unused: set[int]) -> Mapping[int, frozenset[int]] | None:
    """The rows that each window trained on. ``unused``: the forwards whose gradients were cleared."""
    rows, used = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for event in events.forwards:
        own = [row for row in event.rows if row is not None]
        if not own or len(own) < len(event.rows) or event.window is None:
            return None
        rows[event.window].update(own)
        if event.forward not in unused:
            used[event.window].update(own)
    # If all gradients were cleared, the trainer keeps them elsewhere.
    return {at: frozenset(used.get(at) or every) for at, every in rows.items()}


def cleared(events: Sequence[dict[str, Any]]) -> set[int]:
    """The forwards whose gradients were cleared before a step."""
    unused, waiting = set[int](), set[int]()
    for event in events:
        if event["event"] == "backward_end":
            waiting.update(event["forwards"])
        elif event["event"] == "zero_grad":
            unused |= waiting
            waiting.clear()
        elif event["event"] in ("step", "skip"):
            waiting.clear()
    return unused


def _update(event: trace.Update) -> Update:
    return Update(
        float(event.scale_before),
        float(event.scale_after),
        float(event.growth_factor),
        float(event.backoff_factor),
        event.growth_interval,
        event.given,
        event.scaler,
    )


def shown_by(event: trace.Forward | trace.Finished | trace.Report | None) -> Vector | None:
    """The weights that an event shows; None if it shows none."""
    return None if event is None or not event.weights else values(event.weights)


def values(recorded: Sequence[float | str | None]) -> Vector:
    """Recorded numbers as floats."""
    return tuple(None if value is None else float(value) for value in recorded)


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: ``rank 0``, ``ranks 0 and 2``."""
    *most, last = [str(rank) for rank in ranks] or ["none"]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def place(event: trace.Event) -> str | None:
    """Its line, as ``train.py:41``."""
    return "{}:{}".format(*event.where) if event.where else None


def at(where: str | None) -> str:
    """A line in brackets, to follow a phrase."""
    return f" ({where})" if where else ""


def exactly(value: float | None) -> Fraction | None:
    """The value as a rational; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else Fraction(value)
