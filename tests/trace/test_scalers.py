"""Enabled GradScalers, and learning rates."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from .places import here

Scaler = torch.amp.GradScaler


class Calling(Scaler):
    """A subclass whose methods call those of its base."""

    def step(self, optimizer, *args, **kwargs):
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        super().update(new_scale)


class Own(Scaler):
    """A subclass that does not call its base."""

    def update(self, new_scale=None):
        self._scale.mul_(0.25)
        self._per_optimizer_states.clear()


class OwnUnscaling(Scaler):
    """A subclass that unscales without its base, like FSDP's."""

    def scale(self, outputs):
        return super().scale(outputs)

    def unscale_(self, optimizer):
        found = torch.zeros(())
        state = self._per_optimizer_states[id(optimizer)]
        inverse = self._scale.double().reciprocal().float()
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found, True)
        state["stage"] = torch.amp.grad_scaler.OptState.UNSCALED


class Idle(Scaler):
    """A scaler that skips every step."""

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return None


class Scaled:
    """A recording with the task's model and an optimizer, stepped by a scaler."""

    def __init__(self, recording):
        self.recording, self.model = recording, recording.task.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0625)

    def backward(self, scaler, target=0.0):
        batch = next(iter(self.recording.task.dataloader()))
        scaler.scale(((self.model(batch.inputs) - target) ** 2).mean()).backward()

    def step(self, scaler, target=0.0):
        self.backward(scaler, target)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()

    def shown(self, kind, *fields):
        return [tuple(event[field] for field in fields) for event in self.recording.of_kind(kind)]


@pytest.fixture
def scaled(record):
    return Scaled(record())


@pytest.mark.parametrize("kind", [Scaler, Calling])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_skips_and_updates(scaled, kind, fused):
    """A fused optimizer's step is called even after an overflow, and does nothing."""
    scaled.optimizer = torch.optim.SGD(scaled.model.parameters(), lr=0.0625, fused=fused)
    scaler = kind("cpu", init_scale=1024.0, growth_interval=1)
    scaled.step(scaler)
    weights = [*scaled.model.weight.flatten().tolist(), *scaled.model.bias.tolist()]
    scaled.step(scaler, target=float("inf"))
    scaled.step(scaler)
    assert scaled.recording.kinds("forward", "topology", "step", "skip", "update") == [
        *("forward", "topology", "step", "update"),
        *("forward", "skip", "update"),
        *("forward", "step", "update"),
    ]
    assert scaled.shown("skip", "scale", "gradients_finite", "weights", "forwards") == [(2048.0, False, weights, 2)]
    assert not any(isinstance(value, float) for value in scaled.recording.of_kind("skip")[0]["gradients"])
    updates = [(1024.0, 2048.0), (2048.0, 1024.0), (1024.0, 2048.0)]
    assert scaled.shown("update", "scale_before", "scale_after") == updates
    assert scaled.shown("step", "scale") == [(1024.0,), (1024.0,)]


def test_a_skip_without_an_overflow(scaled):
    """The event shows that the gradients were finite."""
    scaled.step(Idle("cpu", init_scale=8.0))
    assert scaled.shown("skip", "gradients_finite") == [(True,)]
    assert scaled.shown("step") == []


def test_a_subclass_that_does_not_call_its_base(scaled):
    scaled.step(Own("cpu", init_scale=8.0))
    assert scaled.shown("update", "scale_before", "scale_after") == [(8.0, 2.0)]


def test_a_disabled_scaler_is_no_event(scaled):
    scaled.step(Scaler("cpu", enabled=False))
    kinds = scaled.recording.kinds("forward", "topology", "step", "loss_scaled", "unscale", "scaler_step", "update")
    assert kinds == ["forward", "topology", "step"]
    assert scaled.shown("step", "scale") == [(None,)]


def test_a_direct_step_has_no_scale(scaled):
    """`optimizer.step()` instead of `scaler.step(optimizer)`."""
    scaled.backward(Scaler("cpu", init_scale=8.0))
    scaled.optimizer.step()
    assert scaled.shown("step", "scale") == [(None,)]


def test_another_models_skip_is_ignored(scaled):
    other = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = Scaler("cpu", init_scale=8.0)
    scaler.scale(other(torch.full((1, 5), float("inf"))).sum()).backward()
    scaler.step(optimizer)
    assert scaled.recording.kinds("skip", "unscale", "scaler_step", "optimizer") == []


def test_an_error_in_a_scalers_step_leaves_it_usable(scaled):
    scaler = Scaler("cpu", init_scale=8.0)
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.step(scaled.optimizer)
    scaled.step(scaler)
    assert len(scaled.shown("step")) == 1


