"""The verdict on one case."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from conformance.cases.case import BETWEEN_FILES, INSIDE_WINDOW, Case
from conformance.laws.checking import Finding, Verified, check_all, findings, without_harmless
from conformance.laws.run import Run, no_cyclic_collection
from conformance.laws.sharing import averages_weights
from conformance.oracle.accepted_readings import SCALARS_IN_TENSORS, Reading, must_step, readings
from conformance.oracle.affine import Unbounded
from conformance.oracle.averaged_weights import AVERAGES_WEIGHTS
from conformance.oracle.power import PROBE, Power, bounded, power, shows_least_harm
from conformance.oracle.recurrence import ScalerHistory, Trajectory
from conformance.oracle.rounding import odd_part
from conformance.results.records import PAIR, PASSED, Behaviour, Verdict
from conformance.runner.outcome import Outcome, malformed
from conformance.trace.events import MalformedEvent, check_inside
from conformance.trace.hindsight.shards import joined
from conformance.trace.lives import by_life
from conformance.trace.words import enumerated
from conformance.verdict import own_order
from conformance.verdict.as_one import as_one, crosses
from conformance.verdict.averages import resumed_averages
from conformance.verdict.behaviour import observed
from conformance.verdict.buffers import Fate, fate
from conformance.verdict.comparison import Difference, Divergence, first_difference, first_divergence, matches
from conformance.verdict.diagnosis import HORIZON, Suspects, acquitted, suspects
from conformance.verdict.draws import resumed_draws
from conformance.verdict.ending import ending
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.verdict.guards import (
    AVERAGES,
    BUFFERS,
    COLLECTIVES,
    DRAWS,
    LOSS,
    MULTIPLE,
    PARAMETERS,
    PLACE,
    RESTORED,
    SAMPLES,
    SHARDS,
    WEIGHTS,
    Guard,
    first_wrong,
    guards,
)
from conformance.verdict.joined_ranks import with_joined_ranks
from conformance.verdict.last_window import as_dealt, padded
from conformance.verdict.lives import as_it_ran, evidence
from conformance.verdict.loss import rounded_loss
from conformance.verdict.observability import unobserved, unplaced
from conformance.verdict.precision_check import ignored_precision, of_hidden_masters
from conformance.verdict.resuming import how_resumed, may_come_of_it, other_bits, other_stop, other_window
from conformance.verdict.scaling import is_seen, may_begin_higher, scaler_faults, shows_uneven_scale, stepped_overflow
from conformance.verdict.setup import Mistake, mistake
from conformance.verdict.watched_weights import changed_after_training
from conformance.workloads.behaviour import Way
from conformance.workloads.model import Counting, Linear, Model, WithDropout
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Clip, Workload


@dataclass
class Judgement:
    """A verdict and its evidence. Windows and steps count from 0. ``runs``: as laws see them, one for each life."""

    verdict: Verdict
    headline: str
    ranks: tuple[RankEvidence, ...] = ()
    runs: tuple[Run, ...] = ()
    laws: tuple[Verified, ...] = ()
    notes: list[str] = field(default_factory=list)
    guards: tuple[Guard, ...] = ()
    trajectory: Trajectory | None = None
    reading: Reading | None = None
    power: Power | None = None
    difference: Difference | None = None
    divergence: Divergence | None = None
    mistake: Mistake | None = None
    suspects: Suspects = Suspects()
    ways: tuple[Way, ...] = ()
    behaviour: Sequence[Behaviour] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The broken laws, MUSTs first."""
        return findings(self.laws)


#: Verdicts that a broken law overrules. The others are failures already, and worse ones.
_OPEN_TO_LAWS = ("PASS (exact)", "PASS (bounded)", "INCONCLUSIVE")
_WEIGHTS_ALONE = "only weights were compared: the gradients that the steps used could not be read"
_REPORTED = "weights that cannot be seen were judged as the trainer reports them, with `task.report`"
_ONE_FILE = "nothing was killed between two files: the second checkpoint is one file, or none of rank 0's own process"
_FIRST_OF_TWO = "training was resumed twice from one checkpoint, and this is the first time"
_BEGAN_HIGHER = (
    "window 0 was skipped, though nothing overflows at the task's loss scale of {:g}, and the trainer's own cannot be "
    "seen: begin with `task.loss_scale`, or scale with `task.grad_scaler()`"
)
_UNEVEN_SCALE = (
    "the numbers are right but for what a loss scale that is no power of two rounds off, and the trainer's own cannot "
    "be seen: begin with `task.loss_scale`, or scale with `task.grad_scaler()`"
)
_UNASKED_SCALE = (
    "the numbers are right but for what a loss scale of {:g}, which is no power of two, rounds off in a case that asks "
    "for none: use `task.grad_scaler()`, which is enabled where the precision needs it"
)
#: Verdicts on a trainer that did not come to its end.
_ENDED = ("CRASH", "HANG", "UNSUPPORTED")


