"""What decides where several things are wrong with a case."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

from conformance.verdict.precedence import Ground, by_precedence, overrules

#: From the headline to the last note, as the report says it.
SAID = ("guard", "exchange", "explanation", "place", "divergence", "overflow", "difference", "scaler", "precision")


def test_what_is_wrong_is_said_in_one_order_whatever_is_found_first():
    claims = [(ground, ground) for ground in SAID]
    assert by_precedence(claims) == by_precedence(reversed(claims)) == list(SAID)


def test_several_on_one_ground_keep_their_order():
    assert by_precedence([("scaler", "first"), ("difference", "before"), ("scaler", "second")]) == [
        "before",
        "first",
        "second",
    ]


def test_no_two_grounds_overrule_each_other():
    pairs = list(combinations(get_args(Ground), 2))
    assert any(overrules(*pair) for pair in pairs)
    assert not any(overrules(one, other) and overrules(other, one) for one, other in pairs)


def test_an_adapter_is_blamed_for_samples_and_for_nothing_else_that_a_guard_shows():
    assert [ground for ground in ("guard", "samples", "exchange") if overrules("other rows", ground)] == ["samples"]
    assert not any(overrules("adapter", ground) for ground in ("guard", "samples", "exchange"))
