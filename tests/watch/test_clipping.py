"""Clipping at different times and of different parameters, and correct scripts that look wrong."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from conformance.watch import records
from conformance.watch.judging.properties import Property

from .scripts import LINE, Script, laws, total
from .trained import watched

DATA = torch.arange(96.0).reshape(32, 3).cos()
SOMETHING, WHOLE_WINDOW = {"watch/clip-something"}, {"watch/clip-whole-window"}
EARLY = {"clipping.before-last-pass"}


def laws_or_facts(findings):
    """The violated laws, or else the facts about clipping."""
    return laws(findings) or {code for code in findings.open if code.startswith("clipping.")}


def training(window, steps=4):
    """A training with these windows."""

    def run():
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            window(model, optimizer)
            optimizer.step()

    return run


def parts(model):
    return (model(DATA[start : start + 8]).square().mean() for start in range(0, 32, 8))


def clipped(*limits, keeps=None, norm=True):
    """limits: of the clip after each micro-batch, None for no clip. keeps: clears `.grad`, in scripts that add up the
    clipped gradients themselves."""

    def window(model, optimizer):
        held = [*model.parameters()]
        kept = [torch.zeros_like(one) for one in held]
        for part, limit in zip(parts(model), limits, strict=False):
            (part / len(limits)).backward()
            if limit is not None:
                (clip_grad_norm_ if norm else clip_grad_value_)(held, limit)
            for sums, one in zip(kept, held, strict=True) if keeps else ():
                sums += one.grad
                keeps(one.grad)
        for sums, one in zip(kept, held, strict=True) if keeps else ():
            one.grad.copy_(sums)

    return window


def penalty_last(clip):
    def window(model, optimizer):
        next(parts(model)).backward()
        clip(model.parameters(), 0.01)
        (0.01 * sum(one.square().sum() for one in model.parameters())).backward()

    return window


def changed_after(clip):
    def window(model, optimizer):
        next(parts(model)).backward()
        clip(model.parameters(), 0.01)
        for one in model.parameters():
            one.grad *= 0.1

    return window


def with_others(size, limit=0.01):
    """Clips a new head, too, which is not in the optimizer. size: of its gradient."""

    def window(model, optimizer):
        next(parts(model)).backward()
        head = nn.Parameter(torch.ones(1))
        head.grad = torch.full((1,), size)
        clip_grad_norm_([*model.parameters(), head], limit)

    return window


def in_hooks(model, optimizer):
    def clip(parameter):
        clip_grad_norm_([parameter], 0.01)

    hooks = [one.register_post_accumulate_grad_hook(clip) for one in model.parameters()]
    next(parts(model)).backward()
    for hook in hooks:
        hook.remove()


def kept_by_hand(model, optimizer):
    """A gradient that is assigned by hand, and clipped before that of a penalty is added."""
    of_loss = torch.autograd.grad(next(parts(model)), [*model.parameters()])
    for one, gradient in zip(model.parameters(), of_loss, strict=True):
        one.grad = gradient
    clip_grad_norm_(model.parameters(), 1e-3)
    sum(one.square().sum() for one in model.parameters()).backward()


def received(model, optimizer):
    for one in model.parameters():
        one.grad = torch.randn(one.shape)
    clip_grad_norm_(model.parameters(), 1e-3)
    next(parts(model)).backward()


def before_the_pass(limit):
    def window(model, optimizer):
        clip_grad_norm_(model.parameters(), limit)
        next(parts(model)).backward()

    return window


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (clipped(None, 0.05), set()),
        (clipped(0.05, 0.05, 0.05, 0.05), WHOLE_WINDOW),
        (clipped(0.05, 0.05, keeps=lambda one: one.zero_()), EARLY),
        (clipped(0.01, norm=False), {"clipping.by-value"}),
        (clipped(0.01, 0.01, norm=False), WHOLE_WINDOW),
        (clipped(1e9, 1e9, norm=False), {*EARLY, "clipping.by-value"}),
        (clipped(0.01, 0.01, norm=False, keeps=lambda one: one.zero_()), {*EARLY, "clipping.by-value"}),
        (clipped(1.0, None), EARLY),  # only because of the order
        (clipped(1e9, 1e9), EARLY),  # a limit that only measures
        (clipped(1.0, 1.0, keeps=lambda one: one.data.zero_()), EARLY),
        (penalty_last(clip_grad_norm_), {"clipping.before-change"}),
        (penalty_last(clip_grad_value_), {"clipping.before-change", "clipping.by-value"}),
        (changed_after(clip_grad_norm_), {"clipping.before-change"}),
        (changed_after(clip_grad_value_), {"clipping.before-change", "clipping.by-value"}),
        (with_others(10.0), {"clipping.unheld"}),
        (with_others(10.0, limit=1e9), {"clipping.unheld"}),
        (with_others(0.0), set()),
        (in_hooks, {"clipping.parts"}),
        (kept_by_hand, {"clipping.before-change"}),
        (received, {"clipping.before-change"}),
        (before_the_pass(1e-3), SOMETHING),
        (before_the_pass(1e3), {"clipping.nothing"}),  # only because of the order
    ],
)
def test_clips_at_different_times(window, expected):
    assert laws_or_facts(watched(training(window))) == expected


def once(made, make):
    """The same object in each step."""
    if not made:
        made.append(make())
    return made[0]


class Again:
    """An iterator that begins again."""

    def __init__(self, held):
        self.held = held

    def __iter__(self):
        self.left = iter(self.held)
        return self

    def __next__(self):
        return next(self.left)


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        (lambda held, used_up: [held], set()),
        (lambda held, used_up: [held, []], {"clipping.nothing"}),
        (lambda held, used_up: [iter([])], {"clipping.nothing"}),
        (lambda held, used_up: [filter(lambda one: not one.requires_grad, held)], {"clipping.nothing"}),
        (lambda held, used_up: [used_up], SOMETHING),
        (lambda held, used_up: [filter(torch.is_tensor, used_up)], SOMETHING),
        (lambda held, used_up, chained=[]: [once(chained, lambda: chain(held))], SOMETHING),
        (lambda held, used_up, again=[]: [once(again, lambda: Again(held))], set()),
        (lambda held, used_up: [chain(held)], set()),
        (lambda held, used_up: [held[:1]], {"clipping.parts"}),
        (lambda held, used_up: [held[:1], held[1:]], {"clipping.parts"}),
        (lambda held, used_up: [], set()),
    ],
)
def test_clips_of_different_parameters(clips, expected):
    def run():
        model = nn.Linear(3, 5)
        used_up = model.parameters()
        optimizer = torch.optim.SGD(used_up, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(DATA).square().mean().backward()
            for given in clips([*model.parameters()], used_up):
                clip_grad_norm_(given, 1e-3)
            optimizer.step()

    assert laws_or_facts(watched(run)) == expected


@pytest.mark.parametrize(("window", "steps"), [(clipped(None, 0.05), 4), (clipped(0.05, None), 0), (clipped(None), 0)])
def test_steps_with_a_clip_after_their_last_pass_are_counted(window, steps):
    assert watched(training(window)).seen[Property.CLIPPING] == steps


@pytest.mark.parametrize(
    ("norm", "ranks", "factor", "expected"),
    [
        ("own", 2, 0.5, {"clipping.before-change"}),
        ("mean", 2, 0.5, set()),
        ("own", 1, 1.0, set()),
        ("own", 2, 0.3, {"clipping.before-change"}),
    ],
)
def test_a_norm_within_its_limit_that_changes_later_is_a_fact(norm, ranks, factor, expected):
    script = Script(ranks=ranks)
    for _ in range(3):
        computed = script.backward()
        mean = total(computed, factor)
        for stream, own in zip(script.streams, computed, strict=True):
            size = sum(one.square().sum().item() for one in (own if norm == "own" else mean)) ** 0.5
            stream.append(records.Clipped("norm", script.numbers, 50.0, size, 6, LINE))
        script.step([mean] * ranks)
        script.clear()
    assert laws_or_facts(script.findings()) == expected
