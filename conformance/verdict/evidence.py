"""The evidence of one rank, read from its events."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from conformance.results.records import Vector
from conformance.runner.outcome import RankOutcome
from conformance.workloads.layout import Window

# Growth and backoff factor, and the interval of growth, of apex's LossScaler (apex/amp/scaler.py).
_APEX_RULE = (2.0, 0.5, 2000)


@dataclass(frozen=True)
class Attempt:
    """One accumulation window as this rank ended it: with an optimizer step, or skipped by a GradScaler or apex.

    ``window``: the one that it ends by the plan; ``seen_in``: the one of its last forward, by the rows that went in.
    ``gradients`` as the optimizer saw them and ``weights`` afterwards, weight then bias; None where a value is unset.
    Without ``gradients``, nothing shows what the step used.
    ``scale`` is the loss scale of an enabled GradScaler or apex. ``gradients_finite`` is known for skips only.
    """

    window: int
    seen_in: int | None
    stepped: bool
    gradients: Vector | None
    weights: Vector
    scale: float | None
    gradients_finite: bool | None = None


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

    ``collectives``: for each operation, sends and receives included, its calls and the bytes that this rank put in;
    ``training``: calls since its training began. ``trained``: the rows that it trained on in each window; None if a
    training forward does not show which samples went in. ``contributed``: whether it put anything but zeros into an
    exchange of gradients; None if none was seen.
    """

    outcome: RankOutcome
    attempts: tuple[Attempt, ...]
    world_size: int | None  # None without a process group.
    updates: tuple[Update, ...]
    collectives: dict[str, dict[str, int]]
    trained: Mapping[int, frozenset[int]] | None
    contributed: bool | None
    final_weights: Vector | None
    raised: dict[str, Any] | None
    other_optimizer: dict[str, Any] | None
    observer_failed: dict[str, Any] | None
    took_gradients: bool
    """The trainer replaced the gradients of its backwards, other than by scaling them."""
    shard: frozenset[int] | None = None
    """The positions of the elements that it holds, where parameters are split over the ranks; what else its attempts
    show is that of the ranks that hold it."""
    changes: tuple[str, ...] = ()
    """Where the weights changed outside a step of torch's optimizers, in words."""
    reported: frozenset[int] = frozenset()
    """The windows of whose weights only its reports speak."""
    denied: str | None = None
    """What it told otherwise than it was seen, in words."""
    lives: tuple[RankEvidence, ...] = ()
    """Of each life, in a case that was stopped and resumed."""

    def holds(self, element: int) -> bool:
        """Whether it has this element of the weights itself."""
        return self.shard is None or element in self.shard

    @property
    def steps_by_hand(self) -> bool:
        """Whether no step of torch's optimizers was seen: then attempts are changes of the weights."""
        return not any(event["event"] in ("step", "skip") for event in self.outcome.events)

    @property
    def steps(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.stepped)

    def taken(self, number: int) -> Mapping[str, Any] | None:
        """The last event of its step ``number``; None if no optimizer of torch's took it."""
        window = self.steps[number].seen_in
        events = [one for one in self.outcome.events if one["event"] == "step" and one["window"] == window]
        return events[-1] if events else None

    @property
    def scalars_in_tensors(self) -> bool:
        """Whether torch computed the scalars of a step, such as AdamW's bias corrections, as tensors."""
        return any(event.get("scalars_in_tensors") for event in self.outcome.events if event["event"] == "step")

    @property
    def trained_collectively(self) -> bool:
        """Whether a collective or message that can average gradients was seen since training began.

        DDP also broadcasts during training, when it rebuilds its buckets; that does not average gradients.
        """
        return any(entry["training"] for op, entry in self.collectives.items() if not op.startswith("broadcast"))

    @property
    def averaged_early(self) -> bool:
        """Whether gradients were exchanged in a window before its last micro-batch."""
        last: dict[int, int] = {}
        exchanged: list[tuple[int, int]] = []
        for event in self.outcome.events:
            position = event["window"], event["micro_batch"]
            if None in position:
                continue
            if event["event"] == "forward":
                last[position[0]] = max(position[1], last.get(position[0], 0))
            elif event.get("of") == "gradients":
                exchanged.append(position)
        return any(micro_batch < last.get(window, 0) for window, micro_batch in exchanged)


def read(outcome: RankOutcome, windows: Sequence[Window]) -> RankEvidence:
    """The evidence in ``outcome``, of one life; ``windows`` are those that the case plans for it."""
    events = outcome.events
    steps, by_apex = _scaled_by_apex(events)
    return RankEvidence(
        outcome=outcome,
        attempts=_attempts(steps, outcome.rank, windows),
        world_size=next((one["world_size"] for one in events if one["event"] == "topology" and one["via"]), None),
        updates=(*map(_update, _updates(events)), *by_apex),
        collectives=_collectives(events),
        # None if they could not be read: then a part of the recorder has failed.
        final_weights=next(
            (event["weights"] and values(event["weights"]) for event in events if event["event"] == "finished"), None
        ),
        raised=next((event for event in events if event["event"] == "raised"), None),
        other_optimizer=next((event for event in events if event["event"] == "foreign_optimizer"), None),
        observer_failed=next((event for event in events if event["event"] == "observer_failed"), None),
        trained=_trained(events),
        contributed=_contributed(events),
        shard=next((frozenset(event["held"]) for event in events if event.get("held") is not None), None),
        took_gradients=any(event["event"] == "gradient_change" and event["factor"] is None for event in events),
    )