def judge(case: Case, outcome: Outcome, declares: Mapping[str, str] = MappingProxyType({})) -> Judgement:
    """Check in this order: evidence from every rank, the guards, the ranks' agreement, the numbers. Then check the laws
    on the ranks' traces: a broken law explains wrong numbers, and fails a trainer with right ones if another run of it
    would go wrong. Last comes what the trainer declares: ``declares``, as `Declaration.behaviour`. Evidence that no
    recorder wrote is a CRASH. Of two runs from one checkpoint, the second counts only if the first passes.
    """
    if outcome.earlier is not None:
        judgement = judge(case, outcome.earlier, declares)
        if judgement.verdict not in PASSED:
            judgement.notes.append(_FIRST_OF_TWO)
            return judgement
    try:
        case, outcome = own_order.as_read(case, outcome)
        found = _judged(case, outcome, declares)
        # A law is broken by right numbers alone.
        if found.verdict in (*PASSED, "FAIL (law)") or (other := as_one(case)) is None:
            return found
        if not all(life.recorded for life in outcome.lives or (outcome,)):
            return found
        again = _judged(other, outcome.placed(other.spec()), declares)
        return again if again.verdict in PASSED or crosses(case, other, outcome) else found
    except Exception:
        # Looking into every field takes long, so it is done only for evidence that cannot be judged.
        for rank in outcome.ranks:
            try:
                check_inside(rank.events, rank.rank)
            except MalformedEvent as error:
                return Judgement("CRASH", malformed(rank.rank, f"has {error}"))
        raise


@no_cyclic_collection()
def _judged(case: Case, outcome: Outcome, declares: Mapping[str, str]) -> Judgement:
    whole = _joined(case, outcome)
    ranks = zip(outcome.ranks, whole, strict=True)
    outcome = replace(outcome, ranks=tuple(replace(rank, events=events) for rank, events in ranks))
    case = as_it_ran(case, outcome)
    runs = Run.lives(case.spec(), whole)
    judgement = _by_numbers(case, outcome, runs, declares)
    judgement.runs = runs
    unseen = _failed(judgement.ranks) or unobserved(case, judgement.ranks)
    if judgement.verdict not in PASSED:
        # Right numbers show that windows and weights are those of the steps.
        unseen = unseen or unplaced(case, judgement.ranks)
        if judgement.divergence is None and all(guard.holds or guard.gives_way for guard in judgement.guards):
            unseen = unseen or changed_after_training(judgement.ranks, judgement.trajectory)
    if unseen is not None:
        # What is not seen may be what speaks for the trainer.
        if judgement.verdict not in _ENDED:
            judgement.verdict, judgement.headline, judgement.notes = "INCONCLUSIVE", unseen, _denied(judgement)
            judgement.difference = judgement.divergence = None
            judgement.suspects = Suspects()
        return judgement
    _look_for_mistake(case, judgement)
    if any(rank.reported for rank in judgement.ranks):
        judgement.notes.append(_REPORTED)
    if case.resumed == BETWEEN_FILES and case.resumed_at is None:
        judgement.notes.append(_ONE_FILE)
    if judgement.mistake is None or judgement.mistake.kind != "report":
        judgement.notes += _denied(judgement)
    # Windows that hold other samples than planned end elsewhere, so laws about them would say nothing.
    if (judgement.mistake is not None and judgement.mistake.kind == "rows") or any(
        guard.name in (SHARDS, SAMPLES) and not guard.holds for guard in judgement.guards
    ):
        return judgement
    judgement.laws = check_all(runs)
    has_right_numbers = judgement.verdict in PASSED
    if has_right_numbers:
        _look_beside_weights(case, judgement)
    if has_right_numbers or (judgement.mistake is not None and judgement.mistake.kind == "report"):
        _give_way_to_numbers(judgement)
    # Those that give way to right numbers prove nothing without wrong ones.
    forbidden = [one for one in judgement.findings if one.law.level == "MUST" and not one.law.gives_way]
    if forbidden and judgement.verdict in _OPEN_TO_LAWS:
        _overrule(judgement, "FAIL (law)", f"{forbidden[0].law.id}: {forbidden[0].broken.however}")
    if has_right_numbers:
        # Other numbers do not show how the trainer reads what is open.
        if case.problem.workload.own_order:
            judgement.ways = (*judgement.ways, *own_order.ways(case))
        elif not case.problem.in_order:
            judgement.ways = (*judgement.ways, "epoch_end=crossed")
        judgement.behaviour, against = observed(judgement.ways, runs[-1], declares)
        if against and judgement.verdict in PASSED:
            _overrule(judgement, "FAIL (law)", against[0])
    if judgement.verdict == "FAIL (numerics)" and (unknown := _rounded(case, judgement)) is not None:
        _overrule(judgement, "INCONCLUSIVE", unknown)
    return judgement


