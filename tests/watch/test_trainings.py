"""Small trainings with unusual steps, closures, hooks and optimizers, correct and wrong."""

from contextlib import nullcontext, suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import mse_loss, softplus
from torch.nn.utils import clip_grad_norm_

import conformance
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.recording.parameters import WHOLE_AT_FIRST
from conformance.watch.verdict import verdict

from .scripts import laws, shown
from .trained import judged_by, loss, network, watched

FRESH, CLEARED = {"watch/fresh"}, {"watch/cleared"}


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate)


def fresh(model, *optimizers):
    """Gradients of a new batch only."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss(model).backward()


# Steps on stale gradients.


def in_turns(second):
    """Two optimizers step after each backward pass. second: the part of the model in the second one."""
    model = network(3)
    optimizers = [sgd(model), torch.optim.Adam(second(model).parameters())]
    for _ in range(5):
        fresh(model, *optimizers)
        for optimizer in optimizers:
            optimizer.step()


# Optimizer classes of a script.


class ByArgument(torch.optim.Optimizer):
    """Takes gradients as an argument; does nothing without any."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, gradients):
        for parameter, gradient in zip(self.param_groups[0]["params"], gradients, strict=False):
            parameter.data.sub_(gradient, alpha=0.1)


def steps_by_argument(forgets):
    model = network(2)
    optimizer = ByArgument(model.parameters())
    for _ in range(4):
        loss(model).backward()
        gradients = [] if forgets else [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad()
        optimizer.step(gradients)


def both_clip_before_either_steps():
    """The first window of the second one must still have its clip."""
    model = network()
    optimizers = [sgd(model[n]) for n in (0, 2)]
    for _ in range(3):
        fresh(model, *optimizers)
        for n in (0, 2):
            clip_grad_norm_(model[n].parameters(), 1e-3)
        for optimizer in optimizers:
            optimizer.step()


def gives_closures(clips_late=True, computes=False, clears=False, is_around=False):
    """Each step gets a closure, as in Lightning. computes: the closure computes the gradients. clears: none are left
    for the step. is_around: an optimizer around another one clears them at the end of its step, as in SAM."""
    model = network()
    optimizer = Around(sgd(model)) if is_around else sgd(model)

    def backward():
        loss(model).backward()

    for _ in range(8):
        optimizer.zero_grad()
        if not clips_late:
            clip_grad_norm_(model.parameters(), 1e-3)
        if not computes:
            backward()
        if clips_late and not computes:
            clip_grad_norm_(model.parameters(), 1e-3)
        if clears:
            optimizer.zero_grad()
        optimizer.step(backward if computes else lambda: None)


def adds_up_elsewhere(adds=True, number=3, probes=False):
    """Takes `.grad` away after each micro-batch. adds: the step gets their sum, otherwise the last one. probes: a first
    backward pass is only looked at."""
    model = network()
    optimizer = sgd(model)
    for _ in range(8):
        kept = [torch.zeros_like(one) for one in model.parameters()]
        if probes:
            loss(model).backward()
            optimizer.zero_grad()
        for _ in range(number):
            (loss(model) / number).backward()
            for total, one in zip(kept, model.parameters(), strict=True):
                total.copy_(one.grad + adds * total)
                one.grad = None
        for total, one in zip(kept, model.parameters(), strict=True):
            one.grad = total
        optimizer.step()
        optimizer.zero_grad()


# Changes of weights by other optimizers.


def two():
    models = network(), network()
    return models, [sgd(model) for model in models]


def steps_after_a_term():
    """Another optimizer steps between a term in evaluation mode and the loss."""
    (model, other), (optimizer, of_other) = two()
    for number in range(12):
        optimizer.zero_grad()
        if number % 3 == 0:
            model.eval()
            loss(model).backward()
            model.train()
            fresh(other, of_other)
            of_other.step()
        loss(model).backward()
        optimizer.step()


def changes_between_passes(shared):
    """shared: both passes go through the weights that change between them."""
    (model, head), (optimizer, of_head) = two()
    body = nn.Linear(6, 6)
    of_body = sgd(body)
    for _ in range(6):
        of_body.zero_grad()
        head(body(torch.randn(4, 6))).square().mean().backward()
        stepped = (head, of_head) if shared else (model, optimizer)
        fresh(*stepped)
        stepped[1].step()
        head(body(torch.randn(4, 6))).square().mean().backward()
        of_body.step()
        if not shared:
            of_head.step()
            of_head.zero_grad()


def accumulates_in_a_closure(divisor):
    """A closure with two backward passes that is called once."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(48, 6), 4)
    for _ in range(3):
        batches = iter(loader)

        def closure(batches=batches):
            optimizer.zero_grad()
            for _ in range(2):
                result = mse_loss(model(next(batches)), torch.zeros(4, 1))
                (result / divisor).backward()
            return result

        for _ in range(6):
            optimizer.step(closure)


@pytest.mark.filterwarnings("ignore:Detected call")
@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (partial(in_turns, lambda model: model), "UNDECIDED"),
        (partial(in_turns, lambda model: model[2]), FRESH),
        (partial(steps_by_argument, forgets=False), "UNDECIDED"),
        (both_clip_before_either_steps, "CONFORMS"),
        (gives_closures, "CONFORMS"),
        (partial(gives_closures, computes=True), "CONFORMS"),
        (partial(gives_closures, computes=True, is_around=True), "CONFORMS"),
        (partial(gives_closures, clips_late=False), {"watch/clip-something"}),
        (partial(gives_closures, clears=True), {"watch/used"}),
        (adds_up_elsewhere, "CONFORMS"),
        (partial(adds_up_elsewhere, adds=False), {"watch/used"}),
        (partial(changes_between_passes, shared=False), "CONFORMS"),
        (partial(changes_between_passes, shared=True), "UNDECIDED"),
        (partial(accumulates_in_a_closure, divisor=2), "CONFORMS"),
        (partial(accumulates_in_a_closure, divisor=1), {"watch/means-averaged"}),
    ],
)
def test_unusual_trainings(train, expected):
    assert shown(watched(train)) == expected


def test_unusual_trainings_with_several_findings():
    assert "watch/used" in laws(watched(steps_by_argument, forgets=True))
    assert laws(watched(steps_after_a_term)) == set()
    probes = watched(adds_up_elsewhere, probes=True)
    assert (laws(probes), probes.conserved, [*probes.open]) == (set(), 8, ["clearing.restored"])


def measured(model, optimizer):
    value = loss(model)
    value.backward()
    model(torch.randn(8, 6))
    optimizer.step()


def ahead(model, optimizer):
    value = loss(model)
    optimizer.step()
    optimizer.zero_grad()
    value.backward()


def kept():
    return saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


@pytest.mark.parametrize(("step", "within", "is_late"), [(measured, nullcontext, False), (ahead, kept, True)])
def test_a_step_between_a_forward_and_its_backward_pass(step, within, is_late):
    def train():
        model = network()
        optimizer = sgd(model)
        loss(model).backward()
        for _ in range(4):
            step(model, optimizer)
        optimizer.step()

    with within():
        assert ("clearing.late" in watched(train).open) == is_late


# Nested steps, and steps on zeros, as in Horovod.


class Averaging(torch.optim.SGD):
    """Averages, then calls the step of its base, which also runs hooks."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(1)
        return super().step(closure)


def averages(zeros_first=False, clears_late=False, steps=WHOLE_AT_FIRST + 4):
    # With an instance of the base, torch also calls hooks in its step.
    torch.optim.SGD([torch.zeros(1)], 0.01)
    model = nn.Linear(6, 100)
    optimizer = Averaging(model.parameters(), 0.01)
    if zeros_first:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss(model).backward()
        if clears_late:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("CONFORMS", 20, [])),
        ({"zeros_first": True, "steps": 3}, ("CONFORMS", 4, [])),  # creates the optimizer's state
        ({"clears_late": True, "steps": 3}, ("DOES NOT CONFORM", 0, [])),
    ],
)
def test_a_step_in_a_step_ends_one_window(options, expected):
    findings = watched(averages, **options)
    assert (verdict(findings), findings.conserved, [*findings.open]) == expected


