"""What a script shows of a case that fails: after how many windows, and which values are wrong there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, Step, Trajectory
from conformance.results.records import Quantity, Vector
from conformance.trace.events import Raised
from conformance.verdict.comparison import outside, same
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.judgement import Judgement
from conformance.workloads.problem import Problem


class CannotShow(Exception):
    """Why no script can show a failure, and what to do instead: one line."""


@dataclass(frozen=True)
class Numbers:
    """Wrong values after ``windows`` windows.

    ``step``: the last one that they are of. ``expected``: each with how large its error may be. ``seen``: the first
    that is wrong, as (rank, index, value), or another such if steps may be those of other windows; nothing if the
    values of ranks differ, each of which may be right.
    """

    windows: int
    step: int
    quantity: Quantity
    expected: tuple[tuple[float, float], ...]
    seen: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class Ending:
    """Training that raises or hangs. ``errors``: the first line of what each rank raised, if any did."""

    windows: int
    errors: tuple[str, ...] = ()


def shown(judgement: Judgement, problem: Problem) -> list[Numbers | Ending]:
    """What shows the failure, the shortest training first.

    Raises CannotShow.
    """
    if judgement.verdict == "INCONCLUSIVE":
        raise CannotShow(f"nothing is proved about it: {judgement.headline}")
    if judgement.verdict in ("CRASH", "HANG"):
        return _endings(judgement, len(problem.windows))
    right = _right(judgement, problem)
    if right is None or not right.steps or not judgement.ranks:
        raise CannotShow(f"no numbers show it: {judgement.headline}")
    found: list[Numbers | Ending] = []
    for quantity in get_args(Quantity):
        found += _numbers(judgement.ranks, right.steps, quantity)
    if not found:
        raise CannotShow(
            f"its weights and gradients are those of a right trainer, so a script has nothing to compare: "
            f"{judgement.headline}; "
            "`conformance run --traces` and `conformance trace` show what the trainer calls"
        )
    return found


def _endings(judgement: Judgement, windows: int) -> list[Numbers | Ending]:
    errors = tuple(_error(rank.raised) for rank in judgement.ranks if rank.raised)
    if judgement.verdict == "CRASH" and not errors:
        raise CannotShow(f"a process died and raised nothing that a script could show: {judgement.headline}")
    ended = 1 + max((len(rank.attempts) for rank in judgement.ranks), default=windows)
    return [Ending(count, errors) for count in dict.fromkeys([min(ended, windows), windows])]


def _error(raised: Raised) -> str:
    message = raised.message.splitlines()
    return f"{raised.type}: {message[0]}" if message else raised.type


def _right(judgement: Judgement, problem: Problem) -> Trajectory | None:
    """The right answer. That of the judgement takes the trainer's own word for which steps are skipped, which a trainer
    that is right may skip otherwise. Raises CannotShow."""
    followed = judgement.trajectory
    if followed is None or not problem.precision.scaled:
        return followed
    own = Recurrence(problem).run()
    if own.skips == followed.skips:
        return followed
    if "possible" in own.overflows:
        raise CannotShow(f"which steps overflow, and are to be skipped, depends on rounding: {judgement.headline}")
    return own


def _numbers(ranks: Sequence[RankEvidence], right: Sequence[Step], quantity: Quantity) -> Iterator[Numbers]:
    """At the first step at which a value is wrong, and at the last one if there is one too."""
    wrong = [at for at, step in enumerate(right) if _is_wrong(ranks, step, quantity)]
    for at in dict.fromkeys([*wrong[:1], *wrong[-1:]]):
        box, window = _box(right[at], quantity), right[at].window
        last = [[_last(rank, window, quantity, by_plan=by_plan) for rank in ranks] for by_plan in (True, False)]
        seen = tuple(one for one in (_first_outside(box, values) for values in last) if one is not None)
        yield Numbers(window + 1, at, quantity, tuple(map(_value, box.center, box.radius)), seen)


def _is_wrong(ranks: Sequence[RankEvidence], right: Step, quantity: Quantity) -> bool:
    values = [_last(rank, right.window, quantity, by_plan=True) for rank in ranks]
    known = [one for one in values if one is not None]
    if quantity == "weights" and any(not same(one, known[0]) for one in known):
        return True
    return _first_outside(_box(right, quantity), values) is not None


def _last(rank: RankEvidence, window: int, quantity: Quantity, *, by_plan: bool) -> Vector | None:
    """What a rank ends with that trains no longer than this window. ``by_plan``: by the windows that its steps should
    end, and not those of their forwards."""
    taken = [
        attempt
        for attempt in rank.attempts
        if (attempt.window if by_plan or attempt.seen_in is None else attempt.seen_in) <= window
    ]
    if quantity == "weights":
        return taken[-1].weights if taken else None if rank.attempts else rank.final_weights
    return next((attempt.gradients for attempt in reversed(taken) if attempt.stepped), None)


def _box(step: Step, quantity: Quantity) -> Enclosure:
    return step.weights if quantity == "weights" else step.gradient


def _first_outside(box: Enclosure, values: Sequence[Vector | None]) -> tuple[int, int, float] | None:
    for rank, one in enumerate(values):
        if one is not None and (index := outside(box, one)) is not None and (value := one[index]) is not None:
            return rank, index, value
    return None


def _value(center: Fraction, radius: Fraction) -> tuple[float, float]:
    """The right value as a float, and a float above what it may be off by."""
    value = float(center)
    allowed = radius + abs(center - Fraction(value))
    return value, math.nextafter(float(allowed), math.inf) if allowed else 0.0
