"""Optimizer steps: one event for each that was applied, with the gradients that the optimizer saw."""

from __future__ import annotations

import copy

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from .places import here


def backward(task, model):
    batch = next(iter(task.dataloader()))
    task.loss(model(batch.inputs), batch).backward()


def test_a_step(begun):
    """Gradients are read before the step, weights after it; weight first, then bias."""
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    backward(recording.task, model)
    gradients = [*model.weight.grad.flatten().tolist(), *model.bias.grad.tolist()]
    optimizer.step()
    [step] = recording.of_kind("step")
    assert step["gradients"] == gradients
    assert step["weights"] == [*model.weight.flatten().tolist(), *model.bias.tolist()]
    assert (step["step"], step["forwards"], step["lr"], step["scale"]) == (0, 1, 0.0625, None)


def test_values_are_exact(begun):
    """A float32 is written as the float64 of the same value, and one that is not finite as a word."""
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    recording.recorder.forwards = 1
    model.weight.grad = torch.tensor([[0.1, float("nan")]])
    model.bias.grad = torch.tensor([float("-inf")])
    optimizer.step()
    [step] = recording.of_kind("step")
    assert step["gradients"] == [float(torch.tensor(0.1).double()), "nan", "-inf"]
    assert step["weights"][1:] == ["nan", "inf"]


def test_an_optimizer_without_a_learning_rate(begun):
    """As one that finds its own rate: there is none to note."""

    class Halving(torch.optim.Optimizer):
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.mul_(0.5)

    recording, model = begun()
    optimizer = Halving(model.parameters(), {})
    backward(recording.task, model)
    optimizer.step()
    [step] = recording.of_kind("step")
    assert (step["lr"], step["weights"]) == (None, [0.25, -0.25, 0.125])


def test_gradients_are_those_after_the_optimizers_own_pre_hooks(begun):
    """Torch calls the recorder's global hook before them."""
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(model.parameters(), 0.125))
    hooks = list(optimizer._optimizer_step_pre_hooks)
    backward(recording.task, model)
    optimizer.step()
    [step] = recording.of_kind("step")
    assert step["gradients"] == [0.125, -0.125, 0.125]
    assert list(optimizer._optimizer_step_pre_hooks) == hooks


def test_a_step_of_ones_own_shows_no_gradients(begun):
    """It may average or clip in it."""

    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter -= parameter.grad.clamp_(-0.125, 0.125)

    recording, model = begun()
    optimizer = Own(model.parameters(), {})
    backward(recording.task, model)
    optimizer.step()
    [step] = recording.of_kind("step")
    assert (step["gradients"], step["weights"]) == (None, [0.375, -0.375, 0.125])


def test_an_ascent_uses_the_negated_gradients(begun):
    recording, model = begun()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625, maximize=True)
    backward(recording.task, model)
    gradients = [*model.weight.grad.flatten().tolist(), *model.bias.grad.tolist()]
    optimizer.step()
    assert recording.of_kind("step")[0]["gradients"] == [-gradient for gradient in gradients]


def test_a_step_without_gradients_is_idle(begun):
    recording, model = begun()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    backward(recording.task, model)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert [step.get("idle", False) for step in recording.of_kind("step")] == [False, True]


@pytest.mark.parametrize("own_steps", [False, True])
def test_a_copy_counts_unless_the_tasks_own_parameters_are_stepped(begun, own_steps):
    """As in DiLoCo, where the step of a copy makes the gradient of an outer optimizer."""
    recording, model = begun()
    local = copy.deepcopy(model)
    inner = torch.optim.SGD(local.parameters(), lr=1.0)
    backward(recording.task, local)
    inner.step()
    if own_steps:
        for own, moved in zip(model.parameters(), local.parameters(), strict=True):
            own.grad = own.detach() - moved.detach()
        torch.optim.SGD(model.parameters(), lr=0.0625).step()
    [step] = recording.of_kind("step")
    stepped = model if own_steps else local
    assert step["weights"] == [*stepped.weight.flatten().tolist(), *stepped.bias.tolist()]
    assert (step["step"], step["lr"]) == (0, 0.0625 if own_steps else 1.0)


def test_an_optimizer_of_a_part_of_the_shapes_is_anothers(record):
    """As of a reward head, whose bias alone has a shape of the model's."""
    recording = record()
    recording.task.model()
    head = torch.nn.Linear(7, 1)
    head(torch.ones(1, 7)).sum().backward()
    torch.optim.SGD(head.parameters(), lr=0.5).step()
    assert recording.kinds("step", "foreign_optimizer") == ["foreign_optimizer"]


def test_a_missing_gradient_is_null(begun):
    recording, model = begun()
    model.bias.requires_grad_(False)
    optimizer = recording.task.optimizer(model.parameters())
    backward(recording.task, model)
    optimizer.step()
    [step] = recording.of_kind("step")
    assert step["gradients"][2] is None
    assert step["weights"][2] == 0.25


