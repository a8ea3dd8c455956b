"""The windows of ranks that are not equally fast are joined, one of each rank."""

import pytest

from conformance.trace.joining import Joining


def test_windows_wait_for_those_of_slower_ranks():
    joining = Joining(2)
    joining.put(0, ["a0", "a1"])
    assert list(joining.joined()) == []
    assert joining.ahead(0) == 2
    joining.put(1, ["b0"])
    assert list(joining.joined()) == [("a0", "b0")]
    assert (joining.ahead(0), joining.ahead(1)) == (1, 0)


@pytest.mark.parametrize(("over", "joined"), [({1}, [("a0", "b0"), ("a1", None)]), ({0}, [("a0", "b0")])])
def test_one_that_is_over_keeps_nobody_waiting(over, joined):
    joining = Joining(2, over)
    joining.put(1, ["b0"])
    joining.put(0, ["a0", "a1"])
    assert list(joining.joined()) == joined


def test_they_are_joined_once_another_is_over():
    over = set()
    joining = Joining(3, over)
    joining.put(2, ["c0"])
    assert list(joining.joined()) == []
    over |= {0, 1}
    assert list(joining.joined()) == [(None, None, "c0")]
    assert list(joining.joined()) == []
