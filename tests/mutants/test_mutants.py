"""Every mutant is caught, with the verdict and by the laws that it names, and every correct variant passes: the kill
matrix.
"""

from __future__ import annotations

import pytest

from conformance.laws.law import laws
from conformance.oracle.faults import CATALOGUE
from conformance.report.causes import causes, title
from conformance.suite.servers import Servers
from fixtures.kill import broken, checks, items, judged
from fixtures.specimens import specimens

MUTANTS = specimens("mutants")
VARIANTS = specimens("variants")
BUGS = {fault.name: fault.text for fault in CATALOGUE}


@pytest.fixture
def servers():
    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_caught(mutant, servers):
    assert any(item.chosen for item in items(mutant, servers)), "no case of the default run shows it"
    results = judged(mutant, servers)
    for result in results:
        reported = result.id, result.verdict, result.headline, result.notes
        assert mutant.has_verdict(result.verdict), reported
        assert checks(result) or broken([result]) or result.verdict == "UNAVAILABLE", reported
    if not mutant.cannot_run:
        assert broken(results) == mutant.laws
    if mutant.cause is not None:
        texts = [title(cause, cases, BUGS) for cause, cases in causes(results)]
        assert [text.startswith(mutant.cause) for text in texts] == [True], texts


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_false_alarm(variant, servers):
    for result in judged(variant, servers):
        reported = result.id, result.verdict, result.headline, result.notes
        assert variant.has_verdict(result.verdict), reported
        assert broken([result]) == variant.laws, (result.id, result.findings)


@pytest.mark.parametrize("law", [law.id for law in laws()])
def test_every_law_has_a_mutant(law):
    """For a SHOULD a correct variant may do: it breaks the law, and its numbers are right."""
    assert [specimen.name for specimen in [*MUTANTS, *VARIANTS] if law in specimen.laws]


@pytest.mark.parametrize("law", [law.id for law in laws() if law.latent])
def test_harm_that_right_numbers_hide_is_shown_by_another_run(law):
    """A law that fails right numbers has a mutant whose numbers, or whose end, are wrong for breaking it."""
    assert [mutant.name for mutant in MUTANTS if law in mutant.laws and mutant.expected not in ("PASS", "FAIL (law)")]


def test_catalogue_is_large_enough():
    assert len(MUTANTS) >= 45
    assert len(VARIANTS) >= 25
