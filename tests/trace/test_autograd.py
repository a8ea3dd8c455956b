"""Backward passes: their forwards, loss scale and earlier gradients; clearing and clipping."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy as copy_of

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from .places import here


class Training:
    """A recording with a model and its losses."""

    def __init__(self, recording):
        self.recording = recording
        self.model = recording.task.model()
        self.batch = next(iter(recording.task.dataloader()))

    def loss(self):
        return self.recording.task.loss(self.model(self.batch.inputs), self.batch)

    def ends(self, field):
        return [event[field] for event in self.recording.of_kind("backward_end")]

    def begins(self, field):
        return [event[field] for event in self.recording.of_kind("backward_begin")]


@pytest.fixture
def training(record):
    return Training(record())


def test_a_backward(training):
    training.loss().backward()
    place = here(-1)
    [begin] = training.recording.of_kind("backward_begin")
    [end] = training.recording.of_kind("backward_end")
    assert begin["where"] == end["where"] == place
    assert begin["seq"] + 1 == end["seq"]
    assert (begin["backward"], begin["root"], begin["syncs"], begin["gradients"]) == (0, 0, None, "none")
    assert (end["backward"], end["forwards"], end["scaled"]) == (0, [0], None)


def test_the_forwards_that_it_went_through(training):
    """Several, none, or old ones."""
    losses = [training.loss() for _ in range(3)]
    (losses[0] + losses[2]).backward(retain_graph=True)
    torch.nn.Parameter(torch.ones(1)).sum().backward()
    losses[1].backward()
    losses[0].backward()
    assert training.ends("forwards") == [[0, 2], [], [1], [0]]
    assert training.ends("backward") == [0, 1, 2, 3]


def test_outputs_in_containers(record):
    class Many(torch.nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            return {"first": [output, None], "second": (output + 1,)}

    recording = record()
    model = Many(2, 1)
    model.load_state_dict(recording.task.model().state_dict())
    model(torch.ones(1, 2))["second"][0].sum().backward()
    assert recording.of_kind("backward_end")[0]["forwards"] == [0]


def test_the_same_graph_again_has_the_same_root(training):
    loss = training.loss()
    loss.backward(retain_graph=True)
    gc.collect()
    loss.backward()
    training.loss().backward()
    for _ in range(2):
        torch.nn.Parameter(torch.ones(())).backward()
    assert training.begins("root") == [0, 0, 1, 2, 3]


def test_a_backward_of_a_gradient_edge(training):
    edge = torch.autograd.graph.get_gradient_edge(training.loss())
    torch.autograd.backward(edge)
    assert training.ends("forwards") == [[0]]


def test_gradients_before_it(training):
    training.loss().backward()
    training.loss().backward()
    training.model.zero_grad(set_to_none=False)
    training.loss().backward()
    training.model.zero_grad()
    training.loss().backward()
    assert training.begins("gradients") == ["none", "some", "zero", "none"]


@pytest.mark.parametrize("owner", ["task", "copy"])
def test_gradients_before_it_if_masters_are_stepped(training, owner):
    """Backwards do not add to the gradients of masters."""
    copy = copy_of(training.model)
    masters = training.model if owner == "task" else copy
    training.model = copy if owner == "task" else training.model
    optimizer = torch.optim.SGD(masters.parameters())
    for _ in range(2):
        training.loss().backward()
        training.loss().backward()
        for master, parameter in zip(masters.parameters(), training.model.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad, None
        optimizer.step()
    masters.zero_grad()
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    training.loss().backward()
    assert training.begins("gradients") == ["none", "some", "none", "some", "zero"]


def test_frozen_parameters_are_ignored(training):
    training.model.bias.requires_grad_(False)
    training.model.bias.grad = torch.ones(1)
    training.loss().backward()
    assert training.begins("gradients") == ["none"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_is_no_forward(training, use_reentrant):
    """Nor is the backward that reentrant checkpointing runs within the backward."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = training.batch.inputs.clone().requires_grad_()
        checkpoint(training.model, inputs, use_reentrant=use_reentrant).sum().backward()
    kinds = training.recording.kinds("forward", "autocast_enter", "backward_begin", "backward_end")
    # In reentrant checkpointing's first forward gradients are disabled.
    forwards = [] if use_reentrant else ["forward"]
    assert kinds == ["autocast_enter", *forwards, "backward_begin", "backward_end"]


