"""Every mutant is caught, with the verdict that it names, and every correct variant passes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"

spec = importlib.util.spec_from_file_location("fixtures_kill", FIXTURES / "kill.py")
assert spec is not None
assert spec.loader is not None
kill = sys.modules["fixtures_kill"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill)

MUTANTS = list(kill.specimens("mutants"))
VARIANTS = list(kill.specimens("variants"))


def cases(specimens):
    return [
        pytest.param(specimen, case, id=f"{specimen.name}-{case}")
        for specimen in specimens
        for case in specimen.shown_by
    ]


@pytest.fixture
def servers():
    from conformance.suite.items import Servers

    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize(("mutant", "case"), cases(MUTANTS))
def test_caught(mutant, case, servers):
    [result] = kill.judged(mutant, servers, (case,))
    assert mutant.holds(result["verdict"]), (result["verdict"], result["headline"], result["notes"])
    assert kill.checks(result)


@pytest.mark.parametrize(("variant", "case"), cases(VARIANTS))
def test_no_false_alarm(variant, case, servers):
    [result] = kill.judged(variant, servers, (case,))
    assert variant.holds(result["verdict"]), (result["verdict"], result["headline"], result["notes"])


def test_catalogue_is_large_enough():
    assert len(MUTANTS) >= 20
    assert len(VARIANTS) >= 8
