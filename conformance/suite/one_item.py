"""Runs one item: from the plan to a line of the results file."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

from conformance.cases.matrix import possible
from conformance.results.result_lines import CaseRecord, Reason
from conformance.runner.front.client import RunnerError, run_case
from conformance.suite.items import Item
from conformance.suite.servers import Servers
from conformance.trace import file
from conformance.verdict.ending import hung_at
from conformance.verdict.judge import judge
from conformance.verdict.paths import shortened
from conformance.verdict.record import record, without_evidence


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
        what = " ".join("".join(traceback.format_exception_only(error)).split())
        headline = (
            f"the harness failed, so the trainer cannot be judged: {what}; this is a bug in conformance: please report "
            "it with the traceback in the report"
        )
        found = replace(
            without_evidence(item.case, item.trainer, item.target, item.command, "INCONCLUSIVE", headline),
            reason=Reason(f"harness failed: {type(error).__name__}"),
            unjudged=shortened(traceback.format_exc()),
        )
    return replace(found, possible=possible(item.case.backend), declared=item.declared, undeclared=item.undeclared)


def _record(item: Item, servers: Servers, time_limit: float, traces: Path | None) -> CaseRecord:
    named = item.case, item.trainer, item.target, item.command
    if item.verdict is not None:
        return without_evidence(*named, item.verdict, item.reason)
    kind = item.target, item.case.backend
    if (hung := servers.patience.lost_with(kind)) is not None:
        return without_evidence(*named, "NOT RUN", f"{hung}; --case runs a single one of the others")
    server = servers.get(*kind)
    spec = item.case.spec()
    outcome = run_case(server.run, spec, time_limit)
    if traces is not None:
        folder = file.folder_of(traces, item.trainer, item.case.id)
        try:
            file.write(folder, spec, [rank.events for rank in outcome.ranks], server.versions)
        except OSError as error:
            raise RunnerError(f"cannot write the trace to {folder}: {error.strerror}") from error
    judgement = judge(item.case, outcome, server.declaration.behaviour)
    servers.patience.note(kind, hung_at(outcome) if judgement.verdict == "HANG" else None)
    if server.why_slow is not None:
        judgement.notes.append(server.why_slow)
    return record(*named, judgement, outcome.seconds)