def _attempts(events: list[dict[str, Any]], rank: int, windows: Sequence[Window]) -> tuple[Attempt, ...]:
    """The attempts in order. A custom scaler's skips are not recorded, nor are the steps of an optimizer that is not
    torch's; they leave a gap that the forwards reveal, by their rows or by their number."""
    ends = list(accumulate(len(window.shares[rank]) for window in windows))
    together = list(_together(list(_without_idle(events))))
    attempts: list[Attempt] = []
    for parts in together:
        working = [part for part in parts if not part.get("idle")] or parts
        last = working[-1]
        following = attempts[-1].window + 1 if attempts else windows[0].index
        seen_in = last["window"]
        if len(together) >= len(windows):
            window = following
        elif seen_in is not None and seen_in >= following:
            window = seen_in
        else:
            window = windows[ends.index(last["forwards"])].index if last["forwards"] in ends else following
        attempts.append(
            Attempt(
                window=window,
                seen_in=seen_in,
                stepped=all(part["event"] == "step" for part in working),
                gradients=None
                if any(part["gradients"] is None for part in parts)
                else overlaid([values(part["gradients"]) for part in (*working, *parts)]),
                weights=values(last["weights"]),
                scale=None if last["scale"] is None else float(last["scale"]),
                gradients_finite=all(part.get("gradients_finite", True) for part in parts),
            )
        )
    return tuple(attempts)


def _updates(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the scalers that step the model, if that is seen: another network may have a scaler of its own."""
    scalers = {event["scaler"] for event in events if event["event"] in ("scaler_step", "unscale")}
    updates = [event for event in events if event["event"] == "update"]
    return [event for event in updates if event["scaler"] in scalers] if scalers else updates


def _scaled_by_apex(events: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Update]]:
    """The steps and skips with apex's loss scale for each, where it had one; and the updates of that scale.

    apex updates the scale whenever `scale_loss` unscales: once a window with `delay_unscale`, else in each backward.
    """
    steps: list[dict[str, Any]] = []
    updates: list[Update] = []
    exits: list[dict[str, Any]] = []
    scale = None
    for event in events:
        if event["event"] == "scale_loss_exit" and event["scale"] is not None and not event["delay_unscale"]:
            exits.append(event)
        elif event["event"] in ("step", "skip"):
            if exits:
                scale = exits[0]["scale"]
                updates.append(Update(float(scale), float(exits[-1]["scale_after"]), *_APEX_RULE))
                exits = []
            steps.append(event if event["scale"] is not None else {**event, "scale": scale})
    return steps, updates


def _without_idle(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The steps without those that changed nothing before any training, or beside another one of their optimizer.

    Such as those by which a fresh optimizer gets a state to load into, and those after gradients were cleared. Beside
    one of another optimizer, gradients of zero are the gradients of what it holds.
    """
    known = {(event["forwards"], event["optimizer"]) for event in events if not event.get("idle")}
    at_work = {forwards for forwards, _ in known} | {0}
    for event in events:
        step = event["forwards"], event["optimizer"]
        if event.get("idle") and event["forwards"] in at_work:
            if step in known or not event["forwards"]:
                continue
            known.add(step)
        yield event


def _together(events: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Merge the steps of optimizers that share the model into one attempt: each steps once after one forward."""
    parts: list[dict[str, Any]] = []
    for event in events:
        if parts and (
            event["forwards"] != parts[0]["forwards"] or event["optimizer"] in {part["optimizer"] for part in parts}
        ):
            yield parts
            parts = []
        parts.append(event)
    if parts:
        yield parts


def overlaid(layers: Sequence[Vector]) -> Vector:
    """Each value from the first layer that has it."""
    return tuple(next((value for value in column if value is not None), None) for column in zip(*layers, strict=True))


def _collectives(events: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    is_split = any(event["event"] == "shards" for event in events)
    for event in events:
        if event["event"] in ("collective", "send", "receive"):
            entry = counts.setdefault(event.get("op", event["event"]), Counter(count=0, bytes=0, training=0))
            # Ranks gather parameters that are split over them, which averages nothing.
            gathers = is_split and event["of"] == "parameters" and "allgather" in event.get("op", "")
            trains = event["phase"] == "training" and event["bytes"] > 0 and not gathers
            entry.update(count=1, bytes=event["bytes"], training=int(trains))
    return {op: dict(entry) for op, entry in counts.items()}


def _trained(events: Sequence[dict[str, Any]]) -> Mapping[int, frozenset[int]] | None:
    unused = cleared(events)
    rows, used = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for event in events:
        if event["event"] == "forward" and not event.get("extra"):
            if not event["rows"] or None in event["rows"]:
                return None
            rows[event["window"]].update(event["rows"])
            if event["forward"] not in unused:
                used[event["window"]].update(event["rows"])
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


def _contributed(events: Sequence[dict[str, Any]]) -> bool | None:
    given = [
        event
        for event in events
        if event.get("zeros") is not None
        and event["phase"] == "training"
        and not event.get("op", "").startswith(("broadcast", "scatter"))
    ]
    return any(not event["zeros"] for event in given) if given else None


def _update(event: dict[str, Any]) -> Update:
    return Update(
        float(event["scale_before"]),
        float(event["scale_after"]),
        float(event["growth_factor"]),
        float(event["backoff_factor"]),
        event["growth_interval"],
        event.get("given", False),
        event["scaler"],
    )


def values(recorded: Sequence[float | str | None]) -> Vector:
    """Recorded numbers as floats."""
    return tuple(None if value is None else float(value) for value in recorded)


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: ``rank 0``, ``ranks 0 and 2``."""
    *most, last = [str(rank) for rank in ranks] or ["none"]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def exactly(value: float | None) -> Fraction | None:
    """The value as a rational; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else Fraction(value)
