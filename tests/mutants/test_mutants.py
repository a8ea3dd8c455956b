"""Every mutant is caught, with the verdict and by the laws that it names, and every correct variant passes: the kill
matrix.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.laws.law import laws
from conformance.oracle.faults import KNOWN
from conformance.report.causes import causes, title
from conformance.verdict.judgement import OTHER_ORDER
from fixtures.kill import broken, checks, items, judged
from fixtures.specimens import named, specimens

MUTANTS = specimens("mutants")
VARIANTS = specimens("variants")
BUGS = {fault.name: fault.text for fault in KNOWN}


def kinds(specimen):
    """What the specimens of every day have between them: each law, verdict, base, and word of a case's id."""
    return {
        *specimen.laws,
        specimen.expected,
        specimen.base,
        *(word for id in specimen.cases for word in id.split("-")),
    }


def rows(specimens):
    """Some run every day, the others in turn."""
    missing, daily = set().union(*map(kinds, specimens)), set()
    while missing:
        best = max(specimens, key=lambda specimen: len(kinds(specimen) & missing))
        missing -= kinds(best)
        daily.add(best.name)
    return [pytest.param(one, id=one.name, marks=[pytest.mark.in_turn] * (one.name not in daily)) for one in specimens]


@pytest.mark.parametrize("mutant", rows(MUTANTS))
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
        named = mutant.cause.split(" | ")
        assert len(texts) == len(named), texts
        assert all(text.startswith(cause) for text, cause in zip(texts, named, strict=True)), texts


@pytest.mark.parametrize("variant", rows(VARIANTS))
def test_no_false_alarm(variant, servers):
    for result in judged(variant, servers):
        reported = result.id, result.verdict, result.headline, result.notes
        assert variant.has_verdict(result.verdict), reported
        assert broken([result]) == variant.laws, (result.id, result.findings)


@pytest.mark.parametrize("law", [law.id for law in laws()])
def test_every_law_has_a_mutant(law):
    """A correct variant may show a SHOULD: it breaks the law, and its numbers are correct."""
    assert [specimen.name for specimen in [*MUTANTS, *VARIANTS] if law in specimen.laws]


@pytest.mark.parametrize("law", [law.id for law in laws() if law.latent])
def test_harm_that_right_numbers_hide_is_shown_by_another_run(law):
    """A law that fails correct numbers has a mutant whose numbers, or whose end, are wrong because of it."""
    assert [mutant.name for mutant in MUTANTS if law in mutant.laws and mutant.expected not in ("PASS", "FAIL (law)")]


def test_catalogue_is_large_enough():
    assert len(MUTANTS) >= 45
    assert len(VARIANTS) >= 25


@pytest.mark.parametrize(
    ("name", "case", "key"),
    [
        ("own_order_epoch_not_restored", "single-acc2-fp32-own-order-resumed-at-4", OTHER_ORDER),
        ("resumed_without_epoch", "single-acc2-fp32-many-tensors-resumed-at-4", OTHER_ORDER),
        ("resumed_without_epoch", "ddp-w2-acc2-fp32-many-tensors-resumed-at-4", OTHER_ORDER),
        # Samples drawn twice are not due to a resume.
        ("own_order_with_replacement", "single-acc2-fp32-own-order", "all samples read"),
    ],
)
def test_one_mistake_is_one_cause_whichever_guard_shows_it_first(name, case, key, servers):
    [(cause, _)] = causes(judged(replace(named("mutants")[name], cases=(case,)), servers))
    assert cause.key == key


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
    """Weights that three ranks average after each step are rounded, and so are gradients at a loss scale that is not
    a power of two: they are neither right nor wrong for certain."""
    [result] = judged(replace(named("mutants", "variants")[name], cases=(case,)), servers)
    assert result.verdict == verdict, result.headline
