"""Calls between two backward passes: wrong where the step has all that was computed, and right where the script keeps
what it has so far and clears `.grad` by hand."""

import pytest
import torch

import conformance
from conformance.watch.verdict import verdict

DATA = torch.arange(96.0).reshape(32, 3).cos()


def watched(window, **scaler):
    """The laws that a training breaks whose windows `window` makes, or the verdict where it breaks none."""
    torch.manual_seed(0)
    try:
        with conformance.watching() as findings:
            model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", **scaler) if scaler else None
            for _ in range(4):
                optimizer.zero_grad()
                window(model, optimizer, scaler)
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
    except AssertionError:
        pass
    return {cause.first.law for cause in findings.causes.values()} or verdict(findings)


def parts(model):
    return (model(DATA[start : start + 8]).square().mean() for start in range(0, 32, 8))


def clips(model, how):
    if how == "norm":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    else:
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)


def clips_each(how, keeps, zero=lambda gradient: gradient.zero_()):
    """Each micro-batch is clipped: on top of the others, or by itself."""

    def window(model, optimizer, scaler):
        kept = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for part in parts(model):
            (part / 4).backward()
            clips(model, how)
            if keeps:
                for sums, parameter in zip(kept, model.parameters(), strict=True):
                    sums += parameter.grad
                    zero(parameter.grad)
        if keeps:
            for sums, parameter in zip(kept, model.parameters(), strict=True):
                parameter.grad.copy_(sums)

    return window


def looks_first(clears):
    """The gradient of a part of the loss is looked at before all of it goes backward."""

    def window(model, optimizer, scaler):
        first, *others = parts(model)
        first.backward(retain_graph=True)
        if clears:
            for parameter in model.parameters():
                parameter.grad.data.zero_()
        (first + sum(others)).backward()

    return window


def penalty_last(clip):
    """The weights are made smaller through autograd, after the clip that is of the data alone."""

    def window(model, optimizer, scaler):
        next(parts(model)).backward()
        clip(model)
        (0.01 * sum(parameter.square().sum() for parameter in model.parameters())).backward()

    return window


def of_losses(function):
    """Each loss goes backward, and then some function of them."""

    def window(model, optimizer, scaler):
        losses = [*parts(model)]
        for loss in losses:
            loss.backward(retain_graph=True)
        function(losses).backward()

    return window


def of_one_forward(*losses):
    def window(model, optimizer, scaler):
        outputs = model(DATA)
        for loss in losses:
            loss(outputs).backward(retain_graph=True)

    return window


def across(turn):
    def loss(outputs):
        scores = outputs @ outputs.T / 8
        return torch.nn.functional.cross_entropy(turn(scores), torch.arange(32)) / 2

    return loss


def apart(one, other):
    return lambda outputs: torch.nn.functional.mse_loss(outputs[one::2], outputs[other::2]) / 2


def with_vectors(model, optimizer, scaler):
    outputs = model(DATA)
    for vector in (DATA[:, :1], DATA[:, 1:2]):
        outputs.backward(vector.expand_as(outputs), retain_graph=True)


def unscales_first(scales):
    """A penalty comes after unscaling, which belongs before it, or after it where the penalty is scaled, too."""

    def window(model, optimizer, scaler):
        first, penalty, *_ = parts(model)
        scaler.scale(first).backward()
        scaler.unscale_(optimizer)
        (scaler.scale(penalty) if scales else penalty).backward()

    return window


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (clips_each("norm", keeps=False), {"watch/clip-whole-window"}),
        (clips_each("norm", keeps=True), "UNDECIDED"),
        (clips_each("norm", keeps=True, zero=lambda gradient: gradient.data.zero_()), "UNDECIDED"),
        (clips_each("value", keeps=False), {"watch/clip-whole-window"}),
        (clips_each("value", keeps=True), "UNDECIDED"),
        (looks_first(clears=False), {"watch/backward-once"}),
        (looks_first(clears=True), "UNDECIDED"),
        (penalty_last(lambda model: clips(model, "norm")), "UNDECIDED"),
        (penalty_last(lambda model: clips(model, "value")), "UNDECIDED"),
        (of_losses(lambda losses: sum(losses) / 4), {"watch/backward-once"}),
        (of_losses(lambda losses: torch.stack(losses).var()), "CONFORMS"),
        (of_losses(lambda losses: losses[0] ** 2), "CONFORMS"),
        (of_one_forward(across(torch.clone), across(torch.clone)), {"watch/backward-once"}),
        (of_one_forward(across(torch.clone), across(torch.t)), "CONFORMS"),
        (of_one_forward(apart(0, 1), apart(0, 1)), {"watch/backward-once"}),
        (of_one_forward(apart(0, 1), apart(1, 0)), "CONFORMS"),
        (with_vectors, "CONFORMS"),
    ],
)
def test_what_the_step_has(window, expected):
    assert watched(window) == expected


@pytest.mark.parametrize(("scales", "expected"), [(True, {"watch/unscale-whole-window"}), (False, "UNDECIDED")])
def test_a_penalty_after_unscaling(scales, expected):
    found = watched(unscales_first(scales), init_scale=1024.0)
    assert found >= expected if scales else found == expected


@pytest.mark.parametrize(
    ("scale", "limit", "expected"),
    [
        (65536.0, 1.0, {"watch/unscale-before-clip"}),
        (32.0, 1.0, {"watch/unscale-before-clip"}),
        (4.0, 0.4, "UNDECIDED"),
        (0.25, 0.1, "UNDECIDED"),
    ],
)
def test_a_limit_that_may_be_scaled(scale, limit, expected):
    """By less than a thousandth nobody limits a norm, and by 1/32 neither; else it may be a limit times the scale."""

    def window(model, optimizer, scaler):
        scaler.scale(next(parts(model))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

    assert watched(window, init_scale=scale) == expected


def by_layer(model, scale):
    for parameter in model.parameters():
        torch.nn.utils.clip_grad_norm_([parameter], (1e-5 if parameter.dim() == 1 else 1.0) * scale)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (by_layer, "UNDECIDED"),  # a layer of small weights has a small limit
        (lambda model, scale: torch.nn.utils.clip_grad_value_(model.parameters(), 5e-4 * scale), "UNDECIDED"),
        (lambda model, scale: torch.nn.utils.clip_grad_norm_(model[0].parameters(), 0.0), "CONFORMS"),
    ],
)
def test_limits_that_are_small_on_purpose(clip, expected):
    def window(model, optimizer, scaler):
        scaler.scale(next(parts(model))).backward()
        clip(model, scaler.get_scale())

    assert watched(window, init_scale=65536.0) == expected


def test_models_that_are_always_clipped():
    """A model that has nothing to clip now is clipped in its own windows all the same."""
    with conformance.watching():
        models = [torch.nn.Linear(3, 3) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for step in range(8):
            for turn, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                if turn <= step % 2:
                    optimizer.zero_grad()
                    model(DATA).square().mean().backward()
                    for one in models:
                        torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)
                    optimizer.step()
                    optimizer.zero_grad()


@pytest.mark.parametrize(("limit", "expected"), [(lambda scale: 1.0, True), (lambda scale: 0.25 * scale, False)])
def test_a_limit_that_changes_with_the_scale(limit, expected):
    """One that does not is none that was scaled."""

    def window(model, optimizer, scaler):
        scaler.scale(next(parts(model))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit(scaler.get_scale()))

    found = watched(window, init_scale=4.0, growth_interval=1)
    assert (found == {"watch/unscale-before-clip"}) == expected
