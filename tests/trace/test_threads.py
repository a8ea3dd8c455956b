"""Several threads compute at once, each with activities of its own."""

from __future__ import annotations

import _thread
from threading import Event, Thread

import torch


def test_a_model_trains_while_another_thread_is_in_a_long_backward(record):
    recording = record()
    model, began, may_end = recording.task.model(), Event(), Event()

    def pause(gradient):
        began.set()
        may_end.wait()
        return gradient

    def learn():
        value = torch.nn.Linear(5, 1)(torch.ones(2, 5)).sum()
        value.register_hook(pause)
        value.backward()

    learner = Thread(target=learn)
    learner.start()
    began.wait()
    batch = next(iter(recording.task.dataloader()))
    model(batch.inputs).sum().backward()
    may_end.set()
    learner.join()
    assert recording.kinds("forward", "backward_begin", "backward_end") == [
        "backward_begin", "forward", "backward_begin", "backward_end", "backward_end"
    ]  # fmt: skip
    assert [event["forwards"] for event in recording.of_kind("backward_end")] == [[0], []]


def test_a_thread_that_python_did_not_start_works_for_all(record):
    """As the threads of autograd's engine do on a GPU."""
    recording, seen, ended = record().recorder, [], Event()

    def look():
        seen.append(recording.during)
        ended.set()

    with recording.inside("backward"):
        _thread.start_new_thread(look, ())
        ended.wait()
    assert seen == ["backward"]


def test_an_optimizer_steps_while_another_thread_is_in_a_step(record):
    recording = record()
    model, began, may_end = recording.task.model(), Event(), Event()
    other = torch.optim.SGD([torch.ones(1)], lr=0.5)

    def pause(*given):
        began.set()
        may_end.wait()

    other.register_step_pre_hook(pause)
    stepping = Thread(target=other.step)
    stepping.start()
    began.wait()
    batch = next(iter(recording.task.dataloader()))
    recording.task.loss(model(batch.inputs), batch).backward()
    optimizer = recording.task.optimizer(model.parameters())
    optimizer.step()
    may_end.set()
    stepping.join()
    optimizer.step()
    assert len(recording.of_kind("step")) == 2
    assert all(event["gradients"] for event in recording.of_kind("step"))


def test_no_thread_reads_gradients_while_another_clears_them(record, monkeypatch):
    """torch would end the process."""
    recording, held = record(), []
    recorder, model = recording.recorder, recording.task.model()
    optimizer, lock = torch.optim.SGD(model.parameters(), lr=0.5), recorder.watched.reading

    def ask_elsewhere():
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        held.append(not free)

    def asked_within(original):
        def within(*given, **named):
            asker = Thread(target=ask_elsewhere)
            asker.start()
            asker.join()
            return original(*given, **named)

        return within

    def within(owner, name, act):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, asked_within(getattr(owner, name)))
            held.clear()
            act()
        return set(held)

    ask_elsewhere()
    assert held == [False]
    assert within(torch.autograd.profiler, "record_function", optimizer.zero_grad) == {True}
    assert within(recorder.gradients, "look", recorder.look) == {True}
    assert within(recorder.gradients, "known", recorder.accounted) == {True}
    payload = [torch.ones(1)]
    assert within(recorder.payloads, "originals", lambda: recorder.payloads.seen_in(payload)) == {True}
    assert within(recorder.payloads, "originals", lambda: recorder.copies.seen_in(payload, is_filled=True)) == {True}
