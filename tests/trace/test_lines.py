"""The lines that write gradients, weights and averages, divide the loss, and create optimizers and schedules."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import weakref
from contextlib import suppress
from inspect import unwrap
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from conformance.trace.observers.lines import _tracing


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
        import imported_meanwhile

        return imported_meanwhile

    model = training.task.model()
    monkeypatch.setattr(builtins, "of_test", model, raising=False)
    train(model, next(iter(training.task.dataloader())))
    assert lines(training, "gradient") == [first_line(train) + 1, first_line(train) + 2]


def test_a_variable_of_the_same_name_elsewhere_is_no_divisor(training):
    def log(count):
        return count + 1

    def train(model, batch):
        count = 4
        outputs = model(batch.inputs)
        log(17)
        loss = training.task.loss(outputs, batch) / count
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 1]


def test_a_divisor_that_is_an_argument_is_wrong_at_the_call(training):
    def loss_of(outputs, batch, count):
        loss = training.task.loss(outputs, batch)
        return loss / count

    def train(model, batch):
        loss = loss_of(model(batch.inputs), batch, 4)
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 1]


def test_a_divisor_that_is_not_a_number_is_wrong_where_it_became_that(training):
    def train(model, batch):
        count = float("nan")
        outputs = model(batch.inputs)
        loss = training.task.loss(outputs, batch) / count
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 1]


def test_another_division_in_the_line_of_the_loss(training):
    def train(model, batch):
        one = 1.0
        count = 4
        loss = training.task.loss(model(batch.inputs / one), batch) / count  # / one
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 2]


def test_a_product_in_the_forward_is_no_division_of_the_loss(training):
    def train(model, batch):
        outputs = model(batch.inputs) * 2.0
        loss = ((outputs - batch.targets) ** 2).mean()
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "loss") == []


class Lazy:
    """An object that computes its class only when it is asked for it, as those of Django do."""

    asked = 0

    @property
    def __class__(self):
        type(self).asked += 1
        return int


def test_objects_among_the_variables_are_left_alone(training):
    class Referred:
        pass

    def train(model, batch):
        lazy, dead = Lazy(), weakref.proxy(Referred())
        training.task.loss(model(batch.inputs), batch).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        return type(lazy), type(dead)

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "gradient") == [first_line(train) + 2, first_line(train) + 4]
    assert Lazy.asked == 0


def test_tensors_without_a_readable_value_are_left_alone(training):
    def train(model, batch):
        training.task.loss(model(batch.inputs), batch).backward()

        def square(one):
            two = one * one
            return two + 1

        torch.vmap(square)(torch.ones(3))
        base = torch.ones(2, requires_grad=True).clone()
        with torch.no_grad():
            view = base[:1]
        others = [view, torch.ones(1, dtype=torch.complex64), torch.ones(1, device="meta")]
        first, second, third, fourth = *others, torch.ones(1).to_sparse()
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        return first, second, third, fourth

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert first_line(train) + 14 in lines(training, "gradient")


def test_what_another_thread_writes_is_not_the_waiting_line(training):
    def change(model, is_changed, may_end):
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        is_changed.set()
        may_end.wait()

    def train(model, before):
        is_changed, may_end = threading.Event(), threading.Event()
        thread = threading.Thread(target=change, args=(model, is_changed, may_end))
        thread.start()
        is_changed.wait()
        before.append(1)
        may_end.set()
        thread.join()
        thread = threading.Thread(target=change, args=(model, is_changed, may_end))
        thread.start()
        thread.join()
        for parameter in model.parameters():
            parameter.data.mul_(0.5)

    training.recorder.sites.trainer_file = __file__
    model = training.task.model()
    model(torch.ones(1, next(model.parameters()).shape[-1]))
    train(model, [])
    assert lines(training, "weights") == [first_line(train) + 12]


def test_what_happens_under_another_tracer_is_not_the_line_before(training):
    def other(frame, event, argument):
        return None

    def change(model):
        for parameter in model.parameters():
            parameter.data.mul_(0.5)

    def train(model):
        ours = sys.gettrace()
        sys.settrace(other)
        change(model)
        sys.settrace(ours)
        print()

    model = training.task.model()
    model(torch.ones(1, next(model.parameters()).shape[-1]))
    train(model)
    assert lines(training, "weights") == []


def test_the_trainers_own_tracer_stays_at_the_end():
    def other(frame, event, argument):
        return None

    try:
        with _tracing(SimpleNamespace(lines=None)):
            sys.settrace(other)
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)


def test_a_deleted_optimizer_is_not_kept_alive(training):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        deleted = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        return deleted() is None

    assert train(training.task.model())


def test_a_divisor_that_is_itself_a_quotient(training):
    def train(model, batch):
        count = 4
        loss = training.task.loss(model(batch.inputs), batch) / (count / len(batch.inputs))
        loss.backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 1]


def test_a_divisor_is_followed_through_returns_arguments_and_with(training):
    def count_of(batch):
        count = 1
        count += len(batch.inputs)
        return count

    def loss_of(outputs, batch, samples):
        with torch.enable_grad():
            loss = training.task.loss(outputs, batch)
            return loss / samples

    def train(model, batch):
        count = count_of(batch)
        loss_of(model(batch.inputs), batch, count).backward()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "loss") == [first_line(loss_of) + 3]
    assert lines(training, "divisor") == [first_line(count_of) + 2]


def test_a_number_that_a_function_computes_in_its_return_is_assigned_by_the_caller(training):
    def train(model, batch):
        count = size(batch)
        loss = training.task.loss(model(batch.inputs), batch) / count
        loss.backward()

    def size(batch):
        return len(batch.inputs) + 1

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert lines(training, "divisor") == [first_line(train) + 1]


def test_parameters_that_a_function_gives_twice_or_in_part(training):
    def halves(parameters):
        size = len(parameters) // 2
        return [parameters[:size], parameters[2 * size :]]

    def yields(parameters):
        yield from parameters
        yield parameters[0]

    def doubles(parameters):
        return [parameters, parameters]

    def once(parameters):
        yield from parameters
        return [parameters[:1], parameters[1:]]

    def train(model):
        parameters = list(model.parameters())
        halves(parameters), doubles(parameters)
        for _ in range(2):
            list(once(parameters))
        list(yields(parameters))

    train(training.task.model())
    assert lines(training, "part") == [first_line(halves) + 2]
    assert sorted(lines(training, "twice")) == sorted([first_line(doubles) + 1, first_line(yields) + 2])


def test_weights_and_gradients_that_are_kept_without_a_copy(training):
    def keep(optimizer, parameters):
        own = [parameter.detach().clone() for parameter in parameters]
        kept = {number: parameter.data for number, parameter in enumerate(parameters)}
        for parameter in parameters:
            optimizer.state[parameter]["copy"] = parameter.grad.clone()
            optimizer.state[parameter]["velocity"] = parameter.grad
        return own, kept

    def train(model, batch):
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=1.0)
        views = [parameter.data for parameter in parameters]
        training.task.loss(model(batch.inputs), batch).backward()
        keep(optimizer, parameters)
        return views

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert set(lines(training, "alias")) == {first_line(keep) + 5}
    assert first_line(keep) + 2 in lines(training, "kept") and first_line(keep) + 1 not in lines(training, "kept")


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_of_an_optimizer_that_never_steps(training):
    def train(model, batch):
        other = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        wrong = StepLR(other, 1)
        right = StepLR(optimizer, 1)
        for _ in range(3):
            training.task.loss(model(batch.inputs), batch).backward()
            optimizer.step()
            wrong.step()
            right.step()

    train(training.task.model(), next(iter(training.task.dataloader())))
    assert set(lines(training, "unused")) == {first_line(train) + 3}


def test_the_start_of_an_epoch(training):
    def train(loader):
        for _ in range(2):
            for _batch in loader:
                pass

    train(training.task.dataloader())
    assert set(lines(training, "epoch")) == {first_line(train) + 2}


def test_what_scales_gradients_and_rounds_the_state_of_an_optimizer(training):
    def scale(flat):
        count = torch.tensor(3.0) * 2
        half = flat.half()
        torch._foreach_mul_([flat], 2.0)
        return flat / count, half

    def train(model, batch):
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.5)
        training.task.loss(model(batch.inputs), batch).backward()
        scale(torch.cat([one.grad.reshape(-1) for one in parameters]))
        optimizer.step()
        state = optimizer.state_dict()["state"]
        return [one["momentum_buffer"].to(torch.bfloat16) for one in state.values()]

    train(training.task.model(), next(iter(training.task.dataloader())))
    scalings = lines(training, "scaling")
    assert {first_line(scale) + 3, first_line(scale) + 4} <= {*scalings} and first_line(scale) + 1 not in scalings
    assert lines(training, "rounding") == [first_line(train) + 7]


def test_the_settings_of_wrappers(training):
    def train(wrapper):
        with suppress(AttributeError):
            DistributedDataParallel.register_comm_hook(wrapper, None, print)
        with suppress(AttributeError):
            FSDPModule.set_requires_gradient_sync(wrapper, False)

    train(object())
    assert lines(training, "hook") == [first_line(train) + 2]
    assert lines(training, "sync") == [first_line(train) + 4]
