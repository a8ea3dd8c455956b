"""One mistake is one cause, whichever guard shows it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.report.causes import causes
from conformance.suite.servers import Servers
from conformance.verdict.judgement import OTHER_ORDER
from fixtures.kill import judged
from fixtures.specimens import named


@pytest.fixture
def servers():
    servers = Servers()
    yield servers
    servers.close()


def found(servers, name, *cases):
    return causes(judged(replace(named("mutants")[name], cases=cases), servers))


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("own_order_epoch_not_restored", ("single-acc2-fp32-own-order-resumed-at-4",)),
        ("resumed_without_epoch", ("single-acc2-fp32-many-tensors-resumed-at-4",)),
        ("resumed_without_epoch", ("ddp-w2-acc2-fp32-many-tensors-resumed-at-4",)),
    ],
)
def test_an_epoch_that_is_not_restored_is_one_mistake(name, cases, servers):
    [(cause, _)] = found(servers, name, *cases)
    assert cause.key == OTHER_ORDER


def test_samples_that_are_drawn_twice_are_not_due_to_a_resume(servers):
    [(cause, _)] = found(servers, "own_order_with_replacement", "single-acc2-fp32-own-order")
    assert cause.key == "all samples read"
