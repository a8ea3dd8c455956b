"""The verdict on one case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from conformance.cases.case import Case
from conformance.oracle.affine import Unbounded
from conformance.oracle.faults import applicable
from conformance.oracle.perturbation import OneSampleMoved
from conformance.oracle.power import Power, power
from conformance.oracle.recurrence import Trajectory
from conformance.oracle.semantics import Interpretation, interpretations
from conformance.runner.outcome import Outcome
from conformance.verdict.comparison import Difference, Divergence, first_difference, first_divergence, matches
from conformance.verdict.evidence import RankEvidence, read
from conformance.verdict.guards import Guard, guards
from conformance.verdict.scaling import scaler_faults

#: Faults show early; following them through hundreds of epochs would only cost time.
_HORIZON = 16


@dataclass
class Judgement:
    """A verdict and everything that it rests on. Windows and steps count from 0."""

    verdict: str
    headline: str
    ranks: tuple[RankEvidence, ...] = ()
    notes: list[str] = field(default_factory=list)
    guards: tuple[Guard, ...] = ()
    trajectory: Trajectory | None = None
    power: Power | None = None
    difference: Difference | None = None
    divergence: Divergence | None = None
    diagnosis: str | None = None
    semantics: str | None = None


def judge(case: Case, outcome: Outcome) -> Judgement:
    """Weigh the evidence: first whether there is any, then the guards, then the ranks' agreement, then the numbers."""
    workload, layout = case.build()
    windows = layout.windows(workload)
    ranks = tuple(read(rank, windows) for rank in outcome.ranks)
    ended = _ended(ranks, outcome)
    if ended is not None:
        return ended
    late = [f"rank {r.outcome.rank} {r.outcome.exit}" for r in ranks if not r.outcome.exit.startswith("exited 0")]
    try:
        judgement = _numbers(case, ranks, guards(case, workload, windows, ranks))
    except Unbounded as error:
        judgement = Judgement("INCONCLUSIVE", f"no finite error bound: {error}", ranks)
    judgement.notes += [f"{line}, after its evidence was complete" for line in late]
    return judgement


def _ended(ranks: tuple[RankEvidence, ...], outcome: Outcome) -> Judgement | None:
    """HANG or CRASH, if not every rank delivered its evidence."""
    missing = [rank for rank in ranks if not rank.outcome.finished]
    if not missing:
        return None
    raised = next((rank for rank in missing if rank.raised), None)
    if raised is not None and raised.raised is not None:
        error = raised.raised
        first_line = str(error["message"]).strip().splitlines()[:1] or [""]
        return Judgement("CRASH", f"rank {raised.outcome.rank} raised {error['type']}: {first_line[0]}", ranks)
    if outcome.timed_out:
        late = ", ".join(str(rank.outcome.rank) for rank in missing)
        return Judgement("HANG", f"rank {late} did not finish within the time limit", ranks)
    first = missing[0].outcome
    return Judgement("CRASH", f"rank {first.rank} {first.exit}", ranks)


def _numbers(case: Case, ranks: tuple[RankEvidence, ...], held: tuple[Guard, ...]) -> Judgement:
    workload, _layout = case.build()
    judgement = Judgement("FAIL (numerics)", "", ranks, guards=held)
    broken = next((guard for guard in held if not guard.holds), None)
    divergence = first_divergence(ranks)
    trajectories = _trajectories(case, ranks)
    judgement.trajectory = trajectories[0][1]

    if divergence is not None:
        judgement.verdict, judgement.divergence = "DIVERGED", divergence
        judgement.headline = f"the ranks hold different weights after window {divergence.attempt}"
    for interpretation, trajectory in trajectories:
        if broken is None and divergence is None and matches(ranks, trajectory.steps):
            judgement.trajectory, judgement.semantics = trajectory, interpretation.name
            faults = scaler_faults(workload, trajectory, ranks) if case.arithmetic.scaled else []
            if faults:
                judgement.headline, judgement.notes = faults[0], faults[1:]
                return judgement
            return _passed(case, interpretation, judgement)

    right = judgement.trajectory
    judgement.difference = first_difference(ranks, right.steps)
    if divergence is None and judgement.difference is not None:
        judgement.headline = _describe(judgement.difference, workload.parameters)
    if case.arithmetic.scaled:
        judgement.notes += scaler_faults(workload, right, ranks)
    if broken is not None:
        judgement.notes = [line for line in (judgement.headline, *judgement.notes) if line]
        judgement.headline = broken.text
    judgement.diagnosis = _diagnosis(case, ranks, right)
    return judgement


