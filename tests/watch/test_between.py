"""Calls between two backward passes: wrong where the step has all that was computed, and right where the script keeps
what it has so far and clears `.grad` by hand."""

import pytest
import torch

import conformance

DATA = torch.arange(96.0).reshape(32, 3).cos()


def watched(window, **scaler):
    """The laws that a training breaks whose windows `window` makes, or the facts that it leaves open."""
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
    return {cause.first.law for cause in findings.causes.values()} or {*findings.open}


def parts(model):
    return (model(DATA[start : start + 8]).square().mean() for start in range(0, 32, 8))


def unscales_first(scales):
    """A penalty comes after unscaling, which belongs before it, or after it where the penalty is scaled, too."""

    def window(model, optimizer, scaler):
        first, penalty, *_ = parts(model)
        scaler.scale(first).backward()
        scaler.unscale_(optimizer)
        (scaler.scale(penalty) if scales else penalty).backward()

    return window


@pytest.mark.parametrize(("scales", "expected"), [(True, {"watch/unscale-whole-window"}), (False, {"micro.weighted"})])
def test_a_penalty_after_unscaling(scales, expected):
    assert watched(unscales_first(scales), init_scale=1024.0) == expected


@pytest.mark.parametrize(
    ("scale", "limit", "expected"),
    [
        (65536.0, 1.0, {"watch/unscale-before-clip"}),
        (32.0, 1.0, {"watch/unscale-before-clip"}),
        (4.0, 0.4, {"clipping.scaled-norm"}),
        (0.25, 0.1, {"clipping.scaled-norm"}),
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


def by_value(model, scale):
    torch.nn.utils.clip_grad_value_(model.parameters(), 5e-4 * scale)


def to_zero(model, scale):
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 0.0)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (by_layer, {"clipping.scaled-norm", "clipping.parts"}),  # a layer of small weights has a small limit
        (by_value, {"clipping.scaled-value", "clipping.by-value"}),
        (to_zero, {"clipping.parts"}),
    ],
)
def test_limits_that_are_small_on_purpose(clip, expected):
    def window(model, optimizer, scaler):
        scaler.scale(next(parts(model))).backward()
        clip(model, scaler.get_scale())

    assert watched(window, init_scale=65536.0) == expected


@pytest.mark.parametrize(("limit", "expected"), [(lambda scale: 1.0, True), (lambda scale: 0.25 * scale, False)])
def test_a_limit_that_changes_with_the_scale(limit, expected):
    """One that does not is none that was scaled."""

    def window(model, optimizer, scaler):
        scaler.scale(next(parts(model))).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit(scaler.get_scale()))

    found = watched(window, init_scale=4.0, growth_interval=1)
    assert (found == {"watch/unscale-before-clip"}) == expected