def test_a_nested_step_is_one_step(begun):
    """As in Horovod's, whose `step` changes the gradients and then calls that of the class it wraps."""

    class Wrapping(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)
            return super().step(closure)

    recording, model = begun()
    optimizer = Wrapping(model.parameters(), lr=0.0625)
    backward(recording.task, model)
    seen = (0.5 * model.bias.grad).item()
    optimizer.step()
    backward(recording.task, model)
    optimizer.step()
    steps = recording.of_kind("step")
    assert [step["step"] for step in steps] == [0, 1]
    assert steps[0]["gradients"][2] == seen
    assert steps[1]["weights"][2] == model.bias.item()


@pytest.mark.parametrize("positional", [True, False])
def test_with_a_closure_gradients_exist_only_after_it_ran(begun, positional):
    """As with Lightning, which runs forward, backward and clipping in a closure that it gives to the step."""
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    calls = []

    def closure():
        calls.append(optimizer)
        optimizer.zero_grad()
        backward(recording.task, model)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.125)
        return 42.0

    result = optimizer.step(closure) if positional else optimizer.step(closure=closure)
    [step] = recording.of_kind("step")
    assert result == 42.0
    assert len(calls) == 1
    assert step["forwards"] == 1
    assert step["gradients"] == [0.125, -0.125, 0.125]


def test_a_closure_through_a_nested_step(begun):
    class Wrapping(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    recording, model = begun()
    optimizer = Wrapping(model.parameters(), lr=0.0625)

    def closure():
        backward(recording.task, model)

    optimizer.step(closure)
    [step] = recording.of_kind("step")
    assert step["gradients"][2] == model.bias.grad.item()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("unscale", [True, False])
def test_a_fused_optimizer_unscales_in_its_kernel(begun, kind, unscale):
    """Its `.grad` still carries the loss scale; the event does not."""
    recording, model = begun()
    optimizer = kind(model.parameters(), lr=0.0625, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batch = next(iter(recording.task.dataloader()))
    scaler.scale(recording.task.loss(model(batch.inputs), batch)).backward()
    expected = [value / 1024.0 for value in [*model.weight.grad.flatten().tolist(), *model.bias.grad.tolist()]]
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    [step] = recording.of_kind("step")
    assert step["gradients"] == expected
    assert step["scale"] == 1024.0


def test_a_copied_model_is_found_by_its_shapes(record):
    """A framework may train a deep copy of what it was given."""
    recording = record()
    model = copy.deepcopy(recording.task.model())
    optimizer = recording.task.optimizer(model.parameters())
    backward(recording.task, model)
    optimizer.step()
    recording.recorder.finished()
    [step] = recording.of_kind("step")
    assert step["weights"] == [*model.weight.flatten().tolist(), *model.bias.tolist()]
    assert recording.events[-1]["weights"] == step["weights"]


def test_parameters_in_groups_and_any_order(begun):
    recording, model = begun()
    groups = [{"params": [model.bias], "lr": 0.5}, {"params": [model.weight], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups)
    backward(recording.task, model)
    optimizer.step()
    [step] = recording.of_kind("step")
    assert step["weights"] == [*model.weight.flatten().tolist(), *model.bias.tolist()]


def test_another_models_optimizer_is_noted_once_and_ignored(record):
    recording = record()
    recording.task.model()
    other = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        other(torch.ones(1, 5)).sum().backward()
        optimizer.step()
    assert recording.kinds("foreign_optimizer", "optimizer", "step", "forward") == ["foreign_optimizer"]
    [foreign] = recording.of_kind("foreign_optimizer")
    assert foreign["optimizer"] == "SGD"
    assert foreign["shapes"] == [[3, 5], [3]]


def test_an_interrupted_step_does_not_swallow_the_next(begun):
    """A step that raised never ends; the one after it is not nested in it."""
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())

    def closure():
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    backward(recording.task, model)
    optimizer.step()
    assert len(recording.of_kind("step")) == 1


def test_a_step_before_the_first_forward_makes_state(begun):
    """Horovod's broadcast_optimizer_state steps on zeros so that there is a state to send."""
    recording, model = begun()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert recording.kinds("step", "state_init") == ["state_init"]
    assert recording.of_kind("state_init")[0]["weights"] == [0.375, -0.375, 0.1875]


def test_a_step_on_zeros_after_another_is_a_step(begun):
    """Gradients that no backward made, and an optimizer for each parameter; the gradient of the bias is zero."""
    recording, model = begun()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, parameter.ndim - 1)
        recording.task.optimizer([parameter]).step()
    assert recording.kinds("step", "state_init") == ["step", "step"]


def test_a_step_on_zeros_that_autograd_has_computed_is_a_step(begun):
    recording, model = begun()
    batch = next(iter(recording.task.dataloader()))
    loss = recording.task.loss(model(batch.inputs), batch) * 0
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
        parameter.grad = gradient
    recording.task.optimizer(model.parameters()).step()
    assert recording.kinds("step", "state_init") == ["step"]


def test_what_is_under_way_for_another_optimizer_need_not_be_waited_for(begun):
    recording, model = begun()
    backward(recording.task, model)
    handles = recording.recorder.handles
    handles.noted(0)
    handles.issued(1, "a group", [model.bias.grad])
    for parameter in model.parameters():
        recording.task.optimizer([parameter]).step()
    of_weight, of_bias = recording.of_kind("step")
    assert "unfinished" not in of_weight
    assert of_bias["unfinished"] == [0]


def test_topology_is_noted_at_the_first_step(begun):
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    for _ in range(2):
        backward(recording.task, model)
        optimizer.step()
    recording.recorder.finished()
    kinds = recording.kinds("forward", "topology", "step", "finished")
    assert kinds == ["forward", "topology", "step", "forward", "step", "finished"]
    [topology] = recording.of_kind("topology")
    assert (topology["world_size"], topology["rank_reached"], topology["via"]) == (1, 0, None)


def test_a_trainer_that_never_steps(record):
    recording = record()
    recording.task.model()
    recording.recorder.finished()
    assert recording.kinds() == ["model", "topology", "finished"]
    assert recording.events[-1]["weights"] == [0.5, -0.5, 0.25]


def test_a_trainer_that_takes_no_model(record):
    recording = record()
    recording.recorder.finished()
    assert recording.events[-1]["weights"] == [None, None, None]


def test_an_optimizer_is_noted_before_it_is_mentioned(begun):
    recording, model = begun()
    model.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0625)
    backward(recording.task, model)
    optimizer.step()
    place = here(-1)
    optimizer.zero_grad()
    [event] = recording.of_kind("optimizer")
    assert (event["optimizer"], event["type"], event["parameters"], event["trainable"]) == (0, "AdamW", [0, 1], [0])
    assert (event["horovod"], event["backward_passes_per_step"], event["state"]) == (False, None, False)
    assert event["where"] == place
    assert recording.kinds("optimizer", "step", "zero_grad") == ["optimizer", "step", "zero_grad"]


