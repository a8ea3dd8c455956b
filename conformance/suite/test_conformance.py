"""One test for each case of each trainer. The test report has the verdict and its evidence."""

from __future__ import annotations

import json

import pytest

from conformance.report.card import card_of
from conformance.report.text import visible
from conformance.results.plain import plain
from conformance.results.result_lines import NOT_RUN, PASSED
from conformance.runner.front.client import RunnerError
from conformance.runner.outcome import HostLost
from conformance.suite.hooks import Undeclared, servers, warn
from conformance.suite.items import BadInput, Item
from conformance.suite.one_item import run
from conformance.workloads.behaviour import WORDS, warning


def test_case(item: Item | BadInput, request: pytest.FixtureRequest) -> None:
    if isinstance(item, BadInput):
        request.node.bad_input = item.line
        pytest.fail(visible(item.line), pytrace=False)
    config = request.config
    try:
        result = run(item, servers(config), config.getoption("time_limit"), config.getoption("traces"))
    except HostLost as error:
        request.session.shouldfail = str(error)
        pytest.fail(f"the harness failed: {error}; the remaining cases were not run", pytrace=False)
    except RunnerError as error:
        pytest.fail(f"the harness failed: {error}", pytrace=False)
    # ASCII text crosses from xdist workers, whatever it contains.
    request.node.conformance = json.dumps(plain(result))
    if result.verdict in NOT_RUN:
        pytest.skip(visible(f"{result.verdict}: {result.headline}"))
    if result.verdict not in PASSED:
        *lines, again = card_of(result).lines()
        pytest.fail("\n".join([*lines, *map(visible, result.notes), again]), pytrace=False)
    for one in result.behaviour:
        if (costs := warning(one.way, one.declared)) is not None:
            text = f"{result.trainer} {WORDS[one.way].says}. {costs}"
            warn(config, Undeclared(visible(text)), "runtest", request.node.nodeid)
