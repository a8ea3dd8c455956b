"""What an enabled GradScaler does beside stepping, and learning rates."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from .places import here


class Calling(torch.amp.GradScaler):
    """A subclass whose methods call those of its base."""

    def step(self, optimizer, *args, **kwargs):
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        super().update(new_scale)


class Own(torch.amp.GradScaler):
    """A subclass that does without its base."""

    def update(self, new_scale=None):
        self._scale.mul_(0.25)
        self._per_optimizer_states.clear()


def step(recording, scaler, model, optimizer, target=0.0):
    batch = next(iter(recording.task.dataloader()))
    scaler.scale(((model(batch.inputs) - target) ** 2).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def prepared(recording, fused=False):
    model = recording.task.model()
    return model, torch.optim.SGD(model.parameters(), lr=0.0625, fused=fused)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Calling])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_skips_and_updates(record, kind, fused):
    """A fused optimizer's step is called even after an overflow, and does nothing."""
    recording = record()
    model, optimizer = prepared(recording, fused)
    scaler = kind("cpu", init_scale=1024.0, growth_interval=1)
    step(recording, scaler, model, optimizer)
    weights = [*model.weight.flatten().tolist(), *model.bias.tolist()]
    step(recording, scaler, model, optimizer, target=float("inf"))
    step(recording, scaler, model, optimizer)
    assert recording.kinds("forward", "topology", "step", "skip", "update") == [
        *("forward", "topology", "step", "update"),
        *("forward", "skip", "update"),
        *("forward", "step", "update"),
    ]
    [skip] = recording.of_kind("skip")
    assert (skip["scale"], skip["gradients_finite"], skip["weights"]) == (2048.0, False, weights)
    assert skip["forwards"] == 2
    assert not any(isinstance(value, float) for value in skip["gradients"])
    updates = [(event["scale_before"], event["scale_after"]) for event in recording.of_kind("update")]
    assert updates == [(1024.0, 2048.0), (2048.0, 1024.0), (1024.0, 2048.0)]
    assert [event["scale"] for event in recording.of_kind("step")] == [1024.0, 1024.0]


def test_a_skip_without_an_overflow_is_seen_as_one(record):
    """A scaler of one's own may skip what it likes; the event shows that the gradients were finite."""

    class Idle(torch.amp.GradScaler):
        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            return None

    recording = record()
    model, optimizer = prepared(recording)
    step(recording, Idle("cpu", init_scale=8.0), model, optimizer)
    [skip] = recording.of_kind("skip")
    assert skip["gradients_finite"]
    assert not recording.of_kind("step")


def test_a_subclass_that_does_without_its_base_is_seen(record):
    recording = record()
    model, optimizer = prepared(recording)
    step(recording, Own("cpu", init_scale=8.0), model, optimizer)
    [update] = recording.of_kind("update")
    assert (update["scale_before"], update["scale_after"]) == (8.0, 2.0)


def test_a_disabled_scaler_is_no_event(record):
    recording = record()
    model, optimizer = prepared(recording)
    step(recording, torch.amp.GradScaler("cpu", enabled=False), model, optimizer)
    assert recording.kinds("forward", "topology", "step", "loss_scaled", "unscale", "scaler_step", "update") == [
        *("forward", "topology", "step")
    ]
    assert recording.of_kind("step")[0]["scale"] is None


def test_a_bare_step_beside_a_scaler_has_no_scale(record):
    """`optimizer.step()` instead of `scaler.step(optimizer)`."""
    recording = record()
    model, optimizer = prepared(recording)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    batch = next(iter(recording.task.dataloader()))
    scaler.scale(model(batch.inputs).mean()).backward()
    optimizer.step()
    assert recording.of_kind("step")[0]["scale"] is None


def test_another_models_skip_is_ignored(record):
    recording = record()
    prepared(recording)
    other = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(other(torch.full((1, 5), float("inf"))).sum()).backward()
    scaler.step(optimizer)
    assert recording.kinds("skip", "unscale", "scaler_step", "optimizer") == []


def test_an_error_in_a_scalers_step_leaves_it_usable(record):
    recording = record()
    model, optimizer = prepared(recording)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.step(optimizer)
    step(recording, scaler, model, optimizer)
    assert len(recording.of_kind("step")) == 1


