"""Helpers for frameworks that count epochs, and for those that look for torchrun's variables."""

import os

import pytest

from conformance import Unsupported
from conformance.adapter.task import Task

from ..trainers.tasks import make_spec


def stopped(after: int | None) -> Task:
    return Task({**make_spec(size=4, steps=1, epochs=[0] * 3), "life": {"stop_after": after}}, 0)


def test_epochs_are_counted():
    task = stopped(None)
    assert task.epoch_count == len(list(task.epochs())) == 3


@pytest.mark.parametrize(("after", "epochs"), [(None, 3), (2, 1), (4, 2), (6, 3)])
def test_epochs_until_the_stop_are_counted(after, epochs):
    assert stopped(after).epochs_until_stop() == epochs


def test_a_stop_inside_an_epoch_is_declined():
    with pytest.raises(Unsupported, match="inside an epoch"):
        stopped(3).epochs_until_stop()


@pytest.mark.parametrize(("world_size", "left"), [(1, False), (2, True)])
def test_one_process_leaves_torchrun(monkeypatch, world_size, left):
    monkeypatch.setenv("LOCAL_RANK", "0")
    task = Task(make_spec(world_size=world_size), 0)
    for _ in range(2):
        task.leave_torchrun()
        assert ("LOCAL_RANK" in os.environ) is left


def test_what_a_loader_gives_comes_in_windows():
    task = Task(make_spec(accumulation=2), 0)
    assert list(task.in_windows(iter("abcde"))) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(task.in_windows("")) == []
