"""Who writes a checkpoint."""

import pytest

from .building import a_run, backward, event, forward, step
from .findings import broken_of, checked

LAW = "save/one-writer"
TRAIN = [forward(0), backward(), step()]


def save(path):
    return event("save", path=path)


@pytest.mark.parametrize("others", [[], [event("collective")]])
def test_ranks_write_one_file_at_the_same_time(others):
    run = a_run([TRAIN, others, save("all.pt")], [TRAIN, others, save("own.pt"), save("all.pt")], backend="ddp")
    assert broken_of({"save"}, run) == {LAW}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([save("all.pt")], []),
        ([save("0.pt")], [save("1.pt")]),
        ([save("all.pt"), event("collective")], [event("collective"), save("all.pt")]),
        ([save("all.pt"), event("send", peer=1)], [event("receive", peer=0), save("all.pt")]),
        ([save("all.pt"), save("all.pt")], [event("collective"), save("other.pt")]),
    ],
)
def test_ranks_write_files_of_their_own_or_one_by_turns(first, second):
    run = a_run([TRAIN, first], [TRAIN, second], backend="ddp")
    assert broken_of({"save"}, run) == set()
    assert checked(run, LAW)
