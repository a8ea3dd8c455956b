"""The page of mutants that a watch does not flag; `python -m fixtures.watched_programs mutants` runs them."""

from __future__ import annotations

from fixtures.specimens import specimens
from fixtures.watched_mutants import compared, unflagged


def test_all_of_the_page_are_mutants() -> None:
    assert unflagged().keys() <= {specimen.name for specimen in specimens("mutants")}


def test_what_the_page_does_not_say_is_a_complaint() -> None:
    known = unflagged()
    missed = next(name for name, one in known.items() if one.has_meaning)
    none = next(name for name, one in known.items() if not one.has_meaning)
    verdicts = {"clip_before_unscale": "DOES NOT CONFORM", missed: "UNDECIDED", none: "CONFORMS"}
    assert compared(verdicts) == (
        "1 of 2 that have a meaning without a plan are flagged (50%), 1 have none",
        [],
    )
    changed = {"clip_before_unscale": "CONFORMS", missed: "DOES NOT CONFORM", none: "DOES NOT CONFORM"}
    assert [text.split()[0] for text in compared(changed)[1]] == ["clip_before_unscale", *sorted((missed, none))]
