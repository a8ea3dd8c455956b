"""Workers of a parameter server are judged by the weights that they hold; other ranks have to step."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer
from conformance.verdict.evidence import read
from conformance.verdict.judge import judge
from conformance.verdict.parameter_server import with_served

CASE = Case("parameter-server", "accumulated", 3, 2, "fp16", "overflow")


@pytest.fixture(scope="module")
def outcome():
    with ForkServer("parameter_server", backend="parameter-server") as server:
        return server.run(CASE.spec(), time_limit=60.0)


def evidence(outcome):
    workload, layout = CASE.problem.workload, CASE.problem.layout
    windows = layout.windows(workload)
    return [read(rank, windows) for rank in outcome.ranks]


def test_workers_have_the_servers_steps_and_their_own_weights(outcome):
    server, *workers = with_served(evidence(outcome), "parameter-server")
    assert len(server.attempts) == CASE.problem.workload.steps
    for worker in workers:
        assert worker.attempts == server.attempts
        assert [a.weights for a in worker.attempts] == [a.weights for a in server.attempts]


def test_weights_that_did_not_arrive_show(outcome):
    """One worker's weights at the beginning of a window are changed in its record."""
    forward = next(e for e in outcome.ranks[2].events if e["event"] == "forward" and e["window"] == 1 and e["weights"])
    before = forward["weights"]
    forward["weights"] = [1.0 + before[0], *before[1:]]
    judgement = judge(CASE, outcome)
    forward["weights"] = before
    assert judgement.verdict == "DIVERGED"
    assert judgement.headline == "the ranks hold different weights after window 0"
    assert {finding.law.id for finding in judgement.findings} == {"ddp/identical-weights"}
    assert judge(CASE, outcome).verdict == "PASS (exact)"


def test_on_other_backends_every_rank_has_to_step(outcome):
    ranks = evidence(outcome)
    assert with_served(ranks, "ddp") == tuple(ranks)
    assert [len(rank.attempts) > 0 for rank in ranks] == [True, False, False]