def _look_beside_weights(case: Case, judgement: Judgement) -> None:
    """What became of what a model has beside its weights, where these are right."""
    model, runs, fates = case.problem.workload.model, judgement.runs, list[tuple[str, str, Fate]]()
    if judgement.verdict == "PASS (bounded)":
        fates.append((RESTORED, "to the bit", Fate(wrong=other_bits(model, judgement.ranks))))
    if isinstance(model, Counting):
        fates.append((BUFFERS, "each trained sample counts once", fate(case, runs)))
    if isinstance(model, WithDropout) and len(runs) > 1:
        fates.append((DRAWS, "those that come next", resumed_draws(runs)))
    # A process that is killed may have updated its averages after what it had saved, and other ranks have other parts.
    if case.resumed in ("once", "twice", INSIDE_WINDOW) and len(runs) > 1:
        at_epoch = any(end.index + 1 == case.resumed_at for end in case.problem.ends)
        fates.append((AVERAGES, "those of the stop", resumed_averages(runs, at_epoch=at_epoch)))
    for name, expected, found in fates:
        if found.owner is not None:
            judgement.ways = (*judgement.ways, found.owner)
        if found.unknown is not None and judgement.verdict in PASSED:
            _overrule(judgement, "INCONCLUSIVE", found.unknown)
        if found.wrong is not None:
            judgement.guards += (Guard(name, False, expected, found.wrong, found.wrong),)
            _overrule(judgement, "FAIL (numerics)", found.wrong)


def _joined(case: Case, outcome: Outcome) -> Sequence[Sequence[dict[str, Any]]]:
    """The events of each rank with whole weights. In each life other ranks may hold other parts of them."""
    lives = [joined(life) for _, life in by_life(case.spec(), [rank.events for rank in outcome.ranks])]
    return [[*chain(*(life[at] for life in lives if at < len(life)))] for at in range(len(outcome.ranks))]


def _give_way_to_numbers(judgement: Judgement) -> None:
    """Drop broken laws that right numbers prove harmless: exact ones, and bounded ones if the least harm would show."""
    doubtful = next((one for one in judgement.findings if one.law.gives_way and _may_hide(judgement, one)), None)
    if doubtful is None or judgement.verdict not in PASSED:
        judgement.laws = without_harmless(judgement.laws)
        return
    _overrule(
        judgement,
        "INCONCLUSIVE",
        f"{doubtful.law.id}: {doubtful.broken.however}; what that does may be smaller than the error bound of this "
        "case, so its numbers do not show whether it is a mistake: a case that is exact decides",
    )


def _may_hide(judgement: Judgement, finding: Finding) -> bool:
    """Whether the bounds may hide what breaking a law does."""
    right, reading = judgement.trajectory, judgement.reading
    if right is None or reading is None or right.certificate.exact:
        return False
    return not shows_least_harm(reading, right, finding.window or 0, HORIZON, by_weights=_by_weights(judgement))


def _rounded(case: Case, judgement: Judgement) -> str | None:
    """Why wrong numbers may be rounded ones; None if something speaks against it."""
    difference = judgement.difference
    if difference is None or judgement.divergence:
        return None
    # Which parameters are wrong is no reason why.
    speaks_against = any(not guard.holds and guard.name != PARAMETERS for guard in judgement.guards)
    if judgement.findings or judgement.suspects.explained_by or speaks_against:
        return None
    precision = case.problem.precision
    if shows_uneven_scale(judgement.runs[0].ranks[0], case.problem) and _fits_uneven_scale(
        case.problem, judgement.ranks
    ):
        return _UNEVEN_SCALE
    if (scale := _unasked_scale(case.problem, judgement.ranks)) is not None:
        return _UNASKED_SCALE.format(scale)
    if difference.quantity != "weights":
        return None
    if judgement.trajectory is not None and of_hidden_masters(precision, judgement.trajectory, judgement.ranks):
        return (
            f"until the last step, the forwards show the right weights rounded to {precision.compute.name}, and what "
            "they were rounded from cannot be seen; keep that in the module that task.model() returns, or step tensors "
            "of its shapes with torch.optim.Optimizer"
        )
    if odd_part(case.world_size) == 1 or not averages_weights(judgement.runs[0]):
        return None
    if not _fits_averaged_weights(case.problem, judgement.ranks):
        return None
    return (
        f"the numbers are right but for what averaging weights after each step may round on {case.world_size} ranks: "
        "run the case on 2 or 4"
    )