@pytest.mark.parametrize("is_scaled", [True, False])
def test_an_error_in_it(training, is_scaled):
    """The factor of a freed graph cannot be read, and the trainer gets torch's own error."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    loss = training.loss() * 1024.0 if is_scaled else training.loss()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    training.loss().backward()
    assert training.begins("backward") == [0, 1, 2]
    assert training.ends("backward") == [0, 2]


@pytest.mark.parametrize(
    ("scaled", "expected"),
    [
        pytest.param(lambda scaler, loss: scaler.scale(loss), 1024.0, id="by the scaler"),
        pytest.param(lambda scaler, loss: scaler.scale(loss) / 3, 1024.0, id="then divided"),
        pytest.param(lambda scaler, loss: 0.5 * scaler.scale(loss / 3).double(), 1024.0, id="then cast"),
        pytest.param(lambda scaler, loss: scaler.scale(loss) + loss, 1024.0, id="in a sum"),
        pytest.param(lambda scaler, loss: sum(scaler.scale([loss, loss])), 1024.0, id="in a list"),
        pytest.param(lambda scaler, loss: torch.stack([scaler.scale(loss)] * 2).mean(), 1024.0, id="in a stack"),
        pytest.param(lambda scaler, loss: loss * scaler.get_scale(), 1024.0, id="by hand"),
        pytest.param(lambda scaler, loss: scaler._scale * (loss / 3), 1024.0, id="by hand, a tensor"),
        pytest.param(lambda scaler, loss: scaler.scale(scaler.scale(loss)), 1024.0**2, id="twice"),
        pytest.param(lambda scaler, loss: loss * 512.0, None, id="by something else"),
        pytest.param(lambda scaler, loss: loss, None, id="not at all"),
    ],
)
def test_the_scale_of_the_loss(training, scaled, expected):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    scaled(scaler, training.loss()).backward()
    assert training.ends("scaled") == [expected]


def test_a_scale_of_one(training):
    """A scale of 1 counts if the scaler applied it, but not as a factor by hand."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(training.loss()).backward()
    (training.loss() * 1.0).backward()
    assert training.ends("scaled") == [1.0, None]


def test_no_graph_is_kept_alive(training):
    """A node is freed as soon as the trainer drops the loss."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    loss = Identity.apply(training.model(training.batch.inputs)).sum()
    node = weakref.ref(loss.grad_fn.next_functions[0][0])
    loss.backward(retain_graph=True)
    assert node() is not None
    del loss
    assert node() is None


def test_hooks_are_gone_with_the_recorder(training):
    loss = training.loss()
    recorder = training.recording.recorder
    recorder.__exit__(None, None, None)
    reached = {}
    with recorder.flow.backward(reached):
        loss.backward()
    assert reached == {}
    assert training.begins("backward") == []


def test_gradients_without_a_backward(training):
    """torch.autograd.grad counts through forwards of the model, but not through other graphs or within a backward."""
    losses = [training.loss() for _ in range(2)]
    torch.autograd.grad(losses[1], list(training.model.parameters()))
    place = here(-1)
    other = torch.ones(1, requires_grad=True)
    torch.autograd.grad(other.sum(), other)
    assert training.begins("backward") == []
    losses[0].backward()
    [event] = training.recording.of_kind("autograd_grad")
    assert (event["forwards"], event["where"]) == ([1], place)
    assert training.ends("forwards") == [[0]]


@pytest.fixture
def recording(record):
    return record()


def cleared(recording):
    fields = ("by", "optimizer", "parameters", "set_to_none")
    return [tuple(event[field] for field in fields) for event in recording.of_kind("zero_grad")]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_zero_grad_of_an_optimizer(recording, kind):
    model = recording.task.model()
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    place = here(-1)
    optimizer.zero_grad(False)
    optimizer.zero_grad(set_to_none=False)
    to_zero = ("optimizer", 0, [0, 1], False)
    assert cleared(recording) == [("optimizer", 0, [0, 1], True), to_zero, to_zero]
    assert recording.of_kind("zero_grad")[0]["where"] == place


@pytest.mark.usefixtures("group")
def test_zero_grad_of_a_module(recording):
    model = recording.task.model()
    torch.nn.Sequential(model).zero_grad()
    model.zero_grad(set_to_none=False)
    DistributedDataParallel(model).zero_grad()
    assert cleared(recording) == [("model", None, [0, 1], to_none) for to_none in (True, False, True)]


def test_zero_grad_of_other_models(recording):
    """It is ignored. An optimizer of a part of the model is not."""
    model = recording.task.model()
    other = torch.nn.Linear(3, 3)
    other.zero_grad()
    torch.optim.SGD(other.parameters()).zero_grad()
    torch.optim.SGD([model.bias]).zero_grad()
    assert cleared(recording) == [("optimizer", 0, [1], True)]


def test_an_optimizer_with_its_own_zero_grad(recording):
    """Its effect counts as clearing by hand."""

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

    model = recording.task.model()
    optimizer = Own(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    assert cleared(recording) == [("hand", None, [0, 1], True)]


@pytest.fixture
def model(recording):
    """The task's model with gradients 3, 0, 4, of norm 5."""
    model = recording.task.model()
    model.weight.grad = torch.tensor([[3.0, 0.0]])
    model.bias.grad = torch.tensor([4.0])
    recording.recorder.accounted()
    recording.events.clear()
    return model