class OwnUnscaling(torch.amp.GradScaler):
    """A subclass that unscales without its base, as FSDP's does."""

    def scale(self, outputs):
        return super().scale(outputs)

    def unscale_(self, optimizer):
        found = torch.zeros(())
        state = self._per_optimizer_states[id(optimizer)]
        inverse = self._scale.double().reciprocal().float()
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found, True)
        state["stage"] = torch.amp.grad_scaler.OptState.UNSCALED


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Calling, OwnUnscaling])
@pytest.mark.parametrize("explicit", [True, False])
def test_scaling_and_unscaling(record, kind, explicit):
    recording = record()
    model, optimizer = prepared(recording)
    scaler = kind("cpu", init_scale=1024.0)
    for target in (0.0, float("inf")):
        loss = ((model(torch.ones(1, 2)) - target) ** 2).mean()
        scaler.scale(loss).backward()
        scaled = here(-1)
        if explicit:
            scaler.unscale_(optimizer)
            unscaled = here(-1)
        scaler.step(optimizer)
        stepped = here(-1)
        scaler.update()
        optimizer.zero_grad()
    kinds = recording.kinds("loss_scaled", "unscale", "scaler_step", "step", "skip", "update")
    order = ["unscale", "scaler_step"] if explicit else ["scaler_step", "unscale"]
    assert kinds == ["loss_scaled", *order, "step", "update", "loss_scaled", *order, "skip", "update"]
    assert [event["where"] for event in recording.of_kind("loss_scaled")] == [scaled] * 2
    if explicit:
        assert [event["where"] for event in recording.of_kind("unscale")] == [unscaled] * 2
    assert [event["where"] for event in recording.of_kind("scaler_step")] == [stepped] * 2
    for event in recording.of_kind("unscale"):
        assert (event["scaler"], event["optimizer"], event["scale"]) == (0, 0, 1024.0)
        assert event["implicit"] is not explicit
    assert [event["found_inf"] for event in recording.of_kind("unscale")] == [False, True]
    assert [event["scaler"] for event in recording.of_kind("update")] == [0, 0]


def test_unscaling_twice_is_the_trainers_error(record):
    recording = record()
    model, optimizer = prepared(recording)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(1, 2)).mean()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    assert len(recording.of_kind("unscale")) == 1
    assert recording.of_kind("gradient_change") == []


def test_a_skip_shows_the_optimizers_state_and_so_does_each_step(record):
    """A digest: the same while nothing has touched it, another one as soon as a momentum is another."""
    recording = record()
    model, _ = prepared(recording)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    step(recording, scaler, model, optimizer)
    step(recording, scaler, model, optimizer, target=float("inf"))
    for state in optimizer.state.values():
        state["momentum_buffer"] += 1
    step(recording, scaler, model, optimizer)
    first, skipping, last = [event["state"] for event in recording.of_kind("scaler_step")]
    [skip] = [event["state"] for event in recording.of_kind("skip")]
    assert skip == skipping
    assert len({first, skipping, last}) == 3


@pytest.fixture
def recording(record):
    return record()


@pytest.fixture
def optimizer(recording):
    return torch.optim.SGD(recording.task.model().parameters(), lr=1.0)


def steps(recording):
    fields = ("scheduler", "initial", "lr_before", "lr_after")
    return [tuple(event[field] for field in fields) for event in recording.of_kind("schedule")]


def test_a_scheduler(recording, optimizer):
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    made = here(-1)
    optimizer.step()
    scheduler.step()
    stepped = here(-1)
    assert steps(recording) == [(0, True, [1.0], [1.0]), (0, False, [1.0], [0.5])]
    assert [event["where"] for event in recording.of_kind("schedule")] == [made, stepped]
    assert [event["optimizer"] for event in recording.of_kind("schedule")] == [0, 0]


def test_one_that_has_its_own_step(recording, optimizer):
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    scheduler.step(1.0)
    scheduler.step(2.0)
    assert steps(recording) == [(0, False, [1.0], [1.0]), (0, False, [1.0], [0.5])]


def test_one_that_calls_the_step_of_its_base(recording, optimizer):
    class Calling(lr_scheduler.ExponentialLR):
        def step(self, epoch=None):
            super().step(epoch)

    scheduler = Calling(optimizer, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert steps(recording) == [(0, True, [1.0], [1.0]), (0, False, [1.0], [0.5])]


def test_one_of_others(recording, optimizer):
    """The outermost alone is noted."""
    first, second = (lr_scheduler.ExponentialLR(optimizer, gamma=gamma) for gamma in (0.5, 0.25))
    scheduler = lr_scheduler.ChainedScheduler([first, second])
    optimizer.step()
    recording.events.clear()
    scheduler.step()
    assert steps(recording) == [(2, False, [1.0], [0.125])]


def test_groups_and_rates_in_tensors(recording):
    model = recording.task.model()
    groups = [{"params": [model.weight], "lr": torch.tensor(1.0)}, {"params": [model.bias], "lr": 0.5}]
    lr_scheduler.LambdaLR(torch.optim.SGD(groups), lambda step: 0.5)
    assert steps(recording) == [(0, True, [1.0, 0.5], [0.5, 0.25])]


def test_another_models(recording):
    lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(3, 3).parameters()), step_size=1)
    assert steps(recording) == []
