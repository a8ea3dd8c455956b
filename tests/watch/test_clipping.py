"""Clipping: when it comes, over which parameters, and which right scripts look like a mistake."""

from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import conformance
from conformance.watch import records
from conformance.watch.judging.incoming import Hooked
from conformance.watch.judging.properties import Property

from .scripts import LINE, Script, total

DATA = torch.arange(96.0).reshape(32, 3).cos()
SOMETHING, WHOLE_WINDOW = {"watch/clip-something"}, {"watch/clip-whole-window"}


def watched(run):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        run()
    return findings


def laws_or_facts(findings):
    """The laws that are broken, or the facts of clipping where none is."""
    laws = {cause.first.law for cause in findings.causes.values()}
    return laws or {code for code in findings.open if code.startswith("clipping.")}


def training(window, steps=4):
    """Steps of a model whose windows `window` makes."""

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
    """limits: of the clip after each micro-batch, none for None. keeps: how `.grad` is cleared, in scripts that add
    up what is left of each by themselves."""

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


def scaled_later(model, optimizer):
    next(parts(model)).backward()
    clip_grad_norm_(model.parameters(), 0.05)
    for one in model.parameters():
        one.grad *= 0.1


def in_hooks(model, optimizer):
    def clip(parameter):
        clip_grad_norm_([parameter], 0.01)

    hooks = [one.register_post_accumulate_grad_hook(clip) for one in model.parameters()]
    next(parts(model)).backward()
    for hook in hooks:
        hook.remove()


def kept_by_hand(model, optimizer):
    """A gradient that is put there by hand, and clipped before that of a penalty is added to it."""
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
        (clipped(0.05, 0.05, keeps=lambda one: one.zero_()), {"clipping.before-change"}),
        (clipped(0.05, 0.05, keeps=lambda one: one.data.zero_()), {"clipping.before-change"}),
        (clipped(0.01, 0.01, norm=False), WHOLE_WINDOW),
        (clipped(0.01, 0.01, norm=False, keeps=lambda one: one.zero_()), {"clipping.by-value"}),
        (clipped(1.0, None), {"clipping.before-last-pass"}),  # by its order alone
        (clipped(1e9, 1e9), {"clipping.before-last-pass"}),  # a limit that only measures
        (clipped(1.0, 1.0, keeps=lambda one: one.data.zero_()), {"clipping.before-last-pass"}),
        (penalty_last(clip_grad_norm_), {"clipping.before-change"}),
        (penalty_last(clip_grad_value_), {"clipping.by-value"}),
        (scaled_later, {"clipping.before-change"}),
        (in_hooks, {"clipping.parts"}),
        (kept_by_hand, {"clipping.before-change"}),
        (received, {"clipping.before-change"}),
        (before_the_pass(1e-3), SOMETHING),
        (before_the_pass(1e3), set()),  # nothing is beyond it
    ],
)
def test_when_a_window_is_clipped(window, expected):
    assert laws_or_facts(watched(training(window))) == expected


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
        (lambda held, used_up: [held[:1]], {"clipping.parts"}),
        (lambda held, used_up: [held[:1], held[1:]], {"clipping.parts"}),
        (lambda held, used_up: [], set()),
    ],
)
def test_what_a_clip_call_is_given(clips, expected):
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
def test_steps_that_are_clipped_after_their_last_pass_are_counted(window, steps):
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


def gan(*, of_critic, of_generator=False, limit=0.01):
    """What is clipped before the generator's step."""

    def run():
        generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
        for_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
        for_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(4):
            for_critic.zero_grad()
            loss = softplus(-critic(torch.randn(4, 2))) + softplus(critic(generator(torch.randn(4, 3)).detach()))
            loss.mean().backward()
            clip_grad_norm_(critic.parameters(), limit)
            for_critic.step()
            for_generator.zero_grad()
            softplus(-critic(generator(torch.randn(4, 3)))).mean().backward()
            if of_critic:
                clip_grad_norm_(critic.parameters(), limit)
            if of_generator:
                clip_grad_norm_(generator.parameters(), limit)
            for_generator.step()

    return run


def replaced(*, clips_old):
    def run():
        old = model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            if step == 4:
                model = deepcopy(old)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            clip_grad_norm_((old if clips_old else model).parameters(), 0.01)
            optimizer.step()

    return run


def in_turns():
    """Each step clips both models, of which only one has a gradient."""
    models = [nn.Linear(3, 3) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(8):
        for turn, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if turn <= step % 2:
                optimizer.zero_grad()
                model(DATA).square().mean().backward()
                for one in models:
                    clip_grad_norm_(one.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (gan(of_critic=True), {"clipping.aside"}),
        (gan(of_critic=False), set()),
        (gan(of_critic=False, of_generator=True), set()),
        (gan(of_critic=True, of_generator=True), set()),
        (gan(of_critic=True, limit=1e9), set()),
        (replaced(clips_old=True), {"clipping.aside"}),
        (replaced(clips_old=False), set()),
        (in_turns, set()),
    ],
)
def test_clipping_of_gradients_that_no_step_uses(run, expected):
    assert laws_or_facts(watched(run)) == expected


CLIP = records.Clipped("norm", [1], 1.0, 2.0, 1, LINE)
PASS = records.Backward(1, None, [], None, {}, False, False, False, LINE)
STEP = records.Ended()


def local(*parameters):
    return records.Local(1, [*parameters], [], "float32", [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([PASS, CLIP, local(0, 1), STEP], [PASS, local(0, 1), CLIP, STEP]),
        ([PASS, CLIP, local(0), local(1)], [PASS, local(0), local(1), CLIP]),
        ([PASS, CLIP, local(0), STEP], [PASS, CLIP, local(0), STEP]),  # of others
        ([CLIP, PASS, local(1)], [CLIP, PASS, local(1)]),  # of a pass that comes later
        ([PASS, local(1), CLIP, STEP], [PASS, local(1), CLIP, STEP]),
    ],
)
def test_a_clip_in_a_hook_comes_after_its_gradients(given, expected):
    hooked = Hooked()
    assert [one for record in given for one in hooked.feed(record)] + hooked.flush() == expected
