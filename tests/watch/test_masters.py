"""Master weights: tensors that an optimizer steps instead of the parameters with gradients."""

import pytest
import torch
from torch import nn

from conformance.watch.recording import masters, surroundings

from .scripts import laws
from .trained import loss, network, watched


def flat(parameters, padding=0):
    whole = torch.cat([one.detach().float().reshape(-1) for one in parameters])
    return [nn.functional.pad(whole, (0, padding))]


def each(parameters):
    return [one.detach().float().clone() for one in parameters]


def steps(of, change=lambda gradients, step: gradients, clear=nn.Module.zero_grad):
    """of: the tensors to step, of the model's parameters. change: of the gradients, flat."""
    model = network().bfloat16()
    parameters = list(model.parameters())
    copies = of(parameters)
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for step in range(12):
        model(torch.randn(8, 6).bfloat16()).float().square().mean().backward()
        gradients = change(torch.cat([one.grad.float().reshape(-1) for one in parameters]), step)
        gradients = nn.functional.pad(gradients, (0, sum(one.numel() for one in copies) - len(gradients)))
        for copy, part in zip(copies, gradients.split([one.numel() for one in copies]), strict=True):
            copy.grad = part.reshape(copy.shape)
        optimizer.step()
        clear(model)
        values = torch.cat([one.reshape(-1) for one in copies])[: sum(one.numel() for one in parameters)]
        for parameter, part in zip(parameters, values.split([one.numel() for one in parameters]), strict=True):
            parameter.data.copy_(part.reshape(parameter.shape))


@pytest.mark.parametrize("of", [flat, each, lambda parameters: flat(parameters, padding=3)])
def test_gradients_are_followed_into_masters(of):
    findings = watched(steps, of)
    assert (laws(findings), [*findings.open], findings.conserved) == (set(), [], 12)


@pytest.mark.parametrize(
    "of",
    [
        lambda parameters: [one + 1 for one in flat(parameters)],
        lambda parameters: flat([*parameters[1:], torch.ones(3)]),
        lambda parameters: [torch.zeros(3), *each(parameters)],
    ],
)
def test_other_tensors_are_no_masters(of):
    def trains():
        model = network()
        held = of(list(model.parameters()))
        optimizer = torch.optim.SGD(held, lr=0.1)
        for _ in range(4):
            loss(model).backward()
            for one in held:
                one.grad = torch.ones_like(one)
            optimizer.step()
            model.zero_grad()

    assert {"changed.by-hand", "coverage.unheld"} <= watched(trains).open.keys()


@pytest.mark.parametrize(
    ("training", "law"),
    [
        ({"clear": lambda model: None}, "watch/cleared"),
        ({"change": lambda gradients, step: gradients.roll(step)}, None),
    ],
)
def test_gradients_of_masters_are_judged(training, law):
    findings = watched(steps, flat, **training)
    assert laws(findings) == ({law} if law else set())
    assert law or "changed" in findings.open


def test_a_rank_steps_its_shard(monkeypatch):
    first, second = torch.arange(1.0, 4), torch.arange(4.0, 8)
    monkeypatch.setattr(surroundings, "of_process", lambda: ("", 1, 2))
    found = masters._of_shards([torch.tensor([5.0, 6, 7, 0])], [first, second])
    assert [(one.start, one.length, one.pieces) for one in found] == [
        (0, 0, ((0, 3), (3, 3))),
        (0, 3, ((0, 1), (1, 4))),
    ]
    assert not masters._of_shards([torch.tensor([5.0, 6, 8, 0])], [first, second])
