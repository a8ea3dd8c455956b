"""Every mutant is caught, with the verdict and by the laws that it names, and every correct variant passes: the kill
matrix.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from conformance.laws.law import laws

FIXTURES = Path(__file__).parents[2] / "fixtures"

spec = importlib.util.spec_from_file_location("fixtures_kill", FIXTURES / "kill.py")
assert spec is not None
assert spec.loader is not None
kill = sys.modules["fixtures_kill"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill)

MUTANTS = list(kill.specimens("mutants"))
VARIANTS = list(kill.specimens("variants"))


@pytest.fixture
def servers():
    from conformance.suite.items import Servers

    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_caught(mutant, servers):
    results = kill.judged(mutant, servers, mutant.shown_by)
    for result in results:
        told = result["id"], result["verdict"], result["headline"], result["notes"]
        assert mutant.holds(result["verdict"]), told
        assert kill.checks(result) or kill.broken([result]) or result["verdict"] == "UNAVAILABLE", told
    if not mutant.cannot_run:
        assert kill.broken(results) == mutant.laws


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_false_alarm(variant, servers):
    for result in kill.judged(variant, servers, variant.shown_by):
        assert variant.holds(result["verdict"]), (result["id"], result["verdict"], result["headline"], result["notes"])
        assert kill.broken([result]) == variant.laws, (result["id"], result["findings"])


@pytest.mark.parametrize("law", [law.id for law in laws()])
def test_every_law_has_a_mutant(law):
    """For a SHOULD a correct variant may do: it breaks the law, and its numbers are right."""
    assert [specimen.name for specimen in [*MUTANTS, *VARIANTS] if law in specimen.laws]


def test_catalogue_is_large_enough():
    assert len(MUTANTS) >= 45
    assert len(VARIANTS) >= 25
