"""Small numbers for objects."""

from __future__ import annotations

from conformance.trace.state.numbers import Numbers


class Thing:
    pass


def test_each_kind_is_numbered_in_order_of_first_sight():
    numbers = Numbers()
    one, other = Thing(), Thing()
    assert [numbers.of("thing", thing) for thing in (one, other, one)] == [0, 1, 0]
    assert (numbers.of("other kind", other), numbers.known("other kind", one)) == (0, None)
    assert numbers.alive("thing") == [one, other]


def test_what_no_longer_exists_takes_no_memory_and_no_number():
    """Another object may be given its identity."""
    numbers = Numbers()
    kept = Thing()
    assert numbers.of("thing", kept) == 0
    assert [numbers.of("thing", Thing()) for _ in range(100)] == list(range(1, 101))
    assert numbers.alive("thing") == [kept]
    assert len(numbers._of["thing"]) == 1
