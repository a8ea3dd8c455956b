"""Running one item: from the plan to a line of the results file."""

from __future__ import annotations

from typing import Any

from conformance.suite.items import Item, Servers
from conformance.verdict.judge import judge
from conformance.verdict.record import header, record


def run(item: Item, servers: Servers, time_limit: float) -> dict[str, Any]:
    """Run the case in fresh processes and judge it.

    Raises:
        RunnerError: the harness itself failed.
    """
    known = header(item.case, item.trainer, item.target, item.command)
    if item.verdict is not None:
        return {**known, "verdict": item.verdict, "headline": item.reason, "notes": [], "diagnosis": None}
    server = servers.get(item.target, item.case.backend)
    outcome = server.run(item.case.spec(), time_limit)
    result = {**known, **record(item.case, judge(item.case, outcome), outcome.seconds)}
    if server.mode == "spawn" and server.mode_reason:
        result["notes"] = [*result["notes"], server.mode_reason]
    return result
