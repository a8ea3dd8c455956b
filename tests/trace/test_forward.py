"""Training forwards of the task's model, the samples in them, and how many threads compute at once."""

from __future__ import annotations

import _thread
import copy
from threading import Event, Thread

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from conformance.trace.recorder import Recorder

from ..trainers.tasks import X
from .places import here


def rows(recording):
    return [event["rows"] for event in recording.of_kind("forward")]


def test_rows_are_indices_of_samples(begun):
    recording, model = begun(size=3, steps=1)
    for batch in recording.task.dataloader():
        model(batch.inputs)
    assert rows(recording) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [event["forward"] for event in recording.of_kind("forward")] == [0, 1, 2]


def test_a_window_begins_with_its_weights(begun):
    """Between two windows they may only change by a step; within one they are not listed again."""
    recording, model = begun(size=2, steps=2, accumulation=2)
    for window in recording.task.windows():
        for batch in window:
            model(batch.inputs)
        with torch.no_grad():
            model.weight.add_(1.0)
    weights = [event["weights"] for event in recording.of_kind("forward")]
    [start] = recording.of_kind("start")
    first = start["weights"]
    raised = [value + 1.0 for value in first[: model.weight.numel()]] + first[model.weight.numel() :]
    assert weights[:4] == [first, None, raised, None]


TENTHS = [[0.1, 0.2], [0.3, 0.7]]


