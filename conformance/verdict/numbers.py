"""Judges a case by evidence, guards and numbers, before the laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from conformance.cases.case import Case
from conformance.laws.subjects import Run
from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.power import PROBE, bounded, power
from conformance.oracle.recurrence import Trajectory
from conformance.oracle.rounding import odd_part
from conformance.results.result_lines import ONLY, PASSED, Reason, Verdict
from conformance.runner.outcome import Outcome
from conformance.verdict.answers import accepted_by, trajectory_of, without_gradients
from conformance.verdict.attempts import evidence
from conformance.verdict.comparison import Difference, first_difference, first_divergence, matches
from conformance.verdict.diagnosis import HORIZON, Suspects, acquitted, in_some_windows, suspects
from conformance.verdict.ending import ending, parameters_without_gradients, raised_by, shapes_of
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.first_wrong import first_wrong
from conformance.verdict.guards import guards
from conformance.verdict.judgement import COLLECTIVES, MULTIPLE, PLACE, RESTORED, Judgement, Told, guard, in_one
from conformance.verdict.precedence import Ground, by_precedence, overrules
from conformance.verdict.precision_check import ignored_precision
from conformance.verdict.scaling import keeps_overflow, may_begin_higher, scaler_faults, stepped_overflow
from conformance.verdict.setup import Mistake
from conformance.verdict.stop_and_resume import counted_wrongly, how_resumed, may_come_of_it, other_window
from conformance.workloads.workload import SGD, Clip

_WEIGHTS_ALONE = "only weights were compared: the gradients of the steps could not be read"


def passed(reading: Reading, right: Trajectory, judgement: Judgement) -> None:
    """Judges correct numbers: checks that wrong ones would have been noticed."""
    moved = bounded(reading.recurrence(right.history, PROBE).steps(HORIZON))
    judgement.verdict = "INCONCLUSIVE"
    if not right.steps:
        judgement.reason = Reason("no step", advice="start with a lower loss scale")
        judgement.headline = "every window was skipped, so nothing can be compared"
        return
    by_weights = judgement.by_weights
    judgement.power = power(reading, right, HORIZON, by_weights=by_weights)
    compared = "weights" if by_weights else "weights and gradients"
    if any(rank.reported for rank in judgement.ranks):
        compared = f"reported {compared}"
        judgement.ways = (*judgement.ways, "weights=reported")
    if by_weights:
        judgement.notes.append(_WEIGHTS_ALONE)
    passes = None
    if first_difference(judgement.ranks, moved) is None:
        passes = PROBE.text
    elif judgement.power is not None and not judgement.power.sufficient:
        passes = judgement.power.fault.text
    if passes is not None:
        judgement.headline, advice = _too_little_power(reading, right, by_weights)
        judgement.reason = Reason("too little power", advice=advice)
        judgement.notes.insert(0, f"a trainer that {passes} could pass")
        return
    judgement.suspects = acquitted(reading, right)
    judgement.verdict = "PASS (exact)" if right.certificate.exact else "PASS (bounded)"
    how = "bit-identical to the oracle" if right.certificate.exact else "within the rounding-error bound"
    judgement.headline = f"{len(right.steps)} steps, {compared} {how} on every rank"


def _too_little_power(reading: Reading, right: Trajectory, by_weights: bool) -> Told:
    """A sentence on why correct numbers prove too little, and what would prove more."""
    scale = reading.problem.workload.scale
    if reading.problem.precision.scaled and right.scales[0] != scale.init_scale:
        return Told(
            f"the loss scale starts at {float(right.scales[0]):g}, at which this case cannot show bugs",
            f"use `task.grad_scaler()`, or start with {float(scale.init_scale):g}",
        )
    if (uneven := next((one for one in right.scales if odd_part(one.numerator) > 1), None)) is not None:
        return Told(
            f"the loss scale becomes {float(uneven):g}, which makes fp16 round, so the error bound is too wide to tell "
            "right from wrong",
            "use `task.grad_scaler()`, or factors that are powers of two",
        )
    if by_weights:
        return Told(
            "the weights are correct, but bugs would show in the gradients of the steps, which could not be read",
            "step all parameters by torch's own optimizers, pass gradients to `task.report`, or run the cases with SGD",
        )
    return Told("this case's error bound is too wide to tell right from wrong", _RUN_EXACT)


_RUN_EXACT = "run the exact cases"

#: The ground of a problem, and a sentence.
Claim: TypeAlias = tuple[Ground, str]

_BEGAN_HIGHER = (
    "window 0 was skipped, although nothing overflows at the task's loss scale of {:g}, and the trainer's own scale is "
    "not visible"
)
_BEGIN_EQUAL = "start with `task.loss_scale`, or scale with `task.grad_scaler()`"


def by_numbers(case: Case, outcome: Outcome, runs: Sequence[Run], declares: Mapping[str, str]) -> Judgement:
    ranks = evidence(case, outcome, runs)
    context = how_resumed(case, outcome.altered)
    if (ended := ending(ranks, outcome)) is not None:
        return _ended_early(case, ranks, context if len(runs) > 1 else None, *ended, is_resumed=len(runs) > 1)
    judgement = Judgement("FAIL (numerics)", "", ranks=ranks, guards=guards(case, ranks))
    # Problems that need no correct numbers: a failed guard, or ranks that differ.
    seen = [guard for guard in judgement.broken if guard.ground != "exchange"]
    wrong: list[Claim] = [(guard.ground, guard.text) for guard in seen[:1]]
    if (divergence := first_divergence(ranks)) is not None:
        judgement.divergence, judgement.verdict = divergence, "DIVERGED"
        wrong.append(("divergence", f"the ranks have different weights after window {divergence.window}"))
    try:
        _numbers(case, judgement, wrong, declares)
    except Unbounded as error:
        judgement.verdict = judgement.verdict if wrong else "INCONCLUSIVE"
        text = f"no finite error bound: {error}"
        judgement.reason = Reason("no error bound", advice=None if wrong else _RUN_EXACT)
        wrong.append(("precision", in_one(text, _RUN_EXACT) if wrong else text))
    _make_up_for_unseen(judgement, wrong)
    # Some guards only explain wrong numbers, and a known bug may explain them better.
    explaining = [guard for guard in judgement.guards if not guard.passed and guard.explains]
    by_bug = judgement.suspects.names_one
    idle = [one for one in explaining if judgement.verdict in PASSED or (by_bug and overrules("known bug", one.ground))]
    judgement.guards = tuple(guard for guard in judgement.guards if guard not in idle)
    if wrong:
        wrong += [(guard.ground, guard.text) for guard in explaining if guard not in idle]
        judgement.headline, *others = by_precedence(wrong)
        advice_on = {one.text: one.advice for one in judgement.guards}
        judgement.notes = [in_one(text, advice_on.get(text)) for text in others]
        told = [one for one in judgement.guards if one.text == judgement.headline and (one.where or one.advice)]
        known = (Reason(where=one.where, advice=one.advice or None) for one in told)
        judgement.reason = next(known, judgement.reason)
        if judgement.suspects.explained_by and (advice := counted_wrongly(case, ranks)) is not None:
            judgement.reason = replace(judgement.reason or Reason(), advice=advice)
    at_seam = [guard.text for guard in judgement.guards if guard.name in (PLACE, RESTORED) and not guard.passed]
    if context is not None and judgement.headline in at_seam:
        judgement.headline += f"; {context}"
    judgement.notes += [
        f"rank {rank.number} {rank.outcome.exit}; its evidence was complete, so the verdict stands"
        for rank in ranks
        if rank.outcome.exit != "exited 0"
    ]
    return judgement


def _ended_early(
    case: Case,
    ranks: tuple[RankEvidence, ...],
    context: str | None,
    verdict: Verdict,
    headline: str,
    reason: Reason,
    *,
    is_resumed: bool,
) -> Judgement:
    """``context``: the events before the resume, if they may be why a rank failed."""
    notes = ["this came after training was stopped and resumed"] if is_resumed else []
    if is_resumed and (lost := other_window(case, ranks)):
        notes = [f"{notes[0]}: {lost.text}"]
    if verdict == "CRASH":
        notes += parameters_without_gradients(case.problem.workload.model)
        headline += shapes_of(case.problem.workload, *raised_by(ranks))
    if context is not None and verdict != "UNSUPPORTED" and may_come_of_it(case, ranks):
        headline += f"; {context}"
    mistake = Mistake("task", headline, reason.where) if verdict == "SETUP" else None
    return Judgement(verdict, headline, reason, ranks, notes=notes, mistake=mistake)


def _make_up_for_unseen(judgement: Judgement, wrong: list[Claim]) -> None:
    """Clears guards on exchanges that were not seen. Ranks that each computed their own share and have the correct
    numbers did exchange them somehow. Ranks with wrong numbers may have, if their gradients came from elsewhere."""
    if judgement.verdict not in PASSED and all(rank.took_gradients for rank in judgement.ranks):
        judgement.guards = tuple(guard for guard in judgement.guards if guard.passed or guard.name != COLLECTIVES)
    unseen = [guard for guard in judgement.broken if guard.ground == "exchange"]
    if judgement.verdict not in PASSED:
        wrong += [(guard.ground, guard.text) for guard in unseen]
    elif all(rank.trained for rank in judgement.ranks):
        judgement.guards = tuple(
            replace(guard, passed=True, observed="shown by the numbers") if guard in unseen else guard
            for guard in judgement.guards
        )
    elif unseen:
        judgement.notes.append(judgement.headline)
        show = "average through `torch.distributed`, or pass the batch's inputs to the model unchanged"
        advice = "; or ".join(filter(None, (unseen[0].advice, show)))
        judgement.verdict, judgement.reason = "INCONCLUSIVE", Reason(unseen[0].name, advice=advice)
        judgement.headline = f"{unseen[0].text}, and the samples of each rank are not visible either"


def _numbers(case: Case, judgement: Judgement, wrong: list[Claim], declares: Mapping[str, str]) -> None:
    """Compares with the oracle, and appends problems to ``wrong``. If several readings have equal numbers, such as
    for a last window that is filled up with its own samples, takes the one that the trainer declares.

    Raises:
        Unbounded: the precision has no finite error bound here.
    """
    problem, ranks = case.problem, judgement.ranks
    workload, scaled = problem.workload, problem.precision.scaled
    accepted, history = accepted_by(problem, ranks, carries=declares.get("last_window") == "carry")
    for reading in sorted(accepted, key=lambda one: one.denies(declares)) if not wrong else ():
        trajectory = trajectory_of(reading, history)
        if _fits(judgement, trajectory, is_linear=isinstance(workload.optimizer, SGD)):
            judgement.trajectory, judgement.reading, judgement.ways = trajectory, reading, reading.ways
            if scaled:
                _judge_scaler(trajectory, workload.clip, judgement, wrong, fit=True)
                if not wrong and may_begin_higher(trajectory, ranks):
                    judgement.verdict, judgement.reason = (
                        "INCONCLUSIVE",
                        Reason("began with another scale", advice=_BEGIN_EQUAL),
                    )
                    wrong.append(("precision", _BEGAN_HIGHER.format(float(workload.scale.init_scale))))
                    return
            ignored = ignored_precision(reading, trajectory, ranks)
            wrong += [("precision", ignored)] if ignored else []
            if not wrong:
                passed(reading, trajectory, judgement)
            return
    answers = [(reading, trajectory_of(reading, history)) for reading in accepted]
    closest = _closest(answers, ranks)
    judgement.trajectory = right = closest[1]
    judgement.difference = difference = first_difference(ranks, right.steps)
    if difference is not None:
        window = right.steps[difference.step].window
        wrong.append(("difference", difference.described(workload.model.elements, window)))
        judgement.suspects = _suspected(judgement, difference, closest, answers[0])
        guard = first_wrong(case, ranks, difference, *closest, judgement.suspects.combination)
        # A factor for all windows explains more, as does a bug in some.
        in_some = any(ONLY in name for name in judgement.suspects.explained_by)
        is_known = guard is not None and guard.name == MULTIPLE and bool(judgement.suspects.gradient_factors or in_some)
        is_known |= judgement.suspects.names_one or (in_some and guard is not None and guard.ground == "place")
        is_open = guard is not None and not (is_known and overrules("known bug", guard.ground))
        if guard is not None and is_open and all(other.passed for other in judgement.guards):
            judgement.guards += (guard,)
    elif not wrong:
        judgement.reason = Reason("number of steps")
        what = "changes of the weights" if ranks[0].steps_by_hand else "optimizer steps"
        wrong.append(("difference", f"{len(ranks[0].steps)} {what} instead of {len(right.steps)}"))
    if scaled:
        _judge_scaler(right, workload.clip, judgement, wrong)


def _suspected(
    judgement: Judgement, difference: Difference, closest: tuple[Reading, Trajectory], first: tuple[Reading, Trajectory]
) -> Suspects:
    """The suspects of the wrong numbers; if there are none, those by another reading, by the weights only, or in some
    windows."""
    ranks, diverged = judgement.ranks, judgement.divergence is not None
    found = suspects(*closest, difference, ranks, diverged)
    if found.combination is not None:
        return found
    others = []
    # A trainer with fewer steps may have done something else with short windows than drop them.
    if len(closest[1].steps) < len(first[1].steps):
        others.append((*first, ranks))
    # The gradients may include terms that an optimizer would add, such as weight decay.
    if closest[1].certificate.exact:
        others.append((*closest, without_gradients(ranks)))
    for reading, right, own in others if not found.explained_by else ():
        differs = first_difference(own, right.steps)
        other = None if differs is None else suspects(reading, right, differs, own, diverged)
        if other is not None and other.names_one:
            return other
    return replace(found, explained_by=found.explained_by or in_some_windows(*closest, difference, ranks))


OVERFLOW_KEPT = Reason("overflow kept", advice="call `optimizer.zero_grad()` also where a step is skipped")
_OF_SCALER = Reason(
    "loss scale", advice="skip a step only if its gradients overflow, lower the scale then, on all ranks"
)


def _judge_scaler(
    right: Trajectory, clip: Clip | None, judgement: Judgement, wrong: list[Claim], *, fit: bool = False
) -> None:
    """Judges the loss scaler. A step on an overflow explains wrong numbers. ``fit``: the numbers are correct."""
    stepped = stepped_overflow(right, judgement.ranks)
    if stepped is not None:
        judgement.guards += (guard("overflows are skipped", "always", stepped.told, where=stepped.where),)
        wrong.append(("overflow", stepped.told.text))
    faults = scaler_faults(right, judgement.ranks, clip, stepped.window if stepped else None, fit=fit)
    if faults and not wrong:
        judgement.reason = OVERFLOW_KEPT if keeps_overflow(right, judgement.ranks) else _OF_SCALER
    wrong += [("scaler", fault) for fault in faults]


def _closest(
    trajectories: Sequence[tuple[Reading, Trajectory]], ranks: Sequence[RankEvidence]
) -> tuple[Reading, Trajectory]:
    """The answer that the numbers leave last, the strictest first: of those with as many steps or, if ranks ran out of
    data, of all that join, because until then both divisors fit."""

    def left(one: tuple[Reading, Trajectory]) -> tuple[int, int, int]:
        difference = first_difference(ranks, one[1].steps)
        return (len(one[1].steps), 0, 0) if difference is None else (difference.step, difference.rank, difference.index)

    joining = [one for one in trajectories if "last_batch=join" in one[0].ways]
    if not joining or any(first_difference(ranks, right.steps) is None for _, right in joining):
        as_many = [one for one in trajectories if len(one[1].steps) == len(ranks[0].steps)]
        return max(as_many, key=lambda one: left(one)[0], default=trajectories[0])
    return max(joining, key=left)


def _fits(judgement: Judgement, trajectory: Trajectory, *, is_linear: bool) -> bool:
    """Whether the ranks' numbers match ``trajectory``. If the trajectory is exact, or linear in the gradients as with
    SGD, the weights decide: a gradient that does not fit was not the one that the step used, or includes terms that the
    optimizer would add, such as weight decay. AdamW hides factors of gradients, so its gradients must fit. Gradients
    that were offered to a step count only if they fit: the step may have used others."""
    attempts = [[attempt.with_offered for attempt in rank.attempts] for rank in judgement.ranks]
    offered = tuple(replace(one, attempts=tuple(own)) for one, own in zip(judgement.ranks, attempts, strict=True))
    if offered != judgement.ranks and matches(offered, trajectory.steps):
        judgement.ranks = offered
        return True
    if matches(judgement.ranks, trajectory.steps):
        return True
    without = without_gradients(judgement.ranks)
    if not (trajectory.certificate.exact or is_linear) or not matches(without, trajectory.steps):
        return False
    judgement.ranks = without
    return True