def test_an_optimizer_that_has_a_state_already(begun):
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    backward(recording.task, model)
    recording.recorder.__exit__(None, None, None)
    optimizer.step()
    with recording.recorder:
        optimizer.zero_grad()
    assert recording.of_kind("optimizer")[0]["state"]


def test_several_optimizers_of_one_model(begun):
    """Each step shows the gradients of its own parameters, and the weights of all."""
    recording, model = begun()
    optimizers = [torch.optim.SGD([parameter], lr=0.0625) for parameter in model.parameters()]
    backward(recording.task, model)
    weight, bias = model.weight.grad.flatten().tolist(), model.bias.grad.tolist()
    for optimizer in optimizers:
        optimizer.step()
    first, second = recording.of_kind("step")
    assert (first["optimizer"], first["parameters"], first["gradients"]) == (0, [0], [*weight, None])
    assert (second["optimizer"], second["parameters"], second["gradients"]) == (1, [1], [None, None, *bias])
    assert first["weights"] == [*second["weights"][:2], 0.25]
    assert second["weights"] == [*model.weight.flatten().tolist(), *model.bias.tolist()]
    assert [event["step"] for event in (first, second)] == [0, 1]


def test_a_frameworks_wrapper_is_the_optimizer_in_it(begun):
    recording, model = begun()
    optimizer = recording.task.optimizer(model.parameters())
    Accelerator(cpu=True)
    wrapper = AcceleratedOptimizer(optimizer)
    backward(recording.task, model)
    wrapper.step()
    wrapper.zero_grad()
    assert recording.recorder.optimizer(wrapper) == 0
    assert len(recording.of_kind("optimizer")) == 1
    assert [event["optimizer"] for event in (*recording.of_kind("step"), *recording.of_kind("zero_grad"))] == [0, 0]


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)])
def test_scalars_in_tensors(begun, rate):
    """The learning rate, say, or the bias corrections of a step that is compiled."""
    recording, model = begun()
    model(torch.ones(4, 2)).sum().backward()
    torch.optim.AdamW(model.parameters(), lr=rate).step()
    [event] = recording.of_kind("step")
    assert event.get("scalars_in_tensors", False) is isinstance(rate, torch.Tensor)


@pytest.mark.parametrize("is_torchs", [True, False])
def test_what_a_trainer_keeps_in_the_state_beside_an_algorithm_of_torchs(begun, is_torchs):
    """It is not read in a step. What another class reads is not known."""
    recording, model = begun()
    kind = torch.optim.AdamW if is_torchs else type("Own", (torch.optim.AdamW,), {})
    optimizer = kind(model.parameters())
    backward(recording.task, model)
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state[parameter]["average"] = parameter.detach().clone()
    watched, state = recording.recorder.watched, optimizer.state[model.weight]
    before = watched.state(optimizer)
    state["average"] += 1
    after = watched.state(optimizer)
    assert (before == after) is is_torchs
    state["exp_avg"] += 1
    assert watched.state(optimizer) != after
