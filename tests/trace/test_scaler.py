"""What an enabled GradScaler does beside stepping."""

from __future__ import annotations

import pytest
import torch


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
