"""Judges one case by evidence, guards, numbers, laws and declarations.

`conformance.verdict.numbers` judges the numbers, and runs that ended early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.laws.checking import Finding, check_all, without_harmless
from conformance.laws.subjects import Run, no_cyclic_collection
from conformance.oracle.power import shows_least_harm
from conformance.results.result_lines import PASSED, Reason
from conformance.runner.outcome import Outcome, malformed
from conformance.trace.events import MalformedEvent, ObserverFailed, check_inside
from conformance.trace.hindsight.shards import joined
from conformance.trace.lives import by_life
from conformance.verdict.attempts import as_it_ran
from conformance.verdict.beside_weights import look_beside_weights
from conformance.verdict.choices import observed
from conformance.verdict.diagnosis import HORIZON, Suspects
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.judgement import (
    LOSS,
    SAMPLES,
    SHARDS,
    WEIGHTS,
    Judgement,
    Told,
    guard,
)
from conformance.verdict.loss import rounded_loss
from conformance.verdict.numbers import by_numbers
from conformance.verdict.observability import changed_after_training, unobserved, unplaced
from conformance.verdict.orders import as_one, as_read, crosses, epoch_ways
from conformance.verdict.precedence import Ground, overrules
from conformance.verdict.precision_check import rounded
from conformance.verdict.setup import Mistake, basic_mistake, mistake
from conformance.verdict.stop_and_resume import other_stop


def look_for_mistake(case: Case, judgement: Judgement) -> None:
    """Overrules wrong numbers by a bug of the adapter, if ranks agree. Only other samples change the step count."""
    broken = judgement.broken
    found = None if judgement.has_ended_early else other_stop(case, judgement.ranks)
    if found is not None:
        judgement.mistaken(Mistake("stop", found))
    elif judgement.denied and (judgement.verdict in PASSED or (not broken and _is_reported(judgement))):
        judgement.mistaken(Mistake("report", judgement.denied[0]))
    elif judgement.verdict in ("FAIL (numerics)", "HANG") and (basic := basic_mistake(judgement.runs)) is not None:
        judgement.mistaken(basic)
    elif judgement.verdict == "FAIL (numerics)" and (judgement.difference is not None or broken):
        _explain_by_mistake(judgement)


def _explain_by_mistake(judgement: Judgement) -> None:
    broken, found = judgement.broken, mistake(judgement.runs, judgement.suspects.explained_by)
    if (
        found is not None
        and found.kind == "start"
        and any(g.name == WEIGHTS and not g.passed for g in judgement.guards)
    ):
        # A later change may also have come before the start.
        return
    of_rows = found is not None and found.kind == "rows" and judgement.difference is not None
    ground: Ground = "other rows" if of_rows else "adapter"
    if found is not None and (not broken or overrules(ground, broken[0].ground)):
        judgement.mistaken(found, Reason(where=found.where))
    elif judgement.allows("loss"):
        lost = next(filter(None, map(rounded_loss, judgement.runs[0].ranks)), None)
        if lost is not None:
            text, where = lost
            judgement.guards += (guard(LOSS, "as precise as the model's outputs", text, where=where),)
            judgement.overrule("FAIL (numerics)", text, Reason(where=where))


def _is_reported(judgement: Judgement) -> bool:
    """Whether the first wrong value was reported, not seen."""
    first, ranks = judgement.divergence, judgement.ranks
    if first is not None:
        return any(first.window in rank.reported for rank in ranks)
    difference = judgement.difference
    if difference is None:
        return any(not one.stepped and one.window in rank.reported for rank in ranks for one in rank.attempts)
    if difference.quantity != "weights":
        return False
    return ranks[difference.rank].steps[difference.step].window in ranks[difference.rank].reported


#: Verdicts that a broken law overrules. The others are already worse failures.
_OPEN_TO_LAWS = ("PASS (exact)", "PASS (bounded)", "INCONCLUSIVE")
_REPORTED = "weights that the recorder cannot see were judged as reported with `task.report`"
_ONE_FILE = "no kill between two files: rank 0's process wrote the second checkpoint as one file, or not at all"
_FIRST_OF_TWO = "training was resumed twice from one checkpoint; this is the first resume"


def judge(case: Case, outcome: Outcome, declares: Mapping[str, str] = MappingProxyType({})) -> Judgement:
    """Judges a case: evidence from every rank, the guards, the ranks' agreement, the numbers. Then the laws: a broken
    law explains wrong numbers, and fails a trainer with correct numbers if another run would go wrong. Then the
    trainer's declared behaviour: ``declares``, as `Declaration.behaviour`. Evidence that no recorder wrote is a CRASH.
    The second run from a checkpoint counts only if the first passes.
    """
    if outcome.earlier is not None:
        judgement = judge(case, outcome.earlier, declares)
        if judgement.verdict not in PASSED:
            judgement.notes.append(_FIRST_OF_TWO)
            return judgement
    try:
        case, outcome = as_read(case, outcome)
        found = _judged(case, outcome, declares)
        # FAIL (law) already implies correct numbers.
        other = None if found.verdict in (*PASSED, "FAIL (law)") else as_one(case)
        if other is None or not all(life.recorded for life in outcome.lives or (outcome,)):
            return found
        again = _judged(other, outcome.placed(other.spec()), declares)
        return again if again.verdict in PASSED or crosses(case, other, outcome) else found
    except Exception:
        # Checking every field is slow, so only evidence that cannot be judged is checked.
        for rank in outcome.ranks:
            try:
                check_inside(rank.events, rank.rank)
            except MalformedEvent as error:
                return Judgement("CRASH", malformed(rank.rank, f"has {error}"))
        raise


@no_cyclic_collection()
def _judged(case: Case, outcome: Outcome, declares: Mapping[str, str]) -> Judgement:
    # Join shards into whole weights; each life may shard them differently.
    lives = [joined(life) for _, life in by_life(case.spec(), [rank.events for rank in outcome.ranks])]
    whole = [[*chain(*(life[at] for life in lives if at < len(life)))] for at in range(len(outcome.ranks))]
    ranks = zip(outcome.ranks, whole, strict=True)
    outcome = replace(outcome, ranks=tuple(replace(rank, events=events) for rank, events in ranks))
    case = as_it_ran(case, outcome)
    runs = Run.lives(case.spec(), whole)
    judgement = by_numbers(case, outcome, runs, declares)
    judgement.runs = runs
    code, unseen = next(((code, told) for code, told in _unseen(case, judgement) if told is not None), ("", None))
    if unseen is not None:
        # Unseen evidence may clear the trainer.
        if not judgement.has_ended_early:
            judgement.verdict, judgement.headline, judgement.notes = "INCONCLUSIVE", unseen.text, judgement.denied
            judgement.reason = Reason(code, advice=unseen.advice or None)
            judgement.difference = judgement.divergence = None
            judgement.suspects = Suspects()
        return judgement
    look_for_mistake(case, judgement)
    if any(rank.reported for rank in judgement.ranks):
        judgement.notes.append(_REPORTED)
    if case.resumed == BETWEEN_FILES and case.resumed_at is None:
        judgement.notes.append(_ONE_FILE)
    kind = judgement.mistake and judgement.mistake.kind
    if kind != "report":
        judgement.notes += judgement.denied
    # Windows with other samples than planned end elsewhere, so laws about windows do not apply.
    if kind != "rows" and all(guard.passed for guard in judgement.guards if guard.name in (SHARDS, SAMPLES)):
        _by_laws(case, judgement, declares)
    return judgement


def _by_laws(case: Case, judgement: Judgement, declares: Mapping[str, str]) -> None:
    """Checks the laws, the model's state next to its weights, and the declared behaviour."""
    judgement.laws = check_all(judgement.runs)
    has_right_numbers = judgement.verdict in PASSED
    if has_right_numbers:
        look_beside_weights(case, judgement)
    if has_right_numbers or (judgement.mistake is not None and judgement.mistake.kind == "report"):
        _clear_by_numbers(judgement)
    # Laws that correct numbers clear prove nothing without wrong numbers.
    forbidden = [one for one in judgement.findings if one.law.level == "MUST" and not one.law.cleared_by_numbers]
    if forbidden and judgement.verdict in _OPEN_TO_LAWS:
        judgement.overrule("FAIL (law)", f"{forbidden[0].law.id}: {forbidden[0].broken.observed}")
    if has_right_numbers:
        # Wrong numbers do not show the trainer's choices.
        if case.problem.workload.own_order:
            judgement.ways = (*judgement.ways, *epoch_ways(case))
        elif not case.problem.in_order:
            judgement.ways = (*judgement.ways, "epoch_end=crossed")
        judgement.behaviour, against = observed(judgement.ways, judgement.runs[-1], declares)
        if against and judgement.verdict in PASSED:
            judgement.overrule("FAIL (law)", against[0].says, Reason(advice=against[0].advice))
    if judgement.verdict == "FAIL (numerics)" and (unknown := rounded(case, judgement)) is not None:
        judgement.overrule("INCONCLUSIVE", unknown.text, Reason("rounded", advice=unknown.advice))