def _trajectories(case: Case, ranks: Sequence[RankEvidence]) -> list[tuple[Interpretation, Trajectory]]:
    """The right answers, one for each accepted reading, along the skips and loss scales of rank 0."""
    workload, layout = case.build()
    attempts = ranks[0].attempts
    stepped = frozenset(attempt.window for attempt in attempts if attempt.stepped)
    result = []
    for number, interpretation in enumerate(interpretations(workload, layout)):
        skips: frozenset[int] | None = None
        scales: tuple[Fraction, ...] = ()
        if case.arithmetic.scaled and attempts:
            skips = frozenset(range(interpretation.workload.steps)) - stepped
            seen = [attempt.scale for attempt in attempts if attempt.scale]
            scales = tuple(map(Fraction, seen)) if len(seen) == len(attempts) else ()
        result.append((interpretation, _trajectory(case, number, skips, scales)))
    return result


@lru_cache(maxsize=512)
def _trajectory(case: Case, reading: int, skips: frozenset[int] | None, scales: tuple[Fraction, ...]) -> Trajectory:
    """The trajectory of a case's ``reading``-th interpretation."""
    workload, layout = case.build()
    interpretation = interpretations(workload, layout)[reading]
    return interpretation.recurrence(interpretation.workload, layout, case.arithmetic, skips, scales).run()


def _passed(case: Case, interpretation: Interpretation, judgement: Judgement) -> Judgement:
    """The numbers are right; now show that they could have been found wrong."""
    right = judgement.trajectory
    assert right is not None
    workload = interpretation.workload
    _, layout = case.build()
    moved = OneSampleMoved(workload, layout, case.arithmetic, right.skips, right.scales, _HORIZON)
    judgement.power = power(workload, layout, case.arithmetic, right, _HORIZON)
    if first_difference(judgement.ranks, moved.steps()) is None:
        judgement.verdict = "INCONCLUSIVE"
        judgement.headline = "the same check also holds for an answer with one sample moved to a neighbour"
    elif judgement.power is not None and not judgement.power.sufficient:
        judgement.verdict = "INCONCLUSIVE"
        judgement.headline = f"the bound is too wide: a trainer that {judgement.power.fault.text} could pass"
    elif right.certificate.exact:
        judgement.verdict = "PASS (exact)"
        judgement.headline = (
            f"{len(right.steps)} steps, weights and gradients equal to the oracle to the bit on every rank"
        )
    else:
        judgement.verdict = "PASS (bounded)"
        judgement.headline = (
            f"{len(right.steps)} steps, weights and gradients within the rounding-error bound on every rank"
        )
    return judgement


def _describe(difference: Difference, parameters: tuple[str, ...]) -> str:
    seen = "nothing" if difference.observed is None else f"{difference.observed:.9g}"
    allowed = f" ± {float(difference.bound):.2g}" if difference.bound else ""
    return (
        f"step {difference.step}, rank {difference.rank}: the {difference.quantity} of {parameters[difference.index]} "
        f"is {seen}, expected {float(difference.expected):.9g}{allowed}"
    )


def _diagnosis(case: Case, ranks: Sequence[RankEvidence], right: Trajectory) -> str | None:
    """The catalogued fault whose numbers these are, judged by rank 0 so that it also names what makes ranks diverge."""
    workload, layout = case.build()
    taken = len(ranks[0].steps)
    limit = min(taken + len(right.skips), len(layout.windows(workload)), _HORIZON)
    for fault in applicable(workload, layout, case.arithmetic):
        try:
            wrong = tuple(fault.recurrence(workload, layout, case.arithmetic, right.skips, right.scales, limit).steps())
        except Unbounded:
            continue
        if wrong and taken >= len(wrong) and first_difference(ranks[:1], wrong) is None:
            return f"the numbers are those of a trainer that {fault.text}"
    return None
