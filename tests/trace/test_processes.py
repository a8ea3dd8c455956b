"""Processes that a trainer forks."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize(("process", "expected"), [(4711, ["fork"]), (0, [])], ids=["trainer", "child"])
def test_a_fork_is_noted_in_the_process_that_forks(record, monkeypatch, process, expected):
    monkeypatch.setattr(os, "fork", lambda: process)
    recording = record()
    assert os.fork() == process
    assert [event["event"] for event in recording.events] == expected
