"""What is known of each rank, and from where; what its optimizers' events show is read here."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from conformance.laws.run import Events
from conformance.results.records import Vector
from conformance.runner.outcome import RankOutcome
from conformance.trace import events as trace
from conformance.workloads.layout import Window

# Growth and backoff factor, and the interval of growth, of apex's LossScaler (apex/amp/scaler.py).
_APEX_RULE = (2.0, 0.5, 2000)

#: How a value is known: from an optimizer's event, from later forwards or the end, from the trainer's report, or from a
#: rank that steps for this one.
Source: TypeAlias = Literal["seen", "shown", "reported", "another rank"]


@dataclass(frozen=True)
class Attempt:
    """One accumulation window as this rank ended it: with an optimizer step, or skipped by a GradScaler or apex.

    ``window``: the one that it ends by the plan; ``seen_in``: the one of its last forward, by the rows that went in.
    ``gradients`` as the optimizer saw them and ``weights`` afterwards, weight then bias; None where a value is unset.
    Without ``gradients``, nothing shows what the step used.
    ``scale`` is the loss scale of an enabled GradScaler or apex. ``gradients_finite`` is known for skips only.
    ``weights_by`` and ``gradients_by``: how they are known.
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


@dataclass(frozen=True)
class Update:
    """One update of a loss scale: the scale around it, and the rule that it follows. ``given``: the trainer said what
    the scale becomes. ``scaler``: which one."""

    before: float
    after: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    given: bool = False
    scaler: int | None = None


@dataclass(frozen=True)
class RankEvidence:
    """What one rank did, and how it ended.

    ``trained``: the rows that it trained on in each window; None if a training forward does not show which samples went
    in.
    """

    outcome: RankOutcome
    attempts: tuple[Attempt, ...]
    world_size: int | None  # None without a process group.
    updates: tuple[Update, ...]
    trained: Mapping[int, frozenset[int]] | None
    final_weights: Vector | None
    shard: frozenset[int] | None = None
    """The positions of the elements that it holds, where parameters are split over the ranks; what else its attempts
    show is that of the ranks that hold it."""
    changes: tuple[str, ...] = ()
    """Where the weights changed outside a step of torch's optimizers, in words."""
    hidden: frozenset[int] = frozenset()
    """The windows whose weights nothing but its reports can show."""
    denied: str | None = None
    """What it told otherwise than it was seen, in words."""
    lives: tuple[RankEvidence, ...] = ()
    """Of each life, in a case that was stopped and resumed."""

    @property
    def number(self) -> int:
        return self.outcome.rank

    def holds(self, element: int) -> bool:
        """Whether it has this element of the weights itself."""
        return self.shard is None or element in self.shard

    @cached_property
    def reported(self) -> frozenset[int]:
        """The windows of whose weights only its reports speak."""
        return self.hidden | {attempt.window for attempt in self.attempts if attempt.weights_by == "reported"}

    @cached_property
    def events(self) -> Events:
        """What it sent."""
        return _events(self.outcome)

    @property
    def raised(self) -> trace.Raised | None:
        return self.events.first(trace.Raised)

    @property
    def took_gradients(self) -> bool:
        """Whether the trainer replaced the gradients of its backwards, other than by scaling them."""
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
        """For each operation, sends and receives included, its calls, the bytes that this rank put in, and the calls
        since its ``training`` began."""
        counts: dict[str, Counter[str]] = {}
        is_split = bool(self.events.of(trace.Shards))
        for event in self.events.of(trace.Exchange):
            name = event.op if isinstance(event, trace.Collective) else event.event
            entry = counts.setdefault(name, Counter(count=0, bytes=0, training=0))
            # Ranks gather parameters that are split over them, which averages nothing.
            gathers = is_split and event.of == "parameters" and "allgather" in name
            trains = event.phase == "training" and event.bytes > 0 and not gathers
            entry.update(count=1, bytes=event.bytes, training=int(trains))
        return {op: dict(entry) for op, entry in counts.items()}

    @property
    def steps_by_hand(self) -> bool:
        """Whether no step of torch's optimizers was seen: then attempts are changes of the weights."""
        return not self.events.of(trace.Attempt)

    @property
    def steps(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.stepped)

    def taken(self, number: int) -> trace.Step | None:
        """The last event of its step ``number``; None if no optimizer of torch's took it."""
        window = self.steps[number].seen_in
        return next((event for event in reversed(self.events.of(trace.Step)) if event.window == window), None)

    @property
    def scalars_in_tensors(self) -> bool:
        """Whether torch computed the scalars of a step, such as AdamW's bias corrections, as tensors."""
        return any(event.scalars_in_tensors for event in self.events.of(trace.Step))

    @property
    def trained_collectively(self) -> bool:
        """Whether a collective or message that can average gradients was seen since training began.

        DDP also broadcasts during training, when it rebuilds its buckets; that does not average gradients.
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
    """The evidence in ``outcome``, of one life; ``windows`` are those that the case plans for it."""
    events = _events(outcome)
    apex_scales, apex_updates = _scaled_by_apex(events)
    return RankEvidence(
        outcome=outcome,
        attempts=_attempts(events.of(trace.Attempt), apex_scales, outcome.rank, windows),
        world_size=next((one.world_size for one in events.of(trace.Topology) if one.via), None),
        updates=(*map(_update, _updates(events)), *apex_updates),
        # None if they could not be read: then a part of the recorder has failed.
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
    """The attempts in order. A custom scaler's skips are not recorded, nor are the steps of an optimizer that is not
    torch's; they leave a gap that the forwards reveal, by their rows or by their number."""
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
        assert last.weights is not None
        scale = apex_scales.get(last.seq) if last.scale is None else last.scale
        attempts.append(
            Attempt(
                window=window,
                seen_in=last.window,
                stepped=all(isinstance(part, trace.Step) for part in working),
                gradients=None if None in layers else overlaid([values(one) for one in layers if one is not None]),
                weights=values(last.weights),
                scale=None if scale is None else float(scale),
                gradients_finite=all(part.gradients_finite for part in parts if isinstance(part, trace.Skip)),
            )
        )
    return tuple(attempts)


