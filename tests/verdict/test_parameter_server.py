"""Workers of a parameter server, and other ranks that never step, are judged by their weights."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.laws.subjects import Run
from conformance.runner.front.client import ForkServer
from conformance.verdict.attempts import of_life
from conformance.verdict.evidence import read
from conformance.verdict.judge import judge

CASE = Case("parameter-server", 3, 2, "fp16", "overflow")


@pytest.fixture(scope="module")
def outcome():
    with ForkServer("parameter_server", backend="parameter-server") as server:
        return server.run(CASE.spec(), time_limit=60.0)


def watched(outcome, backend):
    ranks = [read(rank, CASE.problem.windows) for rank in outcome.ranks]
    return of_life(ranks, Run.read({**CASE.spec(), "backend": backend}, [r.events for r in outcome.ranks]))


def test_workers_have_the_servers_steps_and_their_own_weights(outcome):
    server, *workers = watched(outcome, "parameter-server")
    assert len(server.attempts) == CASE.problem.workload.steps
    for worker in workers:
        assert [a.gradients for a in worker.attempts] == [a.gradients for a in server.attempts]
        assert {(a.weights_by, a.gradients_by) for a in worker.attempts} == {("shown", "another rank")}
        assert [a.weights for a in worker.attempts] == [a.weights for a in server.attempts]


def test_weights_that_did_not_arrive_show(outcome):
    """One worker's weights at the beginning of a window are changed in its record."""
    forward = next(e for e in outcome.ranks[2].events if e["event"] == "forward" and e["window"] == 1 and e["weights"])
    before = forward["weights"]
    forward["weights"] = [1.0 + before[0], *before[1:]]
    judgement = judge(CASE, outcome)
    forward["weights"] = before
    assert judgement.verdict == "DIVERGED"
    assert judgement.headline == "the ranks have different weights after window 0"
    assert {finding.law.id for finding in judgement.findings} == {"ddp/identical-weights"}
    assert judge(CASE, outcome).verdict == "PASS (exact)"


def test_on_other_backends_a_rank_has_the_steps_that_its_weights_show(outcome):
    """And the skips of those that have an optimizer."""
    server, *workers = watched(outcome, "ddp")
    assert [attempt.gradients is None for attempt in server.attempts] == [False] * 6
    for worker in workers:
        assert [attempt.gradients for attempt in worker.attempts] == [None] * 6
        assert [attempt.window for attempt in worker.attempts if not attempt.stepped] == [2]
