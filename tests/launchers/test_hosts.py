"""Several hosts: the first failure, and the cases that they can run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.cases.case import Case
from conformance.launchers.hosts import Hosts, NodeMember, SpreadCase
from conformance.runner.case.supervision import Limits, Supervision
from conformance.runner.outcome import Outcome, RankOutcome

LATE = {"late": "at the time limit of 3 s"}
FAILED = {"failed": 0, "raised": True}


@pytest.mark.parametrize(("messages", "kept"), [([LATE, FAILED], []), ([FAILED, LATE], ["raised"])])
def test_an_exception_counts_if_it_came_first(messages, kept):
    """A host stops its hanging ranks, and ranks on other hosts raise because of that: this is still a HANG."""
    starter: Any = SimpleNamespace(name="host")
    server: Any = SimpleNamespace()
    raises, hangs = (NodeMember(starter, server, [rank]) for rank in range(2))
    case = SpreadCase([raises, hangs], {"case": "ddp-w2"}, 3.0)
    case._supervision = Supervision([raises, hangs], Limits(3.0), 3.0, 0.0, may_leave=True)
    for message in messages:
        case._note(hangs if message is LATE else raises, message)
    raises.outcome = Outcome((RankOutcome(0, [{"event": "raised"}], False, "exited 1", "", None),), 1.0, False)
    (rank,) = raises.outcomes(case._supervision.first_failed)
    assert [event["event"] for event in rank.events] == kept


CASE = Case("ddp", 2, 1, "fp32", "momentum", resumed_at=4)


def hosts(*names):
    front = SimpleNamespace(agents=[SimpleNamespace(name=name) for name in names], close=lambda: None)
    return Hosts("torchrun", front, 2)


def test_on_several_machines_no_case_is_resumed():
    """Checkpoints need one folder for all ranks."""
    assert "shared checkpoint folder" in hosts("one", "other").why_not(CASE)
    assert hosts("one", "one").why_not(CASE) is None
    assert hosts("one", "other").why_not(Case("ddp", 2, 1, "fp32", "momentum")) is None