def _updates(events: Events) -> Sequence[trace.Update]:
    """Those of the scalers that step the model, if that is seen: another network may have a scaler of its own."""
    scalers = {event.scaler for event in events.of(trace.ScalerStep)}
    scalers |= {event.scaler for event in events.of(trace.Unscale)}
    return [one for one in events.of(trace.Update) if one.scaler in scalers or not scalers]


def _scaled_by_apex(events: Events) -> tuple[dict[int, trace.Number | None], list[Update]]:
    """By the `seq` of each step and skip apex's loss scale for it, where it had one; and the updates of that scale.

    apex updates the scale whenever `scale_loss` unscales: once a window with `delay_unscale`, else in each backward.
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
    """The steps without those that changed nothing before any training, or beside another one of their optimizer.

    Such as those by which a fresh optimizer gets a state to load into, and those after gradients were cleared. Beside
    one of another optimizer, gradients of zero are the gradients of what it holds.
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
    """Merge the steps of optimizers that share the model into one attempt: each steps once after one forward."""
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
    """``unused``: the forwards whose gradients were cleared."""
    rows, used = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for event in events.forwards:
        own = [row for row in event.rows if row is not None]
        if not own or len(own) < len(event.rows) or event.window is None:
            return None
        rows[event.window].update(own)
        if event.forward not in unused:
            used[event.window].update(own)
    # Where all gradients were cleared, they are kept elsewhere.
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
    """The weights that an event shows, if it shows them."""
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
    """A line in brackets, to follow what happened there."""
    return f" ({where})" if where else ""


def exactly(value: float | None) -> Fraction | None:
    """The value as a rational; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else Fraction(value)
