"""A watch changes neither the behavior of a script nor the warnings and errors that it gets."""

import io
import signal
import sys
import threading
import warnings
from itertools import count
from types import SimpleNamespace

import pytest
import torch

import conformance
from conformance.trace.seams.guarding import failures, harmless
from conformance.watch.recording.weights import have_weights_changed
from conformance.watch.watching import watch


def trained(parameter, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()


def test_warnings_name_the_lines_of_the_script():
    """Each line gets its warning, though all go through the same wrapper."""
    with warnings.catch_warnings(record=True) as caught, conformance.watching():
        warnings.simplefilter("default")
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        trained(parameter, optimizer)
        schedule.step(1)
        schedule.step(2)
    assert [one.filename for one in caught] == [__file__] * 2
    assert caught[0].lineno == caught[1].lineno - 1


def test_a_tensor_with_a_hook_is_saved_without_a_warning():
    with warnings.catch_warnings(), conformance.watching():
        warnings.simplefilter("error")
        leaf = torch.ones(3, requires_grad=True)
        trained(leaf, torch.optim.SGD([leaf], lr=0.1))
        assert leaf._backward_hooks
        torch.save(leaf, io.BytesIO())


def test_a_script_ends_normally_if_the_judge_fails(monkeypatch, tmp_path):
    def fails(reader):
        raise ValueError("it does not know this")

    monkeypatch.setattr("conformance.watch.watching.Reader.read", fails)
    with pytest.raises(ValueError, match="does not know"):
        watch([sys.executable, "-Sc", f"import time; time.sleep(1); open({str(tmp_path / 'end')!r}, 'w')"])
    assert (tmp_path / "end").exists()


class TooLate(Exception):
    pass


def test_a_signal_handler_of_the_script_may_raise_within_the_recorder():
    def late(number, frame):
        raise TooLate

    def noting():
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TooLate):
            harmless(noting)()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_that_train_at_the_same_time_are_undecided():
    """Calls during another thread's backward pass cannot be assigned."""
    inside, done = threading.Event(), threading.Event()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            inside.set()
            done.wait(10)
            return gradient

    def second():
        inside.wait(10)
        parameter = torch.nn.Parameter(torch.ones(3))
        trained(parameter, torch.optim.SGD([parameter], lr=0.1))
        done.set()

    def both():
        with conformance.watching():
            parameter = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            other = threading.Thread(target=second)
            other.start()
            Slow.apply(parameter).square().sum().backward()
            optimizer.step()
            other.join()

    with pytest.raises(AssertionError, match="several threads train at the same time"):
        both()


OBSERVERS = ("leaves", "inputs", "backward", "steps", "adjusting", "weights")


def train_with(fails, moment):
    """Windows of two backward passes, with a scaler, clipping and a schedule. moment: the place in the fourth where
    `fails` is called, 0 to 4."""
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(8):
        now = moment if step == 3 else None
        for half in range(2):
            if now == half:
                fails()
            scaler.scale(model(torch.randn(4, 40)).square().mean() / 2).backward()
        if now == 2:
            fails()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if now == 3:
            fails()
        scaler.step(optimizer)
        scaler.update()
        if now == 4:
            fails()
        schedule.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_incomplete_recorder_causes_no_false_positive(observer):
    """Without one of its parts, records would lack a backward pass, a step or a clearing."""
    for moment in range(5):

        def fails():
            failures.blames(f"conformance.watch.recording.{observer}", ValueError("it does not know this"))

        seen = 3 + (moment == 4)
        with pytest.raises(AssertionError), conformance.watching() as watch:
            train_with(fails, moment)
        assert (watch.verdict, watch.findings.conserved, watch.findings.steps) == ("UNDECIDED", seen, seen)
        [lack] = watch.findings.lacks
        assert (lack.code, lack.values["observer"]) == ("recorder-failed", observer)
        assert "it does not know this" in lack.values["error"]


def train_six(after_each=lambda: None, rate=0.1):
    model = torch.nn.Linear(40, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 40)).square().mean().backward()
        optimizer.step()
        schedule.step()
        after_each()


def test_a_learning_rate_may_be_a_tensor():
    with conformance.watching():
        train_six(rate=torch.tensor(0.1))


@pytest.mark.parametrize(("now", "has_changed"), [(torch.ones(3), False), (torch.zeros(3), True)])
def test_weights_may_be_moved_between_steps(now, has_changed):
    """Weights on another device or of another format are not compared."""
    left = SimpleNamespace(left=torch.ones(3), since=0)
    assert have_weights_changed([(left, now)]) == has_changed
    assert not have_weights_changed([(left, now.double())])
    assert not have_weights_changed([(left, now.to("meta"))])
    several = [(SimpleNamespace(left=torch.ones(2).double(), since=0), torch.ones(2).double()), (left, now)]
    assert have_weights_changed(several) == has_changed


def test_the_capture_of_a_cuda_graph_is_reported_once(monkeypatch):
    """Each part of the recorder stops."""
    steps = count()

    def captures():
        """Starts a capture after the fourth step."""
        is_now = next(steps) == 3
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_now)

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(AssertionError), conformance.watching() as watch:
        train_six(captures)
    assert [lack.code for lack in watch.findings.lacks] == ["recorder-ended"]
