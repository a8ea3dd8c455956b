"""Covering arrays over given cases."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases.matrix import covering

ROWS = st.sets(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=40)
NAMES = ("kind", "recipe", "path", "precision")


def met(rows, strength):
    return {some for row in rows for some in combinations(zip(NAMES, row, strict=True), strength)}


@given(rows=ROWS, strength=st.integers(2, 3), data=st.data())
def test_what_any_case_has_is_met(rows, strength, data):
    taken = data.draw(st.sets(st.sampled_from(sorted(rows))))
    cases = {row: dict(zip(NAMES, row, strict=True)) for row in sorted(rows)}
    chosen = covering(cases, strength, taken)
    assert taken <= chosen <= rows
    assert met(chosen, strength) == met(rows, strength)


def test_some_dimensions_meet_in_all_their_values():
    rows = [(a, b, c, d) for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
    cases = {row: dict(zip(NAMES, row, strict=True)) for row in rows}
    close = covering(cases, 2, (), closely=NAMES[1:])
    assert {row[1:] for row in close} == {row[1:] for row in rows}
    assert len(close) < len(rows) / 2
    assert len(covering(cases, 2, ())) < len(close)


def test_cases_that_no_value_tells_apart_are_an_error():
    with pytest.raises(ValueError, match="two cases have the same values"):
        covering({0: {"path": 1}, 1: {"path": 1}}, 2, ())
