"""The verdict on one case: evidence, guards, numbers, laws and declarations, and which of them decides.

What the numbers alone say, and how a run that ended early is judged, is in `conformance.verdict.numbers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from conformance.cases.case import BETWEEN_FILES, INSIDE_WINDOW, Case
from conformance.laws.checking import Finding, check_all, without_harmless
from conformance.laws.run import Run, no_cyclic_collection
from conformance.oracle.power import shows_least_harm
from conformance.results.records import PASSED, Reason
from conformance.runner.outcome import Outcome, malformed
from conformance.trace.events import MalformedEvent, check_inside
from conformance.trace.hindsight.shards import joined
from conformance.trace.lives import by_life
from conformance.verdict import own_order
from conformance.verdict.as_one import as_one, crosses
from conformance.verdict.averages import resumed_averages
from conformance.verdict.behaviour import observed
from conformance.verdict.buffers import Fate, fate
from conformance.verdict.diagnosis import HORIZON, Suspects
from conformance.verdict.draws import resumed_draws
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.guard import AVERAGES, BUFFERS, DRAWS, RESTORED, SAMPLES, SHARDS, not_held
from conformance.verdict.judgement import Judgement
from conformance.verdict.lives import as_it_ran
from conformance.verdict.mistakes import look_for_mistake
from conformance.verdict.numbers import by_numbers
from conformance.verdict.observability import unobserved, unplaced
from conformance.verdict.resuming import other_bits
from conformance.verdict.rounding import rounded
from conformance.verdict.watched_weights import changed_after_training
from conformance.workloads.model import Counting, WithDropout

#: Verdicts that a broken law overrules. The others are failures already, and worse ones.
_OPEN_TO_LAWS = ("PASS (exact)", "PASS (bounded)", "INCONCLUSIVE")
_REPORTED = "weights that cannot be seen were judged as the trainer reports them, with `task.report`"
_ONE_FILE = "nothing was killed between two files: the second checkpoint is one file, or none of rank 0's own process"
_FIRST_OF_TWO = "training was resumed twice from one checkpoint, and this is the first time"


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
    judgement = by_numbers(case, outcome, runs, declares)
    judgement.runs = runs
    code, unseen = next(((code, text) for code, text in _unseen(case, judgement) if text is not None), ("", None))
    if unseen is not None:
        # What is not seen may be what speaks for the trainer.
        if not judgement.has_ended_early:
            judgement.verdict, judgement.headline, judgement.notes = "INCONCLUSIVE", unseen, judgement.denied
            judgement.reason = Reason(code)
            judgement.difference = judgement.divergence = None
            judgement.suspects = Suspects()
        return judgement
    look_for_mistake(case, judgement)
    if any(rank.reported for rank in judgement.ranks):
        judgement.notes.append(_REPORTED)
    if case.resumed == BETWEEN_FILES and case.resumed_at is None:
        judgement.notes.append(_ONE_FILE)
    if judgement.mistake is None or judgement.mistake.kind != "report":
        judgement.notes += judgement.denied
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
        judgement.overrule("FAIL (law)", f"{forbidden[0].law.id}: {forbidden[0].broken.however}")
    if has_right_numbers:
        # Other numbers do not show how the trainer reads what is open.
        if case.problem.workload.own_order:
            judgement.ways = (*judgement.ways, *own_order.ways(case))
        elif not case.problem.in_order:
            judgement.ways = (*judgement.ways, "epoch_end=crossed")
        judgement.behaviour, against = observed(judgement.ways, runs[-1], declares)
        if against and judgement.verdict in PASSED:
            judgement.overrule("FAIL (law)", against[0])
    if judgement.verdict == "FAIL (numerics)" and (unknown := rounded(case, judgement)) is not None:
        judgement.overrule("INCONCLUSIVE", unknown, Reason("rounded"))
    return judgement


def _unseen(case: Case, judgement: Judgement) -> Iterator[tuple[str, str | None]]:
    """What may not be seen, and what of it is not, in a sentence."""
    yield "recorder", _failed(judgement.ranks)
    yield "unobserved", unobserved(case, judgement.ranks)
    # Right numbers show that windows and weights are those of the steps.
    if judgement.verdict not in PASSED:
        yield "unplaced", unplaced(case, judgement.ranks)
        if judgement.divergence is None and all(guard.holds or guard.gives_way for guard in judgement.guards):
            yield "changed after training", changed_after_training(judgement.ranks, judgement.trajectory)


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
            judgement.overrule("INCONCLUSIVE", found.unknown, Reason(name))
        if found.wrong is not None:
            judgement.guards += (not_held(name, expected, found.wrong),)
            judgement.overrule("FAIL (numerics)", found.wrong)


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
    judgement.overrule(
        "INCONCLUSIVE",
        f"{doubtful.law.id}: {doubtful.broken.however}; what that does may be smaller than the error bound of this "
        "case, so its numbers do not show whether it is a mistake: a case that is exact decides",
        Reason(doubtful.law.id),
    )


def _may_hide(judgement: Judgement, finding: Finding) -> bool:
    """Whether the bounds may hide what breaking a law does."""
    right, reading = judgement.trajectory, judgement.reading
    if right is None or reading is None or right.certificate.exact:
        return False
    return not shows_least_harm(reading, right, finding.window or 0, HORIZON, by_weights=judgement.by_weights)


def _failed(ranks: Sequence[RankEvidence]) -> str | None:
    """Which part of the recorder failed in the trainer's process, if one did."""
    for rank in ranks:
        failed = rank.observer_failed
        if failed is not None and failed.replaced:
            return (
                f"the trainer replaces {', '.join(failed.replaced)}, which the recorder calls, so rank "
                f"{rank.outcome.rank} cannot be read: {failed.error}; replace it on import, not while training"
            )
        if failed is not None:
            return (
                f"the recorder's part `{failed.observer}` failed in rank {rank.outcome.rank} and was "
                f"switched off, so the trainer cannot be judged: {failed.error}; this is a mistake of "
                "ours, please report it with the traceback below"
            )
    return None
