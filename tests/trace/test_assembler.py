"""Windows of ranks of different speed are joined, one per rank."""

import pytest

from conformance.trace.assembler import Assembler


class Letters:
    """Windows of lower-case letters, each ended by a capital letter."""

    def __init__(self):
        self.open = ""

    def feed(self, event):
        self.open += event
        return self.end() if event.isupper() else ()

    def end(self):
        ended, self.open = self.open, ""
        return (ended,) if ended else ()


def assembler(ranks):
    """An assembler whose windows have their last letter as key."""
    made = Assembler(ranks, lambda window: window[-1])
    made.cuts.update((rank, Letters()) for rank in range(ranks))
    return made


def fed(made, *events):
    """The joined windows after each rank got its events."""
    for rank, own in enumerate(events):
        assert "".join(made.feed(rank, own)) == own.rstrip("ab")
    return list(made.joined())


def ended(made, *ranks):
    for rank in ranks:
        assert list(made.end(rank)) == []


def test_windows_wait_for_slower_ranks():
    made = assembler(2)
    assert fed(made, "aSbS", "") == []
    assert made.ahead(0) == 2
    assert fed(made, "", "bS") == [("S", ("aS", "bS"))]
    assert (made.ahead(0), made.ahead(1)) == (1, 0)


def test_the_nth_windows_of_a_key_are_joined_in_any_order_of_keys():
    assert fed(assembler(2), "aSbT", "bTaS") == [("S", ("aS", "aS")), ("T", ("bT", "bT"))]


@pytest.mark.parametrize(
    ("over", "joined"), [(1, [("S", ("aS", "bS")), ("S", ("aaS", None))]), (0, [("S", ("aS", "bS"))])]
)
def test_no_rank_waits_for_one_that_has_ended(over, joined):
    made = assembler(2)
    ended(made, over)
    assert fed(made, "aSaaS", "bS") == joined


def test_windows_are_joined_once_the_others_have_ended():
    made = assembler(3)
    assert fed(made, "", "", "aS") == []
    ended(made, 0, 1)
    assert list(made.joined()) == [("S", (None, None, "aS"))]
    assert list(made.joined()) == []


def test_all_wait_for_a_rank_that_has_not_started_until_all_have_ended():
    made = assembler(2)
    del made.cuts[1]
    assert [*made.feed(0, "aS"), *made.joined()] == ["aS"]
    ended(made, 0)
    assert list(made.joined()) == []
    ended(made, 1)
    assert list(made.joined()) == [("S", ("aS", None))]


def test_an_open_window_ends_with_its_rank():
    made = assembler(1)
    assert list(made.feed(0, "aSa")) == ["aS"]
    assert list(made.end(0)) == ["a"]
    assert list(made.joined()) == [("S", ("aS",)), ("a", ("a",))]