@pytest.mark.parametrize(
    ("clip", "expected", "bias"),
    [
        # This function was imported by name before the recorder started.
        pytest.param(lambda held: clip_grad_norm_(held, 2.5), ("norm", 2.5, 2.0, 5.0), 2.0, id="by norm"),
        pytest.param(
            lambda held: torch.nn.utils.clip_grad_norm_(parameters=held, max_norm=1, norm_type="inf"),
            ("norm", 1.0, "inf", 4.0),
            1.0,
            id="through the module",
        ),
        pytest.param(
            lambda held: clip_grad_value_(list(held), clip_value=2), ("value", 2.0, None, None), 2.0, id="by value"
        ),
        pytest.param(
            lambda held: clip_grads_with_norm_(held, 2.5, total_norm=torch.tensor(10.0)),
            ("norm", 2.5, None, 10.0),
            1.0,
            id="with a known norm",
        ),
    ],
)
def test_a_clip(recording, model, clip, expected, bias):
    clip(model.parameters())
    [event] = recording.events
    assert (event["event"], event["where"][2]) == ("clip", "<lambda>")
    assert tuple(event[name] for name in ("kind", "threshold", "norm_type", "norm")) == expected
    assert (event["parameters"], event["gradients"]) == ([0, 1], [3.0, 0.0, 4.0])
    assert model.bias.grad.item() == pytest.approx(bias)


def test_a_norm_for_inspection(recording, model):
    assert get_total_norm([parameter.grad for parameter in model.parameters()]) == 5.0
    place = here(-1)
    [event] = recording.events
    assert (event["event"], event["norm"], event["parameters"], event["where"]) == ("norm", 5.0, [0, 1], place)


def test_a_part_of_the_model(recording, model):
    clip_grad_norm_(model.bias, 1.0)
    get_total_norm(model.weight.grad)
    assert [(event["event"], event["parameters"]) for event in recording.events] == [("clip", [1]), ("norm", [0])]
    assert recording.events[0]["gradients"] == [None, None, 4.0]


def test_another_model(recording, model):
    other = torch.nn.Linear(3, 3)
    other(torch.ones(1, 3)).sum().backward()
    recording.events.clear()
    clip_grad_norm_(other.parameters(), 1.0)
    get_total_norm([other.weight.grad])
    assert recording.events == []


def test_gradients_that_are_not_finite(recording, model):
    model.bias.grad.fill_(float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    clip_grad_norm_(model.parameters(), 1.0)
    [clip] = [event for event in recording.events if event["event"] == "clip"]
    assert clip["norm"] == "inf"


def test_torch_still_warns_of_an_empty_generator(recording):
    with pytest.warns(UserWarning, match="empty generator"):
        clip_grad_norm_((parameter for parameter in ()), 1.0)