class Around(torch.optim.Optimizer):
    """Calls a closure, then the step of another optimizer, which may raise, and clears what the closure computed."""

    def __init__(self, inner):
        super().__init__([one for group in inner.param_groups for one in group["params"]], {})
        self.inner = inner

    def step(self, closure=None):
        if closure is not None:
            closure()
        self.inner.step()
        if closure is not None:
            self.zero_grad()


class Raising(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("state")


def test_steps_after_a_nested_step_that_raised_are_seen():
    def train():
        model = network()
        for kind in (torch.optim.SGD, Raising, torch.optim.SGD):
            optimizer = Around(kind(model.parameters(), 0.01))
            for _ in range(3):
                fresh(model, optimizer)
                with suppress(KeyError):
                    optimizer.step()

    assert watched(train).steps == 6


def plays(clears, turns):
    generator, critic = nn.Linear(4, 6), nn.Linear(6, 1)
    of_generator, of_critic = sgd(generator, 0.01), sgd(critic, 0.01)
    for _ in range(24):
        of_critic.zero_grad()
        fake = generator(torch.randn(8, 4))
        (softplus(-critic(torch.randn(8, 6))) + softplus(critic(fake.detach()))).mean().backward()
        of_critic.step()
        for _ in range(turns):
            if clears:
                of_generator.zero_grad()
            softplus(-critic(generator(torch.randn(8, 4)))).mean().backward()
            of_generator.step()


@pytest.mark.parametrize("every", [1, 2, 5, 10])
@pytest.mark.parametrize("turns", [1, 2])
def test_two_optimizers_with_some_windows_watched(tmp_path, every, turns):
    findings = judged_by(Judge(), tmp_path / "right", partial(plays, True, turns), every=every)
    assert (verdict(findings), findings.causes) == ("CONFORMS", {})
    if turns == 1 and every < 10:
        assert "watch/cleared" in laws(judged_by(Judge(), tmp_path / "wrong", partial(plays, False, 1), every=every))


# Hooks that change gradients.


def hooked(change):
    model = network(2)
    optimizer = sgd(model)
    change(model, optimizer)
    for _ in range(4):
        fresh(model, optimizer)
        optimizer.step()


def hook(does, first=False):
    def change(model, optimizer):
        for parameter in list(model.parameters())[: 1 if first else None]:
            parameter.register_hook(does)

    return change


def before_the_step(model, optimizer):
    def shrink(optimizer, args, kwargs):
        for parameter in model.parameters():
            parameter.grad /= 3

    optimizer.register_step_pre_hook(shrink)


A_THIRD = {"ranks.factor": {"factor": pytest.approx(1 / 3, rel=1e-4)}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (hook(lambda gradient: None), ("CONFORMS", {})),
        (hook(lambda gradient: gradient / 3), ("UNDECIDED", A_THIRD)),
        (hook(lambda gradient: gradient / 3, first=True), ("CONFORMS", {"clipping.hooks": {}})),
        (hook(lambda gradient: gradient.clamp(-0.01, 0.01)), ("CONFORMS", {"clipping.hooks": {}})),
        (before_the_step, ("UNDECIDED", A_THIRD)),
    ],
)
def test_hooks(change, expected):
    findings = watched(hooked, change)
    assert (verdict(findings), {code: fact.says.values for code, fact in findings.open.items()}) == expected


def test_hooks_of_the_script_keep_their_order():
    called = []
    parameter = nn.Parameter(torch.ones(3))
    with conformance.watching():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for name in ("a", "b"):
            parameter.register_hook(lambda gradient, name=name: called.append(name))
        for _ in range(2):
            optimizer.zero_grad()
            parameter.square().mean().backward()
            optimizer.step()
    assert called == ["a", "b"] * 2
    assert list(map(len, (parameter._backward_hooks, optimizer._optimizer_step_pre_hooks))) == [2, 0]


@pytest.mark.parametrize(("times", "expected"), [(3, "changed.by-hand"), (0, "changed.before")])
def test_gradients_that_no_backward_pass_gives(times, expected):
    """Master weights, for example, get none, and those that the script assigns may repeat. times: it assigns some, or
    makes the optimizer after the backward pass of its only step."""

    def train():
        master = nn.Parameter(torch.ones(3))
        if not times:
            master.square().sum().backward()
        optimizer = torch.optim.SGD([master], lr=0.1)
        for _ in range(times):
            master.grad = torch.full((3,), 0.5)
            optimizer.step()
        if not times:
            optimizer.step()

    findings = watched(train)
    assert (findings.causes, findings.conserved, [*findings.open]) == ({}, 0, [expected])
