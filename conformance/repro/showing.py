"""Decides what a script shows of a failing case: after how many windows, and which values are wrong there for every
valid choice of its trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias, get_args

from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, Step, Trajectory
from conformance.results.result_lines import Quantity, Vector
from conformance.trace.events import Raised
from conformance.verdict.answers import accepted_by, trajectory_of
from conformance.verdict.comparison import outside, same
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.judgement import Judgement
from conformance.workloads.behaviour import WORDS, split
from conformance.workloads.problem import Problem

#: Printed by a script's rank that hangs.
TIMEOUT = "Timeout (0:00:20)!"


class CannotShow(Exception):
    """Why no script can show a failure, and what to do instead: one line."""


@dataclass(frozen=True)
class Numbers:
    """Wrong values after ``windows`` windows.

    ``step``: the step of these values. ``expected``: each value with its largest allowed error. ``seen``: the first
    wrong value, as (rank, index, value), and another if steps may belong to other windows; empty if the values of ranks
    differ, as each may be correct. ``others``: other correct values, by the choice of the trainer that gives them.
    """

    windows: int
    step: int
    quantity: Quantity
    expected: tuple[tuple[float, float], ...]
    seen: tuple[tuple[int, int, float], ...]
    others: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()


@dataclass(frozen=True)
class Ending:
    """Training that raises or hangs. ``errors``: the first line of what each rank raised, if any did."""

    windows: int
    errors: tuple[str, ...] = ()


#: The failures that a script can show.
Shows: TypeAlias = Numbers | Ending


@dataclass(frozen=True)
class Answer:
    """The steps of a correct trainer. ``name``: its choices; completes "it is a trainer that ..."."""

    name: str
    steps: Sequence[Step]

    def by(self, window: int) -> Step | None:
        """The last step up to this window."""
        return next((step for step in reversed(self.steps) if step.window <= window), None)


def answers(judgement: Judgement, problem: Problem) -> list[Answer]:
    """The correct answers; first the judgement's, unless the trainer declares another choice.

    The judgement's answer believes the trainer about which steps are skipped; a correct trainer may skip others.

    Raises CannotShow.
    """
    followed = judgement.trajectory
    assert followed is not None
    declared = {split(one.way)[0]: one.declared for one in judgement.behaviour if one.declared is not None}
    accepted, history = accepted_by(problem, judgement.ranks, carries=declared.get("last_window") == "carry")
    if problem.precision.scaled and (own := Recurrence(problem).run()).skips != followed.skips:
        if "possible" in own.overflows:
            raise CannotShow(
                f"rounding decides which steps overflow and are skipped: {judgement.headline}; use a case of this "
                "problem in fp32"
            )
        history, followed = own.history, own
    # A trainer whose numbers are correct does something else than it declares.
    against = judgement.reading is not None and judgement.reading.denies(declared)
    first = [] if against else [followed]
    readings = [one for one in accepted if not against or not one.denies(declared)]
    trajectories: list[Trajectory] = [*first, *(trajectory_of(one, history) for one in readings)]
    names = [*("" for _ in first), *(" and ".join(WORDS[way].says for way in one.ways) for one in readings)]
    return [Answer(name, one.steps) for name, one in zip(names, trajectories, strict=True)]


def wrong_numbers(ranks: Sequence[RankEvidence], right: Sequence[Answer]) -> Iterator[Numbers]:
    """Yields the first step with a wrong value, and the last one if there are several."""
    windows = sorted({step.window for answer in right for step in answer.steps if right[0].by(step.window)})
    for quantity in get_args(Quantity):
        wrong = [window for window in windows if _is_wrong(ranks, right, window, quantity)]
        for window in dict.fromkeys([*wrong[:1], *wrong[-1:]]):
            yield _numbers(ranks, right, window, quantity)


def _numbers(ranks: Sequence[RankEvidence], right: Sequence[Answer], window: int, quantity: Quantity) -> Numbers:
    first, *others = _boxes(right, window, quantity)
    last = [[_last(rank, window, quantity, by_plan=by_plan) for rank in ranks] for by_plan in (True, False)]
    seen = tuple(one for one in (_first_outside(first[1], values) for values in last) if one is not None)
    step = next(at for at, one in enumerate(right[0].steps) if one is right[0].by(window))
    named = tuple((name, _values(box)) for name, box in others)
    return Numbers(window + 1, step, quantity, _values(first[1]), seen, named)


def _boxes(right: Sequence[Answer], window: int, quantity: Quantity) -> list[tuple[str, Enclosure]]:
    """The correct values, each once; values that differ by less than rounding are merged."""
    found: list[tuple[str, Enclosure]] = []
    for answer in right:
        step = answer.by(window)
        if step is None:
            continue
        box = step.weights if quantity == "weights" else step.gradient
        center = tuple(map(float, box.center))
        near = next((at for at, (_, one) in enumerate(found) if outside(one, center) is None), None)
        if near is None:
            found.append((answer.name, box))
        else:
            found[near] = found[near][0], _around(found[near][1], box)
    return found


def _around(one: Enclosure, other: Enclosure) -> Enclosure:
    """The enclosure of both."""
    both = zip(one.center, one.radius, other.center, other.radius, strict=True)
    radius = tuple(max(own, abs(center - further) + more) for center, own, further, more in both)
    return replace(one, radius=radius)


def _is_wrong(ranks: Sequence[RankEvidence], right: Sequence[Answer], window: int, quantity: Quantity) -> bool:
    values = [_last(rank, window, quantity, by_plan=True) for rank in ranks]
    known = [one for one in values if one is not None]
    if quantity == "weights" and any(not same(one, known[0]) for one in known):
        return True
    boxes = _boxes(right, window, quantity)
    return bool(boxes) and all(_first_outside(box, values) is not None for _, box in boxes)


def _last(rank: RankEvidence, window: int, quantity: Quantity, *, by_plan: bool) -> Vector | None:
    """The last values of a rank that trains only up to this window. ``by_plan``: by the windows that its steps should
    end, not by those of their forwards."""
    taken = [
        attempt
        for attempt in rank.attempts
        if (attempt.window if by_plan or attempt.seen_in is None else attempt.seen_in) <= window
    ]
    if quantity == "weights":
        return taken[-1].weights if taken else None if rank.attempts else rank.final_weights
    return next((attempt.gradients for attempt in reversed(taken) if attempt.stepped), None)


def _first_outside(box: Enclosure, values: Sequence[Vector | None]) -> tuple[int, int, float] | None:
    for rank, one in enumerate(values):
        if one is not None and (index := outside(box, one)) is not None and (value := one[index]) is not None:
            return rank, index, value
    return None


def _values(box: Enclosure) -> tuple[tuple[float, float], ...]:
    return tuple(map(_value, box.center, box.radius))


def _value(center: Fraction, radius: Fraction) -> tuple[float, float]:
    """The correct value as a float, and an upper bound of its allowed error."""
    value = float(center)
    allowed = radius + abs(center - Fraction(value))
    return value, math.nextafter(float(allowed), math.inf) if allowed else 0.0


def shown(judgement: Judgement, problem: Problem) -> list[Shows]:
    """What shows the failure, the shortest training first.

    Raises CannotShow.
    """
    if judgement.verdict == "INCONCLUSIVE":
        raise CannotShow(f"the case is undecided: {judgement.said}")
    if judgement.verdict in ("CRASH", "HANG"):
        return _endings(judgement, len(problem.windows))
    if problem.workload.own_order:
        raise CannotShow(f"a script cannot know which samples the trainer should have read: {judgement.said}")
    if judgement.trajectory is None or not judgement.trajectory.steps or not judgement.ranks:
        raise CannotShow(f"no numbers show the failure: {judgement.said}")
    found: list[Shows] = [*wrong_numbers(judgement.ranks, answers(judgement, problem))]
    if not found:
        raise CannotShow(
            f"weights and gradients are correct, so a script has nothing to compare: {judgement.said}; "
            "`conformance run --traces` and `conformance trace` show the trainer's calls"
        )
    return found


def _endings(judgement: Judgement, windows: int) -> list[Shows]:
    raised = [(rank, rank.raised) for rank in judgement.ranks if rank.raised and rank.raised.type != "SystemExit"]
    errors = tuple(_error(error) for _, error in raised)
    raising = [rank for rank, _ in raised]
    exits = [rank.outcome.exit for rank in judgement.ranks if rank not in raising and not rank.outcome.finished]
    if judgement.verdict == "CRASH" and exits:
        # The errors of ranks that wait for a dead one depend on a race.
        errors = (*errors, *map(_died, exits), "Connection reset by peer", "Connection closed by peer", TIMEOUT)
    ended = 1 + max((len(rank.attempts) for rank in judgement.ranks), default=windows)
    return [Ending(count, errors) for count in dict.fromkeys([min(ended, windows), windows])]


def _died(exit: str) -> str:
    """What torch prints about a process that ended this way."""
    ended, _, _ = exit.partition(" before")
    if ended == "exited 0":
        return "a process exited with 0 before the end of training"
    return ended.replace("exited", "terminated with exit code").replace("killed by", "terminated with signal")


def _error(raised: Raised) -> str:
    message = raised.message.splitlines()
    return f"{raised.type}: {message[0]}" if message else raised.type
