"""Optimizer steps: one event per applied step, with the gradients that the optimizer saw."""

from __future__ import annotations

import copy

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from .places import here


def flat(model):
    """The model's weights as events list them: weight first, then bias."""
    return [*model.weight.flatten().tolist(), *model.bias.tolist()]


def gradients_of(model):
    return [*model.weight.grad.flatten().tolist(), *model.bias.grad.tolist()]


class Stepping:
    """A recording with the task's model."""

    def __init__(self, recording):
        self.recording, self.task = recording, recording.task
        self.model = recording.task.model()

    def backward(self, model=None):
        batch = next(iter(self.task.dataloader()))
        self.task.loss((model or self.model)(batch.inputs), batch).backward()

    def step(self, optimizer=None):
        """Runs a backward and a step; returns the events of all steps so far."""
        self.backward()
        (optimizer or self.task.optimizer(self.model.parameters())).step()
        return self.recording.of_kind("step")


@pytest.fixture
def stepping(record):
    return Stepping(record())


class Own(torch.optim.Optimizer):
    """An optimizer without a learning rate, whose step clips."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter -= parameter.grad.clamp_(-0.125, 0.125)


class Nested(torch.optim.SGD):
    """An optimizer like Horovod's, whose `step` changes the gradients and then calls that of the class it wraps."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        return super().step(closure)


def test_a_step(stepping):
    """Gradients are read before the step, weights after it."""
    optimizer = stepping.task.optimizer(stepping.model.parameters())
    stepping.backward()
    gradients = gradients_of(stepping.model)
    optimizer.step()
    [step] = stepping.recording.of_kind("step")
    assert (step["gradients"], step["weights"]) == (gradients, flat(stepping.model))
    assert (step["step"], step["forwards"], step["lr"], step["scale"]) == (0, 1, 0.0625, None)


def test_values_are_exact(stepping):
    """A float32 is written as the float64 of the same value, a non-finite one as a word."""
    model = stepping.model
    optimizer = stepping.task.optimizer(model.parameters())
    stepping.recording.recorder.forwards = 1
    model.weight.grad, model.bias.grad = torch.tensor([[0.1, float("nan")]]), torch.tensor([float("-inf")])
    optimizer.step()
    [step] = stepping.recording.of_kind("step")
    assert step["gradients"] == [float(torch.tensor(0.1).double()), "nan", "-inf"]
    assert step["weights"][1:] == ["nan", "inf"]


def test_a_custom_step_shows_no_gradients(stepping):
    """Nor a learning rate, if there is none."""
    [step] = stepping.step(Own(stepping.model.parameters()))
    assert (step["gradients"], step["weights"], step["lr"]) == (None, [0.375, -0.375, 0.125], None)


def test_gradients_are_those_after_the_optimizers_own_pre_hooks(stepping):
    """Torch calls the recorder's global hook before these."""
    parameters = [*stepping.model.parameters()]
    optimizer = stepping.task.optimizer(parameters)
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(parameters, 0.125))
    hooks = list(optimizer._optimizer_step_pre_hooks)
    assert stepping.step(optimizer)[0]["gradients"] == [0.125, -0.125, 0.125]
    assert list(optimizer._optimizer_step_pre_hooks) == hooks


def test_an_ascent_uses_the_negated_gradients(stepping):
    [step] = stepping.step(torch.optim.SGD(stepping.model.parameters(), lr=0.0625, maximize=True))
    assert step["gradients"] == [-gradient for gradient in gradients_of(stepping.model)]


def test_a_step_without_gradients_is_idle(stepping):
    optimizer = torch.optim.SGD(stepping.model.parameters(), lr=0.5, momentum=0.5)
    stepping.step(optimizer)
    optimizer.zero_grad()
    optimizer.step()
    assert [step.get("idle", False) for step in stepping.recording.of_kind("step")] == [False, True]


@pytest.mark.parametrize("own_steps", [False, True])
def test_a_copy_counts_unless_the_tasks_own_parameters_are_stepped(stepping, own_steps):
    """A framework may train a deep copy. In DiLoCo, its step computes the gradient of an outer optimizer."""
    model, local = stepping.model, copy.deepcopy(stepping.model)
    stepping.backward(local)
    torch.optim.SGD(local.parameters(), lr=1.0).step()
    if own_steps:
        for own, moved in zip(model.parameters(), local.parameters(), strict=True):
            own.grad = own.detach() - moved.detach()
        torch.optim.SGD(model.parameters(), lr=0.0625).step()
    stepping.recording.recorder.finished()
    [step] = stepping.recording.of_kind("step")
    assert step["weights"] == flat(model if own_steps else local) == stepping.recording.events[-1]["weights"]
    assert (step["step"], step["lr"]) == (0, 0.0625 if own_steps else 1.0)