@pytest.mark.parametrize(
    ("x", "inputs", "dtype", "expected"),
    [
        # Indices are those of the distinct rows, in order of first appearance.
        ([[1, 0], [2, 0], [1, 0], [3, 0]], [[1, 0], [2, 0], [1, 0], [3, 0]], torch.float32, [0, 1, 0, 2]),
        # A row of padding, say.
        (X, [X[1], [0, 0]], torch.float32, [1, None]),
        # A trainer in true half precision casts its batches, which may change their values.
        *((TENTHS, TENTHS[::-1], dtype, [1, 0]) for dtype in (torch.float64, torch.bfloat16, torch.float16)),
    ],
)
def test_rows_are_found_among_the_samples(record, x, inputs, dtype, expected):
    samples = {"x": x, "y": [0.0] * len(x), "weight": [1.0] * len(x)}
    recording = record(samples=samples, orders=[[[[*range(len(x))]]]])
    loaded = torch.tensor(inputs, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    recording.task.model().to(dtype)(loaded.to(dtype))
    assert rows(recording) == [expected]


def test_forwards_that_no_gradient_can_reach_are_not_noted(begun):
    recording, model = begun()
    batch = next(iter(recording.task.dataloader()))
    with torch.no_grad():
        model(batch.inputs)
    torch.nn.Linear(2, 7)(batch.inputs)
    assert rows(recording) == []


def test_a_model_in_eval_mode_trains_too(record):
    """As in fine-tuning, where dropout stays off. An evaluation is told by its gradients."""
    recording = record(size=4, steps=1)
    model = recording.task.model().eval()
    for batch in recording.task.dataloader():
        model(batch.inputs)
        model(batch.inputs).sum().backward()
    forwards = recording.of_kind("forward")
    assert [(event["training"], event["extra"]) for event in forwards] == [(False, True), (False, False)] * 2
    assert [event["micro_batch"] for event in forwards if not event["extra"]] == [0, 0]
    assert [event["window"] for event in forwards if not event["extra"]] == [0, 1]


def test_a_wrapped_model_is_noted_once(begun):
    recording, model = begun(size=2, steps=1)
    batch = next(iter(recording.task.dataloader()))
    torch.nn.Sequential(model)(batch.inputs)
    assert rows(recording) == [[0, 1]]


@pytest.mark.parametrize("beside", [False, True])
def test_a_copy_that_trains_is_the_model_unless_the_model_itself_does(begun, beside):
    recording, model = begun(size=2, steps=1)
    batch = next(iter(recording.task.dataloader()))
    copy.deepcopy(model)(batch.inputs).sum().backward()
    if beside:
        model(batch.inputs[:1]).sum().backward()
    assert rows(recording) == [[0]] if beside else [[0, 1]]
    assert [event["forwards"] for event in recording.of_kind("backward_end")] == ([[], [1]] if beside else [[0]])


def test_a_model_of_the_same_shapes_and_other_values_is_no_copy(record):
    recording = record()
    recording.task.model()
    torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    assert rows(recording) == []


def test_the_model_carries_nothing_of_the_recorders(record):
    """So that it can be copied, pickled and compiled like any other."""
    model = record().task.model()
    plain = torch.nn.Linear(2, 1)
    assert {key: value for key, value in vars(model).items() if "hook" in key} == {
        key: value for key, value in vars(plain).items() if "hook" in key
    }


def test_a_class_and_its_base_are_one_forward():
    """Both are observed when models of both are watched."""

    class Base(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    class Derived(Base):
        def forward(self, x):
            return super().forward(x)

    events = []
    models = Base(2, 1), Derived(2, 1)
    with Recorder(events.append) as recorder:
        for model in models:
            recorder.watch(model)
            model(torch.ones(1, 2))
    assert [event["event"] for event in events].count("forward") == 2


class Counted(torch.nn.Module):
    """A parametrization that computes something else each time."""

    calls = 0

    def forward(self, original: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return original + self.calls


def test_a_parametrization_computes_as_often_as_without_us(begun):
    """It may draw random numbers, or go a step towards a norm. Both forwards use what it has computed for them."""
    recording, model = begun()
    weight = model.weight.flatten().tolist()
    torch.nn.utils.parametrize.register_parametrization(model, "weight", Counted(), unsafe=True)
    counted = model.parametrizations.weight[0]
    before = counted.calls
    for batch in list(recording.task.dataloader())[:2]:
        model(batch.inputs)
    assert counted.calls == before + 2
    shown = [event["weights"][: len(weight)] for event in recording.of_kind("forward")]
    assert shown == [[one + counted.calls - 1 for one in weight], [one + counted.calls for one in weight]]


def test_so_does_one_inside():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Counted(), unsafe=True)
    counted = model[0].parametrizations.weight[0]
    before = counted.calls
    with Recorder([].append) as recorder:
        recorder.watch(model)
        model(torch.ones(1, 2))
    assert counted.calls == before + 1


@pytest.mark.parametrize("shape", [(4, 3), ()])
def test_an_error_in_a_forward(begun, shape):
    """Inputs of a wrong shape are the model's to refuse. The next one is noted all the same."""
    recording, model = begun()
    with pytest.raises(RuntimeError):
        model(torch.ones(shape))
    model(torch.ones(1, 2)).sum().backward()
    assert rows(recording) == [[], [X.index([1.0, 1.0])]]
    assert recording.of_kind("backward_end")[0]["forwards"] == [1]


def test_the_start(begun):
    """The weights right before the first training forward, once."""
    recording, model = begun()
    with torch.no_grad():
        model.bias.fill_(2.0)
        model(torch.ones(1, 2))
    for _ in range(2):
        model(torch.ones(1, 2))
    place = here(-1)
    [start] = recording.of_kind("start")
    assert start["weights"] == [0.5, -0.5, 2.0]
    assert start["where"] == place
    assert recording.kinds("start", "forward") == ["start", "forward", "forward"]
    assert [event["where"] for event in recording.of_kind("forward")] == [place, place]


@pytest.mark.usefixtures("group")
def test_the_wrapper_and_its_flag(record):
    """The flag in the forward, and again in the backward, where it may be another."""
    recording = record()
    inner = recording.task.model()
    model = DistributedDataParallel(inner)
    with model.no_sync():
        loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    model(torch.ones(1, 2)).sum().backward()
    inner(torch.ones(1, 2)).sum().backward()
    wrapped = [(event["wrapper"], event["syncs"]) for event in recording.of_kind("forward")]
    assert wrapped == [("DistributedDataParallel", False), ("DistributedDataParallel", True), (None, None)]
    assert [event["syncs"] for event in recording.of_kind("backward_begin")] == [True, True, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_it_computes_in(record, dtype):
    class Casting(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.to(self.weight.dtype))

    recording = record()
    model, x = recording.task.model(), torch.ones(1, 2)
    model(x)
    with torch.autocast("cpu", dtype=dtype):
        model(x)
    copy.deepcopy(model).to(dtype)(x.to(dtype))
    casting = Casting(2, 1)
    casting.load_state_dict(model.state_dict())
    casting(x)
    name = str(dtype).removeprefix("torch.")
    forwards = [event for event in recording.events if event["event"] == "forward"]
    assert [event["computes"] for event in forwards] == ["float32", name, name, None]


@pytest.mark.parametrize("both", [False, True])
def test_of_several_models_of_the_tasks_those_that_are_stepped_train(record, both):
    """Such as a student beside its teacher, or an actor beside its critic."""
    recording = record()
    models = [recording.task.model(), recording.task.model()]
    held = [parameter for model in models[: 2 if both else 1] for parameter in model.parameters()]
    optimizer = recording.task.optimizer(held)
    batch = next(iter(recording.task.dataloader()))
    for model in models:
        model(batch.inputs).sum().backward()
    optimizer.step()
    assert len(recording.of_kind("forward")) == (2 if both else 1)


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
    assert within(recorder.payloads, "originals", lambda: recorder.payloads.copied_in(payload, is_filled=True)) == {
        True
    }
