"""Runs one item: from the plan to a line of the results file."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

from conformance.cases.matrix import possible
from conformance.results.result_lines import CaseRecord, Reason, Verdict
from conformance.runner.front.client import RunnerError, run_case
from conformance.suite.items import Item
from conformance.suite.servers import Servers
from conformance.trace import file
from conformance.verdict.ending import hung_at
from conformance.verdict.judge import judge
from conformance.verdict.paths import shortened
from conformance.verdict.record import record, without_evidence

#: A case with one of these verdicts is run again, line by line: others have a line already, or none.
_FOLLOWED: tuple[Verdict, ...] = ("FAIL (numerics)", "FAIL (law)", "DIVERGED", "SETUP")


def run(item: Item, servers: Servers, time_limit: float, traces: Path | None = None) -> CaseRecord:
    """Runs the case in new processes and judges it; ``traces`` is the folder for its trace, if any.

    After a bug in the judging code the case has no verdict.

    Raises:
        RunnerError: the harness itself failed.
    """
    try:
        found = _record(item, servers, time_limit, traces)
    except RunnerError:
        raise
    except Exception as error:
        headline = (
            f"the harness failed, so the trainer cannot be judged: {_said(error)}; this is a bug in conformance: "
            "please report it with the traceback in the report"
        )
        found = replace(
            without_evidence(item.case, item.trainer, item.target, item.command, "INCONCLUSIVE", headline),
            reason=Reason(f"harness failed: {type(error).__name__}"),
            unjudged=shortened(traceback.format_exc()),
        )
    if found.verdict in _FOLLOWED and servers.is_first(found):
        found = _with_lines(found, item, servers, time_limit)
    return replace(found, possible=possible(item.case.backend), declared=item.declared, undeclared=item.undeclared)


def _with_lines(first: CaseRecord, item: Item, servers: Servers, time_limit: float) -> CaseRecord:
    """A failed case, run again to know which lines write gradients and weights. Only lines are added to the first
    result, and only if the second run goes wrong in the same way."""
    try:
        again = _record(item, servers, time_limit, None, by_line=True)
    except Exception as error:
        return replace(first, notes=(*first.notes, f"the lines that write are unknown: {_said(error)}"))
    return replace(first, calls=again.calls) if _how(again) == _how(first) else first


def _how(found: CaseRecord) -> tuple[object, ...]:
    """How a case failed, without its last digits."""
    first, laws = found.first_difference, tuple((one.law, one.window, one.where) for one in found.findings)
    wrong = first and (first.step, first.quantity, first.parameter)
    reason = found.reason and (found.reason.code, found.reason.where)
    factors = found.gradient_factors, found.step_factors
    return (
        found.verdict,
        reason,
        wrong,
        laws,
        found.mistake,
        found.explained_by,
        factors,
        found.diverged and found.diverged.step,
    )


def _said(error: Exception) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())


def _record(
    item: Item, servers: Servers, time_limit: float, traces: Path | None, *, by_line: bool = False
) -> CaseRecord:
    named = item.case, item.trainer, item.target, item.command
    if item.verdict is not None:
        return without_evidence(*named, item.verdict, item.reason)
    kind = item.target, item.case.backend
    if (hung := servers.patience.lost_with(kind)) is not None:
        return without_evidence(*named, "NOT RUN", f"{hung}; --case runs a single one of the others")
    server = servers.get(*kind)
    spec = item.case.spec() | ({"by_line": True} if by_line else {})
    outcome = run_case(server.run, spec, time_limit)
    if traces is not None:
        folder = file.folder_of(traces, item.trainer, item.case.id)
        try:
            file.write(folder, spec, [rank.events for rank in outcome.ranks], server.versions)
        except OSError as error:
            raise RunnerError(f"cannot write the trace to {folder}: {error.strerror}") from error
    judgement = judge(item.case, outcome, server.declaration.behaviour)
    # A run by line is slow, and its end says nothing of the trainer.
    if not by_line:
        servers.patience.note(kind, hung_at(outcome) if judgement.verdict == "HANG" else None)
    if server.why_slow is not None:
        judgement.notes.append(server.why_slow)
    return record(*named, judgement, outcome.seconds)
