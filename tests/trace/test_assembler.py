"""The windows of ranks that are not equally fast are joined, one of each rank."""

import pytest

from conformance.trace.assembler import Assembler


class Letters:
    """Windows of lower-case letters, each ended by a capital one."""

    def __init__(self):
        self.begun = ""

    def feed(self, event):
        self.begun += event
        return self.end() if event.isupper() else ()

    def end(self):
        ended, self.begun = self.begun, ""
        return (ended,) if ended else ()


def assembler(ranks):
    """Of windows that are joined by the letter that ends them."""
    made = Assembler(ranks, lambda window: window[-1])
    made.cuts.update((rank, Letters()) for rank in range(ranks))
    return made


def fed(made, *events):
    """What is joined once each rank has had its events."""
    for rank, own in enumerate(events):
        assert "".join(made.feed(rank, own)) == own.rstrip("ab")
    return list(made.joined())


def ended(made, *ranks):
    for rank in ranks:
        assert list(made.end(rank)) == []


def test_windows_wait_for_those_of_slower_ranks():
    made = assembler(2)
    assert fed(made, "aSbS", "") == []
    assert made.ahead(0) == 2
    assert fed(made, "", "bS") == [("S", ("aS", "bS"))]
    assert (made.ahead(0), made.ahead(1)) == (1, 0)


def test_the_nth_of_one_key_are_joined_whatever_comes_between():
    assert fed(assembler(2), "aSbT", "bTaS") == [("S", ("aS", "aS")), ("T", ("bT", "bT"))]


@pytest.mark.parametrize(
    ("over", "joined"), [(1, [("S", ("aS", "bS")), ("S", ("aaS", None))]), (0, [("S", ("aS", "bS"))])]
)
def test_one_that_is_over_keeps_nobody_waiting(over, joined):
    made = assembler(2)
    ended(made, over)
    assert fed(made, "aSaaS", "bS") == joined


def test_they_are_joined_once_another_is_over():
    made = assembler(3)
    assert fed(made, "", "", "aS") == []
    ended(made, 0, 1)
    assert list(made.joined()) == [("S", (None, None, "aS"))]
    assert list(made.joined()) == []


def test_one_that_has_not_begun_is_waited_for_until_all_are_over():
    made = assembler(2)
    del made.cuts[1]
    assert [*made.feed(0, "aS"), *made.joined()] == ["aS"]
    ended(made, 0)
    assert list(made.joined()) == []
    ended(made, 1)
    assert list(made.joined()) == [("S", ("aS", None))]


def test_what_is_open_ends_with_its_rank():
    made = assembler(1)
    assert list(made.feed(0, "aSa")) == ["aS"]
    assert list(made.end(0)) == ["a"]
    assert list(made.joined()) == [("S", ("aS",)), ("a", ("a",))]
