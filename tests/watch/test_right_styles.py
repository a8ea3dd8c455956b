"""Styles that look like a mistake and are none, each beside the mistake that it looks like."""

from functools import partial

import pytest
import torch

import conformance
from conformance.watch.verdict import verdict

DATA = torch.arange(48.0).reshape(16, 3).cos()
clip = torch.nn.utils.clip_grad_norm_


def watched(train):
    """The laws that a small training breaks, or the verdict where it breaks none."""
    torch.manual_seed(0)
    try:
        with conformance.watching() as findings:
            train(torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Linear(5, 2), torch.nn.Linear(5, 1)]))
    except AssertionError:
        pass
    return {cause.first.law for cause in findings.causes.values()} or verdict(findings)


def loss(model, head=1, rows=slice(None)):
    return model[head](model[0](DATA[rows]).tanh()).square().mean()


def alternates(model, *, clips_early=False):
    """Two optimizers in turns, and all that is there is clipped each time."""
    optimizers = [torch.optim.SGD(model[n].parameters(), lr=0.1) for n in (1, 2)]
    for step in range(8):
        head = 1 + step % 2
        model.zero_grad()
        if clips_early:
            clip(model.parameters(), 1e-3)
        model[head](model[0](DATA).detach()).square().mean().backward()
        if not clips_early:
            clip(model.parameters(), 1e-3)
        optimizers[head - 1].step()


def measures(model, limit):
    """Clips after the step, which with an infinite limit is to see the norm."""
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        clip(model.parameters(), limit)


def clips_heads(model, *, shared):
    """Each head is clipped after its own loss; `shared`: with what both losses reach."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        for head in (1, 2):
            loss(model, head).div(2).backward()
            clip([*model[head].parameters(), *(model[0].parameters() if shared else ())], 1e-3)
        optimizer.step()


def goes_back_by_parts(model, *, twice):
    """One loss goes backward for the head, and then for the body; `twice`: for the head again, too."""
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(model)
        value.backward(inputs=list(model[1].parameters()), retain_graph=True)
        value.backward(inputs=None if twice else list(model[0].parameters()))
        optimizer.step()


def leaves_out(model, *, every):
    """Of each epoch of seven micro-batches the last three are left out; or `every` one but the last in a window."""
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    for batch in range(28):
        if every or batch % 7 == 0:
            optimizer.zero_grad()
        loss(model, rows=slice(batch % 7, None)).div(4).backward()
        if batch % 7 == 3:
            optimizer.step()
            optimizer.zero_grad()


def test_the_first_step_of_an_optimizer_may_follow_that_of_another():
    """Both clip before either steps: the second one's first window has its clip all the same."""

    def train(model):
        optimizers = [torch.optim.SGD(model[n].parameters(), lr=0.1) for n in (0, 1)]
        for _ in range(3):
            model.zero_grad()
            loss(model).backward()
            for n in (0, 1):
                clip(model[n].parameters(), 1e-3)
            for optimizer in optimizers:
                optimizer.step()

    assert watched(train) == "CONFORMS"


def perturbs(model, *, goes):
    """Each step has a first pass to see where the loss is higher, and a second one from there, in one loop."""
    held = [*model[0].parameters(), *model[1].parameters()]
    optimizer = torch.optim.SGD(held, lr=0.1)
    for _ in range(6):
        for is_second in (False, True):
            model.zero_grad()
            loss(model, rows=slice(0 if goes else 8 * is_second, None)).div(2 - goes).backward()
            if not is_second:
                changes = [0.05 * goes * parameter.grad for parameter in held]
            for parameter, change in zip(held, changes, strict=True):
                parameter.data.add_(-change if is_second else change)
        optimizer.step()


class ByArgument(torch.optim.Optimizer):
    """Is given gradients as an argument; without any, it does nothing."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, gradients):
        for parameter, gradient in zip(self.param_groups[0]["params"], gradients, strict=False):
            parameter.data.sub_(gradient, alpha=0.1)


def steps_by_argument(model, *, forgets):
    held = [*model[0].parameters(), *model[1].parameters()]
    optimizer = ByArgument(held)
    for _ in range(4):
        loss(model).backward()
        gradients = [] if forgets else [parameter.grad for parameter in held]
        optimizer.zero_grad()
        optimizer.step(gradients)


@pytest.mark.filterwarnings("ignore:Detected call")
@pytest.mark.parametrize(
    ("right", "expected", "wrong", "law"),
    [
        (alternates, "CONFORMS", partial(alternates, clips_early=True), "watch/clip-something"),
        (partial(measures, limit=float("inf")), "CONFORMS", partial(measures, limit=1e-3), "watch/clip-something"),
        (partial(clips_heads, shared=False), "CONFORMS", partial(clips_heads, shared=True), "watch/clip-whole-window"),
        (
            partial(goes_back_by_parts, twice=False),
            "CONFORMS",
            partial(goes_back_by_parts, twice=True),
            "watch/backward-once",
        ),
        (partial(leaves_out, every=False), "CONFORMS", partial(leaves_out, every=True), "watch/used"),
        (partial(perturbs, goes=1), "CONFORMS", partial(perturbs, goes=0), "watch/used"),
        (
            partial(steps_by_argument, forgets=False),
            "UNDECIDED",
            partial(steps_by_argument, forgets=True),
            "watch/used",
        ),
    ],
)
def test_what_only_looks_like_a_mistake(right, expected, wrong, law):
    assert watched(right) == expected
    assert law in watched(wrong)
