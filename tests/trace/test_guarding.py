"""Errors of the recorder do not change the trainer's results."""

from __future__ import annotations

import pytest
import torch

from conformance.trace.seams.guarding import failures, guarded, harmless
from conformance.trace.seams.patching import replaced


class Adder:
    calls = 0

    def add(self, one, two):
        Adder.calls += 1
        if two is None:
            raise KeyError("two")
        return one + two


def before(original, adder, one, two):
    raise ZeroDivisionError


def after(original, adder, one, two):
    original(adder, one, two)
    raise ZeroDivisionError


def finally_(original, adder, one, two):
    try:
        return original(adder, one, two)
    finally:
        raise ZeroDivisionError


@pytest.fixture
def reported(monkeypatch):
    monkeypatch.setattr(Adder, "calls", 0)
    told = []
    with failures.reported_to(lambda observer, error: told.append((observer, type(error)))):
        yield told


@pytest.mark.parametrize("around", [before, after, finally_])
def test_the_original_runs_once_with_its_own_arguments(around, reported):
    with replaced(Adder, "add", around):
        assert Adder().add(1, two=2) == 3
        assert Adder.calls == 1
        assert reported == [(__name__, ZeroDivisionError)]
        # The observer is switched off, and reported only once.
        assert Adder().add(2, 2) == 4
    assert Adder.calls == 2
    assert len(reported) == 1


@pytest.mark.parametrize("around", [before, after, finally_])
def test_the_trainer_gets_the_originals_error(around, reported):
    with replaced(Adder, "add", around), pytest.raises(KeyError, match="two"):
        Adder().add(1, None)
    assert Adder.calls == 1


def test_the_originals_error_is_no_failure_of_the_recorder(reported):
    with replaced(Adder, "add", lambda original, *args: original(*args)), pytest.raises(KeyError):
        Adder().add(1, None)
    assert reported == []


def test_an_interrupt_is_nobodys_failure(reported):
    def interrupted(original, *args):
        raise KeyboardInterrupt

    with replaced(Adder, "add", interrupted), pytest.raises(KeyboardInterrupt):
        Adder().add(1, 2)
    assert reported == []


def test_a_hook_that_fails_returns_nothing(reported):
    assert harmless(lambda: 1 / 0)() is None
    assert reported == [(__name__, ZeroDivisionError)]


def fails(*args, **kwargs):
    raise ZeroDivisionError("on purpose")


def test_a_training_step_continues_without_a_failed_observer(record, monkeypatch):
    """Everything that looks at gradients fails, and training continues as without a recorder."""
    recording = record()
    recording.may_fail = True
    model = recording.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    monkeypatch.setattr(recording.recorder, "look", fails)
    for batch in recording.task.dataloader():
        recording.task.loss(model(batch.inputs), batch).backward()
        torch.nn.utils.clip_grad_norm_((parameter for parameter in model.parameters()), 0.125)
        assert torch.stack([p.grad.norm() for p in model.parameters()]).norm() <= 0.126
        optimizer.step()
        optimizer.zero_grad()
        assert model.weight.grad is None
    recording.recorder.finished()
    [failed] = [event for event in recording.of_kind("observer_failed") if event["observer"] == "autograd"]
    assert failed["error"] == "ZeroDivisionError: on purpose"
    assert "in look" in failed["traceback"] or "fails" in failed["traceback"]
    assert recording.kinds("finished") == ["finished"]


def test_nothing_is_read_while_a_cuda_graph_is_captured(monkeypatch):
    """On a GPU, a read would break the capture."""
    told = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    capturing = [True]
    read = []
    with failures.reported_to(lambda observer, error: told.append((observer, type(error).__name__))):
        assert harmless(lambda: read.append("a hook"), "hooks")() is None
        assert guarded(lambda original: read.append("a call") or original(), lambda: "its own")() == "its own"
        capturing.clear()
        harmless(lambda: read.append("afterwards"), "hooks")()
        assert harmless(lambda: "another", "others")() == "another"
    assert read == []
    assert told == [("hooks", "CudaGraph"), (__name__, "CudaGraph")]
