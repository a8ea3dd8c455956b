"""Fixtures that record in this process."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from conformance.adapter.task import Task
from conformance.trace.hindsight.placing import placed
from conformance.trace.recorder import Recorder

from ..trainers.tasks import make_spec


class Recording:
    """A recorder with its task and the events so far."""

    def __init__(self, spec):
        self.may_fail = False
        self.spec = spec
        self.events = []
        self.recorder = Recorder(self.events.append, spec, 0)
        self.task = Task(spec, 0, self.recorder)

    def of_kind(self, kind):
        """The events of a kind, placed in the plan."""
        return [event for event in placed(self.spec, 0, self.events) if event["event"] == kind]

    def kinds(self, *wanted):
        """The kinds of all placed events, or of those of a wanted kind."""
        kinds = [event["event"] for event in placed(self.spec, 0, self.events)]
        return [kind for kind in kinds if not wanted or kind in wanted]


@pytest.fixture
def record(monkeypatch):
    """Starts recorders, and stops them after the test. Observers must not fail, unless a test sets `may_fail`.

    Monkeypatching ends later: a recorder puts back the functions that it found.
    """
    running = []

    def start(**changes):
        recording = Recording(make_spec(**changes))
        recording.recorder.__enter__()
        running.append(recording)
        return recording

    yield start
    for recording in running:
        recording.recorder.__exit__(None, None, None)
        failed = [event for event in recording.events if event["event"] == "observer_failed"]
        assert recording.may_fail or not failed, failed[0]["traceback"]


@pytest.fixture
def with_model(record):
    """`record` that also returns the task's model."""

    def start(**changes):
        recording = record(**changes)
        return recording, recording.task.model()

    return start


@pytest.fixture
def group(monkeypatch):
    """A process group over gloo, bound to loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
