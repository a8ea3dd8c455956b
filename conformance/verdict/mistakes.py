"""Whether wrong numbers are the adapter's mistake."""

from __future__ import annotations

from conformance.cases.case import Case
from conformance.results.records import PASSED, Reason
from conformance.verdict.guard import LOSS, WEIGHTS, not_held
from conformance.verdict.judgement import Judgement
from conformance.verdict.loss import rounded_loss
from conformance.verdict.resuming import other_stop
from conformance.verdict.setup import Mistake, mistake


def look_for_mistake(case: Case, judgement: Judgement) -> None:
    """Wrong numbers of ranks that agree may be the adapter's mistake. Only other samples change the number of steps."""
    broken = [guard for guard in judgement.guards if not (guard.holds or guard.gives_way)]
    if not judgement.has_ended_early and (stopped := other_stop(case, judgement.ranks)) is not None:
        judgement.mistake = Mistake("stop", stopped)
        judgement.overrule("SETUP", stopped)
        return
    is_seen_right = judgement.verdict in PASSED or (not broken and _is_reported(judgement))
    if is_seen_right and (denied := judgement.denied):
        judgement.mistake = Mistake("report", denied[0])
        judgement.overrule("SETUP", denied[0])
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
        judgement.overrule("SETUP", found.text, Reason(where=found.where))
        return
    # What is a known bug is not the loss.
    if judgement.suspects.explained_by or broken:
        return
    if (rounded := next(filter(None, map(rounded_loss, judgement.runs[0].ranks)), None)) is not None:
        text, where = rounded
        judgement.guards += (not_held(LOSS, "right to the last bit", text, where=where),)
        judgement.overrule("FAIL (numerics)", text, Reason(where=where))


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
