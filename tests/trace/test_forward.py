"""Training forwards of the task's model, their samples, and several threads."""

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


def test_rows_are_indices_of_samples(with_model):
    recording, model = with_model(size=3, steps=1)
    for batch in recording.task.dataloader():
        model(batch.inputs)
    assert rows(recording) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [event["forward"] for event in recording.of_kind("forward")] == [0, 1, 2]


def test_a_window_begins_with_its_weights(with_model):
    """Within a window, unchanged weights are not listed again."""
    recording, model = with_model(size=2, steps=2, accumulation=2)
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
        # Rows are numbered as distinct rows, in order of first appearance.
        ([[1, 0], [2, 0], [1, 0], [3, 0]], [[1, 0], [2, 0], [1, 0], [3, 0]], torch.float32, [0, 1, 0, 2]),
        # An unknown row, such as padding.
        (X, [X[1], [0, 0]], torch.float32, [1, None]),
        # A trainer in pure half precision casts its batches, which may change their values.
        *((TENTHS, TENTHS[::-1], dtype, [1, 0]) for dtype in (torch.float64, torch.bfloat16, torch.float16)),
    ],
)
def test_rows_are_found_among_the_samples(record, x, inputs, dtype, expected):
    samples = {"x": x, "y": [0.0] * len(x), "weight": [1.0] * len(x)}
    recording = record(samples=samples, orders=[[[[*range(len(x))]]]])
    loaded = torch.tensor(inputs, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    recording.task.model().to(dtype)(loaded.to(dtype))
    assert rows(recording) == [expected]


def test_forwards_without_gradients_are_not_noted(with_model):
    recording, model = with_model()
    batch = next(iter(recording.task.dataloader()))
    with torch.no_grad():
        model(batch.inputs)
    torch.nn.Linear(2, 7)(batch.inputs)
    assert rows(recording) == []


def test_a_model_in_eval_mode_trains_too(record):
    """As in fine-tuning without dropout. Missing gradients mark an evaluation."""
    recording = record(size=4, steps=1)
    model = recording.task.model().eval()
    for batch in recording.task.dataloader():
        model(batch.inputs)
        model(batch.inputs).sum().backward()
    forwards = recording.of_kind("forward")
    assert [(event["training"], event["extra"]) for event in forwards] == [(False, True), (False, False)] * 2
    assert [event["micro_batch"] for event in forwards if not event["extra"]] == [0, 0]
    assert [event["window"] for event in forwards if not event["extra"]] == [0, 1]


def test_a_wrapped_model_is_noted_once(with_model):
    recording, model = with_model(size=2, steps=1)
    batch = next(iter(recording.task.dataloader()))
    torch.nn.Sequential(model)(batch.inputs)
    assert rows(recording) == [[0, 1]]


@pytest.mark.parametrize("both", [False, True])
def test_a_copy_that_trains_is_the_model_unless_the_model_itself_does(with_model, both):
    recording, model = with_model(size=2, steps=1)
    batch = next(iter(recording.task.dataloader()))
    copy.deepcopy(model)(batch.inputs).sum().backward()
    if both:
        model(batch.inputs[:1]).sum().backward()
    assert rows(recording) == [[0]] if both else [[0, 1]]
    assert [event["forwards"] for event in recording.of_kind("backward_end")] == ([[], [1]] if both else [[0]])


def test_a_model_of_the_same_shapes_and_other_values_is_no_copy(record):
    recording = record()
    recording.task.model()
    torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    assert rows(recording) == []


def test_the_model_has_no_hooks_of_the_recorder(record):
    """So it can be copied, pickled and compiled as without a recorder."""
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
    """A parametrization with a different result on each call."""

    calls = 0

    def forward(self, original: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return original + self.calls


def test_the_recorder_causes_no_extra_call_of_a_parametrization(with_model):
    """It may draw random numbers, or iterate towards a norm. Recorder and forward share one result."""
    recording, model = with_model()
    weight = model.weight.flatten().tolist()
    torch.nn.utils.parametrize.register_parametrization(model, "weight", Counted(), unsafe=True)
    counted = model.parametrizations.weight[0]
    before = counted.calls
    for batch in list(recording.task.dataloader())[:2]:
        model(batch.inputs)
    assert counted.calls == before + 2
    shown = [event["weights"][: len(weight)] for event in recording.of_kind("forward")]
    assert shown == [[one + counted.calls - 1 for one in weight], [one + counted.calls for one in weight]]


def test_nor_of_one_in_a_submodule():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Counted(), unsafe=True)
    counted = model[0].parametrizations.weight[0]
    before = counted.calls
    with Recorder([].append) as recorder:
        recorder.watch(model)
        model(torch.ones(1, 2))
    assert counted.calls == before + 1


@pytest.mark.parametrize("shape", [(4, 3), ()])
def test_an_error_in_a_forward(with_model, shape):
    """The model refuses inputs of a wrong shape. The next forward is noted as usual."""
    recording, model = with_model()
    with pytest.raises(RuntimeError):
        model(torch.ones(shape))
    model(torch.ones(1, 2)).sum().backward()
    assert rows(recording) == [[], [X.index([1.0, 1.0])]]
    assert recording.of_kind("backward_end")[0]["forwards"] == [1]


def test_the_start(with_model):
    """The weights right before the first training forward, once."""
    recording, model = with_model()
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
    """The flag is noted in the forward and in the backward, because it may change in between."""
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
def test_the_dtype_in_which_it_computes(record, dtype):
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
    """Such as a student and its teacher, or an actor and its critic."""
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
    """Like the threads of autograd's engine on a GPU."""
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