def _unseen(case: Case, judgement: Judgement) -> Iterator[tuple[str, Told | None]]:
    """Yields each kind of unseen evidence by its code, in words if it applies."""
    yield "recorder", _failed(judgement.ranks)
    yield "unobserved", unobserved(case, judgement.ranks)
    # Correct numbers show that windows and weights are those of the steps.
    if judgement.verdict not in PASSED:
        yield "unplaced", unplaced(case, judgement.ranks)
        if judgement.divergence is None and not judgement.broken:
            yield "changed after training", changed_after_training(judgement.ranks, judgement.trajectory)


def _clear_by_numbers(judgement: Judgement) -> None:
    """Drops broken laws that correct numbers prove harmless: exact numbers, or bounded ones that would show the least
    harm."""
    right, reading = judgement.trajectory, judgement.reading

    def may_hide(one: Finding) -> bool:
        """Whether the bounds may hide the effect of breaking a law."""
        if not one.law.cleared_by_numbers or right is None or reading is None or right.certificate.exact:
            return False
        return not shows_least_harm(reading, right, one.window or 0, HORIZON, by_weights=judgement.by_weights)

    doubtful = next(filter(may_hide, judgement.findings if judgement.verdict in PASSED else ()), None)
    if doubtful is None:
        judgement.laws = without_harmless(judgement.laws)
        return
    judgement.overrule(
        "INCONCLUSIVE",
        f"{doubtful.law.id}: {doubtful.broken.observed}; the error bound of this case may hide the effect: run an "
        "exact case to decide",
        Reason(doubtful.law.id),
    )


def _failed(ranks: Sequence[RankEvidence]) -> Told | None:
    """Names the part of the recorder that failed in the trainer's process; None if none did."""
    for rank, failed in ((rank.number, rank.events.first(ObserverFailed)) for rank in ranks):
        if failed is not None and failed.replaced:
            return Told(
                f"rank {rank} cannot be read: the trainer replaces {', '.join(failed.replaced)}, which the recorder "
                f"calls ({failed.error})",
                "replace it on import, not while training",
            )
        if failed is not None:
            return Told(
                f"the recorder's part `{failed.observer}` failed in rank {rank}, so the trainer cannot be judged: "
                f"{failed.error}",
                "report this bug of trainer-conformance with the traceback in the case",
            )
    return None