@pytest.mark.parametrize("kind", [Scaler, Calling, OwnUnscaling])
@pytest.mark.parametrize("explicit", [True, False])
def test_scaling_and_unscaling(scaled, kind, explicit):
    scaler = kind("cpu", init_scale=1024.0)
    for target in (0.0, float("inf")):
        loss = ((scaled.model(torch.ones(1, 2)) - target) ** 2).mean()
        scaler.scale(loss).backward()
        places = {"loss_scaled": here(-1)}
        if explicit:
            scaler.unscale_(scaled.optimizer)
            places["unscale"] = here(-1)
        scaler.step(scaled.optimizer)
        places["scaler_step"] = here(-1)
        scaler.update()
        scaled.optimizer.zero_grad()
    kinds = scaled.recording.kinds("loss_scaled", "unscale", "scaler_step", "step", "skip", "update")
    order = ["unscale", "scaler_step"] if explicit else ["scaler_step", "unscale"]
    assert kinds == ["loss_scaled", *order, "step", "update", "loss_scaled", *order, "skip", "update"]
    assert {name: scaled.shown(name, "where") for name in places} == {name: [(at,)] * 2 for name, at in places.items()}
    unscaled = [(0, 0, 1024.0, not explicit, found) for found in (False, True)]
    assert scaled.shown("unscale", "scaler", "optimizer", "scale", "implicit", "found_inf") == unscaled
    assert scaled.shown("update", "scaler") == [(0,), (0,)]


def test_unscaling_twice_is_the_trainers_error(scaled):
    scaler = Scaler("cpu", init_scale=8.0)
    scaled.backward(scaler)
    scaler.unscale_(scaled.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(scaled.optimizer)
    assert scaled.recording.kinds("unscale", "gradient_change") == ["unscale"]


def test_a_skip_shows_the_optimizers_state_and_so_does_each_step(scaled):
    """As a digest, which stays the same until a momentum changes."""
    scaled.optimizer = torch.optim.SGD(scaled.model.parameters(), lr=0.1, momentum=0.5)
    scaler = Scaler("cpu", init_scale=8.0)
    scaled.step(scaler)
    scaled.step(scaler, target=float("inf"))
    for state in scaled.optimizer.state.values():
        state["momentum_buffer"] += 1
    scaled.step(scaler)
    first, skipping, last = scaled.shown("scaler_step", "state")
    assert scaled.shown("skip", "state") == [skipping]
    assert len({first, skipping, last}) == 3


class Chained(lr_scheduler.ChainedScheduler):
    """A scheduler that steps others; only its own steps are noted."""

    def __init__(self, optimizer):
        super().__init__([lr_scheduler.ExponentialLR(optimizer, gamma=gamma) for gamma in (0.5, 0.25)])


class CallingBase(lr_scheduler.ExponentialLR):
    def step(self, epoch=None):
        super().step(epoch)


@pytest.mark.parametrize(
    ("make", "losses", "steps"),
    [
        (
            lambda one: lr_scheduler.StepLR(one, step_size=1, gamma=0.5),
            [()],
            [(0, True, 1.0, 1.0), (0, False, 1.0, 0.5)],
        ),
        (
            lambda one: lr_scheduler.ReduceLROnPlateau(one, factor=0.5, patience=0),
            [(1.0,), (2.0,)],
            [(0, False, 1.0, 1.0), (0, False, 1.0, 0.5)],
        ),
        (lambda one: CallingBase(one, gamma=0.5), [()], [(0, True, 1.0, 1.0), (0, False, 1.0, 0.5)]),
        (Chained, [()], [(0, True, 1.0, 1.0), (1, True, 1.0, 1.0), (2, False, 1.0, 0.125)]),
    ],
    ids=["a torch scheduler", "its own step", "a call of its base", "a chain of others"],
)
def test_a_scheduler(scaled, make, losses, steps):
    optimizer = torch.optim.SGD(scaled.model.parameters(), lr=1.0)
    scheduler = make(optimizer)
    optimizer.step()
    for loss in losses:
        scheduler.step(*loss)
        stepped = here(-1)
    found = scaled.shown("schedule", "scheduler", "initial", "lr_before", "lr_after")
    assert found == [(*which, [before], [after]) for *which, before, after in steps]
    assert scaled.recording.of_kind("schedule")[-1]["where"] == stepped
    assert {event["optimizer"] for event in scaled.recording.of_kind("schedule")} == {0}


def test_groups_and_rates_in_tensors(scaled):
    """Schedulers of other models are not noted."""
    groups = [{"params": [scaled.model.weight], "lr": torch.tensor(1.0)}, {"params": [scaled.model.bias], "lr": 0.5}]
    lr_scheduler.LambdaLR(torch.optim.SGD(groups), lambda step: 0.5)
    lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(3, 3).parameters()), step_size=1)
    assert scaled.shown("schedule", "lr_before", "lr_after") == [([1.0, 0.5], [0.5, 0.25])]
