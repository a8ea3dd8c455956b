"""The laws on what is asynchronous: traces that keep them, that break them, and permissions."""

import pytest

from .building import backward, event, forward, step
from .building_ddp import ALL_REDUCE, both
from .findings import broken_of, checked, the_finding

RECEIVE = event("receive", peer=1)


def run(*exchanged, **fields):
    """Two ranks that exchange these after their backward, and step with these fields."""
    return both(forward(0), backward(), *exchanged, step(**fields))


def place(*exchanged):
    """The numbers of these events in `run`."""
    events = run(*exchanged).ranks[0].events
    return [one.seq for one in events if one.event in ("collective", "receive")]


@pytest.mark.parametrize("exchanged", [[ALL_REDUCE], [RECEIVE], [ALL_REDUCE, ALL_REDUCE]])
@pytest.mark.parametrize(
    ("field", "law"), [("unfinished", "ddp/wait-before-step"), ("unfinished_elsewhere", "ddp/wait-before-use")]
)
def test_nobody_waits(exchanged, field, law):
    """For what writes where the step reads, or for the buffer that is copied there."""
    seen = run(*exchanged, **{field: place(*exchanged)})
    assert broken_of({"ddp"}, seen) == {law}
    assert "nobody waited for" in the_finding(seen, law).broken.however


def test_one_of_two_is_waited_for():
    """What the step uses has to be waited for all; of copies, the other one may be for a log."""
    first, _ = place(ALL_REDUCE, ALL_REDUCE)
    assert broken_of({"ddp"}, run(ALL_REDUCE, ALL_REDUCE, unfinished=[first])) == {"ddp/wait-before-step"}
    assert broken_of({"ddp"}, run(ALL_REDUCE, ALL_REDUCE, unfinished_elsewhere=[first])) == set()


@pytest.mark.parametrize("law", ["ddp/wait-before-step", "ddp/wait-before-use"])
def test_all_are_waited_for(law):
    seen = run(ALL_REDUCE)
    assert checked(seen, law) == 2
    assert broken_of({"ddp"}, seen) == set()


def test_a_log_says_nothing():
    """The loss is reduced for a log, which is waited for later; the gradients travel in other ways, or not at all."""
    log = event("collective", elements=1, bytes=4)
    assert broken_of({"ddp"}, run(log, unfinished_elsewhere=place(log))) == set()


def test_what_else_may_have_brought_the_average():
    """Such as compressed gradients, which nobody recognises."""
    compressed = event("collective", op="allgather_", elements=9, bytes=18, reduce=None)
    first, _ = place(ALL_REDUCE, compressed)
    assert broken_of({"ddp"}, run(ALL_REDUCE, compressed, unfinished_elsewhere=[first])) == set()