@pytest.mark.parametrize(("features", "classes"), [(7, 1), (5, 3)])
def test_another_models_optimizer_is_noted_once_and_ignored(stepping, features, classes):
    """Also that of a head whose bias has a shape of the model."""
    other = torch.nn.Linear(features, classes)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        other(torch.ones(1, features)).sum().backward()
        optimizer.step()
    recording = stepping.recording
    assert recording.kinds("foreign_optimizer", "optimizer", "step", "forward") == ["foreign_optimizer"]
    [foreign] = recording.of_kind("foreign_optimizer")
    assert (foreign["optimizer"], foreign["shapes"]) == ("SGD", [[classes, features], [classes]])


def test_the_precision_of_weights_and_state(stepping):
    """As torch's step reads them; a step count has its own, and so has what only the trainer reads."""
    optimizer = torch.optim.SGD(stepping.model.parameters(), lr=0.0625, momentum=0.5)
    stepping.step(optimizer)
    state = optimizer.state[stepping.model.bias]
    state |= {
        "momentum_buffer": state["momentum_buffer"].bfloat16(),
        "step": torch.ones(1).half(),
        "mine": torch.ones(1).half(),
    }
    steps = stepping.step(optimizer)
    assert [step["dtypes"] for step in steps] == [["float32"], ["bfloat16", "float32"]]
    assert "dtypes" not in stepping.step(Own(stepping.model.parameters()))[-1]


def test_an_empty_optimizer_is_no_other_models(stepping):
    optimizer = torch.optim.SGD(stepping.model.parameters(), lr=0.1)
    optimizer.param_groups[0]["params"] = []
    optimizer.step()
    assert stepping.recording.kinds("foreign_optimizer", "optimizer", "step") == []


def test_a_missing_gradient_is_null(stepping):
    stepping.model.bias.requires_grad_(False)
    [step] = stepping.step()
    assert (step["gradients"][2], step["weights"][2]) == (None, 0.25)


def test_a_nested_step_is_one_step(stepping):
    optimizer = Nested(stepping.model.parameters(), lr=0.0625)
    seen = stepping.step(optimizer)[0]["gradients"]
    assert seen == gradients_of(stepping.model)
    assert [step["step"] for step in stepping.step(optimizer)] == [0, 1]
    assert stepping.recording.of_kind("step")[1]["weights"] == flat(stepping.model)


@pytest.mark.parametrize(("kind", "positional"), [(torch.optim.SGD, True), (torch.optim.SGD, False), (Nested, True)])
def test_with_a_closure_gradients_exist_only_after_it_ran(stepping, kind, positional):
    """As in Lightning, which runs forward, backward and clipping in a closure of the step."""
    optimizer = kind(stepping.model.parameters(), lr=0.0625)
    calls = []

    def closure():
        calls.append(optimizer)
        optimizer.zero_grad()
        stepping.backward()
        torch.nn.utils.clip_grad_value_(stepping.model.parameters(), 0.125)
        return 42.0

    result = optimizer.step(closure) if positional else optimizer.step(closure=closure)
    [step] = stepping.recording.of_kind("step")
    assert (result, len(calls), step["forwards"]) == (42.0, 1, 1)
    assert step["gradients"] == [0.125, -0.125, 0.125]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("unscale", [True, False])
