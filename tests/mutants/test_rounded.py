"""Weights that three ranks average after each step are rounded, and so are gradients at a loss scale that is no power
of two: nothing can be said against them, nor for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.suite.servers import Servers
from fixtures.kill import judged
from fixtures.specimens import named


@pytest.fixture
def servers():
    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize(
    ("name", "case", "verdict"),
    [
        ("post_local_sgd", "ddp-w3-fp32-momentum", "INCONCLUSIVE"),
        ("post_local_sgd", "ddp-w4-fp32-momentum", "PASS (exact)"),
        ("averages_clipped_updates", "ddp-w2-fp32-clip-value", "FAIL (numerics)"),
        ("scale_of_a_thousand", "single-acc2-fp16-momentum", "INCONCLUSIVE"),
        ("scale_of_a_thousand", "single-acc2-fp16-many-clip-value", "INCONCLUSIVE"),
        ("local_sgd_every_second_window", "ddp-w3-fp32-momentum", "DIVERGED"),
    ],
)
def test_numbers_that_round_where_the_oracles_do_not(name, case, verdict, servers):
    [result] = judged(replace(named("mutants", "variants")[name], cases=(case,)), servers)
    assert result.verdict == verdict, result.headline