def _fits_averaged_weights(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the weights are within the bound for ranks that average them after each step."""
    accepted, history = _accepted(problem, ranks)
    without = _without_gradients(ranks)
    return any(matches(without, _trajectory(reading.by(None, AVERAGES_WEIGHTS), history).steps) for reading in accepted)


def _fits_uneven_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the numbers are within the bound for a loss scale that the recorder does not know and that is no power of
    two. Which it is matters little for what it rounds off: three quarters of the task's."""
    accepted, history = _accepted(problem, ranks)
    if history is None or is_seen(ranks):
        return False
    uneven = replace(history, scales=(problem.workload.scale.init_scale * Fraction(3, 4),) * problem.workload.steps)
    return any(matches(ranks, _trajectory(reading, uneven).steps) for reading in accepted)


def _unasked_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> float | None:
    """The loss scale, no power of two, of a GradScaler that is enabled though nothing is to be scaled, if the numbers
    are within the bound for it; None if not, or if there is none."""
    scales = [scale for rank in ranks for attempt in rank.attempts if (scale := exactly(attempt.scale))]
    uneven = next((scale for scale in scales if odd_part(scale.numerator) > 1), None)
    if uneven is None or problem.precision.scaled:
        return None
    accepted, history = _accepted(replace(problem, precision=replace(problem.precision, scaled=True)), ranks)
    fits = any(matches(ranks, _trajectory(reading, history).steps) for reading in accepted)
    return float(uneven) if fits else None


def _look_for_mistake(case: Case, judgement: Judgement) -> None:
    """Wrong numbers of ranks that agree may be the adapter's mistake. Only other samples change the number of steps."""
    broken = [guard for guard in judgement.guards if not (guard.holds or guard.gives_way)]
    if judgement.verdict not in _ENDED and (stopped := other_stop(case, judgement.ranks)) is not None:
        judgement.mistake = Mistake("stop", stopped)
        _overrule(judgement, "SETUP", stopped)
        return
    is_seen_right = judgement.verdict in PASSED or (not broken and _is_reported(judgement))
    if is_seen_right and (denied := _denied(judgement)):
        judgement.mistake = Mistake("report", denied[0])
        _overrule(judgement, "SETUP", denied[0])
        return
    if judgement.verdict != "FAIL (numerics)":
        return
    if judgement.difference is None and not broken:
        return
    found = mistake(judgement.runs, judgement.suspects.explained_by)
    if found is not None and found.kind == "start" and any(g.name == WEIGHTS and not g.holds for g in judgement.guards):
        # What changes them later may have changed them at the start as well.
        return
    of_rows = found is not None and found.kind == "rows" and judgement.difference is not None
    if found is not None and (not broken or (of_rows and broken[0].may_be_setup)):
        judgement.mistake = found
        _overrule(judgement, "SETUP", found.text)
        return
    # What is a known bug is not the loss.
    if judgement.suspects.explained_by or broken:
        return
    if (rounded := next(filter(None, map(rounded_loss, judgement.runs[0].ranks)), None)) is not None:
        judgement.guards += (Guard(LOSS, False, "right to the last bit", rounded, rounded),)
        _overrule(judgement, "FAIL (numerics)", rounded)


def _is_reported(judgement: Judgement) -> bool:
    """Whether what is wrong first is not seen, but reported."""
    first, ranks = judgement.divergence, judgement.ranks
    if first is not None:
        return any(first.window in rank.reported for rank in ranks)
    difference = judgement.difference
    if difference is None:
        return any(not one.stepped and one.window in rank.reported for rank in ranks for one in rank.attempts)
    if difference.quantity != "weights":
        return False
    return ranks[difference.rank].steps[difference.step].window in ranks[difference.rank].reported


def _denied(judgement: Judgement) -> list[str]:
    """What ranks report otherwise than it is seen."""
    return [
        f"rank {rank.outcome.rank} reports {rank.denied}: report what the step of that window leaves, under its number"
        for rank in judgement.ranks
        if rank.denied
    ][:1]


def _failed(ranks: Sequence[RankEvidence]) -> str | None:
    """Which part of the recorder failed in the trainer's process, if one did."""
    for rank in ranks:
        if rank.observer_failed is not None:
            return (
                f"the recorder's part `{rank.observer_failed['observer']}` failed in rank {rank.outcome.rank} and was "
                f"switched off, so the trainer cannot be judged: {rank.observer_failed['error']}; this is a mistake of "
                "ours, please report it with the traceback below"
            )
    return None


def _overrule(judgement: Judgement, verdict: Verdict, headline: str) -> None:
    judgement.notes.insert(0, judgement.headline)
    judgement.verdict, judgement.headline = verdict, headline


def _by_numbers(case: Case, outcome: Outcome, runs: Sequence[Run], declares: Mapping[str, str]) -> Judgement:
    ranks = with_joined_ranks(evidence(case, outcome, runs), case.problem.windows)
    ended, context = ending(ranks, outcome), how_resumed(case, outcome.altered)
    if ended is not None:
        lost = other_window(case, ranks) if len(runs) > 1 else None
        after = "this was after training had been stopped and resumed"
        notes = [f"{after}: {lost}" if lost else after] if len(runs) > 1 else []
        if ended[0] == "CRASH":
            notes += _without_gradients_in(case.problem.workload.model)
        verdict, headline = ended
        if verdict == "CRASH":
            workload = case.problem.workload
            headline += _parts_of_batches(workload, headline) + _parameters_of(workload.model, headline)
        if context is not None and len(runs) > 1 and verdict != "UNSUPPORTED" and may_come_of_it(case, ranks):
            headline += f"; {context}"
        return Judgement(verdict, headline, ranks, notes=notes)
    judgement = Judgement("FAIL (numerics)", "", ranks, guards=guards(case, ranks))
    judgement.divergence = first_divergence(ranks)
    wrong = _without_oracle(judgement)
    try:
        _numbers(case, judgement, wrong, declares)
    except Unbounded as error:
        judgement.verdict = judgement.verdict if wrong else "INCONCLUSIVE"
        wrong.append(f"no finite error bound: {error}; take the cases that are exact for an answer")
    _make_up_for_unseen(judgement, wrong)
    _give_way(judgement, wrong)
    if wrong:
        judgement.headline, judgement.notes = wrong[0], wrong[1:]
    at_seam = [guard.text for guard in judgement.guards if guard.name in (PLACE, RESTORED) and not guard.holds]
    if context is not None and judgement.headline in at_seam:
        judgement.headline += f"; {context}"
    judgement.notes += [
        f"rank {rank.outcome.rank} {rank.outcome.exit}; its evidence was complete, so the verdict stands"
        for rank in ranks
        if rank.outcome.exit != "exited 0"
    ]
    return judgement


def _without_gradients_in(model: Model) -> Iterator[str]:
    """Which parameters may have no gradient, on which a trainer may have crashed."""
    frozen = [tensor.name for tensor in model.tensors if tensor.frozen]
    unused = [tensor.name for tensor in model.tensors if tensor.block is not None]
    if frozen:
        yield f"in this case {enumerated(frozen)} are frozen: they have no gradient, and `.grad` is None"
    if unused:
        yield f"in this case some samples do not use {enumerated(unused)}, so that `.grad` may be None"


def _parameters_of(model: Model, headline: str) -> str:
    """How many parameters there are, if a trainer crashed on what may be another number of them than it expected."""
    names = [tensor.name for tensor in model.tensors]
    count = len(names)
    otherwise = rf"too many values to unpack (?!\(expected {count}\b)|not enough values to unpack .*got {count}\)"
    if not re.search(otherwise, headline):
        return ""
    others = "" if model.name == Linear.name else ", or declare the `models` that the trainer can take"
    return (
        f"; in this case the model has {count} parameter{'s' if count > 1 else ''}, {enumerated(names)}: "
        f"take as many as `model.parameters()` has{others}"
    )


def _parts_of_batches(workload: Workload, headline: str) -> str:
    """How many there are, if a trainer may have crashed on the weights."""
    if workload.loss == "weighted" and "too many values to unpack (expected 2" in headline:
        return "; in this case the loss is weighted, and a batch is unpacked as `inputs, targets, weights = batch`"
    if workload.loss != "weighted" and "not enough values to unpack (expected 3, got 2)" in headline:
        return "; in this case the loss is not weighted, and a batch is unpacked as `inputs, targets = batch`"
    return ""


def _without_oracle(judgement: Judgement) -> list[str]:
    """What is wrong whatever the right numbers are: guards that do not hold, or ranks that differ."""
    broken = [guard for guard in judgement.guards if not guard.holds]
    wrong = [guard.text for guard in broken if not guard.may_be_unseen and not guard.gives_way][:1]
    if judgement.divergence is not None:
        judgement.verdict = "DIVERGED"
        wrong.append(f"the ranks hold different weights after window {judgement.divergence.window}")
    return wrong


def _make_up_for_unseen(judgement: Judgement, wrong: list[str]) -> None:
    """Ranks that each computed their own share and have the right numbers did exchange them, in whatever way. Ranks
    with wrong numbers may have exchanged them, too, if their gradients came from elsewhere."""
    if judgement.verdict not in PASSED and all(rank.took_gradients for rank in judgement.ranks):
        judgement.guards = tuple(guard for guard in judgement.guards if guard.holds or guard.name != COLLECTIVES)
    unseen = [guard for guard in judgement.guards if not guard.holds and guard.may_be_unseen]
    if not unseen:
        return
    if judgement.verdict not in PASSED:
        # What another guard has found comes first.
        at = int(any(not guard.holds and not guard.may_be_unseen for guard in judgement.guards))
        wrong[at:at] = [guard.text for guard in unseen]
    elif all(rank.trained for rank in judgement.ranks):
        shown = [replace(guard, holds=True, observed="shown by the numbers") for guard in unseen]
        judgement.guards = tuple(
            next((one for one in shown if one.name == guard.name), guard) for guard in judgement.guards
        )
    else:
        judgement.notes.append(judgement.headline)
        judgement.verdict = "INCONCLUSIVE"
        judgement.headline = (
            f"{unseen[0].text}, and which samples each rank trained on cannot be seen either; average through "
            "torch.distributed, or pass the model the inputs as they are in the batch"
        )


def _give_way(judgement: Judgement, wrong: list[str]) -> None:
    """Drop guards that say nothing against right numbers, or let them explain wrong ones."""
    broken = [guard for guard in judgement.guards if not guard.holds and guard.gives_way]
    if judgement.verdict in PASSED:
        judgement.guards = tuple(guard for guard in judgement.guards if guard not in broken)
    elif wrong:
        others = any(not guard.holds and not guard.gives_way for guard in judgement.guards)
        wrong[int(others) : int(others)] = [guard.text for guard in broken]


def _numbers(case: Case, judgement: Judgement, wrong: list[str], declares: Mapping[str, str]) -> None:
    """Compare with the oracle, and append what is wrong to ``wrong``. Of readings that make the same numbers, as where
    a last window is filled up with its own samples, it is the one that the trainer declares.

    Raises:
        Unbounded: the precision has no finite error bound here.
    """
    problem, ranks, known = case.problem, judgement.ranks, len(wrong)
    workload, scaled = problem.workload, problem.precision.scaled
    accepted, history = _accepted(problem, ranks, carries=declares.get("last_window") == "carry")
    for reading in sorted(accepted, key=lambda one: one.denies(declares)) if not wrong else ():
        trajectory = _trajectory(reading, history)
        if _fits(judgement, trajectory, is_linear=isinstance(workload.optimizer, SGD)):
            judgement.trajectory, judgement.reading, judgement.ways = trajectory, reading, reading.ways
            if scaled:
                _judge_scaler(trajectory, workload.clip, judgement, wrong, fit=True)
                if not wrong and may_begin_higher(trajectory, ranks):
                    judgement.verdict = "INCONCLUSIVE"
                    wrong.append(_BEGAN_HIGHER.format(float(workload.scale.init_scale)))
                    return
            ignored = ignored_precision(reading, trajectory, ranks)
            wrong += [ignored] if ignored else []
            if not wrong:
                _passed(reading, trajectory, judgement)
            return
    answers = [(reading, _trajectory(reading, history)) for reading in accepted]
    strictest, right = _closest(answers, ranks)
    judgement.trajectory = right
    judgement.difference = first_difference(ranks, right.steps)
    if judgement.difference is not None:
        wrong.append(
            _describe(judgement.difference, workload.model.elements, right.steps[judgement.difference.step].window)
        )
        diverged = judgement.divergence is not None
        judgement.suspects = suspects(strictest, right, judgement.difference, ranks, diverged)
        if not judgement.suspects.explained_by and len(right.steps) < len(answers[0][1].steps):
            judgement.suspects = _with_short_windows(*answers[0], judgement.suspects, ranks, diverged)
        if right.certificate.exact and not judgement.suspects.explained_by:
            judgement.suspects = _by_weights_alone(strictest, right, ranks, diverged) or judgement.suspects
        is_known = any(PAIR not in name for name in judgement.suspects.explained_by)
        guard = first_wrong(case, ranks, judgement.difference, right)
        # One factor for all windows says more.
        is_known |= guard is not None and guard.name == MULTIPLE and bool(judgement.suspects.gradient_factors)
        if guard is not None and not is_known and all(other.holds for other in judgement.guards):
            judgement.guards += (guard,)
    elif not wrong:
        what = "changes of the weights" if ranks[0].steps_by_hand else "optimizer steps"
        wrong.append(f"{len(ranks[0].steps)} {what} instead of {len(right.steps)}")
    if scaled:
        _judge_scaler(right, workload.clip, judgement, wrong, first=known)


def _judge_scaler(
    right: Trajectory,
    clip: Clip | None,
    judgement: Judgement,
    wrong: list[str],
    *,
    first: int = 0,
    fit: bool = False,
) -> None:
    """A step along gradients that overflowed explains what is wrong in the numbers, from the ``first`` line on.
    ``fit``: the numbers are right."""
    stepped = stepped_overflow(right, judgement.ranks)
    if stepped is not None:
        judgement.guards += (Guard("overflows are skipped", False, "always", stepped, stepped),)
        wrong.insert(first, stepped)
    wrong += [fault for fault in scaler_faults(right, judgement.ranks, clip, fit=fit) if fault not in wrong]


def _closest(
    trajectories: Sequence[tuple[Reading, Trajectory]], ranks: Sequence[RankEvidence]
) -> tuple[Reading, Trajectory]:
    """The strictest answer with as many steps; but if ranks have run out of data, the one that the numbers leave last,
    as which divisor is theirs is open until then."""

    def left(one: tuple[Reading, Trajectory]) -> tuple[int, int, int]:
        difference = first_difference(ranks, one[1].steps)
        assert difference is not None
        return difference.step, difference.rank, difference.index

    joining = [one for one in trajectories if "last_batch=join" in one[0].ways]
    if not joining or any(first_difference(ranks, right.steps) is None for _, right in joining):
        as_many = (one for one in trajectories if len(one[1].steps) == len(ranks[0].steps))
        return next(as_many, trajectories[0])
    return max(joining, key=left)


def _fits(judgement: Judgement, trajectory: Trajectory, *, is_linear: bool) -> bool:
    """Whether the ranks' numbers are those of ``trajectory``. Where these are exact, or linear in the gradients as with
    SGD, the weights decide: a gradient that does not fit has been read where the step did not use it, or has something
    in it that the optimizer would add, such as weight decay. AdamW hides what gradients are multiplied by."""
    if matches(judgement.ranks, trajectory.steps):
        return True
    without = _without_gradients(judgement.ranks)
    if not (trajectory.certificate.exact or is_linear) or not matches(without, trajectory.steps):
        return False
    judgement.ranks = without
    return True


def _without_gradients(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    return tuple(
        replace(rank, attempts=tuple(replace(attempt, gradients=None) for attempt in rank.attempts)) for rank in ranks
    )


def _with_short_windows(
    reading: Reading, right: Trajectory, found: Suspects, ranks: Sequence[RankEvidence], diverged: bool
) -> Suspects:
    """What a trainer that has as few steps as one that drops short windows may have done with them instead."""
    difference = first_difference(ranks, right.steps)
    if difference is None:
        return found
    of_all = suspects(reading, right, difference, ranks, diverged)
    return of_all if any(PAIR not in name for name in of_all.explained_by) else found


def _by_weights_alone(
    reading: Reading, right: Trajectory, ranks: Sequence[RankEvidence], diverged: bool
) -> Suspects | None:
    """What exact weights alone say: the gradients may have in them what an optimizer would add. None if they name no
    fault."""
    without = _without_gradients(ranks)
    difference = first_difference(without, right.steps)
    found = None if difference is None else suspects(reading, right, difference, without, diverged)
    return found if found and any(PAIR not in name for name in found.explained_by) else None


def _accepted(
    problem: Problem, ranks: Sequence[RankEvidence], *, carries: bool = False
) -> tuple[Sequence[Reading], ScalerHistory | None]:
    """The accepted readings, and the skips and loss scales of rank 0, along which the right answers are."""
    problem = as_dealt(problem, ranks)
    history = _history(problem, ranks[0])
    early = all(rank.averaged_early for rank in ranks)
    # Averaging early has a wider bound, which only trainers that do it get.
    accepted = readings(problem, padded(problem, ranks), history.skips if history else frozenset(), carries=carries)
    # So has a step whose scalars are tensors.
    if any(rank.scalars_in_tensors for rank in ranks):
        accepted = tuple(replace(one, deviations=(*one.deviations, SCALARS_IN_TENSORS)) for one in accepted)
    return [reading for reading in accepted if early or not reading.averages_early], history


def _history(problem: Problem, rank: RankEvidence) -> ScalerHistory | None:
    """What the loss scaler of ``rank`` did. A last window that nothing ended was dropped if it may be, not skipped."""
    attempts = rank.attempts
    if not problem.precision.scaled or not attempts:
        return None
    stepped = {attempt.window for attempt in attempts if attempt.stepped}
    scales = {attempt.window: scale for attempt in attempts if (scale := exactly(attempt.scale))}
    skips = frozenset(range(problem.workload.steps)) - stepped
    attempted = {attempt.window for attempt in attempts}
    dropped = skips - attempted - must_step(problem)
    if len(scales) < len(attempts):
        return ScalerHistory(skips - dropped)
    # A window that was left out has the scale of the next one.
    known = (min((window for window in scales if window >= at), default=None) for at in range(max(scales) + 1))
    return ScalerHistory(skips - dropped, tuple(scales[window] for window in known if window is not None))


@lru_cache(maxsize=512)
def _trajectory(reading: Reading, history: ScalerHistory | None) -> Trajectory:
    return reading.recurrence(history).run()


def _passed(reading: Reading, right: Trajectory, judgement: Judgement) -> None:
    """The numbers are right; check that wrong ones would have been noticed."""
    moved = bounded(reading.recurrence(right.history, PROBE).steps(HORIZON))
    judgement.verdict = "INCONCLUSIVE"
    if not right.steps:
        judgement.headline = "every window was skipped, so there is nothing to compare; start with a lower loss scale"
        return
    by_weights = _by_weights(judgement)
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
        judgement.headline = _too_little_power(reading, right, by_weights)
        judgement.notes.insert(0, f"a trainer that {passes} could pass")
        return
    judgement.suspects = acquitted(reading)
    judgement.verdict = "PASS (exact)" if right.certificate.exact else "PASS (bounded)"
    how = "equal to the oracle to the bit" if right.certificate.exact else "within the rounding-error bound"
    judgement.headline = f"{len(right.steps)} steps, {compared} {how} on every rank"


def _too_little_power(reading: Reading, right: Trajectory, by_weights: bool) -> str:
    """Why right numbers prove too little, and what would make them prove more."""
    scale = reading.problem.workload.scale
    if reading.problem.precision.scaled and right.scales[0] != scale.init_scale:
        return (
            f"the loss scale begins at {float(right.scales[0]):g}, which leaves the numbers for which this case shows "
            f"mistakes: use task.grad_scaler(), or begin with {float(scale.init_scale):g}"
        )
    if (uneven := next((one for one in right.scales if odd_part(one.numerator) > 1), None)) is not None:
        return (
            f"the loss scale becomes {float(uneven):g}, at which fp16 rounds, and the error bound is too wide to tell "
            "right from wrong: use task.grad_scaler(), or factors that are powers of two"
        )
    if by_weights:
        return (
            "the weights are right, but what would show here is in the gradients, and those that the steps used could "
            "not be read: step with one optimizer of torch's that holds all parameters, or take the cases with SGD for "
            "an answer"
        )
    return "this case's error bound is too wide to tell right from wrong: take the cases that are exact for an answer"


def _by_weights(judgement: Judgement) -> bool:
    """Whether weights alone were compared."""
    return any(attempt.gradients is None for rank in judgement.ranks for attempt in rank.steps)


def _describe(difference: Difference, parameters: Sequence[str], window: int) -> str:
    parameter = parameters[difference.index]
    what = f"the gradient of {parameter} is" if difference.quantity == "gradient" else f"{parameter} becomes"
    when = f"step {difference.step}" + (f" (window {window})" if window != difference.step else "")
    expected = float(difference.expected)
    digits = 9 if difference.observed is None or f"{difference.observed:.9g}" != f"{expected:.9g}" else 17
    seen = "missing" if difference.observed is None else f"{difference.observed:.{digits}g}"
    allowed = f" ± {float(difference.bound):.2g}" if difference.bound else ""
    return f"{when}, rank {difference.rank}: {what} {seen}, expected {expected:.{digits}g}{allowed}"