def test_a_fused_optimizer_unscales_in_its_kernel(stepping, kind, unscale):
    """Its `.grad` still carries the loss scale; the event does not."""
    optimizer = kind(stepping.model.parameters(), lr=0.0625, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batch = next(iter(stepping.task.dataloader()))
    scaler.scale(stepping.task.loss(stepping.model(batch.inputs), batch)).backward()
    expected = [value / 1024.0 for value in gradients_of(stepping.model)]
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    [step] = stepping.recording.of_kind("step")
    assert (step["gradients"], step["scale"]) == (expected, 1024.0)


def test_parameters_in_groups_and_any_order(stepping):
    model = stepping.model
    [step] = stepping.step(torch.optim.SGD([{"params": [model.bias], "lr": 0.5}, {"params": [model.weight]}], lr=0.25))
    assert step["weights"] == flat(model)


def test_an_interrupted_step_does_not_swallow_the_next(stepping):
    """A step that raised never ends; the next step is not nested in it."""
    optimizer = stepping.task.optimizer(stepping.model.parameters())

    def closure():
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    assert len(stepping.step(optimizer)) == 1


def test_a_step_before_the_first_forward_makes_state(stepping):
    """Horovod's broadcast_optimizer_state steps with zero gradients to create a state to send."""
    optimizer = torch.optim.SGD(stepping.model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.5)
    for parameter in stepping.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert stepping.recording.kinds("step", "state_init") == ["state_init"]
    assert stepping.recording.of_kind("state_init")[0]["weights"] == [0.375, -0.375, 0.1875]


def test_a_step_on_zeros_after_another_is_a_step(stepping):
    """The gradients come without a backward, and each parameter has its optimizer; the gradient of the bias is zero."""
    for parameter in stepping.model.parameters():
        parameter.grad = torch.full_like(parameter, parameter.ndim - 1)
        stepping.task.optimizer([parameter]).step()
    assert stepping.recording.kinds("step", "state_init") == ["step", "step"]


def test_a_step_on_zeros_that_autograd_has_computed_is_a_step(stepping):
    batch, parameters = next(iter(stepping.task.dataloader())), [*stepping.model.parameters()]
    loss = stepping.task.loss(stepping.model(batch.inputs), batch) * 0
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    stepping.task.optimizer(parameters).step()
    assert stepping.recording.kinds("step", "state_init") == ["step"]


def test_a_step_need_not_wait_for_another_optimizers_collective(stepping):
    stepping.backward()
    handles = stepping.recording.recorder.handles
    handles.noted(0)
    handles.issued(1, "a group", [stepping.model.bias.grad])
    for parameter in stepping.model.parameters():
        stepping.task.optimizer([parameter]).step()
    assert [step.get("unfinished") for step in stepping.recording.of_kind("step")] == [None, [0]]


def test_topology_is_noted_at_the_first_step(stepping):
    stepping.step()
    stepping.step()
    stepping.recording.recorder.finished()
    kinds = stepping.recording.kinds("forward", "topology", "step", "finished")
    assert kinds == ["forward", "topology", "step", "forward", "step", "finished"]
    [topology] = stepping.recording.of_kind("topology")
    assert (topology["world_size"], topology["rank_reached"], topology["via"]) == (1, 0, None)


@pytest.mark.parametrize(("models", "weights"), [(1, [0.5, -0.5, 0.25]), (0, [None, None, None])])
def test_a_trainer_that_never_steps(record, models, weights):
    recording = record()
    for _ in range(models):
        recording.task.model()
    recording.recorder.finished()
    assert recording.kinds() == [*["model"] * models, "topology", "finished"]
    assert recording.events[-1]["weights"] == weights


def test_an_optimizer_is_noted_before_it_is_mentioned(stepping):
    stepping.model.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(stepping.model.parameters(), lr=0.0625)
    stepping.backward()
    optimizer.step()
    place = here(-1)
    optimizer.zero_grad()
    [event] = stepping.recording.of_kind("optimizer")
    assert (event["optimizer"], event["type"], event["parameters"], event["trainable"]) == (0, "AdamW", [0, 1], [0])
    assert (event["horovod"], event["backward_passes_per_step"], event["state"]) == (False, None, False)
    assert event["where"] == place
    assert stepping.recording.kinds("optimizer", "step", "zero_grad") == ["optimizer", "step", "zero_grad"]


def test_an_optimizer_with_an_existing_state(stepping):
    optimizer = stepping.task.optimizer(stepping.model.parameters())
    stepping.recording.recorder.__exit__(None, None, None)
    stepping.step(optimizer)
    with stepping.recording.recorder:
        optimizer.zero_grad()
    assert stepping.recording.of_kind("optimizer")[0]["state"]


def test_several_optimizers_of_one_model(stepping):
    """Each step shows the gradients of its own parameters, and the weights of all."""
    stepping.backward()
    *weight, bias = gradients_of(stepping.model)
    for parameter in stepping.model.parameters():
        torch.optim.SGD([parameter], lr=0.0625).step()
    told = [(step["optimizer"], step["parameters"], step["gradients"]) for step in stepping.recording.of_kind("step")]
    assert told == [(0, [0], [*weight, None]), (1, [1], [None, None, bias])]
    first, second = stepping.recording.of_kind("step")
    assert first["weights"] == [*second["weights"][:2], 0.25]
    assert second["weights"] == flat(stepping.model)
    assert [event["step"] for event in (first, second)] == [0, 1]


def test_a_frameworks_wrapper_counts_as_its_inner_optimizer(stepping):
    Accelerator(cpu=True)
    wrapper = AcceleratedOptimizer(stepping.task.optimizer(stepping.model.parameters()))
    stepping.step(wrapper)
    wrapper.zero_grad()
    recording = stepping.recording
    assert recording.recorder.optimizer(wrapper) == 0
    assert len(recording.of_kind("optimizer")) == 1
    assert [event["optimizer"] for event in (*recording.of_kind("step"), *recording.of_kind("zero_grad"))] == [0, 0]


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)])
def test_scalars_in_tensors(stepping, rate):
    """Such as the learning rate, or the bias corrections of a compiled step."""
    [step] = stepping.step(torch.optim.AdamW(stepping.model.parameters(), lr=rate))
    assert step.get("scalars_in_tensors", False) is isinstance(rate, torch.Tensor)


@pytest.mark.parametrize("is_torchs", [True, False])
def test_a_trainers_own_entries_in_the_state(stepping, is_torchs):
    """Steps of torch's classes do not read them; for other classes nothing is known."""
    kind = torch.optim.AdamW if is_torchs else type("Own", (torch.optim.AdamW,), {})
    optimizer = kind(stepping.model.parameters())
    stepping.step(optimizer)
    for parameter in stepping.model.parameters():
        optimizer.state[parameter]["average"] = parameter.detach().clone()
    watched, state = stepping.recording.recorder.watched, optimizer.state[stepping.model.weight]
    before = watched.state(optimizer)
    state["average"] += 1
    after = watched.state(optimizer)
    assert (before == after) is is_torchs
    state["exp_avg"] += 1
    assert watched.state(optimizer) != after
