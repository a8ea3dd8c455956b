"""The lines that write gradients, weights and averages, divide the loss, and create optimizers and schedules."""

from __future__ import annotations

import builtins
import sys
from inspect import unwrap

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel


@pytest.fixture
def training(record):
    if sys.gettrace() is not None:
        pytest.fail("a tracer is running, such as that of coverage: the lines cannot be followed")
    return record(by_line=True)


def lines(training, kind):
    return [event["where"][1] for event in training.events if event["event"] == "line" and event["writes"] == kind]


def first_line(function):
    return function.__code__.co_firstlineno


def test_a_change_of_gradients_by_hand(training):
    def halve(model):
        for parameter in model.parameters():
            parameter.grad.data.mul_(0.5)

    def train(model, batch):
        training.task.loss(model(batch.inputs), batch).backward()
        halve(model)
        torch.optim.SGD(model.parameters(), lr=1.0).step()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "gradient") == [first_line(train) + 1, first_line(halve) + 2]


def test_an_optimizer_by_hand_writes_weights(training):
    def step(parameters):
        with torch.no_grad():
            for parameter in parameters:
                update = 0.5 * parameter.grad
                parameter -= update

    def train(model, batch):
        training.task.loss(model(batch.inputs), batch).backward()
        step(model.parameters())

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "weights") == [first_line(step) + 4]


def test_the_division_of_the_loss_and_where_its_divisor_comes_from(training):
    def loss_of(model, batch):
        count = 4
        loss = training.task.loss(model(batch.inputs), batch)
        return loss / count

    def train(model, batch):
        loss = loss_of(model, batch)
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "loss") == [first_line(loss_of) + 3]
    assert lines(training, "divisor") == [first_line(loss_of) + 1]


def test_a_scale_is_no_division(training):
    def train(model, batch, scaler):
        loss = training.task.loss(model(batch.inputs), batch)
        scaled = scaler.scale(loss)
        scaled.backward()

    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    train(training.task.model(), next(iter(training.task.dataloader())), scaler)
    assert lines(training, "loss") == []


def test_settings_rates_and_creations(training):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.param_groups[0]["momentum"] = 0.5
        schedule = StepLR(optimizer, 1, gamma=0.5)
        AveragedModel(model)
        torch.utils.data.DataLoader([1.0])
        optimizer.step()
        schedule.step()

    train(training.task.model())
    start = first_line(train)
    assert lines(training, "optimizer") == [start + 1, start + 2]
    assert lines(training, "scheduler") == [start + 3]
    assert lines(training, "averaging") == [start + 4]
    assert lines(training, "loader") == [start + 5]
    assert lines(training, "rate")[-1] == start + 7


def test_a_reported_average_is_followed(training):
    def update(average, model):
        for name, weights in model.named_parameters():
            average[name].lerp_(weights.detach(), 0.5)

    def train(model):
        average = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
        training.task.report_average(0, average)
        update(average, model)
        training.task.report_average(1, average)

    train(training.task.model())
    assert lines(training, "average") == [first_line(update) + 2]


def test_nothing_is_followed_in_a_first_run(record):
    recording = record()

    def train(model, batch):
        recording.task.loss(model(batch.inputs), batch).backward()

    train(recording.task.model(), next(iter(recording.task.dataloader())))
    assert sys.gettrace() is None
    assert [event for event in recording.events if event["event"] == "line"] == []


def test_another_tracer_stays(record):
    def other(frame, event, argument):
        return None

    sys.settrace(other)
    try:
        record(by_line=True)
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)


def test_a_divisor_that_is_a_sum_is_wrong_where_it_is_added_up(training):
    def train(model, batch):
        count = 4
        loss = training.task.loss(model(batch.inputs), batch) / (count + 1)
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "loss") == [first_line(train) + 2]
    assert lines(training, "divisor") == []


def test_the_lines_that_restore_an_optimizer_a_schedule_and_a_scaler(training):
    def restore(optimizer, scheduler, scaler, saved):
        optimizer.load_state_dict(saved)
        scheduler.load_state_dict({"last_epoch": 3})
        scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0})
        torch.set_rng_state(torch.get_rng_state())

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        scheduler = StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        of = {0: {"momentum_buffer": torch.ones(1, 3)}}
        restore(optimizer, scheduler, scaler, {**optimizer.state_dict(), "state": of})

    train(training.task.model())
    first = first_line(restore)
    assert lines(training, "restored_optimizer") == [first + 1]
    assert lines(training, "restored_scheduler") == [first + 2]
    assert lines(training, "restored_scaler") == [first + 3]
    assert lines(training, "restored_random") == [first + 4]


def test_a_new_optimizer_loses_what_the_earlier_one_has_loaded(training):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        of = {0: {"momentum_buffer": torch.ones(1, 3)}}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": of})
        return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)

    train(training.task.model())
    first = first_line(train)
    assert lines(training, "restored_optimizer") == [first + 3, first + 4]


def test_the_cast_of_the_loss(training):
    def train(model, batch):
        outputs = model(batch.inputs)
        outputs = outputs.bfloat16()
        outputs = outputs.float()
        training.task.loss(outputs, batch).backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "cast") == [first_line(train) + 3]


def test_the_state_of_an_optimizer_by_hand(training):
    class Halving(torch.optim.Optimizer):
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["half"] = parameter.grad / 2
                parameter.data -= self.state[parameter]["half"]

    def train(model, batch):
        optimizer = Halving(model.parameters(), {})
        training.task.loss(model(batch.inputs), batch).backward()
        optimizer.step()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "state") == [first_line(unwrap(Halving.step)) + 2]


def test_the_lines_of_an_import_are_not_followed(training, tmp_path, monkeypatch):
    (tmp_path / "imported_meanwhile.py").write_text("import builtins\nbuiltins.of_test.weight.grad.data.mul_(0.5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(model, batch):
        training.task.loss(model(batch.inputs), batch).backward()
        import imported_meanwhile  # noqa: F401

    model = training.task.model()
    monkeypatch.setattr(builtins, "of_test", model, raising=False)
    train(model, next(iter(training.task.dataloader())))
    assert lines(training, "gradient") == [first_line(train) + 1, first_line(train) + 2]
